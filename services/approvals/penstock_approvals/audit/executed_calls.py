"""Finds out from a run's events which approved calls ran, and how these calls ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.bus.records import ApprovalRecord
from penstock_approvals.audit.chain import Entry

TOOL_EVENTS: Final = ("llm.tool_progress", "llm.tool_result", "system.warning")
# the code of a `system.warning` about a call that ran with other arguments than the approved ones
NOT_APPROVED: Final = "not_what_was_approved"
_NOT_RUN: Final = frozenset({"rejected", "expired"})  # outcomes of calls that did not run


def approved_calls(record: ApprovalRecord) -> dict[str, str]:
    """Return the digest of each approved item of a decided approval, by the id of the item's tool
    call."""
    decided = record.decision.items if record.decision is not None else []
    approved = {item.item_id for item in decided if item.decision == "approve"}
    return {
        str(item.get("tool_call_id") or item["item_id"]): str(item.get("digest"))
        for item in record.items
        if item["item_id"] in approved
    }


def entries_of_executed_calls(
    record: ApprovalRecord, events: Iterable[Mapping[str, Any]]
) -> list[Entry]:
    """Return an entry for each approved call that ran.

    `events` are the bodies of the run's events of `TOOL_EVENTS`, in the order of their sequences.
    The entry has the digest of the approved item. If the call ran with other arguments, the entry
    says so, and has the digest of these arguments instead. The digest of the other arguments comes
    from the warning.
    """
    calls = approved_calls(record)
    found: dict[str, Entry] = {}
    others: dict[str, str | None] = {}
    for event in events:
        data = event["data"]
        if int(event["leg"]) <= record.leg:
            continue
        if data.get("code") == NOT_APPROVED:
            detail = data.get("detail") or {}
            shown = detail.get("ran") or {}
            others[str(detail.get("tool_call_id"))] = shown.get("args_digest")
            continue
        call_id = data.get("tool_call_id")
        outcome = data.get("outcome") or data.get("status")
        if call_id not in calls or outcome in _NOT_RUN:
            continue
        found[call_id] = Entry(
            approval_id=record.approval_id,
            event="ran",
            which=call_id,
            at=str(event["timestamp"]),
            by=record.agent,
            digest=others.get(call_id, calls[call_id]),
            decision=NOT_APPROVED if call_id in others else "as_approved",
            items={call_id: str(outcome)},
        )
    return list(found.values())
