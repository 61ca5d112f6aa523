"""Find the pause that a RunAgentInput answers, by `resume[]` or by a frontend tool's message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock.bus import Bus
from penstock.bus.records import ApprovalRecord, Decided
from penstock.bus.subjects import is_run_id
from penstock.bus.write.objects import unwrap
from penstock.dialects.agui.encode.pauses import UnclearAnswer, decided
from penstock.dialects.agui.ids import parse_interrupt_id, scope_of, unscoped
from penstock.settings import AgentConfig
from penstock.web.auth import Identity
from penstock.web.problems import Problem
from penstock_edge.runs.agui_names import AGUI
from penstock_edge.runs.decide import find_alias
from penstock_edge.sources.locate import lifecycle_of
from penstock_edge.sources.sessions import Session, records_of
from penstock_edge.surfaces.agui.answers import (
    decision_of,
    earlier_tool_messages,
    last_tool_messages,
)
from penstock_edge.surfaces.agui.request import RunAgentInput, ToolMessage
from penstock_edge.surfaces.errors import shortened
from penstock_edge.views.items import type_of

# The number of a thread's newest runs whose pauses are read. The pause of any earlier run is found
# only by the id of an item.
NEWEST: Final = 20

JsonObject = dict[str, Any]
Asked = dict[str, tuple[ApprovalRecord, JsonObject]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The decisions on the items of a pause."""

    approval: ApprovalRecord
    items: list[Decided]


@dataclass(frozen=True, slots=True)
class AnsweredPauses:
    """Finds the pause that a request answers, among the pauses that the caller `who` may see."""

    bus: Bus
    who: Identity
    agent: AgentConfig
    asked: RunAgentInput

    async def find(self) -> Answer | None:
        """Return the answer in the request; None if the request is for a new run.

        This method does not check that every item is answered: the approvals service does.

        Raises:
            Problem: 404 if no pause has an item that the request answers, 422 if an answer is
                unclear or the answers belong to different pauses.
        """
        try:
            if self.asked.resume:
                return await self._of_resume()
            messages = last_tool_messages(self.asked)
            answer = await self._of_tools(messages) if messages else None
            if answer is None:
                await self._check_earlier()
            return answer
        except UnclearAnswer as unclear:
            raise Problem(422, str(unclear)) from unclear

    async def _of_resume(self) -> Answer:
        entries = self.asked.resume or []
        named = [parse_interrupt_id(entry.interrupt_id) for entry in entries]
        if len({approval_id for approval_id, _ in named}) > 1:
            raise Problem(422, "resume: the entries answer different pauses")
        approval_id = named[0][0]
        approval = await self._approval(approval_id)
        if approval is None:
            raise Problem(404, f"there is no interrupt {shortened(entries[0].interrupt_id)!r}")
        items: list[Decided] = []
        for (_, item_id), entry in zip(named, entries, strict=True):
            meant = [each for each in approval.items if item_id in (None, each["item_id"])]
            if not meant:
                raise Problem(
                    422, f"resume: there is no interrupt {shortened(entry.interrupt_id)!r}"
                )
            answer = {"status": entry.status, "payload": entry.payload}
            items += [Decided(**decided(item, answer)) for item in meant]
        return Answer(approval, items)

    async def _of_tools(self, messages: Sequence[ToolMessage]) -> Answer | None:
        """Return the answer in these messages, which may also have results of other tools.

        The result is None if no message answers a pause and the agent is an AG-UI agent.

        Raises:
            Problem: 404 if no message answers a pause and the agent has another protocol, 422 if
                the messages answer different pauses.
        """
        asked = await self._asked_of_clients(messages)
        found = [
            (*asked[message.tool_call_id], message)
            for message in messages
            if message.tool_call_id in asked
        ]
        if not found:
            if self.agent.protocol == AGUI:
                return None
            id = messages[-1].tool_call_id
            raise Problem(404, f"no tool call {shortened(id)!r} waits for a result")
        # A client repeats its answers to earlier pauses together with the answers to this pause. So
        # only the answers to pending approvals count, if there are any.
        open_ = [each for each in found if each[0].status == "pending"] or found[-1:]
        approval = open_[0][0]
        if any(each.approval_id != approval.approval_id for each, _, _ in open_):
            raise Problem(422, "messages: the results answer different pauses")
        items = [Decided(**decision_of(item, message)) for _, item, message in open_]
        return Answer(approval, items)

    async def _check_earlier(self) -> None:
        """Raise Problem 422 for an answer that would reach an AG-UI upstream without a decision.

        The upstream gets tool call ids without Penstock's qualifiers. So the unqualified ids are
        compared: otherwise the result for a call of another run would answer a waiting call with
        the same id.
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
        """Map the tool call ids that clients see to the items of this thread's pauses.

        The result has the pauses of the newest runs, and the pauses with an item that a message
        names by id. A pause of the second kind may be answered already.
        """
        asked: Asked = {}
        approvals = await asyncio.gather(
            *(self._by_item(unscoped(message.tool_call_id)) for message in messages),
            *(self._by_item(message.tool_call_id) for message in messages),
            *(self._of_run(run_id) for run_id in await self._newest()),
        )
        for approval in approvals:
            if approval is None:
                continue
            scope = scope_of(approval.run_id)
            for item in approval.items:
                if (id := item.get("tool_call_id")) is None:
                    continue
                asked[f"{scope}{id}"] = (approval, item)
                # Earlier releases sent clients the ids of an AG-UI upstream without a qualifier. So
                # the unqualified ids are found, too.
                if self.agent.protocol == AGUI and _goes_before(approval, asked.get(id)):
                    asked[id] = (approval, item)
        return asked

    async def _by_item(self, item_id: str) -> ApprovalRecord | None:
        """Return the thread's last pause with this item, even if decided; None if there is none."""
        entry = await find_alias(
            self.bus, self.who.user_id, self.agent.id, self.asked.thread_id, item_id
        )
        return await self._approval(orjson.loads(entry.value)["approval_id"]) if entry else None

    async def _newest(self) -> Sequence[str]:
        session = Session(self.who.user_id, self.asked.thread_id, (self.agent.id,), any_agent=False)
        records = await records_of(self.bus, session)
        return [run_id for record in records for run_id in record.runs[-NEWEST:]]

    async def _of_run(self, run_id: str) -> ApprovalRecord | None:
        """Return the approval that the run waits for; None if the run is not paused."""
        lifecycle = await lifecycle_of(self.bus, run_id)
        if lifecycle is None or type_of(lifecycle) != "lifecycle.paused":
            return None
        paused = orjson.loads(await unwrap(self.bus, lifecycle.payload))
        return await self._approval(paused["data"]["approval_id"])

    async def _approval(self, approval_id: str) -> ApprovalRecord | None:
        """Return the approval.

        The result is None if there is no such approval, if the approval belongs to another agent or
        thread, or if the caller may not see it.
        """
        if not is_run_id(approval_id):
            return None  # the id is a client's own text, which may be no valid key of the bucket
        entry = await self.bus.bucket("approvals").get(approval_id)
        if entry is None:
            return None
        record = ApprovalRecord.model_validate_json(await unwrap(self.bus, entry.value))
        fits = (record.agent, record.session_id) == (self.agent.id, self.asked.thread_id)
        return record if fits and self.who.sees(record.user_id) else None


def _goes_before(approval: ApprovalRecord, known: tuple[ApprovalRecord, JsonObject] | None) -> bool:
    """Return whether an id means this approval rather than the approval that is `known` for it.

    Two runs may use the same id. A pending approval is preferred to a decided approval.
    """
    return known is None or (approval.status == "pending" and known[0].status != "pending")
