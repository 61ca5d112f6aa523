"""Computes which escalations of an approval were reached, and makes the events of the request and
of its escalations. Pure.

An escalation lets further people decide. The record of the approval counts the escalations that
were reached (`escalated`). Each reached escalation is announced as `approval.escalated`, in the
order of the escalations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from penstock.bus.records import ApprovalRecord, Deciders
from penstock_approvals.policy.deciding_rights import REQUESTER


def reached_count(record: ApprovalRecord, now: datetime) -> int:
    return sum(datetime.fromisoformat(each.at) <= now for each in record.escalations)


def request_events(record: ApprovalRecord) -> list[tuple[str, Mapping[str, object]]]:
    """Return the events that come before the end of the approval, in their order.

    The first event is the run's pause. The others are the escalations that the record counts. If
    the policy has decided the approval automatically, there are no events. Each event is a type and
    its data.
    """
    if record.decision is not None and record.decision.automatic and record.status == "decided":
        return []
    steps = enumerate(record.escalations[: record.escalated], 1)
    escalated = [("approval.escalated", _escalated(record, step, each.to)) for step, each in steps]
    return [("lifecycle.paused", _paused(record)), *escalated]


def _paused(record: ApprovalRecord) -> Mapping[str, object]:
    policy = record.policy
    terms = {
        "expires_at": record.expires_at,
        "deciders_required": record.need if record.need > 1 else None,
        "policy": f"{policy.rule_id}@{policy.version}" if policy and policy.version else None,
    }
    return {
        "reason": "approval_required",
        "approval_id": record.approval_id,
        **{name: value for name, value in terms.items() if value is not None},
    }


def _escalated(record: ApprovalRecord, step: int, to: Deciders) -> Mapping[str, object]:
    asked = {"roles": list(to.roles), "users": _users(record, to.users)}
    data: dict[str, object] = {"approval_id": record.approval_id, "step": step, "to": asked}
    return data if record.expires_at is None else {**data, "expires_at": record.expires_at}


def _users(record: ApprovalRecord, names: Collection[str]) -> list[str]:
    """Return the names of users.

    The requester's own name replaces the placeholder for the requester.
    """
    return [record.user_id if name == REQUESTER else name for name in names]
