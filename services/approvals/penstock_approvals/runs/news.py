"""Tell the service `workflows` what has become of the approvals of workflows' runs.

A workflow's run has one writer, so this service writes no source frames of such a run before its
end. It sends `ApprovalNews` instead, and `workflows` publishes the events of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.bus import Bus, Message
from penstock.bus.records import ApprovalChange, ApprovalNews, ApprovalRecord
from penstock.bus.subjects import command
from penstock.bus.write import objects
from penstock_approvals.runs.announcements import Event

WORKFLOWS: Final = "workflows"  # the target of the commands of such runs
# Maps the type of each event of an approval to the news for `workflows`.
_NEWS: Final[Mapping[str, ApprovalChange]] = {
    "lifecycle.paused": "asked",
    "approval.escalated": "escalated",
    "approval.expired": "expired",
    "approval.decided": "decided",
}


class News:
    """Sends the news of approvals. Every call may be repeated.

    The server drops a repetition that comes soon, by its message id. `workflows` ignores a later
    repetition, because its journal has the news already.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def send(self, record: ApprovalRecord, *events: Event) -> None:
        """Send the news of these events, in this order. Raises BusError."""
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
