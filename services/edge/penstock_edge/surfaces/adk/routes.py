"""Everything that adk-streaming.md and ADK's own clients ask of a server."""

from __future__ import annotations

from starlette.routing import BaseRoute

from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.apps import Apps
from penstock_edge.surfaces.adk.artifacts import Artifacts
from penstock_edge.surfaces.adk.legacy import Legacy
from penstock_edge.surfaces.adk.listing import Listing
from penstock_edge.surfaces.adk.run import Run
from penstock_edge.surfaces.adk.run_sse import RunSse
from penstock_edge.surfaces.adk.server import AdkServers


class Adk:
    """The ADK surfaces together."""

    def __init__(self, edge: Edge) -> None:
        self._servers = AdkServers()
        self._surfaces = (
            Listing(edge, self._servers),
            RunSse(edge),
            Run(edge),
            Apps(edge, self._servers),
            Artifacts(edge, self._servers),
            Legacy(edge),
        )

    def routes(self) -> list[BaseRoute]:
        """All of them."""
        return [route for surface in self._surfaces for route in surface.routes()]

    async def close(self) -> None:
        """Close what they hold."""
        await self._servers.close()
