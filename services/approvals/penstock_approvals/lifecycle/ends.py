"""Withdraw requests whose run has ended, and requests for which a workflow no longer waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from penstock.bus import Bus
from penstock.bus.read import direct
from penstock.bus.records import ApprovalRecord, PauseRecord
from penstock.bus.streams import events_for
from penstock.bus.subjects import event
from penstock.bus.write import objects
from penstock.tracing import spans
from penstock_approvals.audit.approval import ApprovalAudit
from penstock_approvals.lifecycle.deadlines import Deadlines
from penstock_approvals.runs.announcements import Announcements, Event
from penstock_approvals.runs.approval_span import span_of
from penstock_approvals.runs.workflow_notifier import WORKFLOWS
from penstock_approvals.store.records import BUCKET, ApprovalRecords

_PREFIX: Final = "of."
_RUN_ENDED: Final = "the run has ended"


class ApprovalIds:
    """The keys of the approvals of workflows' runs. Every call may be repeated.

    Several approvals of such a run may be open at once. A key `of.<run>.<approval>` in KV
    `approvals` names each. The key is written before the approval's record, and removed after the
    run has ended and its open approvals were withdrawn.
    """

    def __init__(self, bus: Bus) -> None:
        self._bucket = bus.bucket(BUCKET)

    async def add(self, run_id: str, approval_id: str) -> None:
        await self._bucket.create(f"{_PREFIX}{run_id}.{approval_id}", b"1")

    async def ids(self, run_id: str) -> list[str]:
        entries = await self._bucket.entries(f"{_PREFIX}{run_id}.*")
        return [entry.key.rpartition(".")[2] for entry in entries]

    async def forget(self, run_id: str, approval_id: str) -> None:
        await self._bucket.delete(f"{_PREFIX}{run_id}.{approval_id}")


class RunEnds:
    """Withdraws requests. Every call may be repeated, and raises BusError."""

    def __init__(
        self,
        bus: Bus,
        *,
        records: ApprovalRecords,
        announcements: Announcements,
        audit: ApprovalAudit,
        deadlines: Deadlines,
    ) -> None:
        self._bus = bus
        self._records = records
        self._announcements = announcements
        self._audit = audit
        self._deadlines = deadlines
        self._approval_ids = ApprovalIds(bus)

    async def note(self, run_id: str, approval_id: str) -> None:
        """Store that a workflow's run asks for an approval, before the approval's record is
        written."""
        await self._approval_ids.add(run_id, approval_id)

    async def ended(self, run_id: str, *, is_workflow: bool = False) -> None:
        pause = await pause_of(self._bus, run_id)
        # A run with a pause of the protocol `workflow` is a workflow's run, too. The normalizer
        # stores such a pause for each workflow's run that has asked for an approval.
        if is_workflow or (pause is not None and pause.protocol == "workflow"):
            await self._withdraw_all(run_id)
            return
        approval_id = await self._last_request(run_id, pause)
        if approval_id is not None:
            await self._withdraw_one(run_id, approval_id)
            await self.record_executed_calls(run_id)

    async def withdraw(self, record: ApprovalRecord) -> None:
        if record.target == WORKFLOWS:
            await self._withdraw_all(record.run_id)
        else:
            await self._withdraw_one(record.run_id, record.approval_id)

    async def withdraw_for_workflow(self, data: Mapping[str, object]) -> None:
        """Withdraw a request for which a workflow no longer waits, for example because a timeout
        has passed.

        `data` is the `data` of the event `approval.withdrawn`. The workflow has written this event
        itself.
        """
        record = await self._records.get(str(data["approval_id"]))
        if record is not None and record.target == WORKFLOWS:
            await self._close(record.approval_id, str(data.get("reason") or _RUN_ENDED))

    async def apply_earlier_withdrawal(self, record: ApprovalRecord) -> None:
        """Withdraw a request if its workflow withdrew the request before the request's record
        existed."""
        subject = event("approval.withdrawn", record.run_id)
        async for stored in direct.replay(self._bus, events_for(record.run_id), subject):
            body = orjson.loads(await objects.unwrap(self._bus, stored.payload))
            if body["data"]["approval_id"] == record.approval_id:
                await self.withdraw_for_workflow(body["data"])

    async def record_executed_calls(self, run_id: str) -> None:
        """Write into the audit which approved calls of the run ran, if the audit lacks this."""
        for approval_id in await self._audit.undocumented(run_id):
            record = await self._records.get(approval_id)
            if record is not None:
                await self._audit.record_executed_calls(record)

    async def _withdraw_all(self, run_id: str) -> None:
        ids = await self._approval_ids.ids(run_id)
        records = [each for id_ in ids if (each := await self._records.get(id_)) is not None]
        withdrawn = []
        for record in records:
            if record.status == "pending" or record.reason == _RUN_ENDED:
                closed = await self._close(record.approval_id, _RUN_ENDED)
                withdrawn += [closed] if closed is not None else []
        if withdrawn:
            # The events of all requests are written in one call. If this process ends during the
            # call, a repeated call continues after the last event that was written.
            events = [_withdrawal(record) for record in withdrawn]
            await self._announcements.once(run_id, withdrawn[0].leg, *events)
        for record in records:
            await self._approval_ids.forget(run_id, record.approval_id)

    async def _withdraw_one(self, run_id: str, approval_id: str) -> None:
        """Withdraw a pending request, and announce the withdrawal.

        A request that was withdrawn earlier is announced again.
        """
        record = await self._close(approval_id, _RUN_ENDED)
        if record is not None:
            await self._announcements.once(run_id, record.leg, _withdrawal(record))

    async def _close(self, approval_id: str, reason: str) -> ApprovalRecord | None:
        """Withdraw a pending request.

        Return the withdrawn record; None if the request has another status.
        """
        record = await self._withdrawn(approval_id, reason)
        if record is not None:
            await self._audit.follow(record)
            await self._deadlines.cancel(record)
            if spans.is_on():
                spans.record(span_of(record))
        return record

    async def _withdrawn(self, approval_id: str, reason: str) -> ApprovalRecord | None:
        """Write the withdrawal.

        Return the withdrawn record; None if the request has another status.
        """
        while True:
            stored = await self._records.find(approval_id)
            if stored is None:
                return None
            if stored.record.status != "pending":
                return stored.record if stored.record.status == "withdrawn" else None
            withdrawn = stored.record.model_copy(
                update={
                    "status": "withdrawn",
                    "reason": reason,
                    "updated_at": self._bus.clock.stamp(),
                }
            )
            if await self._records.replace(stored, withdrawn):
                return withdrawn

    async def _last_request(self, run_id: str, pause: PauseRecord | None) -> str | None:
        """Return the id of the approval that the run requested last; None if the run never
        paused."""
        if pause is not None:
            return pause.approval_id
        if not self._bus.continuity.of("KV_pauses"):
            return None
        # NATS has lost records of pauses, perhaps also this run's record. So the id is read from
        # the run's events.
        asked = await self._bus.tail(events_for(run_id), event("approval.requested", run_id))
        if asked is None:
            return None
        body = orjson.loads(await objects.unwrap(self._bus, asked.payload))
        return str(body["data"]["approval_id"])


async def pause_of(bus: Bus, run_id: str) -> PauseRecord | None:
    entry = await bus.bucket("pauses").get(run_id)
    if entry is None or not entry.value:
        return None
    return PauseRecord.model_validate_json(await objects.unwrap(bus, entry.value))


def _withdrawal(record: ApprovalRecord) -> Event:
    data = {"approval_id": record.approval_id, "reason": record.reason}
    return ("approval.withdrawn", data)
