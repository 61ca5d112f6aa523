"""agno-events.md offered to Agno's clients: start, continue and cancel, whatever the upstream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final, TypeVar, cast

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock import starts
from penstock.bus.records import DecideRequest, RunRecord
from penstock.settings import AgentConfig
from penstock.web.auth import Identity, act_as, identity_of, require
from penstock.web.bodies import ignore_body
from penstock.web.operation import (
    FORMS,
    JSON,
    OBJECT,
    SSE,
    TEXT,
    Answer,
    Operation,
    a_list,
    an_object,
    json,
    serves,
)
from penstock.web.problems import DETAIL, Problem
from penstock_edge.edge import Edge
from penstock_edge.runs.accepted import named_in_422
from penstock_edge.runs.access import run_of
from penstock_edge.runs.decide import pause_of, place_of_next_leg, take
from penstock_edge.runs.start import Start
from penstock_edge.sources.locate import Place, place_of_new
from penstock_edge.stream.whole_body import WholeBody
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.agno import answers as agno_answers
from penstock_edge.surfaces.agno import request as agno_request
from penstock_edge.surfaces.agno.body import fields_of
from penstock_edge.surfaces.agno.request import (
    BrokenAnswers,
    ContinueRequest,
    InvalidRequest,
    RunRequest,
)
from penstock_edge.surfaces.agno.views import is_native, leg_view, output_view
from penstock_edge.surfaces.described import STREAM

KINDS: Final = ("agent", "team", "workflow")


RAW: Final = "where the stream is that of an Agno agent, because its server's bytes are relayed"
_NAMED: Final = an_object(id=TEXT, name=TEXT)
_LEG: Final = {200: Answer("The leg as a stream, or the run", {SSE: STREAM, JSON: OBJECT})}
H = TypeVar("H", bound=Callable[..., Awaitable[ASGIApp]])


def _of_each_kind(path: str, summary: str, **declared: Any) -> list[Operation]:
    """The same operation for agents, teams and workflows; the handler reads `kind`."""
    return [
        Operation(
            path=path.replace("{kind}", kind),
            summary=summary.format(kind=kind),
            tag="agno",
            errors=DETAIL,
            given={"kind": kind},
            **declared,
        )
        for kind in KINDS
    ]


def _with_problems(handle: H) -> H:
    """A handler whose bad bodies are answered as Agno answers them: 422, or 400 for answers."""

    @wraps(handle)
    async def handler(*arguments: Any) -> ASGIApp:
        try:
            return await handle(*arguments)
        except InvalidRequest as error:
            raise Problem(422, str(error), errors=error.errors) from error
        except BrokenAnswers as error:
            raise Problem(400, str(error)) from error

    return cast(H, handler)


class AgnoSurface:
    """Handlers of /agents, /teams and /workflows."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    @serves(
        *_of_each_kind(
            method="GET",
            path="/{kind}s",
            summary="Every {kind}",
            answers={200: json("Ids and names", a_list(_NAMED))},
            scopes=("read",),
        )
    )
    async def index(self, request: Request) -> ASGIApp:
        """What there is of this kind."""
        kind = request.path_params["kind"]
        return _json([_shown(agent) for agent in self._edge.config.agents if agent.kind == kind])

    @serves(
        *_of_each_kind(
            method="GET",
            path="/{kind}s/{id}",
            summary="One {kind}",
            answers={200: json("Its id and name", _NAMED)},
            scopes=("read",),
            parameters=(by.AGNO_ID,),
            refusals=(404,),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        """One agent, team or workflow: what an Agno client needs in order to name it."""
        return _json(_shown(self._agent(request)))

    @serves(
        *_of_each_kind(
            method="POST",
            path="/{kind}s/{id}/runs",
            summary="Start a run",
            answers={
                **_LEG,
                202: json("With `background` and without `stream`: the run is begun", OBJECT),
            },
            scopes=("start",),
            sometimes={"raw": RAW},
            parameters=(by.AGNO_ID,),
            body=RunRequest,
            body_types=(*FORMS, JSON),
            example={"message": "Hello", "stream": True},
            refusals=(404,),
        )
    )
    @_with_problems
    async def start(self, request: Request) -> ASGIApp:
        """A new run: its first leg as a stream, or the run as JSON where `stream` is not true.

        With `background` and without `stream`: 202 at once, as Agno 3 answers.
        """
        edge, who = self._edge, identity_of(request)
        agent = self._agent(request)
        fields = await fields_of(request, edge.settings.max_body_bytes)
        asked = agno_request.parse(fields, RunRequest)
        at_once = asked.background and not asked.stream
        if not at_once:
            edge.streams.require_room(request.scope)
        user_id = act_as(who, asked.user_id)
        native = is_native(agent)
        given: dict[str, Any] = {}
        with named_in_422():
            if native:
                given = starts.accepted_input("agno", agent.accepts, asked.forwarded())
            else:
                starts.refuse_answers(asked.model_extra)
        if not native:
            agno_request.require_portable(asked)
        _require_raw(who, agent, asked)
        place = await place_of_new(edge.bus, over_raw=native and asked.stream)
        started = await edge.starter.start(
            Start(
                agent,
                asked.message,
                asked.session_id,
                user_id,
                # another protocol has other names for what its runs take
                input=given or None,
            )
        )
        if at_once:
            record = started.record
            accepted = {"run_id": record.run_id, "session_id": record.session_id}
            answer = _json({**accepted, "status": "PENDING"}, 202)
            answer.headers["penstock-run-id"] = record.run_id
            return answer
        return await self._leg(agent, started.record.run_id, 1, place, stream=asked.stream)

    @serves(
        *_of_each_kind(
            method="POST",
            path="/{kind}s/{id}/runs/{run_id}/continue",
            summary="Answer a pause",
            answers=_LEG,
            scopes=("decide",),
            sometimes={"raw": RAW},
            parameters=(by.AGNO_ID, by.RUN_ID),
            body=ContinueRequest,
            body_types=(*FORMS, JSON),
            example={"tools": [{"tool_call_id": "call-1", "confirmed": True}], "stream": True},
            refusals=(404, 409, 410),
        )
    )
    @_with_problems
    async def go_on(self, request: Request) -> ASGIApp:
        """The decision about a paused run's requests; answers with the leg that follows."""
        edge, who = self._edge, identity_of(request)
        agent = self._agent(request)
        record = await self._run(who, agent, request)
        fields = await fields_of(request, edge.settings.max_body_bytes)
        asked = agno_request.parse(fields, ContinueRequest)
        by = act_as(who, asked.user_id)
        edge.streams.require_room(request.scope)
        _require_raw(who, agent, asked)
        if asked.session_id not in (None, record.session_id):
            raise _unknown_run(record.run_id)
        answers = agno_answers.answers(*agno_request.answers_of(asked, request.path_params["kind"]))
        run_id = record.run_id
        pause = await pause_of(
            edge.bus, run_id, lambda pause: agno_answers.known(pause.items, pause.shown, answers)
        )
        approval = pause.approval
        if approval.status != "pending":
            raise Problem(409, f"run {run_id} is not paused: its request was {approval.status}")
        items = agno_answers.decided(pause.items, pause.shown, answers)
        place = await place_of_next_leg(edge.bus, run_id, is_native(agent) and asked.stream)
        decision = DecideRequest(by=by, digest=approval.digest, items=items)
        await take(edge.bus, approval.approval_id, decision)
        return await self._leg(agent, run_id, approval.leg + 1, place, stream=asked.stream)

    @serves(
        *_of_each_kind(
            method="POST",
            path="/{kind}s/{id}/runs/{run_id}/cancel",
            summary="Cancel a run",
            answers={200: json("The run is cancelled, or is being cancelled", OBJECT)},
            scopes=("start",),
            parameters=(by.AGNO_ID, by.RUN_ID, by.OF_SESSION),
            refusals=(404, 409),
        )
    )
    async def cancel(self, request: Request) -> ASGIApp:
        """`{}` once the run is cancelled, or while it is being."""
        who = identity_of(request)
        agent = self._agent(request)
        record = await self._run(who, agent, request)
        if request.query_params.get("session_id") not in (None, "", record.session_id):
            raise _unknown_run(record.run_id)
        await ignore_body(request)
        await self._edge.canceller.cancel(record.run_id, who)
        return _json({})

    async def _leg(
        self, agent: AgentConfig, run_id: str, leg: int, place: Place, *, stream: bool
    ) -> ASGIApp:
        edge = self._edge
        if stream:
            return await edge.stream(leg_view(agent, run_id, leg), place)
        return WholeBody(await edge.hubs.join(output_view(agent, run_id, leg), place))

    def _agent(self, request: Request) -> AgentConfig:
        """By our id for it, else by its upstream's. Raises Problem 404."""
        id, kind = request.path_params["id"], request.path_params["kind"]
        agents = [agent for agent in self._edge.config.agents if agent.kind == kind]
        found = [agent for agent in agents if agent.id == id] or [
            agent for agent in agents if agent.agent == id
        ]
        if not found:
            raise Problem(404, f"{kind.capitalize()} not found")
        return found[0]

    async def _run(self, who: Identity, agent: AgentConfig, request: Request) -> RunRecord:
        """The run of this agent, if it is the caller's. Raises Problem 404, 403 as `run_of`."""
        run_id = request.path_params["run_id"]
        try:
            record = await run_of(self._edge.bus, who, run_id)
        except Problem as problem:
            if problem.status == 404:
                raise _unknown_run(run_id) from problem
            raise
        if record.agent != agent.id:
            raise _unknown_run(run_id)
        return record


def _require_raw(who: Identity, agent: AgentConfig, asked: RunRequest | ContinueRequest) -> None:
    """An Agno upstream's stream is its own bytes."""
    if asked.stream and is_native(agent):
        require(who, "raw")


def _unknown_run(run_id: str) -> Problem:
    return Problem(404, f"No runs found for run ID {agno_request.named(run_id)}")


def _shown(agent: AgentConfig) -> dict[str, Any]:
    return {"id": agent.id, "name": agent.name or agent.id}


def _json(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
