"""Finds the open approvals of a workflow's run and of the runs that its steps have started
(decision 0209).

A workflow's run may wait for several approvals at once, and clients of the run see all of them. A
client may answer several approvals in one request, but each approval is decided separately.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.bus import Bus, Stored
from penstock.bus.messages import FIRST
from penstock.bus.records import ApprovalRecord, DecideRequest, RunRecord
from penstock.bus.write.objects import unwrap
from penstock.lookups import look_until
from penstock.runs.decide import forward_decision
from penstock_edge.sources.histories import history_of_tree
from penstock_edge.sources.locate import lifecycle_of
from penstock_edge.views.items import type_of
from penstock_edge.views.run_tree import Members

REQUESTED = "approval.requested"
SETTLED = frozenset({"approval.decided", "approval.expired", "approval.withdrawn"})


@dataclass(frozen=True, slots=True)
class OpenApproval:
    """An approval without a decision; `items` are the approval's items as clients of the tree see
    them.

    In the tree, a tool call id begins with the id of the step's run. `short_ids` maps the tool call
    ids without this prefix to item ids.
    """

    approval: ApprovalRecord
    items: list[dict[str, Any]]
    short_ids: Mapping[str, str]

    def find(self, approval_id: str) -> dict[str, Any] | None:
        """Return the item with this item id or tool call id; None if there is none."""
        approval_id = self.short_ids.get(approval_id, approval_id)
        named = (
            item
            for item in self.items
            if approval_id in (item["item_id"], item.get("tool_call_id"))
        )
        return next(named, None)

    def item(self, approval_id: str) -> dict[str, Any]:
        """Return the item with this item id or tool call id; the item must exist."""
        found = self.find(approval_id)
        assert found is not None
        return found


def approval_of(approvals: Sequence[OpenApproval], ids: Sequence[str]) -> OpenApproval | None:
    """Return the approval that one of these ids names.

    Two runs may use the same item id. So the result is the approval of the first id that only one
    approval has. The result is None if there is no such id.
    """
    for approval_id in ids:
        found = [each for each in approvals if each.find(approval_id) is not None]
        if len(found) == 1:
            return found[0]
    return None


async def open_approvals(
    bus: Bus, caller: str, root: RunRecord, fits: Callable[[list[OpenApproval]], bool]
) -> list[OpenApproval]:
    """Return the open approvals of a workflow's run, the oldest first.

    A client's answer may come before the records of the approvals are written. So this function
    waits for approvals that `fits` accepts, as `look_until` describes. After that, it returns the
    approvals that are open then. `caller` is the user who answers.
    """
    return await look_until(caller, lambda: _open_approvals(bus, root), fits)


async def decide_each(bus: Bus, decisions: Sequence[tuple[ApprovalRecord, DecideRequest]]) -> None:
    """Send the decisions on several approvals to the approvals service, one after another.

    Raises:
        Problem: the approvals service refused a decision. It has accepted each earlier decision.
        BusError: a decision was not sent.
    """
    for approval, decision in decisions:
        await forward_decision(bus, approval.approval_id, decision)


async def _open_approvals(bus: Bus, root: RunRecord) -> list[OpenApproval]:
    asked: dict[str, None] = {}
    async for stored in _approval_events(bus, root):
        data = orjson.loads(await unwrap(bus, stored.payload))["data"]
        if type_of(stored) == REQUESTED:
            asked[data["approval_id"]] = None
        else:
            asked.pop(data.get("approval_id"), None)
    entries = await asyncio.gather(
        *(bus.bucket("approvals").get(approval_id) for approval_id in asked)
    )
    found = []
    for entry in entries:
        if entry is None or entry.value is None:
            continue
        record = ApprovalRecord.model_validate_json(await unwrap(bus, entry.value))
        if record.status == "pending":
            found.append(_as_seen(record, root.run_id))
    return found


async def _approval_events(bus: Bus, root: RunRecord) -> AsyncIterator[Stored]:
    start = root.first_event
    if start is None:
        lifecycle = await lifecycle_of(bus, root.run_id)
        if lifecycle is None:
            return
        start = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
    history = history_of_tree(bus, Members(root.run_id), start)
    while batch := await history.before(sys.maxsize):
        for stored in batch:
            if type_of(stored) == REQUESTED or type_of(stored) in SETTLED:
                yield stored


def _as_seen(record: ApprovalRecord, root: str) -> OpenApproval:
    if record.run_id == root:
        return OpenApproval(record, record.items, {})
    short = {item["tool_call_id"]: item["item_id"] for item in record.items if _is_call(item)}
    items = [
        {**item, "tool_call_id": f"{record.run_id}/{item['tool_call_id']}"}
        if _is_call(item)
        else item
        for item in record.items
    ]
    return OpenApproval(record, items, short)


def _is_call(item: Mapping[str, Any]) -> bool:
    return bool(item.get("tool_call_id"))
