"""Serves the contract adk-streaming.md: starts a run or answers a pause, and returns the leg."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.sse import Frame, FrameTooLarge, Parser
from penstock.web.operation import OBJECT, a_list, json, serves
from penstock.web.problems import DETAIL, Problem
from penstock_edge.edge import Edge
from penstock_edge.stream.responses.single_body import Body, SingleBody
from penstock_edge.surfaces.adk.legs import Legs
from penstock_edge.surfaces.adk.operations import UPSTREAM, leg_operation, require_enabled
from penstock_edge.surfaces.parameters import STREAMED

SHOWN_CHARACTERS: Final = 2000


class EventList(Body):
    """A response body that lists the leg's events as JSON.

    If the leg failed, the response is an error instead of the list.
    """

    def __init__(self) -> None:
        self._parser = Parser()
        self._frames: list[Frame] = []

    def add(self, taken: bytes) -> None:
        """Add the next bytes of the stream.

        Raises:
            Problem: 502 if a frame is too large.
        """
        try:
            self._frames += self._parser.feed(taken)
        except FrameTooLarge as error:
            raise Problem(502, f"the upstream sent too much: {error}") from error

    def response(self) -> Response:
        return Response(listed(self._frames), media_type="application/json")


def listed(frames: Iterable[Frame]) -> bytes:
    """Return the frames' events, unchanged, as a JSON list.

    Partial events are left out, because a later complete event has their content.

    Raises:
        Problem: the leg ended with an error frame of adk-streaming.md. The statuses are ADK's: 504
            for a timeout, 502 if the agent server refused the request, 500 for every other error.
    """
    events = []
    for frame in frames:
        try:
            event = orjson.loads(frame.data)
        except orjson.JSONDecodeError:
            # ADK up to 1.22 does not escape the text of an error frame, so such a frame is not
            # JSON.
            text = frame.data.decode(errors="replace")
            raise Problem(500, text[:SHOWN_CHARACTERS]) from None
        if isinstance(event, dict) and "error" in event and "author" not in event:
            raise _failure(event)
        if not (isinstance(event, dict) and event.get("partial") is True):
            events.append(frame.data)
    return b"[" + b",".join(events) + b"]"


def _failure(event: dict[str, Any]) -> Problem:
    text = str(event["error"])
    if "status_code" in event:
        return Problem(502, f"{text}: {event.get('detail', '')}"[:SHOWN_CHARACTERS])
    return Problem(504 if event.get("error_code") == "TIMEOUT" else 500, text)


class Runs:
    """Has the handlers of /run_sse and /run."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._legs = Legs(edge)

    @serves(
        leg_operation(
            path="/run_sse",
            summary="Start a run, or answer a pause, and stream the leg",
            answers={200: STREAMED},
            refusals=(*UPSTREAM, 501),
        )
    )
    async def stream(self, request: Request) -> ASGIApp:
        """Open the leg, and stream it.

        The bytes of an ADK server are relayed. The events of any other agent server are encoded as
        ADK's events.
        """
        require_enabled(self._edge)
        asked, leg = await self._legs.open(request)
        return await self._edge.stream(leg.view(streaming=asked.streaming), leg.position)

    @serves(
        leg_operation(
            path="/run",
            summary="The same leg as one list, when the leg has ended",
            answers={200: json("The leg's events", a_list(OBJECT))},
            refusals=(*UPSTREAM, 500, 501),
        )
    )
    async def collect(self, request: Request) -> ASGIApp:
        """Open the leg; when it has ended, respond with a list of the events that /run_sse would
        stream.

        Partial events are left out.
        """
        require_enabled(self._edge)
        _, leg = await self._legs.open(request)
        client = await self._edge.hubs.join(leg.view(streaming=False), leg.position)
        return SingleBody(client, EventList(), DETAIL.response)
