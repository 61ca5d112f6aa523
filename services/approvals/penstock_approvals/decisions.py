"""Requests, decisions, and how a decision goes out.

The decision is a compare-and-set of the request's record: one wins, later ones are told so. An
outbox entry, written before, makes sure that a decision whose process died is sent on by another.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256

import orjson

from penstock import telemetry
from penstock.bus import Bus, Entry, FenceConflict, Message, ObjectGone, RawWriter, Stored
from penstock.bus.messages import LEG
from penstock.bus.records import (
    ENDED,
    ApprovalRecord,
    DecideReply,
    DecideRequest,
    Decision,
    PauseRecord,
    RunRecord,
)
from penstock.bus.streams import EVENTS, RAW
from penstock.bus.subjects import command, event, events_of_run, key_of, raw_stored
from penstock.bus.write import objects
from penstock.bus.write.fence import tail
from penstock_approvals.rules import Unfit, check, outcome

log = logging.getLogger(__name__)

WRITER = "approvals"
ABANDONED_S = 30.0  # an outbox entry whose decision was never taken


class Approvals:
    """What the service does; HTTP and subjects are elsewhere."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._bus = bus
        self._pod = pod
        self._bucket = bus.bucket("approvals")
        self._writes = 0

    # what the bus says

    async def on_event(self, stored: Stored) -> None:
        """An approval.requested, or a run's end."""
        body = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        if body["event"]["category"] == "approval":
            await self._on_requested(body)
        else:
            await self._on_ended(body["run_id"])

    async def _on_requested(self, body: dict[str, object]) -> None:
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
        created = await self._bucket.create(approval_id, await self._value(record))
        for item in record.items:
            named = (run.agent, run.session_id, item["item_id"])
            pointer = {
                "approval_id": approval_id,
                "run_id": run_id,
                "leg": record.leg,
                "item_id": item["item_id"],
            }
            # by the owner too, since two users may call a session the same; releases before this
            # one look without it
            for alias in (key_of("approval", run.user_id, *named), key_of("approval", *named)):
                await self._bus.bucket("aliases").put(alias, orjson.dumps(pointer))
        if created is not None:
            log.info("run %s waits for approval %s", run_id, approval_id)
        standing = record if created is not None else await self.get(approval_id)
        if standing is not None and standing.status == "pending":
            # the policy of this version: a person is always asked
            paused = {"reason": "approval_required", "approval_id": approval_id}
            await self._say(run_id, record.leg, "lifecycle.paused", paused)
        last = await tail(self._bus, EVENTS, events_of_run(run_id))
        if last is not None and last.headers.get("ce-type") in _ENDS:
            await self._on_ended(run_id)  # it ended while we wrote

    async def _on_ended(self, run_id: str) -> None:
        approval_id = await self._last_request(run_id)
        if approval_id is not None:
            await self._withdraw_and_say(run_id, approval_id)

    async def _last_request(self, run_id: str) -> str | None:
        entry = await self._bus.bucket("pauses").get(run_id)
        if entry is not None and entry.value:
            kept = await objects.unwrap(self._bus, entry.value)
            return PauseRecord.model_validate_json(kept).approval_id
        if not self._bus.continuity.of("KV_pauses"):
            return None  # it never paused
        asked = await self._bus.tail(EVENTS, event("approval.requested", run_id))
        if asked is None:
            return None
        body = orjson.loads(await objects.unwrap(self._bus, asked.payload))
        return str(body["data"]["approval_id"])

    async def withdraw_if_ended(self, record: ApprovalRecord) -> None:
        """Withdraw a request whose run has ended, whatever is kept of the pause."""
        if (await self._run(record.run_id)).status in ENDED:
            await self._withdraw_and_say(record.run_id, record.approval_id)

    async def was_decided(self, approval_id: str, decision: Decision) -> bool:
        """Write a decision of before down again, unless the request is no longer pending.

        Nothing is sent: who decided had it sent, and what was lost on its way the connector's
        watchdog sends, once.
        """
        entry = await self._bucket.get(approval_id)
        if entry is None:
            return False
        record = await self._record(entry)
        if record.status != "pending":
            return False
        update = {"status": "decided", "decision": decision, "updated_at": decision.at}
        value = await self._value(record.model_copy(update=update))
        return await self._bucket.update(approval_id, value, entry.revision) is not None

    async def _withdraw_and_say(self, run_id: str, approval_id: str) -> None:
        record = await self._withdraw(approval_id)
        if record is not None:
            withdrawn = {"approval_id": record.approval_id, "reason": record.reason}
            await self._say(run_id, record.leg, "approval.withdrawn", withdrawn)

    async def _withdraw(self, approval_id: str) -> ApprovalRecord | None:
        """The request as it was withdrawn, now or before; None when it was not."""
        while True:
            entry = await self._bucket.get(approval_id)
            if entry is None:
                return None
            record = await self._record(entry)
            if record.status != "pending":
                return record if record.status == "withdrawn" else None
            withdrawn = record.model_copy(
                update={
                    "status": "withdrawn",
                    "reason": "the run has ended",
                    "updated_at": self._bus.clock.stamp(),
                }
            )
            value = await self._value(withdrawn)
            if await self._bucket.update(approval_id, value, entry.revision):
                return withdrawn

    # what people say

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        """One request."""
        entry = await self._bucket.get(approval_id)
        return await self._record(entry) if entry is not None else None

    async def all(self) -> list[ApprovalRecord]:
        """Every request that is kept, the last one first."""
        records = []
        for entry in await self._bucket.entries("*"):
            try:
                records.append(await self._record(entry))
            except ObjectGone as error:
                log.warning("approval %s cannot be shown: %s", entry.key, error)
        return sorted(records, key=lambda record: record.requested_at, reverse=True)

    async def decide(self, approval_id: str, request: DecideRequest) -> DecideReply:
        """Take the decision, if it is the first and fits; what must follow is in the outbox."""
        while True:
            entry = await self._bucket.get(approval_id)
            if entry is None:
                return DecideReply(status=404, detail=f"there is no approval {approval_id}")
            record = await self._record(entry)
            if record.status != "pending":
                return _too_late(record, request)
            reply = await self._decide(record, request, entry.revision)
            if reply is not None:
                return reply

    async def _decide(
        self, record: ApprovalRecord, request: DecideRequest, revision: int
    ) -> DecideReply | None:
        """None when the record has moved on meanwhile: look again."""
        approval_id = record.approval_id
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
        decided = record.model_copy(
            update={
                "status": "decided",
                "updated_at": now,
                "decision": Decision(
                    outcome=outcome(request.items),
                    by=request.by,
                    at=now,
                    note=request.note,
                    items=request.items,
                    idempotency_key=request.idempotency_key,
                    invocation_id=request.invocation_id,
                ),
            }
        )
        await self._bucket.put(f"outbox.{approval_id}", str(self._bus.clock.time()).encode())
        value = await self._value(decided)
        if await self._bucket.update(approval_id, value, revision) is None:
            return None
        assert decided.decision is not None
        telemetry.DECISIONS.labels(decided.decision.outcome).inc()
        log.info("run %s: %s by %s", record.run_id, decided.decision.outcome, decided.decision.by)
        return DecideReply(status=200, approval=decided)

    async def send_on(self, approval_id: str) -> None:
        """Say what was decided, and have the upstream continued. Safe to be done again."""
        record = await self.get(approval_id)
        if record is None or record.decision is None:
            return
        decision = record.decision
        await self._say(
            record.run_id,
            record.leg,
            "approval.decided",
            {
                "approval_id": approval_id,
                "outcome": decision.outcome,
                "by": decision.by,
                "automatic": decision.automatic,
                **({"note": decision.note} if decision.note else {}),
                "items": [item.model_dump(exclude_none=True) for item in decision.items],
            },
        )
        going_on = record.going_on()
        if going_on is None:
            return
        payload = await objects.wrap(self._bus, f"{approval_id}.continue", going_on.dump())
        await self._bus.publisher.publish(
            Message(
                command("connector", "continue", record.run_id),
                payload,
                {"Nats-Msg-Id": approval_id},
            )
        )
        await self._bucket.delete(f"outbox.{approval_id}")

    async def sweep(self) -> None:
        """Send on what a process that died had decided."""
        for entry in await self._bucket.entries("outbox.*"):
            approval_id = entry.key.removeprefix("outbox.")
            try:
                record = await self.get(approval_id)
                if record is not None and record.status == "decided":
                    await self.send_on(approval_id)
                elif float(entry.value or 0) < self._bus.clock.time() - ABANDONED_S:
                    await self._abandon(approval_id, entry)
            except ObjectGone as error:
                log.error("approval %s is not sent on any more: %s", approval_id, error)
                await self._bucket.delete(entry.key, entry.revision)

    async def _abandon(self, approval_id: str, outbox: Entry) -> None:
        """Take away the entry of a decision that was never taken.

        Whoever wrote it may only be slow. The request is written anew first, so that a decision
        which still comes on top of the old one is refused, and begins again with an entry.
        """
        standing = await self._bucket.get(approval_id)
        if standing is not None:
            record = await self._record(standing)
            if record.status == "decided":
                return  # just now: it is sent on the next time
            if record.status == "pending" and not await self._bucket.update(
                approval_id, standing.value, standing.revision
            ):
                return
        await self._bucket.delete(outbox.key, outbox.revision)

    async def _record(self, entry: Entry) -> ApprovalRecord:
        value = await objects.unwrap(self._bus, entry.value or b"")
        return ApprovalRecord.model_validate_json(value)

    async def _value(self, record: ApprovalRecord) -> bytes:
        """The record as KV takes it: what is asked about may be larger than a message."""
        value = record.dump()
        # by its content, since two deciders at once must not write over each other's
        return await objects.wrap(self._bus, f"approval.{sha256(value).hexdigest()}", value)

    async def _run(self, run_id: str) -> RunRecord:
        entry = await self._bus.bucket("runs").get(run_id)
        if entry is None or entry.value is None:
            raise LookupError(f"run {run_id} has no record")
        return RunRecord.model_validate_json(entry.value)

    async def _say(self, run_id: str, leg: int, type_: str, data: Mapping[str, object]) -> None:
        """A source event, once: a repeat finds it as the last one that we said of the run.

        Or something of a later leg, which has begun only after all was said of this one: a decision
        is sent when it has been told.
        """
        payload = orjson.dumps({"type": type_, "data": data})
        while True:
            said = await tail(self._bus, RAW, raw_stored(run_id, WRITER))
            if said is not None and (said.payload == payload or int(said.headers[LEG]) > leg):
                return
            self._writes += 1
            connection = f"{self._pod}/{self._writes}"
            last = said.sequence if said else 0
            try:
                await RawWriter(self._bus, run_id, WRITER, connection, last).write(
                    "event", payload, leg=leg
                )
                return
            except FenceConflict:
                log.info("run %s: another of us says something, too", run_id)


_ENDS = frozenset({"lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"})


def _too_late(record: ApprovalRecord, request: DecideRequest) -> DecideReply:
    """What is told who decides what is no longer pending; who repeats it, what was told before."""
    decision, key = record.decision, request.idempotency_key
    if (
        decision is not None
        and key is not None
        and (decision.idempotency_key, decision.by) == (key, request.by)
    ):
        if _said(decision) == _said(request):
            return DecideReply(status=200, approval=record)
        text = "this idempotency key came with another decision before"
        return DecideReply(status=409, detail=text, approval=record)
    words = {
        "decided": f"it was decided already, at {record.updated_at}",
        "withdrawn": f"it was withdrawn: {record.reason}",
        "expired": "it has expired",
    }
    return DecideReply(status=409, detail=words[record.status], approval=record)


def _said(said: Decision | DecideRequest) -> tuple[str | None, list[dict[str, object]]]:
    return said.note, [item.model_dump(exclude_none=True) for item in said.items]
