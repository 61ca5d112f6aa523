"""Make the span of an approval, from the request to the decision, deadline or withdrawal. Pure."""

from __future__ import annotations

from penstock.bus.records import ApprovalRecord
from penstock.tracing import spans
from penstock.tracing.spans import Span, nanoseconds


def span_of(record: ApprovalRecord, traceparent: str | None) -> Span | None:
    """Return the span of an approval that has ended; None if its run has no trace.

    `traceparent` is the trace context with which the run was started. The span contains no names of
    people.
    """
    parent = spans.of_run(traceparent, record.run_id)
    context = spans.child(parent, "approval", record.approval_id)
    ended_at = record.decision.at if record.decision is not None else record.updated_at
    if parent is None or context is None:
        return None
    try:
        began_ns, ended_ns = nanoseconds(record.requested_at), nanoseconds(ended_at)
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
    )
