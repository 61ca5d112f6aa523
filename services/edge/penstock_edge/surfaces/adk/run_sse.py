"""adk-streaming.md: POST /run_sse, which starts a run, or answers a pause, and streams the leg."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.common import require_enabled
from penstock_edge.surfaces.adk.legs import AdkLegs
from penstock_edge.surfaces.endpoint import route
from penstock_edge.surfaces.errors import detail_shape

PATH: Final = "/run_sse"


class RunSse:
    """The handler of /run_sse."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._legs = AdkLegs(edge)

    def routes(self) -> list[BaseRoute]:
        """The path, and for WebSockets the refusal that HTTP's other methods get too."""
        return [
            route(self._edge.bus, PATH, {"POST": self.post}, detail_shape),
            WebSocketRoute(PATH, _no_websocket),
        ]

    async def post(self, request: Request) -> ASGIApp:
        """The leg's bytes as an ADK upstream sends them; of any other, its events as ADK's."""
        require_enabled(self._edge)
        asked, leg = await self._legs.open(request)
        return await self._edge.stream(leg.view(streaming=asked.streaming), leg.place)


async def _no_websocket(websocket: WebSocket) -> None:
    refusal = detail_shape(Problem(405, f"WebSockets are not served here; POST {PATH}"))
    refusal.headers["allow"] = "POST"
    await websocket.send_denial_response(refusal)
