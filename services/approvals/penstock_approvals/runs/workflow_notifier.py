"""Send to the service `workflows` how the approvals of its runs end.

Only the service `workflows` writes the source frames of a workflow's run until the run ends. So
this service sends `ApprovalNews` to `workflows`, which then writes the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.bus import Bus, Message
from penstock.bus.records import ApprovalChange, ApprovalNews, ApprovalRecord
from penstock.bus.subjects import command
from penstock.bus.write import objects
from penstock_approvals.runs.announcements import Event

WORKFLOWS: Final = "workflows"  # The target of commands to workflows' runs.
# Maps the type of an approval's event to the kind of report that `workflows` gets.
_NEWS: Final[Mapping[str, ApprovalChange]] = {
    "lifecycle.paused": "asked",
    "approval.escalated": "escalated",
    "approval.expired": "expired",
    "approval.decided": "decided",
}


class WorkflowNotifier:
    """Sends `ApprovalNews`: reports of what happened to approvals. Every call may be repeated.

    The NATS server drops a repetition that has the same message id and comes soon. `workflows`
    ignores a later repetition, because the run's journal has the report already.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def send(self, record: ApprovalRecord, *events: Event) -> None:
        """Report these events to the service `workflows`, in this order. Raises BusError."""
        for type_, data in events:
            await self._send(record, type_, data)

    async def _send(self, record: ApprovalRecord, type_: str, data: Mapping[str, Any]) -> None:
        name = f"{record.approval_id}.{_NEWS[type_]}"
        if "step" in data:
            name = f"{name}.{data['step']}"
        news = ApprovalNews(
            run_id=record.run_id,
            approval_id=record.approval_id,
            news=_NEWS[type_],
            event={"type": type_, "data": dict(data)},
            items=record.decided_items() if type_ == "approval.decided" else None,
        )
        payload = await objects.wrap(self._bus, name, news.dump())
        subject = command(WORKFLOWS, "continue", record.run_id)
        await self._bus.publisher.publish(Message(subject, payload, {"Nats-Msg-Id": name}))
