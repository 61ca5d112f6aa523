"""The streams of a thread: its runs one after another, as AG-UI, to be come back to.

agent-runs-sse.md's `/events` and `/history`, and the way back for AG-UI clients, which the protocol
itself does not have. A stream stays open, so that an EventSource sees the runs that are started
later; with `until=idle` it ends when no run is active or queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.bus import Stored
from penstock.bus.streams import EVENTS
from penstock.dialects.agui.encode import RUNS, STRICT, AguiEncoder, prelude
from penstock.dialects.agui.encode.memory import Memory
from penstock.dialects.agui.encode.prelude import remember
from penstock.dialects.base import JsonObject
from penstock.sse import Frame
from penstock.web.auth import Identity, act_as, identity_of
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
from penstock_edge.edge import Edge
from penstock_edge.sources.encode import encode
from penstock_edge.sources.history import History
from penstock_edge.sources.locate import StartPosition, start_after, start_of_new_run
from penstock_edge.sources.session_from_start import SessionFromStart
from penstock_edge.sources.sessions import Session, idle_since, is_cut, records_of
from penstock_edge.stream.pages import MAX_PAGE, page
from penstock_edge.stream.response import EventStream, Prefaced
from penstock_edge.stream.until_idle import UntilIdle
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.agents import agent_by_id
from penstock_edge.surfaces.agui.request import MAX_ID
from penstock_edge.surfaces.described import FOLLOWED
from penstock_edge.surfaces.query import cursor_of, number, switch, until_idle
from penstock_edge.views.agui import Audience, RunsInTurn, ThreadEncoding
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


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a client of a thread begins.

    `until_idle`: the stream ends when no run is under way. `idle`: then, the last event, if no run
    is under way already.
    """

    place: StartPosition
    until_idle: bool = False
    idle: int | None = None


