"""Serves the contract adk-streaming.md: starts a run or answers a pause, and returns the leg."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.web.operation import OBJECT, a_list, json, serves
from penstock.web.problems import DETAIL
from penstock_edge.edge import Edge
from penstock_edge.stream.responses.single_body import SingleBody
from penstock_edge.surfaces.adk.event_list import EventList
from penstock_edge.surfaces.adk.legs import Legs
from penstock_edge.surfaces.adk.operations import UPSTREAM, leg_operation, require_enabled
from penstock_edge.surfaces.common_schemas import STREAMED


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
