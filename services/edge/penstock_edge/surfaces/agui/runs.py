"""Serves POST /agui/{agent}: the body is a RunAgentInput; the response streams one AG-UI run.

HttpAgent and CopilotKit expect exactly one run in the response.
"""

from __future__ import annotations

import hashlib

import orjson
from starlette.requests import Request
from starlette.types import ASGIApp

from penstock import start_fields
from penstock.bus.records import DecideRequest
from penstock.runs.start import Start
from penstock.service.deciders import decider_of
from penstock.settings import AgentConfig, WorkflowAgent
from penstock.web.auth import Identity, identity_of, require
from penstock.web.bodies import read_body, require_json
from penstock.web.operation import Operation, serves
from penstock.web.problems import DETAIL, Problem
from penstock_edge.edge import Edge
from penstock_edge.runs.agui_leg_ids import AGUI
from penstock_edge.runs.decide import start_of_next_leg
from penstock_edge.runs.tree_approvals import decide_each
from penstock_edge.runs.trees import is_workflow, next_leg_of
from penstock_edge.runs.unaccepted_fields import unaccepted_as_422
from penstock_edge.sources.locate import locate, start_of_new_run
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.agents import agent_by_id
from penstock_edge.surfaces.agui import request as agui_request
from penstock_edge.surfaces.agui.pauses import Answer, AnsweredPauses
from penstock_edge.surfaces.agui.request import RunAgentInput
from penstock_edge.surfaces.bodies import workflow_input
from penstock_edge.surfaces.parameters import FOLLOWED
from penstock_edge.views.agui import Audience


class Runs:
    """Has the handler of /agui/{agent}."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    @serves(
        Operation(
            method="POST",
            path="/agui/{agent}",
            summary="Start a run, or answer a pause, and stream the leg",
            tag="agui",
            answers=FOLLOWED,
            scopes=(),
            any_scope=("start", "decide"),
            errors=DETAIL,
            parameters=(by.AGENT_ID,),
            body=RunAgentInput,
            example={
                "threadId": "thread-1",
                "runId": "run-1",
                "messages": [{"id": "m1", "role": "user", "content": "Hello"}],
                "tools": [],
                "context": [],
                "state": {},
                "forwardedProps": {},
            },
            description="A new run needs the scope `start`, the answer to a pause `decide`.",
            refusals=(404, 409, 410),
        )
    )
    async def post(self, request: Request) -> ASGIApp:
        edge, who = self._edge, identity_of(request)
        agent = agent_by_id(edge.config, request.path_params["agent"])
        edge.streams.require_room(request.scope)
        require_json(request)
        body = await read_body(request, edge.settings.max_body_bytes)
        asked = agui_request.parse(body)
        answer = await AnsweredPauses(edge.bus, who, agent, asked).find()
        if answer is not None:
            require(who, "decide")
            return await self._decide(who, asked, answer)
        require(who, "start")
        if agent.protocol != AGUI:
            agui_request.require_portable(asked)
        with unaccepted_as_422():
            if agent.protocol == AGUI:
                start_fields.check_body(AGUI, agent.accepts, body)
            else:
                start_fields.refuse_answers(orjson.loads(body))
        return await self._start(who, agent, asked, body)

    async def _start(
        self, who: Identity, agent: AgentConfig, asked: RunAgentInput, body: bytes
    ) -> ASGIApp:
        """Start a run, and stream it; for a repeated request, stream the run of the first
        request."""
        edge = self._edge
        shard = await edge.starter.shard_for(who.user_id, asked.thread_id)
        place = await start_of_new_run(edge.bus, shard)
        digest = hashlib.sha256(body).hexdigest()
        given = None
        if isinstance(agent, WorkflowAgent) and isinstance(asked.forwarded_props, dict):
            given = workflow_input(asked.forwarded_props.get("input"), "forwardedProps", "input")
        start = Start(
            agent,
            agui_request.text_of(asked),
            asked.thread_id,
            who.user_id,
            roles=who.roles_of(who.user_id),
            started_by=who.starters_for(who.user_id),
            input=given,
            body=body.decode() if agent.protocol == AGUI else None,
            key=orjson.dumps([AGUI, agent.id, asked.thread_id, asked.run_id, digest]).decode(),
            request=body,
            prepare=lambda run_id: self._call(run_id, 1, asked),
            shard=shard,
        )
        started = await edge.starter.start(start)
        record, audience = started.record, _audience(asked)
        view = edge.agui.of_leg(record.run_id, 1, audience)
        if is_workflow(record):
            view = edge.tree(record.run_id).agui_leg(audience, after=0)
        return await edge.stream(view, place if started.new else await locate(edge.bus, view, None))

    async def _decide(self, who: Identity, asked: RunAgentInput, answer: Answer) -> ASGIApp:
        """Send the decision to the approvals service; the response streams the next leg."""
        edge, approval = self._edge, answer.approval
        if answer.root is not None:
            next_leg = await next_leg_of(edge.bus, edge.run_list, answer.root)
            run_id, leg, place = answer.root.run_id, next_leg.number, next_leg.position
            answered = [each.approval.approval_id for each in (answer, *answer.others)]
            tree = edge.tree(run_id, next_leg.known, answered)
            view = tree.agui_leg(_audience(asked), next_leg.after)
        else:
            run_id, leg = approval.run_id, approval.leg + 1
            place = await start_of_next_leg(edge.bus, run_id)
            view = edge.agui.of_leg(run_id, leg, _audience(asked))
        named = await self._call(run_id, leg, asked)
        decisions = [(each.approval, _decision(who, each)) for each in (answer, *answer.others)]
        try:
            await decide_each(edge.bus, decisions)
        except Problem as problem:
            if problem.status != 503:
                await edge.agui_leg_ids.withdraw(run_id, leg, named)
            raise
        # A second request may have overwritten this request's runId before the approvals service
        # refused the second request's decision. So this request writes its runId again.
        await self._call(run_id, leg, asked)
        return await edge.stream(view, place)

    async def _call(self, run_id: str, leg: int, asked: RunAgentInput) -> int:
        return await self._edge.agui_leg_ids.write(run_id, leg, asked.run_id)


def _decision(who: Identity, answer: Answer) -> DecideRequest:
    approval = answer.approval
    return DecideRequest(
        by=who.user_id,
        decider=decider_of(who, "agui"),
        # The client has seen only the event approval.requested, not later edits of the items. So
        # the decision has the digest of the items as they were requested. If the items were edited
        # since, the approvals service refuses the decision.
        digest=approval.requested_digest or approval.digest,
        items=answer.items,
    )


def _audience(asked: RunAgentInput) -> Audience:
    return Audience(protocol_version=asked.protocol_version)
