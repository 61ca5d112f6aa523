"""Makes what tells of a delivery: events, the dead letter, the span, the outcome of a call."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.bus import Bus, Message, Stored, subjects
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.state.deadletters import DeadLetter, letter_about
from penstock.runs.calls import Called, CallError, CallJob, called_subject
from penstock.tracing import spans
from penstock.tracing.spans import Span
from penstock.turns import TenantUser
from penstock_automations.delivery.records import DeliveryRecord
from penstock_automations.jobs.job import EventSource, Job


class NotDelivered(Exception):
    """A delivery has failed for good."""


def triggered_data(job: Job, name: str) -> dict[str, Any]:
    return {
        "automation": job.rule,
        "trigger": job.type,
        "delivery_id": job.delivery_id,
        "workflow": name,
        "depth": job.depth,
    }


def outcome_event(job: Job, record: DeliveryRecord) -> tuple[str, dict[str, Any]]:
    last = record.last
    data: dict[str, Any] = {
        "automation": record.rule,
        "workflow": record.name,
        "delivery_id": record.id,
        "result": (last.text if last is not None else "") or "delivered",
        "depth": job.depth,
        "attempts": record.made,
        "duration_s": round((record.ended_at or record.began_at) - record.began_at, 3),
    }
    if last is not None and last.status is not None:
        data["status_code"] = last.status
    if record.started_run_id is not None:
        data["started_run_id"] = record.started_run_id
    if record.status == "delivered":
        return "automation.completed", data
    code, text = (last.code, last.text) if last is not None else ("unknown", "")
    is_final = last is not None and last.final
    data["result"] = text or "given up"
    data["error"] = {"code": code, "message": text, "retryable": not is_final}
    if last is not None and last.status is not None:
        data["error"]["status_code"] = last.status
    return "automation.failed", data


def traceback_id(job: Job) -> str:
    return subjects.traceback_id(job.delivery_id, job.replay)


def dead_letter(pod: str, job: Job, stored: Stored, record: DeliveryRecord) -> DeadLetter:
    """Return the dead letter of a delivery: the job, the last request, and all attempts."""
    last = record.last
    reason = f"{last.code}: {last.text}" if last is not None else "no attempt was made"
    letter = letter_about("automations", pod, stored, NotDelivered(reason))
    return letter.model_copy(
        update={
            # Every process computes the same id, so each delivery, and each replay of a delivery,
            # has at most one dead letter.
            "traceback_id": traceback_id(job),
            # The dead letter of a trigger has no run, so it has the kind of the trigger here.
            "run_id": job.run_id or job.source.kind,
            "delivery": orjson.loads(record.dump()),
        }
    )


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
    about = ("delivery", job.delivery_id, job.replay)
    parent = _parent(job, traceparent)
    return spans.root(*about) if parent is None else spans.child(parent, *about)


def span_of(job: Job, record: DeliveryRecord, traceparent: str | None) -> Span | None:
    """Return the span of a delivery; None if the delivery has not ended, or has no trace.
    `context_of` describes `traceparent`."""
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
            "penstock.delivery.id": job.delivery_id,
            "penstock.delivery.outcome": record.status,
            "penstock.delivery.attempts": record.made,
            "penstock.rule": job.rule,
            **({"penstock.run.id": job.run_id} if job.run_id is not None else {}),
            **({"http.response.status_code": last.status} if last and last.status else {}),
        },
        error=(code or "failed") if failed else None,
    )


def called_of(call: CallJob, record: DeliveryRecord) -> Called:
    last = record.last
    error = None
    if record.status != "delivered":
        code, text = (last.code, last.text) if last is not None else ("unknown", "")
        error = CallError(code=code, message=text)
    return Called(
        run_id=call.run_id,
        step_id=call.step_id,
        call_id=call.call_id,
        outcome="delivered" if record.status == "delivered" else "failed",
        status=last.status if last is not None else None,
        answer=record.answer,
        headers=last.headers or None if last is not None else None,
        attempts=record.made,
        error=error,
    )


async def publish_call_outcome(bus: Bus, call: CallJob, record: DeliveryRecord) -> None:
    """Publish the outcome of a call. A repeated call of this function is harmless. Raises BusError;
    repeat the call."""
    payload = called_of(call, record).dump()
    headers = {"Nats-Msg-Id": f"{call.delivery_id}.called"}
    await bus.publisher.publish(Message(called_subject(call.run_id), payload, headers))


async def waiting_user(bus: Bus, call: CallJob) -> TenantUser | None:
    """Return the owner of the workflow's run; None if the run has ended. If the run's record is
    missing, the run counts as open, and the owner's name is empty. Raises BusError."""
    record = await bus.bucket("runs").load(call.run_id, RunRecord)
    if record is None:
        return TenantUser("", "")
    return None if record.status in ENDED else record.tenant_user
