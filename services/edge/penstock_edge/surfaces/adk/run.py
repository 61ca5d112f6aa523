"""POST /run: the leg as one JSON list of ADK's events, once it is over."""

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
from penstock_edge.stream.single_body import Body, SingleBody
from penstock_edge.surfaces.adk.operations import UPSTREAM, leg_operation, require_enabled
from penstock_edge.surfaces.adk.legs import AdkLegs

SHOWN_CHARACTERS: Final = 2000


class Run:
    """The handler of /run."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._legs = AdkLegs(edge)

    @serves(
        leg_operation(
            path="/run",
            summary="The same leg as one list, when the leg has ended",
            answers={200: json("The leg's events", a_list(OBJECT))},
            refusals=(*UPSTREAM, 500, 501),
        )
    )
    async def post(self, request: Request) -> ASGIApp:
        """What /run_sse would stream, without partial events."""
        require_enabled(self._edge)
        _, leg = await self._legs.open(request)
        client = await self._edge.hubs.join(leg.view(streaming=False), leg.place)
        return SingleBody(client, ListOfEvents(), DETAIL.response)


class ListOfEvents(Body):
    """The leg's frames as a JSON list, or why the leg failed."""

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
        """The list.

        Raises:
            Problem: as `listed`.
        """
        return Response(listed(self._frames), media_type="application/json")


def listed(frames: Iterable[Frame]) -> bytes:
    """The frames' events as a JSON list, each as it came; partial ones are repeated by their whole.

    Raises Problem for a leg that failed, as adk-streaming.md's error frames tell it: 504 when it
    ran out of time, 502 when the upstream refused it, 500 as ADK for all else.
    """
    events = []
    for frame in frames:
        try:
            event = orjson.loads(frame.data)
        except orjson.JSONDecodeError:
            # ADK up to 1.22 does not escape the text of its error frame
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
