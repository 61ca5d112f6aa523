"""Check whether a decision fits its request. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from penstock.bus.records import ApprovalRecord, Decided, DecideRequest
from penstock_approvals.outcomes.schemas import misfit
from penstock_approvals.policy.kinds import ANSWERED_ONLY, NEEDS_VALUE

# the greatest size of a decision, because one message carries the whole decision
MAX_BYTES = 512 * 1024


class DecisionMismatch(ValueError):
    """The error for a decision that does not fit its request. The text names the item."""


def check(approval: ApprovalRecord, request: DecideRequest) -> None:
    """Raise DecisionMismatch unless each item of the request is decided once, as the item's kind
    allows, and no other item is decided."""
    wanted = {item["item_id"]: item for item in approval.items}
    counts = Counter(item.item_id for item in request.items)
    for item_id, count in counts.items():
        if item_id not in wanted:
            raise DecisionMismatch(f"there is no item {item_id} in this request")
        if count > 1:
            raise DecisionMismatch(f"item {item_id} is decided {count} times")
    if missing := [item_id for item_id in wanted if item_id not in counts]:
        raise DecisionMismatch(f"not decided: {', '.join(missing)}; all items are decided together")
    if (size := len(request.dump())) > MAX_BYTES:
        raise DecisionMismatch(
            f"the decision has {size} bytes, its values included; at most {MAX_BYTES}"
        )
    for item in request.items:
        _check_item(wanted[item.item_id], item)


def _check_item(asked: dict[str, Any], item: Decided) -> None:
    kind = asked["kind"]
    if item.decision == "reject":
        if kind in ANSWERED_ONLY:
            raise DecisionMismatch(
                f"item {item.item_id} ({kind}) cannot be rejected, only answered"
            )
        return
    if kind in NEEDS_VALUE and item.value is None:
        raise DecisionMismatch(f"item {item.item_id} ({kind}) needs a value")
    schema = asked.get("input_schema")
    if schema and kind in NEEDS_VALUE and item.value is not None:
        _check_schema(schema, item)


def _check_schema(schema: dict[str, Any], item: Decided) -> None:
    """Check the value against the item's schema. Raises DecisionMismatch if the value does not fit.

    On an ADK server, an answer that does not fit would make the session unusable for ever.
    """
    reason = misfit(schema, item.value)
    if reason is not None:
        raise DecisionMismatch(f"item {item.item_id}: {reason}")


def outcome(items: Sequence[Decided]) -> Literal["approved", "rejected", "mixed"]:
    decisions = {item.decision for item in items}
    if decisions == {"approve"}:
        return "approved"
    return "rejected" if decisions == {"reject"} else "mixed"
