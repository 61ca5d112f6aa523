"""Make decisions without people: by a rule of the policy, or at the deadline. Pure.

The time of each decision, by the clock of the NATS server, is compared with the deadline. So the
deadline holds even if no service runs at the deadline. The status of an approval whose deadline has
passed is `expired`, never `decided`, because no person has decided. The status is `expired` even if
the policy then rejects or approves the items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from penstock.bus.records.approvals import ApprovalRecord, Decided, Decider, Decision, Escalation
from penstock_approvals.outcomes.rules import outcome
from penstock_approvals.policy.model import CANCELS, NEEDS_VALUE

POLICY: Final = "policy"  # the decider of automatic decisions
CANCEL_REASON: Final = "approval_expired"


class Consequence(StrEnum):
    """What happens to the run when the deadline has passed."""

    REJECT = "reject"  # The run continues, with all items rejected.
    APPROVE = "approve"  # The run continues, with all items approved.
    CANCEL = "cancel"  # The run is cancelled, because an item cannot be rejected.
    LEAVE = "leave"  # The run stays paused until somebody cancels it.


def deadline_consequence(record: ApprovalRecord) -> Consequence:
    if record.on_deadline == "leave":
        return Consequence.LEAVE
    kinds = {item["kind"] for item in record.items}
    is_rejected = any(each.outcome == "reject" for each in record.rulings)
    if record.on_deadline == "approve" and not kinds & NEEDS_VALUE and not is_rejected:
        return Consequence.APPROVE
    is_cancelled = kinds & CANCELS and (record.is_of_budget or not record.is_of_workflow)
    return Consequence.CANCEL if is_cancelled else Consequence.REJECT


def expiring_at_most(record: ApprovalRecord, until: str | None) -> ApprovalRecord:
    """Return the record with a deadline no later than `until`, the end of the run's wait; None
    means no limit. If `until` becomes the deadline, the items are rejected then, and reminders come
    earlier; one that would have come before the request is left out."""
    if until is None:
        return record
    at = datetime.fromisoformat(until)
    if record.expires_at is not None and datetime.fromisoformat(record.expires_at) <= at:
        return record
    update: dict[str, object] = {"expires_at": until, "on_deadline": "reject"}
    if record.expires_at is not None:
        earlier = datetime.fromisoformat(record.expires_at) - at
        steps = [each if each.to else _moved(each, earlier) for each in record.escalations]
        asked = datetime.fromisoformat(record.requested_at)
        steps = [each for each in steps if each.to or datetime.fromisoformat(each.at) > asked]
        update["escalations"] = sorted(steps, key=lambda each: datetime.fromisoformat(each.at))
    return record.model_copy(update=update)


def _moved(step: Escalation, earlier: timedelta) -> Escalation:
    at = datetime.fromisoformat(step.at) - earlier
    return step.model_copy(update={"at": at.isoformat()})


def is_late(record: ApprovalRecord, now: datetime) -> bool:
    return record.expires_at is not None and datetime.fromisoformat(record.expires_at) <= now


def reached_count(record: ApprovalRecord, now: datetime) -> int:
    """Return how many escalations and reminders were reached."""
    return sum(datetime.fromisoformat(each.at) <= now for each in record.escalations)


def as_expired(record: ApprovalRecord, now: str) -> ApprovalRecord:
    decide = _DECISIONS.get(deadline_consequence(record))
    reason = f"not decided by {record.expires_at}"
    update = {"status": "expired", "reason": reason, "updated_at": now}
    decided = {"decision": decide(record, now)} if decide is not None else {}
    return record.model_copy(update=update | decided)


def as_ruled(record: ApprovalRecord, now: str) -> ApprovalRecord:
    items = [
        Decided(
            item_id=each.item_id,
            decision="approve" if each.outcome == "approve" else "reject",
            note=each.note,
        )
        for each in record.rulings
    ]
    rule = record.policy.rule_id if record.policy is not None else ""
    decision = _automatic(items, now, f"decided by rule {rule} of the policy")
    update = {"status": "decided", "decision": decision, "updated_at": now}
    return record.model_copy(update=update)


def _rejected(record: ApprovalRecord, now: str) -> Decision:
    items = [
        Decided(item_id=item["item_id"], decision="reject", expired=True) for item in record.items
    ]
    return _automatic(items, now, f"nobody decided by {record.expires_at}")


def _approved(record: ApprovalRecord, now: str) -> Decision:
    items = [
        Decided(
            item_id=item["item_id"],
            decision="approve",
            args=item["args"] if "requested_args" in item else None,
        )
        for item in record.items
    ]
    note = f"nobody decided by {record.expires_at}, and the policy approves then"
    return _automatic(items, now, note)


def _automatic(items: list[Decided], now: str, note: str) -> Decision:
    return Decision(
        outcome=outcome(items),
        by=POLICY,
        decider=Decider(name=POLICY, channel="policy"),
        at=now,
        automatic=True,
        note=note,
        items=items,
    )


_DECISIONS: Final[Mapping[Consequence, Callable[[ApprovalRecord, str], Decision]]] = {
    Consequence.REJECT: _rejected,
    Consequence.APPROVE: _approved,
}
