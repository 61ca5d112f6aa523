"""Serves POST /agui/{agent}: the body is a RunAgentInput; the response streams one AG-UI run.

HttpAgent and CopilotKit expect exactly one run in the response.
"""

from __future__ import annotations

import hashlib

import orjson
from starlette.requests import Request
from starlette.types import ASGIApp

from penstock import start_fields
from penstock.bus.records.runs import WhenBusy
from penstock.runs.start import Start
from penstock.settings import AgentConfig
from penstock.web.auth import Identity, identity_of, require
from penstock.web.operation import Operation, serves
from penstock.web.problems import DETAIL, Problem
from penstock_edge.runs.agui_leg_ids import AGUI
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.agents import agent_by_id
from penstock_edge.surfaces.agui import request as agui_request
from penstock_edge.surfaces.agui.pauses import AnsweredPauses
from penstock_edge.surfaces.agui.request import RunAgentInput
from penstock_edge.surfaces.bodies import json_body, workflow_input
from penstock_edge.surfaces.errors import unaccepted_as_422
from penstock_edge.surfaces.legs import Leg, Reply, decide, first_leg, next_leg
from penstock_edge.surfaces.query import when_busy_of
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.views.agui import Audience
from penstock_edge.views.view import View


class Runs(Handlers):
    """Has the handler of /agui/{agent}."""

    @serves(
        Operation(
            method="POST",
            path="/agui/{agent}",
            summary="Start a run, or answer a pause, and stream the leg",
            tag="agui",
            answers=by.FOLLOWED,
            scopes=(),
            any_scope=("start", "decide"),
            errors=DETAIL,
            parameters=(by.AGENT_ID, by.WHEN_BUSY),
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
        body = await json_body(edge, request)
        asked = agui_request.parse(body)
        reply = await AnsweredPauses(edge.bus, who, agent, asked).find()
        if reply is not None:
            require(who, "decide")
            return await self._decide(who, asked, reply)
        require(who, "start")
        if agent.protocol != AGUI:
            agui_request.require_portable(asked)
        with unaccepted_as_422():
            if agent.protocol == AGUI:
                start_fields.check_body(AGUI, agent.accepts, body)
            else:
                start_fields.refuse_answers(orjson.loads(body))
        return await self._start(who, agent, asked, body, when_busy_of(request))

    async def _start(
        self,
        who: Identity,
        agent: AgentConfig,
        asked: RunAgentInput,
        body: bytes,
        when_busy: WhenBusy,
    ) -> ASGIApp:
        """For a repeated request, stream the run of the first one."""
        edge = self._edge
        props = asked.forwarded_props if isinstance(asked.forwarded_props, dict) else {}
        digest = hashlib.sha256(body).hexdigest()
        start = Start(
            agent,
            agui_request.text_of(asked),
            asked.thread_id,
            who.run_user(who.user_id),
            input=workflow_input(agent, props.get("input"), "forwardedProps", "input"),
            body=body.decode() if agent.protocol == AGUI else None,
            key=orjson.dumps([AGUI, agent.id, asked.thread_id, asked.run_id, digest]).decode(),
            request=body,
            when_busy=when_busy,
            prepare=lambda run_id: edge.agui_leg_ids.write(run_id, 1, asked.run_id),
        )
        _, leg = await first_leg(edge, start)
        return await edge.stream(self._view(leg, asked), leg.position, who)

    async def _decide(self, who: Identity, asked: RunAgentInput, reply: Reply) -> ASGIApp:
        edge, names = self._edge, self._edge.agui_leg_ids
        leg = await next_leg(edge, reply)
        revision = await names.write(leg.run_id, leg.number, asked.run_id)
        try:
            await decide(edge, who, AGUI, reply, user_id=who.user_id)
        except Problem as problem:
            if problem.status != 503:
                await names.withdraw(leg.run_id, leg.number, revision)
            raise
        # A second request may have overwritten this request's runId before the approvals service
        # refused the second request's decision. So this request writes its runId again.
        await names.write(leg.run_id, leg.number, asked.run_id)
        return await edge.stream(self._view(leg, asked), leg.position, who)

    def _view(self, leg: Leg, asked: RunAgentInput) -> View:
        audience = Audience(protocol_version=asked.protocol_version)
        if leg.tree is not None:
            return leg.tree.agui_leg(audience, leg.after)
        return self._edge.agui.of_leg(leg.run_id, leg.number, audience)
