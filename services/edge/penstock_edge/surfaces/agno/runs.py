"""Serves the contract agno-events.md: starts, continues and cancels runs of agents of any
protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock import start_fields
from penstock.bus.records import Decider, DecideRequest, RunRecord
from penstock.runs.decide import forward_decision
from penstock.runs.start import Start
from penstock.service.deciders import decider_of
from penstock.settings import AgentConfig, WorkflowAgent
from penstock.web.auth import Identity, acting_user, identity_of, require
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
from penstock_edge.runs.decide import pause_of, start_of_next_leg
from penstock_edge.runs.run_access import run_of
from penstock_edge.runs.tree_approvals import decide_each, open_approvals
from penstock_edge.runs.trees import NextLeg, is_workflow, next_leg_of
from penstock_edge.runs.unaccepted_fields import unaccepted_as_422
from penstock_edge.sources.locate import StartPosition, start_of_new_run
from penstock_edge.stream.responses.single_body import SingleBody
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.agents import agent_of_kind
from penstock_edge.surfaces.agno import answers as agno_answers
from penstock_edge.surfaces.agno import request as agno_request
from penstock_edge.surfaces.agno.body import fields_of
from penstock_edge.surfaces.agno.request import KINDS, ContinueRequest, RunRequest
from penstock_edge.surfaces.agno.views import (
    is_native,
    leg_view,
    output_view,
    tree_leg_view,
    tree_output_view,
)
from penstock_edge.surfaces.bodies import workflow_input
from penstock_edge.surfaces.errors import shortened
from penstock_edge.surfaces.parameters import STREAM
from penstock_edge.surfaces.responses import json_response

RAW: Final = "where the stream is that of an Agno agent, because its server's bytes are relayed"
_NAMED: Final = an_object(id=TEXT, name=TEXT)
_LEG: Final = {200: Answer("The leg as a stream, or the run", {SSE: STREAM, JSON: OBJECT})}


def _of_each_kind(path: str, summary: str, **declared: Any) -> list[Operation]:
    """Declare the same operation once for each kind: agents, teams and workflows.

    The handler gets the kind in the path parameter `kind`.
    """
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


class Runs:
    """Has the handlers of /agents, /teams and /workflows."""

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
        kind = request.path_params["kind"]
        return json_response(
            [_shown(agent) for agent in self._edge.config.agents if agent.kind == kind]
        )

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
        return json_response(_shown(self._agent(request)))

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
    async def start(self, request: Request) -> ASGIApp:
        """Start a run.

        With `stream`, the response is the stream of the first leg. Without `stream`, the response
        is the run as JSON when the leg has ended. With `background` and without `stream`, the
        response is 202 at once, as in Agno 3.
        """
        edge, who = self._edge, identity_of(request)
        agent = self._agent(request)
        fields = await fields_of(request, edge.settings.max_body_bytes)
        asked = agno_request.parse(fields, RunRequest)
        if not asked.returns_at_once:
            edge.streams.require_room(request.scope)
        user_id = acting_user(who, asked.user_id)
        native = is_native(agent)
        given: dict[str, Any] = {}
        with unaccepted_as_422():
            if native:
                given = start_fields.accepted_input("agno", agent.accepts, asked.forwarded())
            else:
                start_fields.refuse_answers(asked.model_extra)
        if not native:
            agno_request.require_portable(asked)
        if isinstance(agent, WorkflowAgent):
            given = workflow_input((asked.model_extra or {}).get("input"), "input") or {}
        _require_raw(who, agent, asked)
        shard = await edge.starter.shard_for(user_id, asked.session_id)
        place = await start_of_new_run(edge.bus, shard, frames=native and asked.stream)
        started = await edge.starter.start(
            Start(
                agent,
                asked.message,
                asked.session_id,
                user_id,
                roles=who.roles_of(user_id),
                started_by=who.starters_for(user_id),
                # For an agent that is neither an Agno agent nor a workflow, `given` is empty,
                # because the request has no fields for the input of such an agent.
                input=given or None,
                shard=shard,
            )
        )
        if asked.returns_at_once:
            record = started.record
            accepted = {"run_id": record.run_id, "session_id": record.session_id}
            answer = json_response({**accepted, "status": "PENDING"}, 202)
            answer.headers["penstock-run-id"] = record.run_id
            return answer
        record = started.record
        if is_workflow(record):
            leg = NextLeg(place, 0, 1)
            return await self._leg_of_tree(agent, record.run_id, leg, stream=asked.stream)
        return await self._leg(agent, record.run_id, 1, place, stream=asked.stream)

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
    async def continue_run(self, request: Request) -> ASGIApp:
        edge, who = self._edge, identity_of(request)
        agent = self._agent(request)
        record = await self._run(who, agent, request)
        fields = await fields_of(request, edge.settings.max_body_bytes)
        asked = agno_request.parse(fields, ContinueRequest)
        user_id = acting_user(who, asked.user_id)
        edge.streams.require_room(request.scope)
        _require_raw(who, agent, asked)
        if asked.session_id not in (None, record.session_id):
            raise _unknown_run(record.run_id)
        listed = agno_request.answers_of(asked, agent.kind)
        answers = agno_answers.answers(listed.field, listed.objects)
        run_id = record.run_id
        if is_workflow(record):
            next_leg = await next_leg_of(edge.bus, edge.run_list, record)
            decider = decider_of(who, "agno", user_id)
            decided = await self._decide_in_tree(record, answers, by=user_id, decider=decider)
            return await self._leg_of_tree(agent, run_id, next_leg, decided, stream=asked.stream)
        pause = await pause_of(
            edge.bus,
            who.user_id,
            run_id,
            lambda pause: agno_answers.are_known(pause.items, pause.shown, answers),
        )
        approval = pause.approval
        if approval.status != "pending":
            raise Problem(409, f"run {run_id} is not paused: its request was {approval.status}")
        items = agno_answers.decided(pause.items, pause.shown, answers)
        native = is_native(agent) and asked.stream
        place = await start_of_next_leg(edge.bus, run_id, frames=native)
        decision = DecideRequest(
            by=user_id,
            decider=decider_of(who, "agno", user_id),
            # The client has seen only the event approval.requested, not later edits of the items.
            # So the decision has the digest of the items as they were requested. If the items were
            # edited since, the approvals service refuses the decision.
            digest=approval.requested_digest or approval.digest,
            items=items,
        )
        await forward_decision(edge.bus, approval.approval_id, decision)
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
        who = identity_of(request)
        agent = self._agent(request)
        record = await self._run(who, agent, request)
        if request.query_params.get("session_id") not in (None, "", record.session_id):
            raise _unknown_run(record.run_id)
        await ignore_body(request)
        await self._edge.canceller.cancel(record.run_id, who)
        return json_response({})

    async def _decide_in_tree(
        self, root: RunRecord, answers: Sequence[agno_answers.Answer], *, by: str, decider: Decider
    ) -> list[str]:
        """Decide the open approvals of a workflow's run that the answers name; return their ids.

        Raises:
            Problem: 409 if no approval is open; also every problem of
                `agno_answers.decided_by_approval`.
        """
        bus = self._edge.bus
        known = partial(agno_answers.are_all_known, given=answers)
        open_ = await open_approvals(bus, decider.name, root, known)
        if not open_:
            raise Problem(409, f"run {root.run_id} is not paused")
        decisions = [
            (
                each.approval,
                DecideRequest(
                    by=by,
                    decider=decider,
                    digest=each.approval.requested_digest or each.approval.digest,
                    items=items,
                ),
            )
            for each, items in agno_answers.decided_by_approval(open_, answers)
        ]
        await decide_each(bus, decisions)
        return [approval.approval_id for approval, _ in decisions]

    async def _leg(
        self, agent: AgentConfig, run_id: str, leg: int, place: StartPosition, *, stream: bool
    ) -> ASGIApp:
        edge = self._edge
        if stream:
            return await edge.stream(leg_view(agent, run_id, leg), place)
        return SingleBody(await edge.hubs.join(output_view(agent, run_id, leg), place))

    async def _leg_of_tree(
        self,
        agent: AgentConfig,
        root: str,
        leg: NextLeg,
        answered: Iterable[str] = (),
        *,
        stream: bool,
    ) -> ASGIApp:
        """Respond with this leg of a workflow's run; for `answered`, see `Edge.tree`."""
        edge = self._edge
        trees, place, after = edge.tree(root, leg.known, answered), leg.position, leg.after
        if stream:
            return await edge.stream(tree_leg_view(trees, agent, after), place)
        return SingleBody(await edge.hubs.join(tree_output_view(trees, agent, after), place))

    def _agent(self, request: Request) -> AgentConfig:
        path = request.path_params
        return agent_of_kind(self._edge.config, path["kind"], path["id"])

    async def _run(self, who: Identity, agent: AgentConfig, request: Request) -> RunRecord:
        """Return the record of the run that the path names.

        Raises:
            Problem: 404 if this agent has no such run; also any other problem of `run_of`.
        """
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
    """Raise Problem 403 if the response needs the scope `raw` and the caller does not have it.

    The stream of an Agno agent needs this scope, because the bytes of the Agno server are relayed.
    """
    if asked.stream and is_native(agent):
        require(who, "raw")


def _unknown_run(run_id: str) -> Problem:
    return Problem(404, f"No runs found for run ID {shortened(run_id)}")


def _shown(agent: AgentConfig) -> dict[str, Any]:
    return {"id": agent.id, "name": agent.name or agent.id}
