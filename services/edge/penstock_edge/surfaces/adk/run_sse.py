"""adk-streaming.md: POST /run_sse, which starts a run, or answers a pause, and streams the leg."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.web.operation import serves
from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.legs import AdkLegs
from penstock_edge.surfaces.adk.operations import UPSTREAM, leg_operation, require_enabled
from penstock_edge.surfaces.described import STREAMED


class RunSse:
    """The handler of /run_sse."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._legs = AdkLegs(edge)

    @serves(
        leg_operation(
            path="/run_sse",
            summary="Start a run, or answer a pause, and stream the leg",
            answers={200: STREAMED},
            refusals=(*UPSTREAM, 501),
        )
    )
    async def post(self, request: Request) -> ASGIApp:
        """The leg's bytes as an ADK upstream sends them; of any other, its events as ADK's."""
        require_enabled(self._edge)
        asked, leg = await self._legs.open(request)
        return await self._edge.stream(leg.view(streaming=asked.streaming), leg.place)
