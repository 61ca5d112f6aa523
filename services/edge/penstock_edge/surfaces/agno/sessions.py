"""Serves Agno's endpoints for sessions of one user, with agents of every protocol, from KV
`sessions` and from the events of the runs. Clients cannot change existing sessions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus.records.legs import SessionRecord
from penstock.bus.records.runs import RunRecord
from penstock.dialects.agno.encode.complete import run_output
from penstock.runs.start import require_reachable
from penstock.settings import AgentConfig
from penstock.web.auth import Identity, acting_user, identity_of
from penstock.web.bodies import ignore_body, read_json
from penstock.web.operation import (
    OBJECT,
    Operation,
    Parameter,
    a_list,
    an_object,
    json,
    one_of,
    serves,
)
from penstock.web.problems import DETAIL, Problem
from penstock_edge.runs.records import run_of
from penstock_edge.sources.read_run import RUNS_READ, read_run, request_allowance
from penstock_edge.sources.session_list import ListedSession, SortedBy
from penstock_edge.sources.sessions import Session, create_session, records_of, run_records
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.agents import agent_of_kind
from penstock_edge.surfaces.agno.request import KINDS, SessionRequest
from penstock_edge.surfaces.agno.session_shapes import (
    STATUSES,
    SessionSummary,
    created_s,
    page_of,
    preview_of,
    run_shown,
)
from penstock_edge.surfaces.agno.views import EdgeFrames
from penstock_edge.surfaces.bodies import json_response, validated
from penstock_edge.surfaces.errors import invalid, shortened
from penstock_edge.surfaces.query import number
from penstock_edge.surfaces.surface import Handlers

READ_ONLY: Final = "sessions are read only here: Penstock keeps no names and no state of them"
SORTED_BY: Final[Mapping[str, SortedBy]] = {"created_at": "created", "updated_at": "updated"}
DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 1000
MAX_PAGE: Final = 1_000_000

Run = tuple[RunRecord, AgentConfig]


_CHOSEN: Final = (
    Parameter("type", "Only the sessions of agents of this kind", one_of(KINDS)),
    by.USER,
)
_PAGED: Final = (
    Parameter("component_id", "Only the sessions of this agent, team or workflow"),
    Parameter("session_name", "Only sessions whose first message contains this text"),
    by.limit(MAX_LIMIT),
    Parameter("page", "The number of the page, from 1", {"type": "integer", "minimum": 0}),
    Parameter("sort_by", "The time by which sessions are sorted", one_of(tuple(SORTED_BY))),
    Parameter("sort_order", "The direction of the order", one_of(("asc", "desc"))),
)
_UNIX_TIME: Final = {"type": "integer", "minimum": 0}
_OF_RUNS: Final = (
    Parameter(
        "status",
        "Only runs of this status; of several, one must fit",
        a_list(one_of(STATUSES.values())),
    ),
    Parameter("created_after", "Only runs created from this Unix time on, in seconds", _UNIX_TIME),
    Parameter("created_before", "Only runs created up to this Unix time, in seconds", _UNIX_TIME),
)
_operation = partial(
    Operation, method="GET", tag="agno", errors=DETAIL, scopes=("read",), refusals=(404,)
)
_refused = partial(Operation, tag="agno", errors=DETAIL, answers={}, scopes=(), refusals=(405,))


class Sessions(Handlers):
    """Has the handlers of /sessions."""

    @serves(
        _refused(method="DELETE", path="/sessions", summary="Not served: sessions are read only"),
        *(
            _refused(
                method=method,
                path="/sessions/{session_id}",
                summary="Not served: sessions are read only",
                parameters=(by.SESSION_ID,),
            )
            for method in ("PATCH", "DELETE")
        ),
        _refused(
            method="POST",
            path="/sessions/{session_id}/rename",
            summary="Not served: sessions have no names of their own",
            parameters=(by.SESSION_ID,),
        ),
    )
    async def refuse(self, request: Request) -> ASGIApp:
        await ignore_body(request)
        raise Problem(405, READ_ONLY)

    @serves(
        _operation(
            method="POST",
            path="/sessions",
            summary="Create a session without runs",
            answers={201: json("The session", OBJECT)},
            scopes=("start",),
            parameters=_CHOSEN[:1],
            body=SessionRequest,
            example={"agent_id": "assistant"},
            refusals=(404, 409),
        )
    )
    async def create(self, request: Request) -> ASGIApp:
        """Names, state and metadata are refused, because Penstock would not keep them."""
        who, _, agents = self._asked(request)
        document = await read_json(request, self._edge.settings.max_body_bytes)
        asked = validated(SessionRequest, document)
        for name in ("session_name", "session_state", "metadata"):
            if getattr(asked, name):
                text = "Penstock keeps no names, state or metadata of sessions; leave it out"
                raise invalid("not_portable", (name,), text)
        kind = request.query_params.get("type", "agent")
        named = getattr(asked, f"{kind}_id")
        if named is not None:
            agents = [agent_of_kind(self._edge.config, kind, named)]
        agents = [each for each in agents if each.kind == kind]
        if len(agents) != 1:
            text = f"must name the session's {kind}, because each {kind} has sessions of its own"
            raise invalid("missing", (f"{kind}_id",), text)
        [agent] = agents
        owner, session_id = acting_user(who, asked.user_id), asked.session_id or str(uuid.uuid4())
        if who.grant is not None:
            who.grant.check_session(session_id)
        require_reachable(agent, owner, session_id)
        record = await create_session(self._edge.bus, owner, agent.id, session_id)
        if record is None:
            raise Problem(409, f"Session with id '{shortened(session_id)}' already exists")
        created = _summary(agent, owner, ListedSession(record, ()))
        return json_response(created.shown(()), 201)

    @serves(
        _operation(
            path="/sessions",
            summary="The user's sessions",
            answers={200: json("A page", an_object(data=a_list(OBJECT), meta=OBJECT))},
            parameters=(*_PAGED, *_CHOSEN),
        )
    )
    async def index(self, request: Request) -> ASGIApp:
        who, owner, agents = self._asked(request)
        if who.grant is not None:
            who.grant.check_subjects([])
        query = request.query_params
        limit = number(query.get("limit"), "limit", DEFAULT_LIMIT, MAX_LIMIT)
        page = 0 if query.get("page") == "0" else number(query.get("page"), "page", 1, MAX_PAGE)
        sort_by = query.get("sort_by", "created_at")
        order = query.get("sort_order", "desc")
        if sort_by not in SORTED_BY:
            raise Problem(422, f"sort_by: must be one of {', '.join(SORTED_BY)}")
        if order not in ("asc", "desc"):
            raise Problem(422, "sort_order: must be asc or desc")
        component = query.get("component_id")
        by_id = {each.id: each for each in agents if component in (None, each.id, each.agent)}
        sessions, name = self._edge.session_list, query.get("session_name", "")
        find = partial(sessions.named, name=name.casefold()) if name else sessions.page
        async with self._edge.turns.of(who.tenant_user):
            listed, count = await find(
                owner,
                list(by_id),
                sort_by=SORTED_BY[sort_by],
                descending=order == "desc",
                first=(max(page, 1) - 1) * limit,
                limit=limit,
            )
        found = [_summary(by_id[each.record.agent], owner, each) for each in listed]
        return json_response(page_of(found, count, page=page, limit=limit))

    @serves(
        _operation(
            path="/sessions/{session_id}",
            summary="One session with its conversation",
            answers={200: json("The session", OBJECT)},
            parameters=(by.SESSION_ID, *_CHOSEN),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        """If several agents have a session with this id, show the one that changed last."""
        who, owner, agents = self._asked(request)
        session_id = request.path_params["session_id"]
        records = await self._records(who, owner, session_id, agents)
        kept = [_summary(agent, owner, await self._ends(record)) for agent, record in records]
        if not kept:
            raise Problem(404, f"Session with id '{shortened(session_id)}' not found")
        latest = max(kept, key=lambda each: each.updated_at)
        of_it = [each for each in records if each[0] is latest.agent]
        runs = await self._runs(of_it)
        outputs = await self._outputs(who, runs)
        known = [outputs[record.run_id] for record, _ in runs if record.run_id in outputs]
        return json_response(latest.shown(known))

    @serves(
        _operation(
            path="/sessions/{session_id}/runs",
            summary="A session's runs",
            answers={200: json("The runs", a_list(OBJECT))},
            parameters=(by.SESSION_ID, *_CHOSEN, *_OF_RUNS),
            refusals=(400, 404),
        )
    )
    async def runs(self, request: Request) -> ASGIApp:
        """Only the last runs have messages and tool calls."""
        who, runs = await self._chosen(request)
        outputs = await self._outputs(who, runs)
        shown = [run_shown(record, agent, outputs.get(record.run_id)) for record, agent in runs]
        return json_response(shown)

    @serves(
        _operation(
            path="/sessions/{session_id}/run-previews",
            summary="A session's runs in short",
            answers={200: json("The runs", a_list(OBJECT))},
            parameters=(by.SESSION_ID, *_CHOSEN, *_OF_RUNS),
            refusals=(400, 404),
        )
    )
    async def previews(self, request: Request) -> ASGIApp:
        _, runs = await self._chosen(request)
        return json_response([preview_of(record, agent) for record, agent in runs])

    @serves(
        _operation(
            path="/sessions/{session_id}/runs/{run_id}",
            summary="One run of a session",
            answers={200: json("The run", OBJECT)},
            parameters=(by.SESSION_ID, by.RUN_ID, *_CHOSEN),
        )
    )
    async def run(self, request: Request) -> ASGIApp:
        who, owner, agents = self._asked(request)
        session_id, run_id = (request.path_params[name] for name in ("session_id", "run_id"))
        text = f"Run with ID {shortened(run_id)} not found in session {shortened(session_id)}"
        record = await run_of(self._edge.bus, who, run_id, Problem(404, text))
        agent = next((each for each in agents if each.id == record.agent), None)
        if agent is None or (record.session_id, record.user_id) != (session_id, owner):
            raise Problem(404, text)
        outputs = await self._outputs(who, [(record, agent)])
        return json_response(run_shown(record, agent, outputs.get(run_id)))

    def _asked(self, request: Request) -> tuple[Identity, str, list[AgentConfig]]:
        who = identity_of(request)
        query = request.query_params
        for name in ("db_id", "table"):
            if query.get(name):
                raise Problem(404, f"{name}: Penstock has no databases; leave it out")
        kind = query.get("type")
        if kind not in (None, *KINDS):
            raise Problem(422, f"type: must be one of {', '.join(KINDS)}")
        agents = [each for each in self._edge.config.agents if kind in (None, each.kind)]
        return who, acting_user(who, query.get("user_id")), agents

    async def _chosen(self, request: Request) -> tuple[Identity, list[Run]]:
        who, owner, agents = self._asked(request)
        query = request.query_params
        statuses = {status.upper() for status in query.getlist("status")}
        if unknown := sorted(statuses - set(STATUSES.values())):
            expected = ", ".join(STATUSES.values())
            raise Problem(400, f"status: {shortened(unknown[0])} is none of {expected}")
        after = _time_s(query.get("created_after"), "created_after")
        before = _time_s(query.get("created_before"), "created_before")
        session_id = request.path_params["session_id"]
        records = await self._records(who, owner, session_id, agents)
        if not records:
            raise Problem(404, f"Session with ID {shortened(session_id)} not found")
        runs = [
            (record, agent)
            for record, agent in await self._runs(records)
            if (not statuses or STATUSES[record.status] in statuses)
            and (after is None or created_s(record) >= after)
            and (before is None or created_s(record) <= before)
        ]
        return who, runs

    async def _records(
        self, who: Identity, owner: str, session_id: str, agents: Sequence[AgentConfig]
    ) -> list[tuple[AgentConfig, SessionRecord]]:
        if who.grant is not None:
            who.grant.check_session(session_id)
        by_id = {agent.id: agent for agent in agents}
        session = Session(owner, session_id, tuple(by_id), any_agent=False)
        records = await records_of(self._edge.bus, session)
        return [(by_id[record.agent], record) for record in records]

    async def _runs(self, records: Sequence[tuple[AgentConfig, SessionRecord]]) -> list[Run]:
        agents = {run_id: agent for agent, record in records for run_id in record.runs}
        found = await run_records(self._edge.bus, sorted(agents))
        return [(record, agents[record.run_id]) for record in found]

    async def _ends(self, record: SessionRecord) -> ListedSession:
        ids = [*record.runs[:1], *record.runs[-1:]]
        return ListedSession(record, tuple(await run_records(self._edge.bus, ids)))

    async def _outputs(self, who: Identity, runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
        """Map ids of the last runs to the runs as Agno's objects, from the newest run backwards, up
        to a limit. A run of which not all events could be read is left out."""
        allowance = request_allowance()
        turn = self._edge.turns.for_caller(who)
        outputs: dict[str, dict[str, Any]] = {}
        for record, agent in reversed(runs[-RUNS_READ:]):
            events = await read_run(
                self._edge.bus, record, allowance, turn, dialect="agno", who=who
            )
            if allowance.is_spent:
                break
            # If the run's first events have expired, the run is left out, because the run's record
            # shows more than the remaining events do.
            if events and events[0]["sequence"] == 1:
                encoder = EdgeFrames(agent, record.run_id).encoder()
                outputs[record.run_id] = run_output(events, encoder)
        return outputs


def _summary(agent: AgentConfig, owner: str, listed: ListedSession) -> SessionSummary:
    record, ends = listed.record, listed.ends
    begun = ends[0].created_at if ends else getattr(record, "created_at", "")
    return SessionSummary(
        agent,
        owner,
        record.session_id,
        ends[0].message if ends else "",
        begun,
        ends[-1].updated_at if ends else begun,
    )


def _time_s(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise Problem(422, f"{name}: must be a Unix time in seconds")
    return int(text)
