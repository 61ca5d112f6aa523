"""Everything that adk-streaming.md and ADK's own clients ask of a server."""

from __future__ import annotations

from starlette.routing import BaseRoute

from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.apps import Apps
from penstock_edge.surfaces.adk.legacy import Legacy
from penstock_edge.surfaces.adk.run import Run
from penstock_edge.surfaces.adk.run_sse import RunSse


class Adk:
    """The ADK surfaces together."""

    def __init__(self, edge: Edge) -> None:
        self._apps = Apps(edge)
        self._surfaces = (RunSse(edge), Run(edge), self._apps, Legacy(edge))

    def routes(self) -> list[BaseRoute]:
        """All of them."""
        return [route for surface in self._surfaces for route in surface.routes()]

    async def close(self) -> None:
        """Close what they hold."""
        await self._apps.close()
