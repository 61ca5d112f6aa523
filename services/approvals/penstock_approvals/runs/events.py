"""Makes the events of an approval, and its span in the run's trace, from its record. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.bus.records.approvals import ApprovalRecord, Decision, Escalation, Remark
from penstock.tracing import spans
from penstock.tracing.spans import Span, nanoseconds
from penstock_approvals.policy.deciding_rights import REQUESTER
from penstock_approvals.store.hiding import items_without_credentials

WORKFLOWS: Final = "workflows"  # the target of approvals of workflows' runs
Event = tuple[str, Mapping[str, object]]  # an event's type and data


def request_events(record: ApprovalRecord) -> list[Event]:
    """Return the events that come before the end of the approval, in their order: the run's pause,
    then what happened while it waited; none if the policy has decided the approval automatically.

    A change of the record adds its event at the end, so the number `step` of an event stays."""
    if record.decision is not None and record.decision.automatic and record.status == "decided":
        return []
    steps: list[Escalation | Remark] = []
    for reached in range(record.escalated + 1):
        steps += record.escalations[reached - 1 : reached] if reached else []
        steps += [each for each in record.remarks if each.after == reached]
    events = [_paused(record)]
    for step, each in enumerate(steps, 1):
        if isinstance(each, Escalation):
            events.append(_reached(record, step, each))
        else:
            events.append(_said(record, step, each))
    return events


def end_events(record: ApprovalRecord) -> list[Event]:
    """Return the events of a deadline that has passed, and of a decision."""
    events: list[Event] = []
    if record.status == "expired":
        data = {"approval_id": record.approval_id, "reason": record.reason}
        events.append(("approval.expired", data))
    if record.decision is not None:
        events.append(_decided(record, record.decision))
    return events


def withdrawal(record: ApprovalRecord) -> Event:
    return "approval.withdrawn", {"approval_id": record.approval_id, "reason": record.reason}


def _paused(record: ApprovalRecord) -> Event:
    data = {
        "reason": "approval_required",
        "approval_id": record.approval_id,
        "expires_at": record.expires_at,
        "deciders_required": record.need if record.need > 1 else None,
        "policy": _policy(record),
    }
    return "lifecycle.paused", _known(data)


def _reached(record: ApprovalRecord, step: int, reached: Escalation) -> Event:
    data: dict[str, object] = {"approval_id": record.approval_id, "step": step}
    if (to := reached.to) is not None:
        users = [record.user_id if name == REQUESTER else name for name in to.users]
        data["to"] = {"roles": list(to.roles), "users": users}
    data["expires_at"] = record.expires_at
    return "approval.reminded" if to is None else "approval.escalated", _known(data)


def _said(record: ApprovalRecord, step: int, said: Remark) -> Event:
    data = {
        "approval_id": record.approval_id,
        "step": step,
        **said.model_dump(include={"kind", "by", "to", "text"}),
    }
    return "approval.remarked", _known(data)


def _decided(record: ApprovalRecord, decision: Decision) -> Event:
    has_several_votes = record.need > 1 and not decision.automatic
    approvers = [vote.by for vote in record.votes if not vote.void]
    data = {
        "approval_id": record.approval_id,
        "outcome": decision.outcome,
        "by": decision.by,
        "on_behalf_of": decision.made_by.on_behalf_of,
        "automatic": decision.automatic,
        "note": decision.note or None,
        "deciders": approvers if has_several_votes else None,
        "policy": _policy(record),
        "items": [
            item.model_dump(exclude_none=True)
            for item in items_without_credentials(record, decision.items)
        ],
    }
    return "approval.decided", _known(data)


def _policy(record: ApprovalRecord) -> str | None:
    policy = record.policy
    return f"{policy.rule_id}@{policy.version}" if policy and policy.version else None


def _known(data: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in data.items() if value is not None}


def span_of(record: ApprovalRecord) -> Span | None:
    """Return the span of an approval that has ended; None if its run has no trace.

    The span has a link to the request of each person who voted. Such a request is in a trace of
    that person's client. The span has an event for each escalation and reminder that was reached.
    The span contains no names of people.
    """
    parent = spans.of_run(record.traceparent, record.run_id)
    context, decision = record.span_context, record.decision
    if parent is None or context is None:
        return None
    try:
        began_ns = nanoseconds(record.requested_at)
        ended_ns = nanoseconds(decision.at if decision is not None else record.updated_at)
        reached = [
            ("reminded" if each.to is None else "escalated", nanoseconds(each.at))
            for each in record.escalations[: record.escalated]
        ]
    except ValueError:
        return None
    return Span(
        name="approval",
        kind="internal",
        context=context,
        parent=parent,
        began_ns=began_ns,
        ended_ns=ended_ns,
        attributes={
            "penstock.run.id": record.run_id,
            "penstock.approval.id": record.approval_id,
            "penstock.approval.status": record.status,
            "penstock.approval.outcome": decision.outcome if decision else record.status,
            "penstock.approval.automatic": decision is not None and decision.automatic,
            "penstock.approval.items": len(record.items),
        },
        links=tuple(vote.traceparent for vote in record.votes if vote.traceparent is not None),
        events=tuple(reached),
    )
