"""What adk-streaming.md and ADK's own clients ask of a server."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.app_list import AppList
from penstock_edge.surfaces.adk.artifacts import Artifacts
from penstock_edge.surfaces.adk.legacy import Legacy
from penstock_edge.surfaces.adk.runs import Runs
from penstock_edge.surfaces.adk.servers import AdkServers
from penstock_edge.surfaces.adk.sessions import Sessions
from penstock_edge.surfaces.surface import Surface


class Adk(Surface):
    """Apps, runs, sessions and artifacts, for any agent. One HTTP client asks the ADK servers."""

    handlers = (AppList, Runs, Sessions, Artifacts, Legacy)

    def make(self, edge: Edge) -> Sequence[object]:
        """The handlers of this edge."""
        servers = self._servers = AdkServers()
        return (
            AppList(edge, servers),
            Runs(edge),
            Sessions(edge, servers),
            Artifacts(edge, servers),
            Legacy(edge),
        )

    async def close(self) -> None:
        """Close the connections to ADK servers."""
        await self._servers.close()
