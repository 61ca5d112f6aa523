"""Restore the records of approvals from EVENTS after NATS has lost some of the records.

After a power cut or the restore of a backup, KV `approvals` may lack the records of requests that
runs wait for. KV may also show decided requests as pending. Without a record nobody could decide,
and the run would wait for ever. If a decided request was shown as pending, people would be asked to
decide again. The events of the runs contain both the requests and the decisions, so the records can
be made from the events. Each step may be repeated, and several instances may do the same step at
the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

import orjson

from penstock.bus import Bus, ObjectGone, Stored, masking
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord, Decided, Decision
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.streams import COMMANDS, events_for
from penstock.bus.subjects import event
from penstock.bus.write import objects
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.runs.events import WORKFLOWS
from penstock_approvals.store.records import UnreadableRecord

log = logging.getLogger(__name__)

STREAM = "KV_approvals"


class Restore:
    """Restores records once after each known loss, also after one before this process began."""

    def __init__(self, bus: Bus, approvals: Approvals) -> None:
        self._bus = bus
        self._approvals = approvals
        self._losses = 0  # the number of losses that were handled

    async def after_losses(self) -> None:
        """Restore what NATS has lost since the last call. Raises BusError if the bus does not
        answer; call again later."""
        losses = len(self._bus.continuity.of(STREAM)) + len(self._bus.continuity.of(COMMANDS))
        if losses == self._losses:
            return
        async for stored in direct.replay(self._bus, "KV_runs", "$KV.runs.*"):
            if stored.payload:
                await self._safely(stored.subject, self._request_again(stored.payload))
        for record in await self._approvals.records.all():
            if record.status == "pending":
                await self._safely(record.approval_id, self._restore_status(record))
            elif record.target == WORKFLOWS or record.is_of_review:
                await self._safely(record.approval_id, self._resend_outcome(record))
        self._losses = losses

    async def _safely(self, what: str, step: Awaitable[None]) -> None:
        try:
            await step
        except (ObjectGone, LookupError, UnreadableRecord, ValueError) as error:
            # An approval that cannot be restored must not block the other approvals.
            log.error("%s: the approval cannot be restored: %r", what, error)

    async def _request_again(self, value: bytes) -> None:
        """Record again the request for which a run waits, if the request's record is lost."""
        run = RunRecord.model_validate_json(value)
        if run.target == WORKFLOWS:
            if run.status not in ENDED:
                await self._all_requests_again(run.run_id)
            return
        if run.status != "paused" or run.approval_id is None:
            return
        if await self._approvals.records.get(run.approval_id) is not None:
            return
        asked = await self._last("approval.requested", run.run_id, run.approval_id)
        if asked is None:
            raise LookupError(
                f"run {run.run_id} waits for approval {run.approval_id}, of which "
                "neither a record nor the event approval.requested is left: cancel the run"
            )
        log.warning(
            "run %s: the lost record of approval %s is written again", run.run_id, run.approval_id
        )
        await self._approvals.ask_again(asked[0])

    async def _all_requests_again(self, run_id: str) -> None:
        """Record again each request that a workflow's run has made and whose record is lost.

        Requests that were decided or have expired are recorded, too. `_restore_status` then finds
        out how these requests ended.
        """
        pattern = event("approval.requested", run_id)
        async for stored in direct.replay(self._bus, events_for(run_id), pattern):
            body = orjson.loads(await objects.unwrap(self._bus, stored.payload))
            approval_id = body["data"]["approval_id"]
            if await self._approvals.records.get(approval_id) is None:
                log.warning(
                    "run %s: the lost record of approval %s is written again", run_id, approval_id
                )
                await self._approvals.ask_again(stored)

    async def _resend_outcome(self, record: ApprovalRecord) -> None:
        """Send again how an approval ended, because the workflow, or the normalizer, may not have
        got this news. The connector's watchdog finds the lost decisions that connectors send."""
        run = await self._bus.bucket("runs").load(record.run_id, RunRecord)
        if run is not None and run.status not in ENDED:
            await self._approvals.outbox.send_on(record.approval_id)

    async def _restore_status(self, record: ApprovalRecord) -> None:
        expired_event = await self._last("approval.expired", record.run_id, record.approval_id)
        decided = await self._last("approval.decided", record.run_id, record.approval_id)
        if expired_event is None and decided is None:
            await self._approvals.withdraw_if_ended(record)
            return
        decision = _decision(decided[1]) if decided is not None else None
        expired = expired_event[1]["data"]["reason"] if expired_event is not None else None
        if await self._approvals.restore_outcome(record.approval_id, decision, expired):
            log.warning(
                "run %s: the lost end of approval %s, by %s, is written again",
                record.run_id,
                record.approval_id,
                decision.by if decision else "its deadline",
            )

    async def _last(
        self, type_: str, run_id: str, approval_id: str
    ) -> tuple[Stored, dict[str, Any]] | None:
        """Return the last event of this type about the approval, and its body; None without."""
        found = None
        pattern = event(type_, run_id)
        async for stored in direct.replay(self._bus, events_for(run_id), pattern):
            body = orjson.loads(masking.whole(await objects.unwrapped(self._bus, stored)))
            if body["data"]["approval_id"] == approval_id:
                found = stored, body
        return found


def _decision(body: dict[str, Any]) -> Decision:
    data = body["data"]
    return Decision(
        outcome=data["outcome"],
        by=data["by"],
        at=body["timestamp"],
        automatic=data.get("automatic", False),
        note=data.get("note"),
        items=[Decided.model_validate(item) for item in data["items"]],
    )
