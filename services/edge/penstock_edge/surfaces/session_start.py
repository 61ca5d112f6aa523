"""Makes streams over the runs of a session; a stream may end when no run is active or queued."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import ASGIApp

from penstock.bus import Bus
from penstock_edge.sources.locate import StartPosition
from penstock_edge.sources.sessions import Session
from penstock_edge.stream.client import Client
from penstock_edge.stream.until_idle import UntilIdle


@dataclass(frozen=True, slots=True)
class SessionStart:
    """The position from which a client reads, and whether the stream ends when idle (`until=idle`).

    `last_event` is the stream sequence of the session's last event. `last_event` is None if a run
    was active or queued when the request came.
    """

    position: StartPosition
    until_idle: bool = False
    last_event: int | None = None


def ending(
    stream: ASGIApp, client: Client, bus: Bus, session: Session, start: SessionStart
) -> ASGIApp:
    """Return the client's stream; with `start.until_idle`, as a stream that ends when idle.

    Such a stream ends when no run of the session is active or queued.
    """
    if not start.until_idle:
        return stream
    if start.last_event is not None:
        client.end_after(start.last_event)
    return UntilIdle(stream, client, bus, session)
