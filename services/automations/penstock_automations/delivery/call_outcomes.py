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


async def waiting_user(bus: Bus, call: CallJob) -> str | None:
    """Return the owner of the workflow's run; None if the run has ended.

    If the run's record is missing, the run counts as open, and the result is an empty text.

    Raises:
        BusError: the bucket cannot be read.
    """
    entry = await bus.bucket("runs").get(call.run_id)
    if entry is None:
        return ""
    record = RunRecord.model_validate_json(entry.value)
    return None if record.status in ENDED else record.user_id
