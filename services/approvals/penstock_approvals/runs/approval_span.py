"""Make the span of an approval, from the request to the decision, deadline or withdrawal. Pure."""

from __future__ import annotations

from penstock.bus.records import ApprovalRecord
from penstock.tracing import spans
from penstock.tracing.spans import Span, nanoseconds


def span_of(record: ApprovalRecord) -> Span | None:
    """Return the span of an approval that has ended; None if its run has no trace.

    The span has a link to the request of each person who voted. Such a request is in a trace of
    that person's client. The span has an event for each escalation that was reached. The span
    contains no names of people.
    """
    parent = spans.of_run(record.traceparent, record.run_id)
    context = record.span_context
    ended_at = record.decision.at if record.decision is not None else record.updated_at
    if parent is None or context is None:
        return None
    try:
        began_ns, ended_ns = nanoseconds(record.requested_at), nanoseconds(ended_at)
        escalated = [nanoseconds(each.at) for each in record.escalations[: record.escalated]]
    except ValueError:
        return None
    decision = record.decision
    outcome = decision.outcome if decision is not None else record.status
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
            "penstock.approval.outcome": outcome,
            "penstock.approval.automatic": decision is not None and decision.automatic,
            "penstock.approval.items": len(record.items),
        },
        links=tuple(vote.traceparent for vote in record.votes if vote.traceparent is not None),
        events=tuple(("escalated", at_ns) for at_ns in escalated),
    )
