"""Finds the pause that a RunAgentInput answers, by `resume[]` or by a frontend tool's message
(decision 0105)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import orjson

from penstock.bus import Bus
from penstock.bus.records import ApprovalRecord, Decided, RunRecord
from penstock.bus.subjects import is_run_id
from penstock.bus.write.objects import unwrap
from penstock.dialects.agui.encode.pauses import UnclearAnswer, decided
from penstock.dialects.agui.ids import parse_interrupt_id, scope_of, unscoped
from penstock.lookups import look_until
from penstock.settings import AgentConfig, WorkflowAgent
from penstock.web.auth import Identity
from penstock.web.problems import Problem
from penstock_edge.runs.agui_leg_ids import AGUI
from penstock_edge.runs.decide import approval_record, find_alias
from penstock_edge.runs.tree_approvals import OpenApproval, approval_of, open_approvals
from penstock_edge.sources.locate import ancestors_of, lifecycle_of, record_of
from penstock_edge.sources.sessions import Session, records_of
from penstock_edge.surfaces.agui.answers import (
    decision_of,
    earlier_tool_messages,
    last_tool_messages,
)
from penstock_edge.surfaces.agui.request import (
    ResumeEntry,
    RunAgentInput,
    ToolMessage,
)
from penstock_edge.surfaces.errors import shortened
from penstock_edge.views.items import type_of

JsonObject = dict[str, Any]

# The number of a thread's newest runs whose pauses are read. The pause of an earlier run is found
# only by an item's id.
NEWEST: Final = 20

Asked = dict[str, tuple[ApprovalRecord, JsonObject]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The decisions on the items of a pause.

    If the pause belongs to a workflow's run, or to the run of one of its steps, `root` is the
    workflow's run. For any other run, `root` is None. `others` are the answers in the same request
    to further open approvals of the workflow's run.
    """

    approval: ApprovalRecord
    items: list[Decided]
    root: RunRecord | None = None
    others: Sequence[Answer] = ()

    @classmethod
    def of_each(cls, answers: Sequence[Answer], root: RunRecord | None) -> Answer:
        """Return one answer that contains the answers to one or several approvals."""
        return replace(answers[0], root=root, others=answers[1:])


