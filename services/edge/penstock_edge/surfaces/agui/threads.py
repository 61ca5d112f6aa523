"""Streams the runs of a thread one after another, as AG-UI, with cursors to reconnect (decision
0101).

agent-runs-sse.md defines `/events` and `/history`. AG-UI itself has no way to reconnect, so
`/agui/{agent}/threads/{thread_id}/events` is Penstock's own. A stream stays open after a run has
ended, so that an EventSource also gets later runs, unless it has `until=idle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus.streams import events_of
from penstock.dialects.agui.encode import RUNS, STRICT, AguiEncoder, prelude
from penstock.dialects.agui.encode.memory import Memory, remember
from penstock.dialects.base import JsonObject
from penstock.sse import Frame
from penstock.web.auth import Identity, identity_of
from penstock.web.operation import (
    NULLABLE,
    OBJECT,
    TEXT,
    Operation,
    Parameter,
    a_list,
    an_object,
    json,
    one_of,
    serves,
)
from penstock.web.problems import DETAIL, Problem
from penstock_edge.sources.encode import encode
from penstock_edge.sources.history import History
from penstock_edge.sources.locate import StartPosition, start_after, start_of_new_run
from penstock_edge.sources.many_runs import SessionFromStart
from penstock_edge.sources.sessions import (
    Session,
    has_expired_events,
    idle_since,
    records_of,
)
from penstock_edge.stream.responses.event_stream import EventStream, Prefaced
from penstock_edge.stream.responses.pages import MAX_PAGE
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import json_response, page_of
from penstock_edge.surfaces.errors import shortened
from penstock_edge.surfaces.query import cursor_of, switch, until_idle
from penstock_edge.surfaces.session_start import SessionStart, ending, session_of
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.views.agui import Audience, RunsInTurn, ThreadEncoding
from penstock_edge.views.audience import encoding_for
from penstock_edge.views.cursor import LAST_FRAME, Cursor
from penstock_edge.views.framing import Framing, PageItems, Sse
from penstock_edge.views.view import View

_PAGE: Final = an_object(threadId=TEXT, events=a_list(OBJECT), next=NULLABLE)
_PRELUDE: Final = Parameter(
    "prelude", "Whether the stream begins with the present state of the thread", one_of(("0", "1"))
)
_PROTOCOL_VERSION: Final = Parameter(
    "protocolVersion", "The version of AG-UI that the client speaks"
)
_operation = partial(Operation, tag="agui", method="GET", scopes=("read",), refusals=(404, 410))
FLAGS: Final = {None: False, "0": False, "1": True}


class Threads(Handlers):
    """Has the handlers of a thread's streams and of its history."""

    @serves(
        _operation(
            path="/api/v1/agent/runs/{thread_id}/events",
            summary="A thread's runs one after another, as the agent runs contract has them",
            answers=by.FOLLOWED,
            parameters=(by.THREAD_ID, by.AGENT, by.UNTIL, by.USER, *by.CURSOR),
        )
    )
    async def events(self, request: Request) -> ASGIApp:
        """Order the lines of each frame as agent-runs-sse.md does: `id`, `event`, `data`."""
        session = await self._session(request, request.query_params.get("agent"))
        view = self._view(request, session, Audience(RUNS), Sse(id_first=True))
        return await self._stream(request, session, view, await self._start(request, session))

    @serves(
        _operation(
            path="/api/v1/agent/runs/{thread_id}/history",
            summary="The same events as pages",
            answers={200: json("A page", _PAGE)},
            parameters=(by.THREAD_ID, by.AGENT, by.USER, *by.CURSOR, by.limit(MAX_PAGE)),
        )
    )
    async def history(self, request: Request) -> ASGIApp:
        edge = self._edge
        session = await self._session(request, request.query_params.get("agent"))
        await self._idle_since(session)
        position = await self._position(request, session)
        end = (await start_of_new_run(edge.bus, session.shard)).start
        source = await edge.many.prepared(session)
        view = self._view(request, session, Audience(RUNS), PageItems())
        body = await page_of(edge, request, view, position, source=source, end=end)
        return json_response({"threadId": session.session_id, **body})

    @serves(
        _operation(
            path="/agui/{agent}/threads/{thread_id}/events",
            summary="A thread's runs one after another",
            answers=by.FOLLOWED,
            errors=DETAIL,
            parameters=(
                by.AGENT_ID,
                by.THREAD_ID,
                _PRELUDE,
                _PROTOCOL_VERSION,
                by.NAMES,
                by.UNTIL,
                by.USER,
                *by.CURSOR,
            ),
        )
    )
    async def reconnect(self, request: Request) -> ASGIApp:
        """With `?prelude=1`, begin with the prelude: frames that describe the present state of the
        thread. A request with a cursor gets none, because an EventSource that reconnects repeats
        the `?prelude=1` of its first URL, and adds its cursor."""
        session = await self._session(request, request.path_params["agent"])
        query = request.query_params
        if query.get("prelude") not in FLAGS:
            raise Problem(422, "prelude: must be 1 or 0")
        framing = Sse(switch(request, "names", default=False))
        audience = Audience(STRICT, query.get("protocolVersion"))
        view = self._view(request, session, audience, framing)
        if not FLAGS[query.get("prelude")] or cursor_of(request) is not None:
            return await self._stream(request, session, view, await self._start(request, session))
        # The end of the prelude is read before `_start`. If a run ends between the two calls, the
        # run's last events come after the prelude, so the stream has them. In the other order,
        # `_start` could find the run active, and the run's last events could come before the end of
        # the prelude. These events would then be missing from the stream.
        end = (await start_of_new_run(self._edge.bus, session.shard)).start
        start = await self._start(request, session)
        frames = await self._prelude(identity_of(request), session, audience, view, end)
        after = Cursor(end - 1, LAST_FRAME) if end > 1 else None
        start = replace(start, position=StartPosition(1, 1, after))
        prelude_bytes = b"".join(map(framing.notice, frames))
        return await self._stream(request, session, view, start, prelude_bytes)

    async def _session(self, request: Request, agent: str | None) -> Session:
        return await session_of(self._edge, request, "thread_id", agent)

    async def _start(self, request: Request, session: Session) -> SessionStart:
        """Without `until=idle`, an unknown thread waits for its first run."""
        if not until_idle(request):
            return SessionStart(await self._position(request, session))
        last = await self._idle_since(session)
        position = replace(await self._position(request, session), ended=last is not None)
        return SessionStart(position, until_idle=True, last_event=last)

    async def _idle_since(self, session: Session) -> int | None:
        """Return None while a run of the thread is active or queued (`sessions.idle_since`)."""
        idle = await idle_since(self._edge.bus, session)
        if idle == 0:
            if any(record.runs for record in await records_of(self._edge.bus, session)):
                raise Problem(410, "the events of this thread are no longer kept")
            raise Problem(404, f"there is no thread {shortened(session.session_id)}")
        return idle

    async def _position(self, request: Request, session: Session) -> StartPosition:
        bus, after = self._edge.bus, cursor_of(request)
        truncated = False
        if after is None:
            truncated = await has_expired_events(bus, await records_of(bus, session))
        else:
            source = await self._edge.many.prepared(session)
            truncated = (await start_after(bus, after, source.has_cursor, session.shard)).truncated
        # The frames of a run depend on the earlier runs, so the thread is read from its beginning.
        return StartPosition(1, 1, after, truncated)

    async def _stream(
        self,
        request: Request,
        session: Session,
        view: View,
        start: SessionStart,
        preface: bytes = b"",
    ) -> ASGIApp:
        edge = self._edge
        edge.streams.require_room(request.scope)
        client = await edge.hubs.join(view, start.position, identity_of(request))
        stream = Prefaced(EventStream(client, ended=start.position.ended), preface)
        return ending(stream, client, edge.bus, session, start)

    async def _prelude(
        self, who: Identity, session: Session, audience: Audience, view: View, end: int
    ) -> Sequence[Frame]:
        bus, source = self._edge.bus, await self._edge.many.prepared(session)
        memory = Memory()

        def keep(encoder: AguiEncoder, event: JsonObject) -> Sequence[Frame]:
            remember(memory, encoder, (event,))
            return ()

        turns = RunsInTurn(self._edge.agui.encoders(audience), keep)
        encoding = encoding_for(who, ThreadEncoding(turns, view.framing.event))
        turn = self._edge.turns.for_caller(who)
        history = History(bus, events_of(session.shard), source.patterns, 1, source.accepts, turn)
        while batch := await history.before(end):
            for stored in batch:
                await encode(bus, view, encoding, stored)
        return prelude(turns.current, (), memory) if turns.current else ()

    def _view(
        self, request: Request, session: Session, audience: Audience, framing: Framing
    ) -> View:
        edge = self._edge
        turn = edge.turns.for_caller(identity_of(request))
        source = partial(SessionFromStart, edge.bus, edge.many, session, turn)
        return edge.agui.of_thread(session.key, audience, framing, source, session.shard)
