"""Serves the contract agno-events.md: starts, continues and cancels runs of agents of any
protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock import start_fields
from penstock.bus.records.runs import RunRecord
from penstock.runs.start import Start
from penstock.settings import AgentConfig, Config
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
from penstock_edge.runs.pauses import approval_of, open_approvals, pause_of
from penstock_edge.runs.records import is_workflow, run_of
from penstock_edge.sources.locate import lifecycle_of, locate, with_marker
from penstock_edge.stream.responses.event_stream import EventStream, Prefaced
from penstock_edge.stream.responses.single_body import SingleBody
from penstock_edge.surfaces import legs
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.agents import agent_of_kind
from penstock_edge.surfaces.agno import answers as agno_answers
from penstock_edge.surfaces.agno import request as agno_request
from penstock_edge.surfaces.agno import resumed
from penstock_edge.surfaces.agno.body import fields_of
from penstock_edge.surfaces.agno.request import (
    KINDS,
    ContinueRequest,
    ResumeRequest,
    RunRequest,
)
from penstock_edge.surfaces.agno.session_shapes import STATUSES
from penstock_edge.surfaces.agno.views import (
    EdgeFrames,
    is_native,
    object_form,
    stream_form,
    upstream_leg_view,
)
from penstock_edge.surfaces.bodies import json_response, workflow_input
from penstock_edge.surfaces.errors import shortened, unaccepted_as_422
from penstock_edge.surfaces.query import when_busy_of
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.views.audience import PII
from penstock_edge.views.items import type_of

RAW: Final = "where the stream is that of an Agno agent, because its server's bytes are relayed"
_NAMED: Final = an_object(id=TEXT, name=TEXT)
_LEG: Final = {200: Answer("The leg as a stream, or the run", {SSE: by.STREAM, JSON: OBJECT})}


def _of_each_kind(path: str, summary: str, **declared: Any) -> list[Operation]:
    # The handler gets the kind, agent, team or workflow, in the path parameter `kind`.
    return [
        Operation(
            path=path.replace("{kind}", kind),
            summary=summary.format(kind=kind),
            tag="agno",
            errors=DETAIL,
            constants={"kind": kind},
            **declared,
        )
        for kind in KINDS
    ]


class Runs(Handlers):
    """Has the handlers of /agents, /teams and /workflows."""

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
        return json_response(agents_shown(self._edge.config, kind))

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
            parameters=(by.AGNO_ID, by.WHEN_BUSY),
            body=RunRequest,
            body_types=(*FORMS, JSON),
            example={"message": "Hello", "stream": True},
            refusals=(404, 409),
        )
    )
    async def start(self, request: Request) -> ASGIApp:
        """With `stream`, respond with the stream of the first leg, without it with the run as JSON
        when the leg has ended, and with `background` only at once with 202, as in Agno 3."""
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
        given = (
            given or workflow_input(agent, (asked.model_extra or {}).get("input"), "input") or {}
        )
        _require_raw(who, agent, asked)
        start = Start(
            agent,
            asked.message,
            asked.session_id,
            who.run_user(user_id),
            # For an agent that is neither an Agno agent nor a workflow, `given` is empty, because
            # the request has no fields for the input of such an agent.
            input=given or None,
            when_busy=when_busy_of(request),
            sees_pii=who.has_scope(PII),
        )
        started, leg = await legs.first_leg(edge, start, frames=native and asked.stream)
        if asked.returns_at_once:
            record = started.record
            accepted = {"run_id": record.run_id, "session_id": record.session_id}
            answer = json_response({**accepted, "status": "PENDING"}, 202)
            answer.headers["penstock-run-id"] = record.run_id
            return answer
        return await self._respond(who, agent, leg, stream=asked.stream)

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
        section, objects = agno_request.answers_of(asked, agent.kind)
        answers = agno_answers.answers(section, objects)
        find = self._reply_in_tree if is_workflow(record) else self._reply
        reply = await find(who, record, answers)
        reads_frames = is_native(agent) and asked.stream
        leg = await legs.next_leg(edge, reply, frames_for=who if reads_frames else None)
        await legs.decide(edge, who, "agno", reply, user_id=user_id)
        return await self._respond(who, agent, leg, stream=asked.stream)

    @serves(
        *_of_each_kind(
            method="POST",
            path="/{kind}s/{id}/runs/{run_id}/resume",
            summary="Read a run's stream again, after an event",
            answers={200: by.STREAMED},
            scopes=("read",),
            sometimes={"raw": RAW},
            parameters=(by.AGNO_ID, by.RUN_ID),
            body=ResumeRequest,
            body_types=(*FORMS, JSON),
            body_required=False,
            example={"last_event_index": 3},
            refusals=(404, 409, 410),
        )
    )
    async def resume(self, request: Request) -> ASGIApp:
        """Begin after the event `last_event_index`, or with the first one. The stream ends with the
        pause that waits now, or else with the next pause or the run's end."""
        edge, who = self._edge, identity_of(request)
        agent = self._agent(request)
        record = await self._run(who, agent, request)
        fields = await fields_of(request, edge.settings.max_body_bytes)
        asked = agno_request.parse(fields, ResumeRequest)
        edge.streams.require_room(request.scope)
        if asked.session_id not in (None, record.session_id):
            raise _unknown_run(record.run_id)
        run_id, after = record.run_id, -1 if (at := asked.last_event_index) is None else at
        leg = await legs.newest_leg(edge, run_id)
        if is_native(agent):
            require(who, "raw")
            view = resumed.upstream_run_view(agent, run_id, leg.number, after)
            place = await locate(edge.bus, view, None, record)
        else:
            form = resumed.encoded_form(EdgeFrames(agent, run_id), after)
            view, place = await legs.located(edge, record, form, None, leg, replays=True)
        if place.truncated:
            # The numbers of the remaining events would not be those that the client has seen.
            raise Problem(410, f"the first events of run {run_id} are no longer kept")
        status = await self._status(record) if place.ended or leg.waits else None
        if status is None:
            place = await with_marker(edge.bus, view, place)
        # The stream is not told that the run has ended: with nothing left, it would answer 204.
        stream = EventStream(await edge.hubs.join(view, place, who))
        return Prefaced(stream, resumed.preface(run_id, status, after))

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

    async def _reply(
        self, who: Identity, record: RunRecord, answers: Sequence[agno_answers.Answer]
    ) -> legs.Reply:
        pause = await pause_of(
            self._edge.bus,
            who.user_id,
            record.run_id,
            lambda pause: agno_answers.are_known(pause.approval.items, pause.shown, answers),
        )
        approval = pause.approval
        if approval.status != "pending":
            text = f"run {record.run_id} is not paused: its request was {approval.status}"
            raise Problem(409, text)
        asked = approval.items_for(who.scopes)
        items = agno_answers.decided(asked, pause.shown, answers)
        return legs.Reply([legs.Answer(approval, items)])

    async def _reply_in_tree(
        self, who: Identity, root: RunRecord, answers: Sequence[agno_answers.Answer]
    ) -> legs.Reply:
        open_ = await open_approvals(
            self._edge.bus,
            who,
            root,
            lambda found: all(each.ran_before or approval_of(found, each.ids) for each in answers),
        )
        if not open_:
            raise Problem(409, f"run {root.run_id} is not paused")
        by_approval: dict[str, list[agno_answers.Answer]] = {}
        for answer in answers:
            # An answer that belongs to no approval is refused as an answer to the first one.
            approval = approval_of(open_, answer.ids) or open_[0]
            by_approval.setdefault(approval.approval.approval_id, []).append(answer)
        replies = []
        for each in open_:
            given = by_approval.get(each.approval.approval_id, ())
            if items := agno_answers.decided(each.items, each.short_ids, given):
                replies.append(legs.Answer(each.approval, items))
        return legs.Reply(replies, root)

    async def _respond(
        self, who: Identity, agent: AgentConfig, leg: legs.Leg, *, stream: bool
    ) -> ASGIApp:
        edge, frames = self._edge, EdgeFrames(agent, leg.run_id)
        if not stream:
            view = leg.view(object_form(frames))
            return SingleBody(await edge.hubs.join(view, leg.position, who))
        if is_native(agent):
            view = upstream_leg_view(agent, leg.run_id, leg.number)
        else:
            view = leg.view(stream_form(frames))
        return await edge.stream(view, leg.position, who)

    async def _status(self, record: RunRecord) -> str:
        # The record may be older than the event.
        lifecycle = await lifecycle_of(self._edge.bus, record.run_id)
        said = type_of(lifecycle).rpartition(".")[2] if lifecycle is not None else ""
        return STATUSES.get(said, STATUSES[record.status])

    def _agent(self, request: Request) -> AgentConfig:
        path = request.path_params
        return agent_of_kind(self._edge.config, path["kind"], path["id"])

    async def _run(self, who: Identity, agent: AgentConfig, request: Request) -> RunRecord:
        run_id = request.path_params["run_id"]
        return await run_of(self._edge.bus, who, run_id, _unknown_run(run_id), agent.id)


def _require_raw(who: Identity, agent: AgentConfig, asked: RunRequest | ContinueRequest) -> None:
    if asked.stream and is_native(agent):
        require(who, "raw")


def _unknown_run(run_id: str) -> Problem:
    return Problem(404, f"No runs found for run ID {shortened(run_id)}")


def agents_shown(config: Config, kind: str) -> list[dict[str, Any]]:
    return [_shown(agent) for agent in config.agents if agent.kind == kind]


def _shown(agent: AgentConfig) -> dict[str, Any]:
    return {"id": agent.id, "name": agent.name or agent.id}
