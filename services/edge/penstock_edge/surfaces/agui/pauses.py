"""Finds the pause that a RunAgentInput answers with `resume[]` or with the messages of a frontend's
tools (decision 0105)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bus import Bus
from penstock.bus.records.approvals import ApprovalRecord, Decided
from penstock.dialects.agui.ids import scope_of, unscoped
from penstock.dialects.answers import UnclearAnswer
from penstock.settings import AgentConfig, WorkflowAgent
from penstock.web.auth import Identity
from penstock.web.problems import Problem
from penstock_edge.runs import pauses
from penstock_edge.runs.agui_leg_ids import AGUI
from penstock_edge.runs.pauses import OpenApproval, approval_of, open_approvals
from penstock_edge.sources.sessions import Session
from penstock_edge.surfaces.agui.answers import (
    decision_of,
    earlier_tool_messages,
    last_tool_messages,
)
from penstock_edge.surfaces.agui.request import RunAgentInput, ToolMessage
from penstock_edge.surfaces.errors import shortened
from penstock_edge.surfaces.legs import ClientAnswer, ItemAnswer, Reply, reply_of

JsonObject = dict[str, Any]
Asked = dict[str, tuple[ApprovalRecord, JsonObject]]


@dataclass(frozen=True, slots=True)
class AnsweredPauses:
    """Finds the pause that a request answers, among the pauses that the caller `who` may see."""

    bus: Bus
    who: Identity
    agent: AgentConfig
    asked: RunAgentInput

    @property
    def _thread(self) -> Session:
        return Session(self.who.user_id, self.asked.thread_id, (self.agent.id,), any_agent=False)

    async def find(self) -> Reply | None:
        """Return None for a new run. The approvals service checks that every item is answered."""
        try:
            if self.asked.resume:
                return await self._of_resume()
            messages = last_tool_messages(self.asked)
            reply = await self._of_tools(messages) if messages else None
            if reply is None:
                await self._check_earlier()
            return reply
        except UnclearAnswer as unclear:
            raise Problem(422, str(unclear)) from unclear

    async def _of_resume(self) -> Reply:
        sent = [
            ClientAnswer.of(each.interrupt_id, each.status, each.payload)
            for each in self.asked.resume or []
        ]
        return await reply_of(self.bus, self.who, self.agent, self.asked.thread_id, "resume", sent)

    async def _of_tools(self, messages: Sequence[ToolMessage]) -> Reply | None:
        """Return the answers in these messages, which may also have results of other tools. For an
        AG-UI agent, None if no message answers a pause: the request then starts a run, in which the
        AG-UI server gets the messages."""
        if isinstance(self.agent, WorkflowAgent):
            return await self._of_tools_in_tree(messages)
        asked = await self._asked_of_clients(messages)
        found = [
            (*asked[message.tool_call_id], message)
            for message in messages
            if message.tool_call_id in asked
        ]
        if not found:
            if self.agent.protocol == AGUI:
                return None
            item_id = messages[-1].tool_call_id
            raise Problem(404, f"no tool call {shortened(item_id)!r} waits for a result")
        # A client repeats the answers to earlier pauses together with the answers to this pause. So
        # if any of the approvals is pending, only answers to pending approvals count.
        open_ = [each for each in found if each[0].status == "pending"] or found[-1:]
        return Reply.of(
            "messages",
            [
                ItemAnswer(approval, None, Decided(**decision_of(item, message)))
                for approval, item, message in open_
            ],
        )

    async def _of_tools_in_tree(self, messages: Sequence[ToolMessage]) -> Reply:
        ids = [unscoped(message.tool_call_id) for message in messages]

        def fits(found: list[OpenApproval]) -> bool:
            return any(approval_of(found, [item_id]) for item_id in ids)

        async for root in pauses.paused_runs(self.bus, self.who, self._thread):
            open_ = await open_approvals(self.bus, self.who, root, fits)
            answers = [
                ItemAnswer(approval.approval, root, Decided(**decision_of(item, message)))
                for item_id, message in zip(ids, messages, strict=True)
                if (approval := approval_of(open_, [item_id])) is not None
                and (item := approval.find(item_id)) is not None
            ]
            if answers:
                return Reply.of("messages", answers)
        item_id = shortened(messages[-1].tool_call_id)
        raise Problem(404, f"no tool call {item_id!r} waits for a result")

    async def _check_earlier(self) -> None:
        """Refuse a result that earlier messages have for a call that waits for a decision.

        Only the last messages decide a pause, but an AG-UI server gets all messages, and would use
        this result although nobody has decided. Clients see tool call ids with the run as a
        qualifier, which the server does not get: it could take the result of another run's call for
        that of a waiting call. So the ids without the qualifier are compared, too.
        """
        earlier = earlier_tool_messages(self.asked)
        if self.agent.protocol != AGUI or not earlier:
            return
        asked = await self._asked_of_clients(())
        for message in earlier:
            if message.tool_call_id in asked or unscoped(message.tool_call_id) in asked:
                raise Problem(
                    422,
                    f"messages: the tool call {shortened(message.tool_call_id)!r} waits for a "
                    "decision, and other messages follow its result. Only the last messages of a "
                    "conversation answer a pause: send the result last",
                )

    async def _asked_of_clients(self, messages: Sequence[ToolMessage]) -> Asked:
        """Return the items of the newest runs' present pauses, and those of each pause that one of
        `messages` answers, decided or not, by the tool call ids that clients see."""
        asked: Asked = {}
        approvals = await asyncio.gather(
            *(self._by_item(unscoped(message.tool_call_id)) for message in messages),
            *(self._by_item(message.tool_call_id) for message in messages),
            *(self._of_run(run_id) for run_id in await pauses.newest_runs(self.bus, self._thread)),
        )
        for approval in approvals:
            if approval is None:
                continue
            scope = scope_of(approval.run_id)
            for item in approval.items:
                if (item_id := item.get("tool_call_id")) is None:
                    continue
                asked[f"{scope}{item_id}"] = (approval, item)
                # A client may also send an AG-UI server's own id, without a qualifier.
                if self.agent.protocol == AGUI and _goes_before(approval, asked.get(item_id)):
                    asked[item_id] = (approval, item)
        return asked

    async def _by_item(self, item_id: str) -> ApprovalRecord | None:
        user_id = self.who.user_id
        approval_id = await pauses.approval_of_item(self.bus, user_id, self._thread, item_id)
        return await self._approval(approval_id) if approval_id is not None else None

    async def _of_run(self, run_id: str) -> ApprovalRecord | None:
        paused = await pauses.pause_event(self.bus, run_id)
        if paused is None:
            return None
        return await self._approval(await pauses.approval_id_of(self.bus, paused), awaited=True)

    async def _approval(self, approval_id: str, *, awaited: bool = False) -> ApprovalRecord | None:
        approval, _ = await pauses.approval_in_session(
            self.bus, self.who, self.agent, self.asked.thread_id, approval_id, awaited=awaited
        )
        return approval


def _goes_before(approval: ApprovalRecord, known: tuple[ApprovalRecord, JsonObject] | None) -> bool:
    """Two runs may use the same id."""
    return known is None or (approval.status == "pending" and known[0].status != "pending")
