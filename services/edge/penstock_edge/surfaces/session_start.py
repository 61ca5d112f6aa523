"""Makes streams over the runs of a session; a stream may end when no run is active or queued
(decision 0099)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.bus import Bus
from penstock.web.auth import acting_user, identity_of
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.sources.locate import StartPosition
from penstock_edge.sources.sessions import Session, idle_since
from penstock_edge.stream.client import Client
from penstock_edge.surfaces.agents import agent_by_id

log = logging.getLogger(__name__)

CHECK_S: Final = 0.5
MAX_ID_CHARACTERS: Final = 512


async def session_of(
    edge: Edge, request: HTTPConnection, parameter: str, agent: str | None
) -> Session:
    """Return one agent's or all agents' session: 403 if another user's, 404 for an unknown agent,
    422 if the id is too long."""
    caller, session_id = identity_of(request.scope), request.path_params[parameter]
    if len(session_id) > MAX_ID_CHARACTERS:
        raise Problem(422, f"{parameter}: must have {MAX_ID_CHARACTERS} characters at most")
    if caller.grant is not None:
        caller.grant.check_session(session_id)
    owner = acting_user(caller, request.query_params.get("user_id"))
    agents = edge.starter.shards.agents if agent is None else (agent_by_id(edge.config, agent).id,)
    shard = await edge.starter.shards.of(owner, session_id)
    return Session(owner, session_id, agents, any_agent=agent is None, shard=shard)


class UntilIdle:
    """Ends a client's response after the session's last event, when no run is active or queued."""

    def __init__(self, stream: ASGIApp, client: Client, bus: Bus, session: Session) -> None:
        self._stream = stream
        self._client = client
        self._bus = bus
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watching = asyncio.create_task(self._watch())
        # The response may continue without ASGI, so the stream may end after this call has
        # returned.
        self._client.when_left(watching.cancel)
        await self._stream(scope, receive, send)

    async def _watch(self) -> None:
        while True:
            try:
                last = await idle_since(self._bus, self._session)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # If the task ended with this error, the stream would stay open for ever.
                name = self._session.session_id[:128]
                log.warning(
                    "cannot find out whether session %r is idle; trying again: %r", name, error
                )
                last = None
            if last is not None:
                self._client.end_after(last)
                return
            await asyncio.sleep(CHECK_S)


@dataclass(frozen=True, slots=True)
class SessionStart:
    """Where a client begins to read, and whether the stream ends when idle (`until=idle`).
    `last_event` is the stream sequence of the session's last event; None if a run was active or
    queued when the request came."""

    position: StartPosition
    until_idle: bool = False
    last_event: int | None = None


def ending(
    stream: ASGIApp, client: Client, bus: Bus, session: Session, start: SessionStart
) -> ASGIApp:
    if not start.until_idle:
        return stream
    if start.last_event is not None:
        client.end_after(start.last_event)
    return UntilIdle(stream, client, bus, session)
