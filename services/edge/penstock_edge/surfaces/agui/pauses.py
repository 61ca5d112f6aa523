"""Which pause a RunAgentInput answers, and how: by `resume[]`, or by a frontend tool's message."""

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
from penstock_edge.surfaces.agui import request
from penstock_edge.surfaces.agui.request import RunAgentInput, ToolMessage
from penstock_edge.views.items import type_of

# Of a thread with more runs, the first are looked up by their items' ids alone.
NEWEST: Final = 20
SHOWN: Final = 128

JsonObject = dict[str, Any]
Asked = dict[str, tuple[ApprovalRecord, JsonObject]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision on a pause's items."""

    approval: ApprovalRecord
    items: list[Decided]


@dataclass(frozen=True, slots=True)
class Answers:
    """Reads the answers of one request. `who` does not see another user's pauses."""

    bus: Bus
    who: Identity
    agent: AgentConfig
    asked: RunAgentInput

    async def find(self) -> Answer | None:
        """None where the request asks for a new run.

        Raises Problem 404 where it answers what nobody has asked, 422 for what is no answer, or
        answers two pauses at once. Whether all is answered, approvals judge.
        """
        try:
            if self.asked.resume:
                return await self._of_resume()
            messages = request.tool_messages(self.asked)
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
            raise Problem(404, f"there is no interrupt {entries[0].interrupt_id[:SHOWN]!r}")
        items: list[Decided] = []
        for (_, item_id), entry in zip(named, entries, strict=True):
            meant = [each for each in approval.items if item_id in (None, each["item_id"])]
            if not meant:
                raise Problem(422, f"resume: there is no interrupt {entry.interrupt_id[:SHOWN]!r}")
            said = {"status": entry.status, "payload": entry.payload}
            items += [Decided(**decided(item, said)) for item in meant]
        return Answer(approval, items)

    async def _of_tools(self, messages: Sequence[ToolMessage]) -> Answer | None:
        """Results of tools that ran elsewhere may stand among the answers."""
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
            raise Problem(404, f"no tool call {id[:SHOWN]!r} waits for a result")
        # one that was answered before may be told again with those that wait
        open_ = [each for each in found if each[0].status == "pending"] or found[-1:]
        approval = open_[0][0]
        if any(each.approval_id != approval.approval_id for each, _, _ in open_):
            raise Problem(422, "messages: the results answer different pauses")
        items = [Decided(**request.answered(item, message)) for _, item, message in open_]
        return Answer(approval, items)

    async def _check_earlier(self) -> None:
        """Raises Problem 422 for an answer that would slip through to an AG-UI upstream.

        The upstream is given the ids without our qualifiers, so these are compared: a result for
        the call of another run would answer a call of the same id that waits.
        """
        earlier = request.earlier_tool_messages(self.asked)
        if self.agent.protocol != AGUI or not earlier:
            return
        asked = await self._asked_of_clients(())
        for message in earlier:
            if message.tool_call_id in asked or unscoped(message.tool_call_id) in asked:
                raise Problem(
                    422,
                    "messages: a pause is answered by what the conversation ends with; here "
                    f"{message.tool_call_id[:SHOWN]!r}, which waits for a decision, is followed by "
                    "other messages: decide on it first",
                )

    async def _asked_of_clients(self, messages: Sequence[ToolMessage]) -> Asked:
        """What is asked in this thread, by the tool call id that clients were given.

        By the runs that wait, and by the messages' own ids: these may be answered already.
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
                # an older release told an AG-UI upstream's ids as they are
                if self.agent.protocol == AGUI and _goes_before(approval, asked.get(id)):
                    asked[id] = (approval, item)
        return asked

    async def _by_item(self, item_id: str) -> ApprovalRecord | None:
        """The last pause of the thread with such an item, decided or not."""
        entry = await find_alias(
            self.bus, self.who.user_id, self.agent.id, self.asked.thread_id, item_id
        )
        return await self._approval(orjson.loads(entry.value)["approval_id"]) if entry else None

    async def _newest(self) -> Sequence[str]:
        session = Session(self.who.user_id, self.asked.thread_id, (self.agent.id,), any_agent=False)
        records = await records_of(self.bus, session)
        return [run_id for record in records for run_id in record.runs[-NEWEST:]]

    async def _of_run(self, run_id: str) -> ApprovalRecord | None:
        """What the run waits for."""
        lifecycle = await lifecycle_of(self.bus, run_id)
        if lifecycle is None or type_of(lifecycle) != "lifecycle.paused":
            return None
        paused = orjson.loads(await unwrap(self.bus, lifecycle.payload))
        return await self._approval(paused["data"]["approval_id"])

    async def _approval(self, approval_id: str) -> ApprovalRecord | None:
        """If it is of this agent and thread, and the caller sees it."""
        if not is_run_id(approval_id):
            return None  # not of our making, and no key
        entry = await self.bus.bucket("approvals").get(approval_id)
        if entry is None:
            return None
        record = ApprovalRecord.model_validate_json(await unwrap(self.bus, entry.value))
        ours = (record.agent, record.session_id) == (self.agent.id, self.asked.thread_id)
        return record if ours and self.who.sees(record.user_id) else None


def _goes_before(approval: ApprovalRecord, known: tuple[ApprovalRecord, JsonObject] | None) -> bool:
    """Whether an id that two runs use stands for this approval: one that waits goes first."""
    return known is None or (approval.status == "pending" and known[0].status != "pending")
