"""Computes which escalations of an approval were reached, and makes their events. Pure.

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
    """Return how many of the approval's escalations were reached."""
    return sum(datetime.fromisoformat(each.at) <= now for each in record.escalations)


def escalations(record: ApprovalRecord) -> list[tuple[str, Mapping[str, object]]]:
    """Return the events of the escalations that the record counts, in their order.

    Each event is a type and its data.
    """
    steps = enumerate(record.escalations[: record.escalated], 1)
    return [("approval.escalated", _escalated(record, step, each.to)) for step, each in steps]


def _escalated(record: ApprovalRecord, step: int, to: Deciders) -> Mapping[str, object]:
    asked = {"roles": list(to.roles), "users": _users(record, to.users)}
    data: dict[str, object] = {"approval_id": record.approval_id, "step": step, "to": asked}
    return data if record.expires_at is None else {**data, "expires_at": record.expires_at}


def _users(record: ApprovalRecord, names: Collection[str]) -> list[str]:
    """Return the names of users.

    The requester's own name replaces the placeholder for the requester.
    """
    return [record.user_id if name == REQUESTER else name for name in names]
