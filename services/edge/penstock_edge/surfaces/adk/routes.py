"""Everything that adk-streaming.md and ADK's own clients ask of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.web.operation import Handler, Route, operations_of, routes_of
from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.app_list import Listing
from penstock_edge.surfaces.adk.artifacts import Artifacts
from penstock_edge.surfaces.adk.legacy import Legacy
from penstock_edge.surfaces.adk.run import Run
from penstock_edge.surfaces.adk.run_sse import RunSse
from penstock_edge.surfaces.adk.servers import AdkServers
from penstock_edge.surfaces.adk.sessions import Apps

OPERATIONS: Final = operations_of(Listing, RunSse, Run, Apps, Artifacts, Legacy)


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

    def routes(self, around: Callable[[Handler], Handler]) -> list[Route]:
        """The routes of all of them. `around` wraps each handler."""
        return [route for surface in self._surfaces for route in routes_of(surface, around)]

    async def close(self) -> None:
        """Close what they hold."""
        await self._servers.close()
