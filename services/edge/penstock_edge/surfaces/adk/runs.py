"""Serves the contract adk-streaming.md: starts a run or answers a pause, and returns the leg."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock import start_fields
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.records.runs import WhenBusy
from penstock.dialects.approvals import parse_question_id
from penstock.lookups import look_until
from penstock.runs.start import Start
from penstock.settings import AgentConfig, WorkflowAgent
from penstock.sse import Frame, FrameTooLarge, Parser
from penstock.web.auth import Identity, acting_user, identity_of, require
from penstock.web.operation import OBJECT, a_list, json, serves
from penstock.web.problems import DETAIL, Problem
from penstock_edge.runs import pauses
from penstock_edge.runs.pauses import OpenApproval, open_approvals
from penstock_edge.sources.locate import StartPosition
from penstock_edge.sources.sessions import Session
from penstock_edge.stream.responses.single_body import Body, SingleBody
from penstock_edge.surfaces.adk import request as adk_request
from penstock_edge.surfaces.adk.answers import FunctionResponse, decided, responses_of
from penstock_edge.surfaces.adk.operations import ADK, UPSTREAM, leg_operation, require_enabled
from penstock_edge.surfaces.adk.request import RunAgentRequest
from penstock_edge.surfaces.adk.views import leg_form, upstream_leg_view
from penstock_edge.surfaces.agents import agent_of_app
from penstock_edge.surfaces.bodies import json_body
from penstock_edge.surfaces.errors import shortened, unaccepted_as_422
from penstock_edge.surfaces.legs import ItemAnswer, Leg, Reply, decide, first_leg, next_leg
from penstock_edge.surfaces.parameters import STREAMED
from penstock_edge.surfaces.query import when_busy_of
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.views.audience import PII
from penstock_edge.views.view import View

SHOWN_CHARACTERS: Final = 2000
# The timeout, in seconds, for the legs of a workflow's run. It is 0, because a workflow has no
# agent server, and so no timeout.
NO_TIMEOUT_S: Final = 0.0


class EventList(Body):
    """Lists the leg's events as JSON; if the leg failed, the response is an error instead."""

    def __init__(self) -> None:
        self._parser = Parser()
        self._frames: list[Frame] = []

    def add(self, taken: bytes) -> None:
        try:
            self._frames += self._parser.feed(taken)
        except FrameTooLarge as error:
            raise Problem(502, f"the upstream sent too much: {error}") from error

    def response(self) -> Response:
        return Response(listed(self._frames), media_type="application/json")


def listed(frames: Iterable[Frame]) -> bytes:
    """Return the events, unchanged, as a JSON list without the partial events. A leg that ended
    with an error frame of adk-streaming.md raises a Problem with ADK's status: 504 for a timeout,
    502 if the agent server refused the request, 500 for every other error."""
    events = []
    for frame in frames:
        try:
            event = orjson.loads(frame.data)
        except orjson.JSONDecodeError:
            # ADK up to 1.22 does not escape the text of an error frame, so such a frame is not
            # JSON.
            text = frame.data.decode(errors="replace")
            raise Problem(500, text[:SHOWN_CHARACTERS]) from None
        if isinstance(event, dict) and "error" in event and "author" not in event:
            raise _failure(event)
        if not (isinstance(event, dict) and event.get("partial") is True):
            events.append(frame.data)
    return b"[" + b",".join(events) + b"]"


def _failure(event: dict[str, Any]) -> Problem:
    text = str(event["error"])
    if "status_code" in event:
        return Problem(502, f"{text}: {event.get('detail', '')}"[:SHOWN_CHARACTERS])
    return Problem(504 if event.get("error_code") == "TIMEOUT" else 500, text)


