"""The surface that serves adk-streaming.md, and the other endpoints that ADK's own clients call."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.app_list import AppList
from penstock_edge.surfaces.adk.legacy import Legacy
from penstock_edge.surfaces.adk.runs import Runs
from penstock_edge.surfaces.adk.servers import AdkServers
from penstock_edge.surfaces.adk.sessions import Artifacts, Sessions
from penstock_edge.surfaces.surface import Surface


class Adk(Surface):
    """Has the handlers for apps, runs, sessions and artifacts; they share one HTTP client for
    requests to ADK servers."""

    handlers = (AppList, Runs, Sessions, Artifacts, Legacy)

    def make(self, edge: Edge) -> Sequence[object]:
        servers = self._servers = AdkServers()
        return (
            AppList(edge, servers),
            Runs(edge),
            Sessions(edge, servers),
            Artifacts(edge, servers),
            Legacy(edge),
        )

    async def close(self) -> None:
        await self._servers.close()
