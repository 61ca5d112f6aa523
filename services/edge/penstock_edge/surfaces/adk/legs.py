"""Opens the leg that a RunAgentRequest asks for.

The request asks for the first leg of a new run, or for the leg after the pause that the request
answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.requests import Request

from penstock import start_fields
from penstock.bus.records import ApprovalRecord, Decided, DecideRequest, RunRecord
from penstock.bus.write.objects import unwrap
from penstock.dialects.adk.encode.shapes import item_ids
from penstock.lookups import look_until
from penstock.runs.decide import forward_decision
from penstock.runs.start import Start
from penstock.service.deciders import decider_of
from penstock.settings import AgentConfig, WorkflowAgent
from penstock.web.auth import Identity, acting_user, identity_of, require
from penstock.web.bodies import read_body, require_json
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.runs.decide import find_alias, kept_pause, start_of_next_leg
from penstock_edge.runs.tree_approvals import approval_of, decide_each, open_approvals
from penstock_edge.runs.trees import is_workflow, next_leg_of
from penstock_edge.runs.unaccepted_fields import unaccepted_as_422
from penstock_edge.sources.locate import (
    StartPosition,
    lifecycle_of,
    record_of,
    start_of_new_run,
)
from penstock_edge.sources.sessions import Session, records_of
from penstock_edge.surfaces.adk import request as adk_request
from penstock_edge.surfaces.adk.answers import Answer, answers_of, decided
from penstock_edge.surfaces.adk.operations import ADK
from penstock_edge.surfaces.adk.request import RunAgentRequest
from penstock_edge.surfaces.adk.views import encoded_leg_view, tree_leg_view
from penstock_edge.surfaces.agents import agent_of_app
from penstock_edge.surfaces.errors import shortened
from penstock_edge.views.dialects import upstream_leg_view
from penstock_edge.views.items import type_of
from penstock_edge.views.trees import TreeViews
from penstock_edge.views.view import View


@dataclass(frozen=True, slots=True)
class Alias:
    """A pending request: a function call of an ADK client that waits for a decision.

    The fields come from the entry in KV `aliases` for the id of the function call.
    """

    approval_id: str
    run_id: str
    leg: int
    item_id: str


# The timeout, in seconds, for the legs of a workflow's run. It is 0, because a workflow has no
# agent server, and so no timeout.
NO_TIMEOUT_S: Final = 0.0
# The number of a workflow's newest runs in the session that are searched for a pause.
NEWEST: Final = 20


@dataclass(frozen=True, slots=True)
class OpenedLeg:
    """The leg that a request has opened, and the position from which the leg is read.

    For a workflow's run, `tree` makes the leg's view, and the leg has the events after the stream
    sequence `after`.
    """

    agent: AgentConfig
    run_id: str
    number: int
    position: StartPosition
    tree: TreeViews | None = None
    after: int = 0

    def view(self, *, streaming: bool) -> View:
        """Return the view of the leg in ADK's events.

        The leg of an ADK agent is relayed byte for byte. The events of any other agent are encoded.
        """
        if self.tree is not None:
            return tree_leg_view(self.tree, NO_TIMEOUT_S, self.after, streaming=streaming)
        if isinstance(self.agent, WorkflowAgent):
            return encoded_leg_view(self.run_id, self.number, NO_TIMEOUT_S, streaming=streaming)
        timeout_s = self.agent.timeout_s
        if self.agent.protocol == ADK:
            return upstream_leg_view(self.run_id, self.number, timeout_s, self.agent.hosts)
        return encoded_leg_view(self.run_id, self.number, timeout_s, streaming=streaming)


class Legs:
    """Opens the legs that RunAgentRequests ask for."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def open(self, request: Request) -> tuple[RunAgentRequest, OpenedLeg]:
        """Open the leg that the request asks for; return the parsed body and the leg.

        A new run needs the scope `start`, and the answer to a pause needs the scope `decide`. For
        an ADK agent, the caller also needs the scope `raw`, because the bytes of the ADK server are
        relayed.

        Raises:
            Problem: the request is invalid or not allowed, or one of its answers has no pending
                request.
        """
        who = identity_of(request)
        self._edge.streams.require_room(request.scope)
        require_json(request)
        body = await read_body(request, self._edge.settings.max_body_bytes)
        asked = adk_request.parse(body)
        acting_user(who, asked.user_id)
        agent = agent_of_app(self._edge.config, asked.app_name)
        if agent.protocol == ADK:
            require(who, "raw")
        else:
            adk_request.require_portable(asked, takes_state=isinstance(agent, WorkflowAgent))
        answers = answers_of(asked)
        if answers and isinstance(agent, WorkflowAgent):
            require(who, "decide")
            return asked, await self._decide_in_tree(who, agent, asked, answers)
        aliases = await self._pending(who, agent, asked, answers)
        if aliases:
            require(who, "decide")
            return asked, await self._decide(who, agent, asked, answers, aliases)
        require(who, "start")
        with unaccepted_as_422():
            if agent.protocol == ADK:
                start_fields.check_body(ADK, agent.accepts, body)
            else:
                start_fields.refuse_answers(orjson.loads(body))
        return asked, await self._start(who, agent, asked, body)

    async def _start(
        self, who: Identity, agent: AgentConfig, asked: RunAgentRequest, body: bytes
    ) -> OpenedLeg:
        edge = self._edge
        native = agent.protocol == ADK
        shard = await edge.starter.shard_for(asked.user_id, asked.session_id)
        position = await start_of_new_run(edge.bus, shard, frames=native)
        start = Start(
            agent,
            adk_request.text_of(asked),
            asked.session_id,
            asked.user_id,
            roles=who.roles_of(asked.user_id),
            started_by=who.starters_for(asked.user_id),
            # A workflow has no state, so the input of a workflow comes in `stateDelta`, the field
            # in which ADK's clients send data.
            input=asked.state_delta if isinstance(agent, WorkflowAgent) else None,
            body=body.decode() if native else None,
            shard=shard,
        )
        started = await edge.starter.start(start)
        record = started.record
        tree = edge.tree(record.run_id) if is_workflow(record) else None
        return OpenedLeg(agent, record.run_id, 1, position, tree)

    async def _pending(
        self,
        who: Identity,
        agent: AgentConfig,
        asked: RunAgentRequest,
        answers: Sequence[Answer],
    ) -> list[Alias]:
        """Return the pending request of each answer; an empty list if there are no answers.

        Only the id of the function call counts, not the name of the function.

        Raises:
            Problem: 404 if an answer has no pending request, because an ADK server that got such an
                answer could run a call that no person has approved. 422 if the answers come with
                other parts, or belong to different pauses.
        """
        # A client may answer before the approvals service has written the alias of the request.
        aliases = await look_until(
            who.user_id,
            lambda: self._lookup(who, agent, asked, answers),
            lambda found: None not in found,
        )
        found = [alias for alias in aliases if alias is not None]
        for answer, alias in zip(answers, aliases, strict=True):
            if alias is None:
                raise _not_pending(answer)
        if found and len(found) < len(asked.new_message.parts):
            raise Problem(422, "newMessage.parts: send the answers to a pause without other parts")
        if len({alias.approval_id for alias in found}) > 1:
            raise Problem(422, "newMessage.parts: the answers belong to different pauses")
        return found

    async def _lookup(
        self,
        who: Identity,
        agent: AgentConfig,
        asked: RunAgentRequest,
        answers: Sequence[Answer],
    ) -> list[Alias | None]:
        """Return the pending request of each answer, in the order of the answers.

        An element is None if no pending request has the answer's id, or if the pending request
        belongs to a run that the caller may not see.
        """

        async def alias_of(answer: Answer) -> Alias | None:
            ids = [answer.id] if agent.protocol == ADK else item_ids(answer.id)
            named = (asked.user_id, agent.id, asked.session_id)
            entries = [await find_alias(self._edge.bus, *named, call_id) for call_id in ids]
            entry = next(filter(None, entries), None)
            if entry is None or entry.value is None:
                return None
            known = orjson.loads(entry.value)
            approval = await self._approval(known["approval_id"])
            if approval is not None and not who.may_see_runs_of(approval.user_id):
                return None
            return Alias(known["approval_id"], known["run_id"], known["leg"], known["item_id"])

        return await asyncio.gather(*(alias_of(answer) for answer in answers))

    async def _decide(
        self,
        who: Identity,
        agent: AgentConfig,
        asked: RunAgentRequest,
        answers: Sequence[Answer],
        aliases: Sequence[Alias],
    ) -> OpenedLeg:
        """Send the decision to the approvals service, and return the run's next leg."""
        edge = self._edge
        approval_id, run_id = aliases[0].approval_id, aliases[0].run_id
        items = await self._items(approval_id)
        native = agent.protocol == ADK
        decisions = [
            decided(
                answer.response, alias.item_id, items.get(alias.item_id, {}), for_adk_server=native
            )
            for answer, alias in zip(answers, aliases, strict=True)
        ]
        # For an agent that is no ADK agent, Penstock makes the invocation ids that clients see. The
        # agent server does not know these ids, so the decision has none.
        invocation_id = asked.invocation_id if native else None
        if invocation_id is not None:
            await self._check_invocation(run_id, approval_id, invocation_id)
        position = await start_of_next_leg(edge.bus, run_id, frames=native)
        request = DecideRequest(
            by=asked.user_id,
            decider=decider_of(who, "adk", asked.user_id),
            items=decisions,
            invocation_id=invocation_id,
        )
        await forward_decision(edge.bus, approval_id, request)
        return OpenedLeg(agent, run_id, aliases[0].leg + 1, position)

    async def _decide_in_tree(
        self,
        who: Identity,
        agent: WorkflowAgent,
        asked: RunAgentRequest,
        answers: Sequence[Answer],
    ) -> OpenedLeg:
        """Decide open approvals of the session's paused workflow, and return the workflow's next
        leg.

        Raises:
            Problem: 404 if an answer has no pending request, 422 if the answers come with other
                parts.
        """
        bus = self._edge.bus
        if len(answers) < len(asked.new_message.parts):
            raise Problem(422, "newMessage.parts: send the answers to a pause without other parts")
        ids = [item_ids(answer.id) for answer in answers]
        for root in await self._paused_roots(who, agent, asked):
            open_ = await open_approvals(
                bus, who.user_id, root, lambda found: all(approval_of(found, each) for each in ids)
            )
            approvals = [approval_of(open_, each) for each in ids]
            if not any(approvals):
                continue
            decisions: dict[str, list[Decided]] = {}
            for answer, names, approval in zip(answers, ids, approvals, strict=True):
                if approval is None:
                    raise _not_pending(answer)
                item = next(filter(None, map(approval.find, names)))
                decision = decided(answer.response, item["item_id"], item, for_adk_server=False)
                decisions.setdefault(approval.approval.approval_id, []).append(decision)
            next_leg = await next_leg_of(bus, self._edge.run_list, root)
            decider = decider_of(who, "adk", asked.user_id)
            requests = [
                (
                    each.approval,
                    DecideRequest(
                        by=asked.user_id,
                        decider=decider,
                        items=decisions[each.approval.approval_id],
                    ),
                )
                for each in open_
                if each.approval.approval_id in decisions
            ]
            await decide_each(bus, requests)
            number, place = next_leg.number, next_leg.position
            tree = self._edge.tree(root.run_id, next_leg.known, decisions)
            return OpenedLeg(agent, root.run_id, number, place, tree, next_leg.after)
        raise _not_pending(answers[0])

    async def _paused_roots(
        self, who: Identity, agent: WorkflowAgent, asked: RunAgentRequest
    ) -> list[RunRecord]:
        """Return the session's paused runs of the workflow, the newest first."""
        bus = self._edge.bus
        session = Session(asked.user_id, asked.session_id, (agent.id,), any_agent=False)
        runs = [run_id for record in await records_of(bus, session) for run_id in record.runs]
        found = []
        for run_id in reversed(runs[-NEWEST:]):
            lifecycle = await lifecycle_of(bus, run_id)
            if lifecycle is not None and type_of(lifecycle) == "lifecycle.paused":
                record = await record_of(bus, run_id)
                if who.may_see_runs_of(record.user_id):
                    found.append(record)
        return found

    async def _check_invocation(self, run_id: str, approval_id: str, invocation_id: str) -> None:
        pause = await kept_pause(self._edge.bus, run_id)
        if pause is None or pause.approval_id != approval_id:
            # another request has decided the pause, so the approvals service refuses the answer
            return
        own = pause.resume.get("invocation_id")
        if own and own != invocation_id:
            text = f"invocationId: the answered request belongs to the invocation {own}"
            raise Problem(422, f"{text}: send that one, or none")

    async def _items(self, approval_id: str) -> dict[str, dict[str, Any]]:
        """Map the ids of an approval's items to the items. Raise Problem 404 if there is no
        approval."""
        record = await self._approval(approval_id)
        if record is None:
            raise Problem(404, f"there is no approval {approval_id}")
        return {item["item_id"]: item for item in record.items}

    async def _approval(self, approval_id: str) -> ApprovalRecord | None:
        entry = await self._edge.bus.bucket("approvals").get(approval_id)
        if entry is None:
            return None
        return ApprovalRecord.model_validate_json(await unwrap(self._edge.bus, entry.value))


def _not_pending(answer: Answer) -> Problem:
    return Problem(404, f"no request with the id {shortened(answer.id)!r} is pending")