class Runs(Handlers):
    """Has the handlers of /run_sse and /run."""

    @serves(
        leg_operation(
            path="/run_sse",
            summary="Start a run, or answer a pause, and stream the leg",
            answers={200: STREAMED},
            refusals=(*UPSTREAM, 501),
        )
    )
    async def stream(self, request: Request) -> ASGIApp:
        require_enabled(self._edge)
        opened = await self._open(request, streams=True)
        return await self._edge.stream(*opened, identity_of(request))

    @serves(
        leg_operation(
            path="/run",
            summary="The same leg as one list, when the leg has ended",
            answers={200: json("The leg's events", a_list(OBJECT))},
            refusals=(*UPSTREAM, 500, 501),
        )
    )
    async def collect(self, request: Request) -> ASGIApp:
        require_enabled(self._edge)
        opened = await self._open(request, streams=False)
        client = await self._edge.hubs.join(*opened, identity_of(request))
        return SingleBody(client, EventList(), DETAIL.response)

    async def _open(self, request: Request, *, streams: bool) -> tuple[View, StartPosition]:
        """Open a new leg, or that after the pause which the request answers. For an ADK agent, the
        caller also needs the scope `raw`, because the bytes of the ADK server are relayed. Without
        `streams`, an encoded leg has no partial events."""
        edge, who = self._edge, identity_of(request)
        edge.streams.require_room(request.scope)
        body = await json_body(edge, request)
        asked = adk_request.parse(body)
        acting_user(who, asked.user_id)
        agent = agent_of_app(edge.config, asked.app_name)
        if agent.protocol == ADK:
            require(who, "raw")
        else:
            adk_request.require_portable(asked, takes_state=isinstance(agent, WorkflowAgent))
        if responses := responses_of(asked):
            leg = await self._answer(who, agent, asked, responses)
        else:
            leg = await self._start(who, agent, asked, body, when_busy_of(request))
        return _view(agent, leg, streaming=streams and asked.streaming), leg.position

    async def _start(
        self,
        who: Identity,
        agent: AgentConfig,
        asked: RunAgentRequest,
        body: bytes,
        when_busy: WhenBusy,
    ) -> Leg:
        require(who, "start")
        is_native = agent.protocol == ADK
        with unaccepted_as_422():
            if is_native:
                start_fields.check_body(ADK, agent.accepts, body)
            else:
                start_fields.refuse_answers(orjson.loads(body))
        start = Start(
            agent,
            adk_request.text_of(asked),
            asked.session_id,
            who.run_user(asked.user_id),
            # A workflow has no state, so the input of a workflow comes in `stateDelta`, the field
            # in which ADK's clients send data.
            input=asked.state_delta if isinstance(agent, WorkflowAgent) else None,
            body=body.decode() if is_native else None,
            when_busy=when_busy,
            sees_pii=who.has_scope(PII),
        )
        return (await first_leg(self._edge, start, frames=is_native))[1]

    async def _answer(
        self,
        who: Identity,
        agent: AgentConfig,
        asked: RunAgentRequest,
        responses: Sequence[FunctionResponse],
    ) -> Leg:
        require(who, "decide")
        edge, is_native = self._edge, agent.protocol == ADK
        session = Session(asked.user_id, asked.session_id, (agent.id,), any_agent=False)
        if isinstance(agent, WorkflowAgent):
            reply = await self._reply_in_tree(who, session, responses)
        else:
            reply = await self._reply(who, agent, session, responses)
        if len(responses) < len(asked.new_message.parts):
            raise Problem(422, "newMessage.parts: send the answers to a pause without other parts")
        # For an agent that is no ADK agent, Penstock makes the invocation ids that clients see. The
        # agent server does not know these ids, so the decision has none.
        invocation_id = asked.invocation_id if is_native else None
        if invocation_id is not None:
            await self._check_invocation(reply.answers[0].approval, invocation_id)
        leg = await next_leg(edge, reply, frames_for=who if is_native else None)
        await decide(edge, who, "adk", reply, user_id=asked.user_id, invocation_id=invocation_id)
        return leg

    async def _reply(
        self,
        who: Identity,
        agent: AgentConfig,
        session: Session,
        responses: Sequence[FunctionResponse],
    ) -> Reply:
        """Only the id of the function call counts, not its name. An ADK server that got a response
        without a pending request could run a call that no person has approved (404)."""
        bus, is_native = self._edge.bus, agent.protocol == ADK

        async def pending(response: FunctionResponse) -> tuple[str, ApprovalRecord] | None:
            approval_id, item_id = parse_question_id(response.id)
            approval, _ = await pauses.approval_in_session(
                bus, who, agent, session.session_id, approval_id, awaited=False
            )
            if approval is not None:
                return item_id or "", approval
            # An ADK server has ids of its own, which it never repeats.
            item_id, owner = response.id, session.owner
            if not is_native:
                return None
            named = await pauses.approval_of_item(bus, owner, session, item_id)
            approval = await pauses.approval_record(bus, named) if named is not None else None
            is_shown = approval is not None and who.may_see_runs_of(approval.user_id)
            return (item_id, approval) if approval is not None and is_shown else None

        # A client may answer before the approvals service has written the alias of the request.
        found = await look_until(
            who.user_id,
            lambda: asyncio.gather(*map(pending, responses)),
            lambda found: None not in found,
        )
        answers = []
        for response, request in zip(responses, found, strict=True):
            if request is None:
                raise _not_pending(response)
            item_id, approval = request
            item = next((each for each in approval.items if each["item_id"] == item_id), {})
            decision = decided(response.response, item_id, item, for_adk_server=is_native)
            answers.append(ItemAnswer(approval, None, decision))
        return Reply.of("newMessage.parts", answers)

    async def _reply_in_tree(
        self, who: Identity, session: Session, responses: Sequence[FunctionResponse]
    ) -> Reply:
        bus, ids = self._edge.bus, [parse_question_id(response.id) for response in responses]

        def approvals_of(found: Sequence[OpenApproval]) -> list[OpenApproval | None]:
            by_id = {each.approval.approval_id: each for each in found}
            return [by_id.get(approval_id) for approval_id, _ in ids]

        async for root in pauses.paused_runs(bus, who, session):
            open_ = await open_approvals(bus, who, root, lambda found: all(approvals_of(found)))
            approvals = approvals_of(open_)
            if not any(approvals):
                continue
            answers = []
            for response, (_, item_id), approval in zip(responses, ids, approvals, strict=True):
                item = approval.find(item_id or "") if approval is not None else None
                if approval is None or item is None:
                    raise _not_pending(response)
                decision = decided(response.response, item["item_id"], item, for_adk_server=False)
                answers.append(ItemAnswer(approval.approval, root, decision))
            return Reply.of("newMessage.parts", answers)
        raise _not_pending(responses[0])

    async def _check_invocation(self, approval: ApprovalRecord, invocation_id: str) -> None:
        pause = await pauses.pause_record(self._edge.bus, approval.run_id)
        if pause is None or pause.approval_id != approval.approval_id:
            # another request has decided the pause, so the approvals service refuses the answer
            return
        own = pause.resume.get("invocation_id")
        if own and own != invocation_id:
            text = f"invocationId: the answered request belongs to the invocation {own}"
            raise Problem(422, f"{text}: send that one, or none")


def _view(agent: AgentConfig, leg: Leg, *, streaming: bool) -> View:
    if agent.protocol == ADK:
        return upstream_leg_view(leg.run_id, leg.number, agent.timeout_s, agent.hosts)
    timeout_s = NO_TIMEOUT_S if isinstance(agent, WorkflowAgent) else agent.timeout_s
    return leg.view(leg_form(timeout_s, streaming=streaming))


def _not_pending(response: FunctionResponse) -> Problem:
    return Problem(404, f"no request with the id {shortened(response.id)!r} is pending")
