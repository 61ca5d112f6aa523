"""POST /run: the leg as one JSON list of ADK's events, once it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.sse import Frame, FrameTooLarge, Parser
from penstock.web.operation import OBJECT, a_list, json, serves
from penstock.web.problems import DETAIL, Problem
from penstock_edge.edge import Edge
from penstock_edge.stream.client import Client
from penstock_edge.surfaces.adk.common import UPSTREAM, leg_operation, require_enabled
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
        return ListOfEvents(await self._edge.hubs.join(leg.view(streaming=False), leg.place))


class ListOfEvents:
    """The response: nothing until the leg is over, then all of it, or why it failed."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this one response."""
        client = self._client
        leaving = asyncio.create_task(self._watch(receive))
        try:
            response = await self._response()
            if not leaving.done():
                response.headers["penstock-run-id"] = client.hub.view.run_id
                await response(scope, receive, send)
        finally:
            leaving.cancel()
            client.leave()

    async def _response(self) -> Response:
        parser = Parser()
        frames: list[Frame] = []
        try:
            while (body := await self._client.take()) is not None:
                frames += parser.feed(body)
            return Response(listed(frames), media_type="application/json")
        except FrameTooLarge as error:
            return DETAIL.response(Problem(502, f"the upstream sent too much: {error}"))
        except Problem as problem:
            return DETAIL.response(problem)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client.leave()


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
