"""Schedules messages at the times of an approval's escalations and deadline.

A scheduled message only makes the service look at the approval's record. The service also compares
the time of each decision with the deadline. So nobody can decide after the deadline, even if a
message is late or lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import orjson

from penstock.bus import Bus, subjects
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.streams import SCHEDULES
from penstock.bus.write.schedules import schedule

SERVICE = "approvals"
DUE = subjects.due(SERVICE, ">")
# The TTL in seconds of a due message that no process has handled. A process deletes each due
# message that it has handled. Only a message whose process ended before the deletion stays in the
# stream.
DUE_TTL_S = 30 * 86_400.0


class Deadlines:
    """Schedules and cancels the messages of approvals. Every call may be repeated."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def schedule(self, record: ApprovalRecord, after: datetime | None = None) -> None:
        """Schedule a message for the deadline and for each escalation, if it is later than `after`.
        Raises BusError."""
        payload = orjson.dumps({"approval_id": record.approval_id})
        for step, at in _steps(record):
            if after is not None and at <= after.timestamp():
                continue
            key = _key(record, step)
            subject, target = subjects.schedule(SERVICE, key), subjects.due(SERVICE, key)
            await schedule(self._bus, subject, target, at, payload, DUE_TTL_S)

    async def cancel(self, record: ApprovalRecord) -> None:
        """Remove the messages that are scheduled. Raises BusError.

        Messages that are due are not removed here. The process that handles a due message deletes
        the message after it has acknowledged the message.
        """
        for step, _ in _steps(record):
            subject = subjects.schedule(SERVICE, _key(record, step))
            await self._bus.api(f"STREAM.PURGE.{SCHEDULES}", {"filter": subject})


def approval_of(payload: bytes) -> str:
    """Return the id in a scheduled message. Raises ValueError for another payload."""
    content = orjson.loads(payload)
    approval_id = content.get("approval_id") if isinstance(content, dict) else None
    if not isinstance(approval_id, str):
        raise ValueError("the message names no approval")
    return approval_id


def _steps(record: ApprovalRecord) -> Iterator[tuple[str, float]]:
    """Yield the name and the Unix time of the deadline and of each escalation."""
    for number, escalation in enumerate(record.escalations, 1):
        yield f"escalation-{number}", datetime.fromisoformat(escalation.at).timestamp()
    if record.expires_at is not None:
        yield "expiry", datetime.fromisoformat(record.expires_at).timestamp()


def _key(record: ApprovalRecord, step: str) -> str:
    """Return the tokens that end the subjects of a step's scheduled message and due message.

    The last token begins with the run's id, because the code for dead letters reads the run's id
    there. Several approvals of a workflow's run can be open at once, so the keys of these approvals
    also contain the approval's id.
    """
    name = f"{step}-{record.approval_id}" if record.target == "workflows" else step
    return f"{name}.{record.run_id}-{record.leg}"
