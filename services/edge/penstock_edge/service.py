"""The edge as a service: declares the routes of all surfaces, and starts the background work.

A surface is the edge's routes for one kind of client, such as the clients of Agno or of ADK.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp

from penstock.bus import Bus, BusError, Loss, Msg, ObjectGone, subjects
from penstock.bus.connection.retry import until_answered
from penstock.bus.messages import SEQUENCE
from penstock.bus.state.bucket_index import StillReading
from penstock.log_fields import run_of
from penstock.service import Context, Service
from penstock.settings import Settings
from penstock.tracing import requests
from penstock.web.answers import while_connected
from penstock.web.auth.csrf import SAFE_METHODS
from penstock.web.operation import Handler
from penstock.web.problems import Problem
from penstock.web.server import raise_file_limit
from penstock_edge.edge import Edge
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.key_requests import KeyRequests
from penstock_edge.sources.large_events import LargeEvents
from penstock_edge.stream.direct_write import is_tried
from penstock_edge.surfaces.a2a import A2a
from penstock_edge.surfaces.adk import Adk
from penstock_edge.surfaces.agno import Agno
from penstock_edge.surfaces.agui import Agui
from penstock_edge.surfaces.executions import Executions
from penstock_edge.surfaces.openai import OpenAI
from penstock_edge.surfaces.surface import Surface
from penstock_edge.surfaces.v1 import V1
from penstock_edge.surfaces.vercel import Vercel
from penstock_edge.views.erased import ERASED


def on_bus(bus: Bus) -> Callable[[Handler], Handler]:
    """If the client of a GET closes the connection, the request's handler is cancelled. A handler
    of another method always runs to its end. BusError, which whatever uses the bus may raise,
    becomes 503, and a payload of the object store that has expired 410."""

    def around(handler: Handler) -> Handler:
        async def handle(request: HTTPConnection) -> ASGIApp | None:
            requests.enter(requests.header_of(request.scope["headers"]))
            if not bus.is_ready:
                raise Problem(503, f"{bus.unavailable_reason}; try again")
            try:
                if isinstance(request, Request) and request.method in SAFE_METHODS:
                    return await while_connected(request.receive, _answer(handler(request)))
                return await handler(request)
            except ObjectGone as error:
                raise Problem(410, str(error)) from error
            except StillReading as error:
                raise Problem(503, str(error)) from error
            except BusError as error:
                path = request.url.path
                log.warning("%s: the bus does not answer: %s", path, error, extra=run_of(path))
                raise Problem(503, f"the bus does not answer; try again: {error}") from error

        return handle

    return around


async def _answer(answer: Awaitable[ASGIApp | None]) -> ASGIApp | None:
    return await answer


log = logging.getLogger(__name__)


# The events `system.erased` of all runs, as they come.
ERASURES: Final = f"live.{subjects.event(ERASED, '*')}"

# To add a surface, add the surface's folder, and its class to this tuple.
SURFACES: Final[tuple[type[Surface], ...]] = (V1, Executions, Adk, Agno, Agui, OpenAI, Vercel, A2a)


class EdgeService(Service):
    """Serves runs to clients. All state is on the bus: any edge can continue another edge's
    work."""

    name = "edge"
    settings_type: ClassVar[type[Settings]] = EdgeSettings
    operations = tuple(each for surface in SURFACES for each in surface.operations())

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, EdgeSettings)
        self.ws_ping_s = context.settings.keep_alive_s
        self._edge = Edge.of(context.bus, context.config, context.settings)
        self._large_events = LargeEvents(context.bus, self._edge.many.records)
        self._key_requests = KeyRequests(context.bus)
        self._surfaces = [surface(self._edge) for surface in SURFACES]
        around = on_bus(context.bus)
        self.routes = [route for surface in self._surfaces for route in surface.routes(around)]

    async def start(self) -> None:
        if not is_tried():
            log.warning(
                "uvicorn: this version is not one of the tried ones, so ASGI writes all events, at "
                "twice the CPU time"
            )
        self._edge.streams.fit(raise_file_limit())
        self.bus.continuity.on_loss(self._on_loss)
        await self._large_events.start()
        await self._key_requests.start()
        self.bus.on_reconnect(self._edge.forget_events)
        await until_answered(
            f"subscribing to {ERASURES}",
            lambda: self.bus.subscribe(ERASURES, self._on_erased),
        )
        self.spawn("maintain-streams", self._edge.hubs.maintain)
        self.spawn("starts", self._edge.starter.follow)
        self.spawn("list-runs", self._edge.run_list.index.run)
        self.spawn("list-sessions", self._edge.session_list.index.run)
        self.spawn("list-costs", self._edge.cost_list.index.run)

    def _on_loss(self, loss: Loss) -> None:
        self._edge.many.feeds.forget(loss.stream)
        self._edge.hubs.on_loss(loss)

    async def _on_erased(self, msg: Msg) -> None:
        run_id = subjects.run_id_of(msg.subject)
        self._edge.withhold(run_id, int((msg.headers or {})[SEQUENCE]))
        self._large_events.forget(run_id)

    async def drain(self, grace_s: float) -> None:
        await self._edge.streams.drain(grace_s)

    async def stop(self) -> None:
        """End all streams between two frames, so that clients can reconnect with their cursors."""
        await self.cancel(
            *("maintain-streams", "open-runs", "budgets", "redactions"),
            *("list-runs", "list-sessions", "list-costs"),
        )
        await self._large_events.stop()
        await self._key_requests.stop()
        await self._edge.hubs.close()
        await self._edge.cursors.close()
        await self._edge.many.feeds.close()
        for surface in self._surfaces:
            await surface.close()
