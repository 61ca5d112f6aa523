"""Serves GET /v1/sessions/{session_id}/events: a session's events, over SSE or a WebSocket."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from penstock.bus.streams import events_of
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.web.auth import identity_of
from penstock.web.operation import Answer, Operation, serves
from penstock.web.problems import Problem
from penstock_edge.sources.locate import (
    StartPosition,
    start_after,
    start_of_new_run,
    with_live_marker,
)
from penstock_edge.sources.sessions import (
    Session,
    has_expired_events,
    idle_since,
    records_of,
)
from penstock_edge.stream.client import Client
from penstock_edge.stream.responses.event_stream import EventStream
from penstock_edge.stream.responses.pages import MAX_PAGE
from penstock_edge.stream.responses.websocket import EventSocket
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import json_response, page_of
from penstock_edge.surfaces.query import (
    cursor_of,
    dialect_of,
    switch,
    types_of,
    until_idle,
    wants_page,
)
from penstock_edge.surfaces.session_start import SessionStart, ending, session_of
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.surfaces.v1.events import position_of
from penstock_edge.views.framing import Framing, PageItems, Sse, WebSocketMessages
from penstock_edge.views.view import View

_operation = partial(Operation, tag="events", method="GET", scopes=("read",), refusals=(404, 410))


@dataclass(frozen=True, slots=True)
class StreamParameters:
    """The parameters of a request for a session's stream."""

    session: Session
    dialect: str
    types: frozenset[str] | None
    until_idle: bool


class SessionEvents(Handlers):
    """Has the handlers of a session's stream."""

    @serves(
        _operation(
            path="/v1/sessions/{session_id}/events",
            summary="The events of a session's runs",
            answers=by.STREAM_OR_PAGE,
            parameters=(by.SESSION_ID, *by.SESSION, by.NAMES, by.limit(MAX_PAGE)),
        )
    )
    async def events(self, request: Request) -> ASGIApp:
        edge = self._edge
        asked = await self._asked(request)
        start = await self._start(request, asked)
        if wants_page(request):
            return await self._page(request, asked, start.position)
        edge.streams.require_room(request.scope)
        framing = Sse(switch(request, "names", default=True))
        client = await self._join(request, asked, framing, start.position)
        stream = EventStream(client, ended=start.position.ended)
        return ending(stream, client, edge.bus, asked.session, start)

    @serves(
        _operation(
            path="/v1/sessions/{session_id}/events/ws",
            summary="The same events over a WebSocket; without one the answer is 404",
            answers={101: Answer("The WebSocket: each text message is an event")},
            parameters=(by.SESSION_ID, *by.SESSION, by.CURSORS),
            websocket=True,
        )
    )
    async def socket(self, websocket: WebSocket) -> ASGIApp:
        """Refuse a bad request before the WebSocket is accepted."""
        edge = self._edge
        edge.streams.require_room(websocket.scope)
        asked = await self._asked(websocket)
        start = await self._start(websocket, asked)
        framing = WebSocketMessages(switch(websocket, "cursors", default=False))
        client = await self._join(websocket, asked, framing, start.position)
        return ending(EventSocket(client), client, edge.bus, asked.session, start)

    async def _asked(self, request: HTTPConnection) -> StreamParameters:
        agent = request.query_params.get("agent")
        session = await session_of(self._edge, request, "session_id", agent)
        dialect = dialect_of(request, CLIENT_DIALECTS)
        return StreamParameters(session, dialect, types_of(request, dialect), until_idle(request))

    async def _start(self, request: HTTPConnection, asked: StreamParameters) -> SessionStart:
        """Let an unknown session wait for its first run."""
        bus = self._edge.bus
        idle = await idle_since(bus, asked.session) if asked.until_idle else None
        records = await records_of(bus, asked.session)
        if idle == 0 and any(record.runs for record in records):
            raise Problem(410, "the events of this session are no longer kept")
        after = cursor_of(request)
        if after is not None:
            source = await self._edge.many.prepared(asked.session)
            position = await start_after(bus, after, source.has_cursor, asked.session.shard)
        else:
            position = await position_of(self._edge, request, asked.session.shard) or StartPosition(
                1, 1, truncated=await has_expired_events(bus, records)
            )
        position = replace(position, ended=idle is not None)
        return SessionStart(position, asked.until_idle, idle)

    async def _join(
        self,
        request: HTTPConnection,
        asked: StreamParameters,
        framing: Framing,
        position: StartPosition,
    ) -> Client:
        edge = self._edge
        if switch(request, "markers", default=False):
            source = await edge.many.prepared(asked.session)
            position = await with_live_marker(
                edge.bus, events_of(asked.session.shard), source.patterns(), position
            )
        view = self._view(asked, framing)
        return await edge.hubs.join(view, position, identity_of(request))

    async def _page(
        self, request: HTTPConnection, asked: StreamParameters, position: StartPosition
    ) -> ASGIApp:
        edge = self._edge
        end, source = await asyncio.gather(
            start_of_new_run(edge.bus, asked.session.shard), edge.many.prepared(asked.session)
        )
        view = self._view(asked, PageItems())
        body = await page_of(edge, request, view, position, source=source, end=end.start)
        return json_response(body)

    def _view(self, asked: StreamParameters, framing: Framing) -> View:
        return self._edge.many.of_session(asked.session, asked.dialect, framing, asked.types)