@dataclass(frozen=True, slots=True)
class AnsweredPauses:
    """Finds the pause that a request answers, among the pauses that the caller `who` may see."""

    bus: Bus
    who: Identity
    agent: AgentConfig
    asked: RunAgentInput

    async def find(self) -> Answer | None:
        """Return the answer in the request; None if the request is for a new run.

        This method does not check that every item is answered, because the approvals service does.

        Raises:
            Problem: 404 if no pause has an item that the request answers; 422 if an answer is
                unclear, or if the answers belong to different pauses.
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
        ids = list(dict.fromkeys(approval_id for approval_id, _ in named))
        if len(ids) > 1 and not isinstance(self.agent, WorkflowAgent):
            raise Problem(422, "resume: the entries answer different pauses")
        answers, roots = [], []
        for approval_id in ids:
            own = [
                (item_id, entry)
                for (named_id, item_id), entry in zip(named, entries, strict=True)
                if named_id == approval_id
            ]
            answer = await self._of_entries(approval_id, own)
            answers.append(answer)
            roots.append(answer.root)
        if len({root.run_id for root in roots if root is not None}) > 1:
            raise Problem(422, "resume: the entries answer pauses of different runs")
        return Answer.of_each(answers, roots[0])

    async def _of_entries(
        self, approval_id: str, entries: Sequence[tuple[str | None, ResumeEntry]]
    ) -> Answer:
        approval, root = await self._approval_and_root(approval_id, awaited=True)
        if approval is None:
            raise Problem(404, f"there is no interrupt {shortened(entries[0][1].interrupt_id)!r}")
        items: list[Decided] = []
        for item_id, entry in entries:
            meant = [each for each in approval.items if item_id in (None, each["item_id"])]
            if not meant:
                raise Problem(
                    422, f"resume: there is no interrupt {shortened(entry.interrupt_id)!r}"
                )
            answer = {"status": entry.status, "payload": entry.payload}
            items += [Decided(**decided(item, answer)) for item in meant]
        return Answer(approval, items, root)

    async def _of_tools(self, messages: Sequence[ToolMessage]) -> Answer | None:
        """Return the answer in these messages, which may also have results of other tools.

        The result is None if no message answers a pause and the agent is an AG-UI agent. The
        request then starts a run, in which the AG-UI server gets the messages.

        Raises:
            Problem: 404 if no message answers a pause and the agent has another protocol; 422 if
                the messages answer different pauses.
        """
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
        approval = open_[0][0]
        if any(each.approval_id != approval.approval_id for each, _, _ in open_):
            raise Problem(422, "messages: the results answer different pauses")
        items = [Decided(**decision_of(item, message)) for _, item, message in open_]
        return Answer(approval, items)

    async def _of_tools_in_tree(self, messages: Sequence[ToolMessage]) -> Answer:
        """Return the answers to the open approvals of the thread's paused workflow.

        Raises:
            Problem: 404 if no message answers an open approval.
        """
        ids = [unscoped(message.tool_call_id) for message in messages]

        def fits(found: list[OpenApproval]) -> bool:
            return any(approval_of(found, [item_id]) for item_id in ids)

        for run_id in reversed(await self._newest()):
            lifecycle = await lifecycle_of(self.bus, run_id)
            if lifecycle is None or type_of(lifecycle) != "lifecycle.paused":
                continue
            root = await record_of(self.bus, run_id)
            if not self.who.may_see_runs_of(root.user_id):
                continue
            open_ = await open_approvals(self.bus, self.who.user_id, root, fits)
            items: dict[str, list[Decided]] = {}
            for item_id, message in zip(ids, messages, strict=True):
                if (approval := approval_of(open_, [item_id])) is not None:
                    item = approval.item(item_id)
                    decision = Decided(**decision_of(item, message))
                    items.setdefault(approval.approval.approval_id, []).append(decision)
            answers = [
                Answer(each.approval, items[each.approval.approval_id])
                for each in open_
                if each.approval.approval_id in items
            ]
            if answers:
                return Answer.of_each(answers, root)
        raise Problem(
            404, f"no tool call {shortened(messages[-1].tool_call_id)!r} waits for a result"
        )

    async def _check_earlier(self) -> None:
        """Raise Problem 422 if an earlier tool message has the result of a call that waits for a
        decision.

        Only the last messages decide a pause, but an AG-UI server gets all messages. So the AG-UI
        server would use this result although nobody has decided.

        Clients see tool call ids with the run as a qualifier, but the AG-UI server gets the ids
        without it. So the AG-UI server could take the result of another run's call for the result
        of a waiting call with the same id. Therefore this method also compares the ids without the
        qualifier.
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
        """Return the items of this thread's pauses, by the tool call ids that clients see.

        The result has the items of the newest runs' present pauses. The result also has the items
        of each pause that one of `messages` answers; such a pause may be decided already.
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
                if (item_id := item.get("tool_call_id")) is None:
                    continue
                asked[f"{scope}{item_id}"] = (approval, item)
                # Earlier releases sent clients the ids of an AG-UI server without a qualifier. So
                # ids without a qualifier are found, too.
                if self.agent.protocol == AGUI and _goes_before(approval, asked.get(item_id)):
                    asked[item_id] = (approval, item)
        return asked

    async def _by_item(self, item_id: str) -> ApprovalRecord | None:
        """Return the thread's last pause with this item, decided or not; None if there is none."""
        entry = await find_alias(
            self.bus, self.who.user_id, self.agent.id, self.asked.thread_id, item_id
        )
        return await self._approval(orjson.loads(entry.value)["approval_id"]) if entry else None

    async def _newest(self) -> Sequence[str]:
        session = Session(self.who.user_id, self.asked.thread_id, (self.agent.id,), any_agent=False)
        records = await records_of(self.bus, session)
        return [run_id for record in records for run_id in record.runs[-NEWEST:]]

    async def _of_run(self, run_id: str) -> ApprovalRecord | None:
        lifecycle = await lifecycle_of(self.bus, run_id)
        if lifecycle is None or type_of(lifecycle) != "lifecycle.paused":
            return None
        paused = orjson.loads(await unwrap(self.bus, lifecycle.payload))
        return await self._approval(paused["data"]["approval_id"], awaited=True)

    async def _approval(self, approval_id: str, *, awaited: bool = False) -> ApprovalRecord | None:
        """Return the approval; None if the caller may not use it in this thread.

        The caller may not use an approval that does not exist, that belongs to another agent or
        thread, or that the caller may not see.
        """
        return (await self._approval_and_root(approval_id, awaited=awaited))[0]

    async def _approval_and_root(
        self, approval_id: str, *, awaited: bool
    ) -> tuple[ApprovalRecord | None, RunRecord | None]:
        """Return the approval, and the workflow's run of this thread that waits for it.

        The approval belongs to the workflow's run itself, or to the run of a step. If the agent is
        not a workflow, the second result is None. With `awaited`, this method waits for the record
        of the approval: clients may answer a pause before the approval's record is written.
        """
        if not is_run_id(approval_id):
            # A client may send any text as the id, and some texts are not valid keys in KV.
            return None, None
        look = partial(approval_record, self.bus, approval_id)
        record = await (
            look_until(self.who.user_id, look, lambda found: found is not None)
            if awaited
            else look()
        )
        if record is None:
            return None, None
        if not self.who.may_see_runs_of(record.user_id):
            return None, None
        if not isinstance(self.agent, WorkflowAgent):
            fits = (record.agent, record.session_id) == (self.agent.id, self.asked.thread_id)
            return (record if fits else None), None
        for run in await ancestors_of(self.bus, record.run_id):
            if (run.agent, run.session_id) == (self.agent.id, self.asked.thread_id):
                return record, run
        return None, None


def _goes_before(approval: ApprovalRecord, known: tuple[ApprovalRecord, JsonObject] | None) -> bool:
    """Return whether `approval` takes precedence over `known`, if both have an item with the same
    id.

    Two runs may use the same id. A pending approval takes precedence over a decided approval. The
    result is True if `known` is None.
    """
    return known is None or (approval.status == "pending" and known[0].status != "pending")
