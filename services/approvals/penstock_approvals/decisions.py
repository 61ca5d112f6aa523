"""Record requests for approval, take decisions, and withdraw requests of ended runs.

A decision is a compare-and-set of the approval's record. So only one decision is taken, and each
later decision gets the record as its answer. The outbox sends a taken decision to the connector,
also when the process that took the decision has ended.
"""

from __future__ import annotations

import logging

import orjson

from penstock import telemetry
from penstock.bus import Bus, Stored
from penstock.bus.records import (
    ENDED,
    ApprovalRecord,
    DecideReply,
    DecideRequest,
    Decision,
    PauseRecord,
    RunRecord,
)
from penstock.bus.streams import events_for
from penstock.bus.subjects import event, events_of_run, key_of
from penstock.bus.write import objects
from penstock.bus.write.fence import tail
from penstock.events import TERMINAL
from penstock_approvals.announcements import Announcements
from penstock_approvals.audit.approval import ApprovalAudit
from penstock_approvals.listing import ApprovalList
from penstock_approvals.outbox import Outbox
from penstock_approvals.records import ApprovalRecords, Held
from penstock_approvals.rules import Unfit, check, outcome

log = logging.getLogger(__name__)


class Approvals:
    """Handles events and decisions, whether a decision comes over NATS or over HTTP."""

    def __init__(self, bus: Bus, pod: str, audit: ApprovalAudit | None = None) -> None:
        self._bus = bus
        self._records = ApprovalRecords(bus)
        self._announcements = Announcements(bus, pod)
        self.audit = audit or ApprovalAudit(bus)
        self._outbox = Outbox(bus, self._records, self._announcements, self.audit)
        self.list = ApprovalList(bus, self._records)

    async def on_event(self, stored: Stored) -> None:
        """Handle an approval.requested, or the terminal event of a run. A repeat changes nothing.

        Raises:
            LookupError: the run has no record.
            UnreadableRecord: the approval's record cannot be parsed.
            BusError: the bus does not answer.
        """
        body = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        if body["event"]["category"] == "approval":
            await self._on_requested(body)
        else:
            await self._on_ended(body["run_id"])

    async def _on_requested(self, body: dict[str, object]) -> None:
        """Record the request and its aliases, then announce the run as paused."""
        data = body["data"]
        assert isinstance(data, dict)
        run_id, approval_id = str(body["run_id"]), data["approval_id"]
        run = await self._run(run_id)
        record = ApprovalRecord(
            approval_id=approval_id,
            run_id=run_id,
            agent=run.agent,
            session_id=run.session_id,
            user_id=run.user_id,
            leg=int(str(body["leg"])),
            digest=data["digest"],
            items=data["items"],
            requested_at=str(body["timestamp"]),
            updated_at=str(body["timestamp"]),
        )
        created = await self._records.create(record)
        for item in record.items:
            await self._point_to(record, run, item["item_id"])
        if created:
            log.info("run %s waits for approval %s", run_id, approval_id)
        await self._write_what_ran(run_id)
        kept = record if created else await self.get(approval_id)
        if kept is not None:
            await self.audit.follow(kept)
        if kept is not None and kept.status == "pending":
            # This version has no policy, so a person decides every request.
            paused = {"reason": "approval_required", "approval_id": approval_id}
            await self._announcements.once(run_id, record.leg, "lifecycle.paused", paused)
        last = await tail(self._bus, events_for(run_id), events_of_run(run_id))
        if last is not None and last.headers.get("ce-type") in TERMINAL:
            # The run ended while the request was recorded. If its terminal event was handled before
            # the record existed, nothing else would withdraw the request.
            await self._on_ended(run_id)

    async def _point_to(self, record: ApprovalRecord, run: RunRecord, item_id: str) -> None:
        """Write the aliases by which an answer in an upstream's protocol finds the approval."""
        named = (run.agent, run.session_id, item_id)
        pointer = {
            "approval_id": record.approval_id,
            "run_id": record.run_id,
            "leg": record.leg,
            "item_id": item_id,
        }
        # Two users may give their sessions the same id, so the first key contains the owner.
        # Releases up to 0.1 read the second key, without the owner.
        for alias in (key_of("approval", run.user_id, *named), key_of("approval", *named)):
            await self._bus.bucket("aliases").put(alias, orjson.dumps(pointer))

    async def _on_ended(self, run_id: str) -> None:
        approval_id = await self._last_request(run_id)
        if approval_id is not None:
            await self._withdraw(run_id, approval_id)
            await self._write_what_ran(run_id)

    async def _write_what_ran(self, run_id: str) -> None:
        """Write into the audit which approved calls of the run's last leg ran."""
        for approval_id in await self.audit.undocumented(run_id):
            record = await self.get(approval_id)
            if record is not None:
                await self.audit.ran(record)

    async def _last_request(self, run_id: str) -> str | None:
        """Return the id of the run's last requested approval; None if the run never paused."""
        entry = await self._bus.bucket("pauses").get(run_id)
        if entry is not None and entry.value:
            kept = await objects.unwrap(self._bus, entry.value)
            return PauseRecord.model_validate_json(kept).approval_id
        if not self._bus.continuity.of("KV_pauses"):
            return None
        # NATS has lost records of pauses, perhaps this record. The run's events have the id, too.
        asked = await self._bus.tail(events_for(run_id), event("approval.requested", run_id))
        if asked is None:
            return None
        body = orjson.loads(await objects.unwrap(self._bus, asked.payload))
        return str(body["data"]["approval_id"])

    async def withdraw_if_ended(self, record: ApprovalRecord) -> None:
        """Withdraw a request whose run has ended, also when the record of the run's pause is lost.

        Raises:
            LookupError: the run has no record.
            BusError: the bus does not answer.
        """
        if (await self._run(record.run_id)).status in ENDED:
            await self._withdraw(record.run_id, record.approval_id)

    async def was_decided(self, approval_id: str, decision: Decision) -> bool:
        """Record again a decision that NATS has lost; return False if the approval is not pending.

        The decision is not sent here: the outbox had sent it before. If NATS has lost the command,
        the connector's watchdog sends the command again, once.
        """
        held = await self._records.find(approval_id)
        if held is None or held.record.status != "pending":
            return False
        update = {"status": "decided", "decision": decision, "updated_at": decision.at}
        decided = held.record.model_copy(update=update)
        if not await self._records.replace(held, decided):
            return False
        await self.audit.follow(decided)
        return True

    async def _withdraw(self, run_id: str, approval_id: str) -> None:
        """Withdraw a pending request; announce the withdrawal, even if it happened earlier."""
        record = await self._withdrawn(approval_id)
        if record is not None:
            await self.audit.follow(record)
            data = {"approval_id": record.approval_id, "reason": record.reason}
            await self._announcements.once(run_id, record.leg, "approval.withdrawn", data)

    async def _withdrawn(self, approval_id: str) -> ApprovalRecord | None:
        """Withdraw a pending request; return the withdrawn record, or None for another status."""
        while True:
            held = await self._records.find(approval_id)
            if held is None:
                return None
            if held.record.status != "pending":
                return held.record if held.record.status == "withdrawn" else None
            withdrawn = held.record.model_copy(
                update={
                    "status": "withdrawn",
                    "reason": "the run has ended",
                    "updated_at": self._bus.clock.stamp(),
                }
            )
            if await self._records.replace(held, withdrawn):
                return withdrawn

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        """Return the record of one approval. Raises what `ApprovalRecords.get` raises."""
        return await self._records.get(approval_id)

    async def all(self) -> list[ApprovalRecord]:
        """Return every readable record, the newest first. Raises BusError."""
        return await self._records.all()

    async def decide(self, approval_id: str, request: DecideRequest) -> DecideReply:
        """Take the decision if it is the approval's first decision and fits the request.

        The decision is not sent here. The outbox has an entry for a taken decision, and `send_on`
        sends the decision at once.

        Raises:
            UnreadableRecord, ObjectGone: the record cannot be read.
            BusError: the bus does not answer; the decision may be taken or not.
        """
        while True:
            held = await self._records.find(approval_id)
            if held is None:
                return DecideReply(status=404, detail=f"there is no approval {approval_id}")
            if held.record.status != "pending":
                return _not_pending(held.record, request)
            reply = await self._decide(held, request)
            if reply is not None:
                return reply

    async def _decide(self, held: Held, request: DecideRequest) -> DecideReply | None:
        """Take the decision; return None if the record has changed and must be read again."""
        record = held.record
        if request.digest is not None and request.digest != record.digest:
            return DecideReply(
                status=409,
                detail="the request is not the one that was shown: its digest differs",
                approval=record,
            )
        try:
            check(record, request)
        except Unfit as error:
            return DecideReply(status=422, detail=str(error), approval=record)
        now = self._bus.clock.stamp()
        decision = Decision(
            outcome=outcome(request.items),
            by=request.made_by.name,
            decider=request.decider,
            at=now,
            note=request.note,
            items=request.items,
            idempotency_key=request.idempotency_key,
            invocation_id=request.invocation_id,
        )
        decided = record.model_copy(
            update={"status": "decided", "updated_at": now, "decision": decision}
        )
        await self._outbox.open(record.approval_id)
        if not await self._records.replace(held, decided):
            return None
        telemetry.DECISIONS.labels(decision.outcome).inc()
        log.info("run %s: %s by %s", record.run_id, decision.outcome, decision.by)
        return DecideReply(status=200, approval=decided)

    async def send_on(self, approval_id: str) -> None:
        """Announce and send the decision. Raises what `Outbox.send_on` raises."""
        await self._outbox.send_on(approval_id)

    async def sweep(self) -> None:
        """Send the decisions that ended processes took and did not send. Raises BusError."""
        await self._outbox.sweep()

    async def _run(self, run_id: str) -> RunRecord:
        entry = await self._bus.bucket("runs").get(run_id)
        if entry is None or entry.value is None:
            raise LookupError(f"run {run_id} has no record")
        return RunRecord.model_validate_json(entry.value)


def _not_pending(record: ApprovalRecord, request: DecideRequest) -> DecideReply:
    """Return 409 for a record that is not pending; 200 if the request repeats its decision."""
    decision, key = record.decision, request.idempotency_key
    if (
        decision is not None
        and key is not None
        and decision.idempotency_key == key
        and decision.made_by.is_same(request.made_by)
    ):
        if _content(decision) == _content(request):
            return DecideReply(status=200, approval=record)
        text = "this idempotency key came with another decision before"
        return DecideReply(status=409, detail=text, approval=record)
    reasons = {
        "decided": f"it was decided already, at {record.updated_at}",
        "withdrawn": f"it was withdrawn: {record.reason}",
        "expired": "it has expired",
    }
    return DecideReply(status=409, detail=reasons[record.status], approval=record)


def _content(given: Decision | DecideRequest) -> tuple[str | None, list[dict[str, object]]]:
    return given.note, [item.model_dump(exclude_none=True) for item in given.items]
