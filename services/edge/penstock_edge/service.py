"""The edge as a service: its routes, and its background work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar, Final

from penstock.bus import Loss
from penstock.bus.streams import EVENTS
from penstock.service import Context, Service
from penstock.settings import Settings
from penstock.web.operation import operations_of, routes_of
from penstock.web.server import raise_file_limit
from penstock_edge.edge import Edge
from penstock_edge.settings import EdgeSettings
from penstock_edge.stream.direct_write import is_tried
from penstock_edge.surfaces.adk.routes import OPERATIONS as ADK_OPERATIONS
from penstock_edge.surfaces.adk.routes import Adk
from penstock_edge.surfaces.agno.runs import AgnoSurface
from penstock_edge.surfaces.agno.server_info import FirstLooks
from penstock_edge.surfaces.agno.sessions import AgnoSessions
from penstock_edge.surfaces.agui.runs import AguiSurface
from penstock_edge.surfaces.agui.threads import Threads
from penstock_edge.surfaces.endpoint import on_bus
from penstock_edge.surfaces.executions.routes import Executions
from penstock_edge.surfaces.page.routes import OPERATIONS as FILES
from penstock_edge.surfaces.page.routes import files
from penstock_edge.surfaces.v1.agent_list import Agents
from penstock_edge.surfaces.v1.events import ManyEvents
from penstock_edge.surfaces.v1.runs import Runs
from penstock_edge.surfaces.v1.session_events import SessionEvents

log = logging.getLogger(__name__)


# The classes whose methods serve requests, each made with the edge. A new surface is a row here.
SURFACES: Final[tuple[Callable[[Edge], object], ...]] = (
    Runs,
    Agents,
    ManyEvents,
    SessionEvents,
    Executions,
    AgnoSurface,
    AgnoSessions,
    FirstLooks,
    AguiSurface,
    Threads,
)


class EdgeService(Service):
    """Serves runs to clients. All its state can be read from the bus by another edge."""

    name = "edge"
    settings_type: ClassVar[type[Settings]] = EdgeSettings
    operations = (*operations_of(*SURFACES), *ADK_OPERATIONS, *FILES)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, EdgeSettings)
        self.ws_ping_s = context.settings.keep_alive_s
        self._edge = Edge.of(context.bus, context.config, context.settings)
        self._adk = Adk(self._edge)
        self._surfaces = [surface(self._edge) for surface in SURFACES]
        around = on_bus(context.bus)
        declared = [route for surface in self._surfaces for route in routes_of(surface, around)]
        self.routes = [*declared, *self._adk.routes(around), *files()]

    async def start(self) -> None:
        """Begin the background work: keep-alives, rotation of old streams, count of runs."""
        if not is_tried():
            log.warning(
                "uvicorn: an untried version; events are written by ASGI, at twice the cost"
            )
        self._edge.streams.fit(raise_file_limit())
        self.bus.continuity.on_loss(self._on_loss)
        self.spawn("beat", self._edge.hubs.beat)
        self.spawn("open-runs", self._edge.open_runs.follow)

    def _on_loss(self, loss: Loss) -> None:
        if loss.stream == EVENTS:
            self._edge.many.feed.forget()
        self._edge.hubs.on_loss(loss)

    async def drain(self, grace_s: float) -> None:
        """Open no more streams, and ask the clients of the open ones to reconnect elsewhere."""
        await self._edge.streams.drain(grace_s)

    async def stop(self) -> None:
        """End every stream between two frames; clients reconnect with their cursors."""
        await self.cancel("beat", "open-runs")
        await self._edge.hubs.close()
        await self._edge.many.feed.close()
        await self._adk.close()
        for surface in self._surfaces:
            if isinstance(surface, Agents):
                await surface.close()
