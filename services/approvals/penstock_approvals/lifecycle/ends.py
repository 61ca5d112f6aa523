"""Withdraw requests whose run has ended, and requests for which a workflow no longer waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from penstock.bus import Bus
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.records.legs import PauseRecord
from penstock.bus.streams import events_for
from penstock.bus.subjects import event
from penstock.bus.write import objects
from penstock.tracing import spans
from penstock_approvals.audit.trail import ApprovalAudit
from penstock_approvals.lifecycle.deadlines import Deadlines
from penstock_approvals.runs.announcements import Announcements
from penstock_approvals.runs.events import WORKFLOWS, span_of, withdrawal
from penstock_approvals.store.records import BUCKET, ApprovalRecords

_PREFIX: Final = "of."
_RUN_ENDED: Final = "the run has ended"


class RunEnds:
    """Withdraws requests. Every call may be repeated, and raises BusError.

    Several approvals of a workflow's run may be open at once. A key `of.<run>.<approval>` in KV
    `approvals` names each. The key is written before the approval's record, and removed after the
    run has ended and its open approvals were withdrawn.
    """

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
        self._bucket = bus.bucket(BUCKET)

    async def note(self, run_id: str, approval_id: str) -> None:
        """Store that a workflow's run asks for an approval, before its record is written."""
        await self._bucket.create(f"{_PREFIX}{run_id}.{approval_id}", b"1")

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
        """Withdraw a request for which a workflow no longer waits, for example after a timeout.
        `data` is of the event `approval.withdrawn`, which the workflow has written itself."""
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
        entries = await self._bucket.entries(f"{_PREFIX}{run_id}.*")
        asked: list[str] = []
        withdrawn: list[ApprovalRecord] = []
        for entry in entries:
            record = await self._records.get(entry.key.rpartition(".")[2])
            if record is None:
                continue
            asked.append(entry.key)
            if record.status == "pending" or record.reason == _RUN_ENDED:
                closed = await self._close(record.approval_id, _RUN_ENDED)
                withdrawn += [closed] if closed is not None else []
        if withdrawn:
            # The events of all requests are written in one call. If this process ends during the
            # call, a repeated call continues after the last event that was written.
            await self._announcements.once(run_id, withdrawn[0].leg, *map(withdrawal, withdrawn))
        for key in asked:
            await self._bucket.delete(key)

    async def _withdraw_one(self, run_id: str, approval_id: str) -> None:
        record = await self._close(approval_id, _RUN_ENDED)
        if record is not None:
            await self._announcements.once(run_id, record.leg, withdrawal(record))

    async def _close(self, approval_id: str, reason: str) -> ApprovalRecord | None:
        """Withdraw a pending request. Return the record of a request that is withdrawn now or was
        withdrawn earlier; None if the request has another status."""
        while (stored := await self._records.find(approval_id)) is not None:
            record = stored.record
            if record.status == "pending":
                now = self._bus.clock.stamp()
                update = {"status": "withdrawn", "reason": reason, "updated_at": now}
                await self._records.replace(stored, record.model_copy(update=update))
            elif record.status == "withdrawn":
                await self._audit.follow(record)
                await self._deadlines.cancel(record)
                spans.record(span_of(record))
                return record
            else:
                return None
        return None

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
    return await bus.bucket("pauses").load(run_id, PauseRecord)
