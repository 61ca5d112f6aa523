"""Makes the source events and the dead letter of a delivery. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.bus import Stored, subjects
from penstock.bus.state.deadletters import DeadLetter, letter_about
from penstock_automations.delivery.records import DeliveryRecord
from penstock_automations.jobs.job import Job


class NotDelivered(Exception):
    """A delivery has failed for good."""


def triggered_data(job: Job, name: str) -> dict[str, Any]:
    """Return the data of `automation.triggered`."""
    return {
        "automation": job.rule,
        "trigger": job.type,
        "delivery_id": job.webhook_id,
        "workflow": name,
        "depth": job.depth,
    }


def outcome_event(job: Job, record: DeliveryRecord) -> tuple[str, dict[str, Any]]:
    """Return the type and data of the event with the outcome of a delivery."""
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
    """Return the id of the delivery's dead letter."""
    return subjects.traceback_id(job.webhook_id, job.replay)


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
