"""Makes the trace context and the span of a delivery. Pure."""

from __future__ import annotations

from penstock.tracing import spans
from penstock.tracing.spans import Span
from penstock_automations.delivery.records import DeliveryRecord
from penstock_automations.jobs.job import EventSource, Job


def _parent(job: Job, traceparent: str | None) -> str | None:
    """Return the trace context of the delivery's parent span; None if there is none.

    The parent is the span of the event's run. If the job comes from a trigger, the parent is the
    span that `traceparent` names.
    """
    if isinstance(job.source, EventSource):
        return spans.of_run(traceparent, job.source.run_id)
    return traceparent


def context_of(job: Job, traceparent: str | None) -> str | None:
    """Return the trace context of a job's delivery, which is the same for each attempt.

    `traceparent` is the trace context of the event or of the workflow's step. A trigger without a
    `traceparent` begins a new trace.
    """
    about = ("delivery", job.webhook_id, job.replay)
    parent = _parent(job, traceparent)
    return spans.root(*about) if parent is None else spans.child(parent, *about)


def span_of(job: Job, record: DeliveryRecord, traceparent: str | None) -> Span | None:
    """Return the span of a delivery; None if the delivery has not ended, or has no trace.

    `context_of` describes `traceparent`.
    """
    context = context_of(job, traceparent)
    if context is None or record.ended_at is None:
        return None
    last = record.last
    failed = record.status == "failed"
    code = last.code if last is not None else None
    return Span(
        name=f"delivery {record.source}",
        kind="client",
        context=context,
        parent=_parent(job, traceparent),
        began_ns=round(record.began_at * 1e9),
        ended_ns=round(record.ended_at * 1e9),
        attributes={
            "penstock.delivery.id": job.webhook_id,
            "penstock.delivery.outcome": record.status,
            "penstock.delivery.attempts": record.made,
            "penstock.rule": job.rule,
            **({"penstock.run.id": job.run_id} if job.run_id is not None else {}),
            **({"http.response.status_code": last.status} if last and last.status else {}),
        },
        error=(code or "failed") if failed else None,
    )
