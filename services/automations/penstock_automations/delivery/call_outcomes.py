"""Reports the outcome of a call to the workflow that made the call."""

from __future__ import annotations

from penstock.bus import Bus, Message
from penstock.bus.records import ENDED, RunRecord
from penstock.runs.calls import Called, CallError, CallJob, called_subject
from penstock_automations.delivery.records import DeliveryRecord


def called_of(call: CallJob, record: DeliveryRecord) -> Called:
    """Return the outcome of a call that has ended. Pure."""
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
        attempts=record.made,
        error=error,
    )


async def publish_call_outcome(bus: Bus, call: CallJob, record: DeliveryRecord) -> None:
    """Publish the outcome of a call. A repeated call of this function is harmless.

    Raises:
        BusError: the outcome was not published, or it is unknown whether it was; repeat the call.
    """
    payload = called_of(call, record).dump()
    headers = {"Nats-Msg-Id": f"{call.webhook_id}.called"}
    await bus.publisher.publish(Message(called_subject(call.run_id), payload, headers))


async def wants_answer(bus: Bus, call: CallJob) -> bool:
    """Return whether the workflow's run has not ended; True if the run's record is missing.

    Raises:
        BusError: the bucket cannot be read.
    """
    entry = await bus.bucket("runs").get(call.run_id)
    return entry is None or RunRecord.model_validate_json(entry.value).status not in ENDED
