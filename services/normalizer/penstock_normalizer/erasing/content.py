"""Says which fields of records are content of a run, and returns records without them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.bus.records import (
    ApprovalRecord,
    Decided,
    Decision,
    Erasure,
    Receiver,
    RunRecord,
    Vote,
)

# What stays of an item that was to be approved; its arguments are in its digest.
_OF_ITEM: Final = frozenset({"item_id", "kind", "tool", "tool_call_id", "digest", "editable"})
# What stays of an attempt of a delivery.
_OF_ATTEMPT: Final = frozenset({"number", "replay", "at", "seconds", "status", "code", "final"})
# What a delivery has of the run: the answer of the receiver, and its job, which may have values.
_OF_DELIVERY: Final = frozenset({"answer", "job"})


def run_without_content(record: RunRecord, erasure: Erasure) -> RunRecord:
    nothing = {"message": "", **dict.fromkeys(("summary", "error", "unredacted", "tags"))}
    return record.model_copy(update={**nothing, "erasure": erasure})


def approval_without_content(record: ApprovalRecord) -> ApprovalRecord:
    """Return the record with who has decided what, when, and the digests."""
    changed = record.model_copy(deep=True)
    changed.items = [
        {name: value for name, value in item.items() if name in _OF_ITEM} for item in record.items
    ]
    decided_by: list[Decision | Vote] = [*changed.votes]
    decided_by += [changed.decision] if changed.decision is not None else []
    for decided in decided_by:
        decided.note = None
        decided.items = [_only_decision(item) for item in decided.items]
    for remark in changed.remarks:
        remark.text = None
    return changed


def _only_decision(item: Decided) -> Decided:
    return Decided(item_id=item.item_id, decision=item.decision, expired=item.expired)


def delivery_without_content(record: Mapping[str, Any]) -> dict[str, Any]:
    """Take and return a `DeliveryRecord` of the service automations as JSON."""
    kept = {name: value for name, value in record.items() if name not in _OF_DELIVERY}
    kept["attempts"] = [
        {name: value for name, value in each.items() if name in _OF_ATTEMPT}
        for each in record.get("attempts", ())
    ]
    return kept


def receiver_of(record: Mapping[str, Any]) -> Receiver | None:
    """Return who has got the delivery, a `DeliveryRecord` as JSON; None if nobody has."""
    request, attempts = record.get("request"), record.get("attempts")
    if not request or not attempts:
        return None
    return Receiver(automation=record["rule"], url=request["url"], at=attempts[-1]["at"])