class Threads:
    """Handlers of a thread's streams and of its history."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    @serves(
        _operation(
            path="/api/v1/agent/runs/{thread_id}/events",
            summary="A thread's runs one after another, as the agent runs contract has them",
            answers=FOLLOWED,
            parameters=(by.THREAD_ID, by.AGENT, by.UNTIL, by.USER, *by.CURSOR),
        )
    )
    async def events(self, request: Request) -> ASGIApp:
        """agent-runs-sse.md's stream: `id`, `event`, `data`."""
        session = self._session(request, request.query_params.get("agent"))
        seen = self._view(session, Audience(RUNS), Sse(id_first=True))
        return await self._stream(request, session, seen, await self._standing(request, session))

    @serves(
        _operation(
            path="/api/v1/agent/runs/{thread_id}/history",
            summary="The same events as pages",
            answers={200: json("A page", _PAGE)},
            parameters=(by.THREAD_ID, by.AGENT, by.USER, *by.CURSOR, by.limit(MAX_PAGE)),
        )
    )
    async def history(self, request: Request) -> ASGIApp:
        """`{threadId, events, next}`: what the stream has told; `next` goes into `?after=`."""
        edge = self._edge
        session = self._session(request, request.query_params.get("agent"))
        limit = number(request.query_params.get("limit"), "limit", MAX_PAGE, MAX_PAGE)
        place = await self._history_place(request, session)
        end = (await start_of_new_run(edge.bus)).start
        source = self._source(session)
        await source.prepare()
        seen = self._view(session, Audience(RUNS), PageItems())
        body = await page(
            edge.bus,
            seen,
            place,
            limit,
            edge.allowance(),
            edge.turns.named(identity_of(request)),
            source=source,
            end=end,
        )
        found = orjson.dumps({"threadId": session.session_id, **body})
        return Response(found, media_type="application/json")

    @serves(
        _operation(
            path="/agui/{agent}/threads/{thread_id}/events",
            summary="A thread's runs one after another",
            answers=FOLLOWED,
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
    async def come_back(self, request: Request) -> ASGIApp:
        """From the cursor on; or, by `?prelude=1`, restated up to now and then on from there.

        A cursor goes before a prelude: an EventSource that comes back sends both.
        """
        session = self._session(
            request, agent_by_id(self._edge.config, request.path_params["agent"]).id
        )
        query = request.query_params
        if query.get("prelude") not in FLAGS:
            raise Problem(422, "prelude: must be 1 or 0")
        form = Sse(switch(request, "names", default=False))
        audience = Audience(STRICT, query.get("protocolVersion"))
        seen = self._view(session, audience, form)
        if not FLAGS[query.get("prelude")] or cursor_of(request) is not None:
            return await self._stream(
                request, session, seen, await self._standing(request, session)
            )
        # before the standing: what ends in between is told by the tail
        end = (await start_of_new_run(self._edge.bus)).start
        standing = await self._standing(request, session)
        frames = await self._prelude(identity_of(request), session, audience, seen, end)
        after = Cursor(end - 1, LAST_FRAME) if end > 1 else None
        standing = replace(standing, place=StartPosition(1, 1, after))
        return await self._stream(
            request, session, seen, standing, b"".join(map(form.notice, frames))
        )

    def _session(self, request: Request, agent: str | None) -> Session:
        """Raises Problem 403, 404 or 422."""
        caller = identity_of(request)
        thread_id = request.path_params["thread_id"]
        if len(thread_id) > MAX_ID:
            raise Problem(422, f"thread_id: must have {MAX_ID} characters at most")
        if caller.grant is not None:
            caller.grant.check_session(thread_id)
        owner = act_as(caller, request.query_params.get("user_id"))
        if agent is not None:
            return Session(
                owner, thread_id, (agent_by_id(self._edge.config, agent).id,), any_agent=False
            )
        agents = tuple(each.id for each in self._edge.config.agents)
        return Session(owner, thread_id, agents, any_agent=True)

    async def _standing(self, request: Request, session: Session) -> Standing:
        """A thread that nobody has heard of yet is waited for, except with `until=idle`.

        Raises Problem 400 for a foreign cursor, 422; with `until=idle` 404 for an unknown thread,
        and 410 when none of its events is kept any more.
        """
        if not until_idle(request):
            return Standing(await self._place(request, session))
        idle = await self._settled(session)
        place = replace(await self._place(request, session), ended=idle is not None)
        return Standing(place, until_idle=True, idle=idle)

    async def _history_place(self, request: Request, session: Session) -> StartPosition:
        """Raises Problem 404, 410 when nothing is left to tell, 400 for a foreign cursor."""
        await self._settled(session)
        return await self._place(request, session)

    async def _settled(self, session: Session) -> int | None:
        """What `sessions.idle_since` says. Raises Problem 404 or 410 where there is no event."""
        idle = await idle_since(self._edge.bus, session)
        if idle == 0:
            if any(record.runs for record in await records_of(self._edge.bus, session)):
                raise Problem(410, "the events of this thread are no longer kept")
            raise Problem(404, f"there is no thread {session.session_id[:128]}")
        return idle

    async def _place(self, request: Request, session: Session) -> StartPosition:
        """Raises Problem 400 for a cursor of elsewhere, 410 for one beyond the end."""
        bus, after = self._edge.bus, cursor_of(request)
        truncated = False
        if after is None:
            truncated = await is_cut(bus, await records_of(bus, session))
        else:
            source = self._source(session)
            await source.prepare()
            truncated = (await start_after(bus, after, source.keep)).truncated
        # what is said of one run depends on the others: all is read
        return StartPosition(1, 1, after, truncated)

    async def _stream(
        self,
        request: Request,
        session: Session,
        seen: View,
        standing: Standing,
        preface: bytes = b"",
    ) -> ASGIApp:
        edge = self._edge
        edge.streams.require_room(request.scope)
        client = await edge.hubs.join(seen, standing.place)
        stream = Prefaced(EventStream(client, ended=standing.place.ended), preface)
        if not standing.until_idle:
            return stream
        if standing.idle is not None:
            client.end_after(standing.idle)
        return UntilIdle(stream, client, edge.bus, session)

    async def _prelude(
        self, who: Identity, session: Session, audience: Audience, seen: View, end: int
    ) -> Sequence[Frame]:
        """What brings an empty client to where the thread stands before this stream sequence."""
        bus, source = self._edge.bus, self._source(session)
        await source.prepare()
        memory = Memory()

        def tell(encoder: AguiEncoder, event: JsonObject) -> Sequence[Frame]:
            remember(memory, encoder, (event,))
            return ()

        turns = RunsInTurn(self._edge.agui.encoders(audience), tell)
        encoding = ThreadEncoding(turns, seen.framing.event)
        turn = self._edge.turns.named(who)
        past = History(bus, EVENTS, source.patterns, 1, source.keep, turn)
        while batch := await past.below(end):
            for stored in batch:
                await encode(bus, seen, encoding, stored)
        return prelude(turns.current, (), memory) if turns.current else ()

    def _view(self, session: Session, audience: Audience, form: Framing) -> View:
        edge = self._edge
        source = partial(SessionFromStart, edge.bus, edge.many, session, edge.turns)
        return edge.agui.of_thread(session.key, audience, form, source)

    def _source(self, session: Session) -> SessionFromStart:
        edge = self._edge
        return SessionFromStart(edge.bus, edge.many, session, edge.turns, _nowhere)


def _nowhere(batch: list[Stored]) -> None:
    """For a source that is only asked what its past is."""
