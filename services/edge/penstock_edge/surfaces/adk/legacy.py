"""Serves the "Legacy Pattern" of adk-streaming.md: a POST starts a run, and a GET streams the run
(decision 0110).

The GET replays the session's latest run, with its pauses, or waits for the first. A client that
reconnects with a cursor gets the further events of the cursor's run, or, if it has all of them, the
session's next run.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock import start_fields
from penstock.bus.read.direct import read
from penstock.bus.streams import events_of
from penstock.bus.subjects import run_id_of, session_turn
from penstock.events.catalogue import TERMINAL
from penstock.runs.start import Start
from penstock.web.auth import Identity, identity_of
from penstock.web.bodies import read_json
from penstock.web.operation import FLAG, TEXT, Operation, an_object, json, serves
from penstock.web.problems import DETAIL, Problem
from penstock_edge.edge import Edge
from penstock_edge.runs.records import is_workflow
from penstock_edge.sources.locate import (
    ancestors_of,
    lifecycle_of,
    locate,
    record_of,
    start_after,
)
from penstock_edge.stream.responses.event_stream import EventStream
from penstock_edge.stream.responses.waiting import WaitingStream
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.adk.request import QueryRequest
from penstock_edge.surfaces.adk.session_store import NamedSession, SessionStore
from penstock_edge.surfaces.adk.sessions import session_named_by
from penstock_edge.surfaces.adk.views import legacy_view
from penstock_edge.surfaces.bodies import json_response, validated
from penstock_edge.surfaces.errors import unaccepted_as_422
from penstock_edge.surfaces.query import cursor_of
from penstock_edge.views.cursor import Cursor
from penstock_edge.views.items import type_of

_SESSION: Final = (by.APP, by.USER_ID, by.APP_SESSION_ID)
_operation = partial(
    Operation, path="/apps/{app}/users/{user}/sessions/{session}/run", tag="adk", errors=DETAIL
)


class Legacy:
    """Has the handlers of the legacy pattern; the contract's flag does not disable them."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._sessions = SessionStore(edge.bus, edge.session_list)

    @serves(
        _operation(
            method="POST",
            summary="Start a run in the session",
            answers={200: json("The run is begun", an_object(success=FLAG, sessionId=TEXT))},
            scopes=("start",),
            parameters=_SESSION,
            body=QueryRequest,
            example={"query": "Hello"},
            refusals=(404,),
        )
    )
    async def start(self, request: Request) -> ASGIApp:
        edge = self._edge
        named = session_named_by(edge, request)
        body = await read_json(request, edge.settings.max_body_bytes)
        asked = validated(QueryRequest, body)
        with unaccepted_as_422():
            start_fields.refuse_answers(asked.model_extra)
        who = identity_of(request)
        started = await edge.starter.start(
            Start(
                named.agent,
                asked.query,
                named.id,
                who.run_user(named.user_id),
            )
        )
        run_id = started.record.run_id
        # The run is added before the response. If it were added after the response, the client's
        # GET could get an earlier run.
        await self._sessions.add_run(named, run_id)
        response: Response = json_response({"success": True, "sessionId": named.id})
        response.headers["penstock-run-id"] = run_id
        return response

    @serves(
        _operation(
            method="GET",
            summary="The session's latest run, in the legacy events",
            answers=by.FOLLOWED,
            scopes=("read",),
            parameters=(*_SESSION, *by.CURSOR),
            refusals=(404, 410),
        )
    )
    async def stream(self, request: Request) -> ASGIApp:
        named, who = session_named_by(self._edge, request), identity_of(request)
        if (grant := who.grant) is not None:
            grant.check_session(named.id)
        self._edge.streams.require_room(request.scope)
        after = cursor_of(request)
        found = await self._run_of(named, after)
        if found is not None:
            return await self._follow(*found, who)
        if after is not None:
            shard = await self._edge.starter.shards.of(named.user_id, named.id)
            await start_after(
                self._edge.bus, after, shard=shard
            )  # raises 410 if the cursor's event is lost
            raise Problem(400, f"the cursor {after} is not of this session")

        async def begun() -> EventStream | None:
            found = await self._run_of(named, None)
            return await self._follow(*found, who) if found is not None else None

        edge = self._edge
        return WaitingStream(
            edge.bus, session_turn(named.key), begun, edge.settings.keep_alive_s, edge.streams
        )

    async def _follow(self, run_id: str, after: Cursor | None, who: Identity) -> EventStream:
        edge = self._edge
        record = await record_of(edge.bus, run_id)
        tree = edge.tree(run_id) if is_workflow(record) else None
        view = legacy_view(run_id, tree)
        return await edge.stream(view, await locate(edge.bus, view, after, record), who)

    async def _run_of(
        self, named: NamedSession, after: Cursor | None
    ) -> tuple[str, Cursor | None] | None:
        """Return the run to stream, and the cursor in this run, if the session has a run."""
        record = await self._sessions.get(named)
        runs = record.runs if record is not None else []
        if not runs:
            return None
        seen = await self._run_at(named, after.sequence) if after is not None else None
        if after is None or seen not in runs:
            return runs[-1], after
        following = runs[runs.index(seen) + 1 :]
        last = await lifecycle_of(self._edge.bus, seen)
        ended = last is not None and type_of(last) in TERMINAL
        if following and ended and last is not None and after.sequence >= last.sequence:
            return following[0], None
        return seen, after

    async def _run_at(self, named: NamedSession, sequence: int) -> str | None:
        """Return None if the event with this sequence has expired."""
        shard = await self._edge.starter.shards.of(named.user_id, named.id)
        found, _ = await read(self._edge.bus, events_of(shard), ">", sequence, 1)
        if not found or found[0].sequence != sequence:
            return None
        run_id = run_id_of(found[0].subject)
        above = await ancestors_of(self._edge.bus, run_id)
        # A workflow's stream also has the events of the runs that its steps have started. So the
        # outermost run is the run whose stream has the event.
        return above[-1].run_id if above else run_id
