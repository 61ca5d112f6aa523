"""Erases the content of runs, by commands (docs/decisions/0380).

First the content is withheld: the run's record says so, the records of approvals and deliveries
lose theirs, and `system.erased` becomes the run's last event. From then on nobody gets content.
Then all earlier messages of the run are deleted one by one. A repeated command goes on where the
last attempt has stopped, so a process that is killed leaves nothing half done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from penstock import telemetry
from penstock.bus import (
    Bus,
    Consumer,
    FenceConflict,
    Message,
    OutcomeUnknown,
    Stored,
    messages,
    streams,
    subjects,
)
from penstock.bus.envelopes import ENVELOPES
from penstock.bus.errors import ContentErased
from penstock.bus.read import direct
from penstock.bus.records.erasures import EraseCommand, Erasure, Receiver
from penstock.bus.records.legs import SessionRecord
from penstock.bus.records.runs import RunRecord
from penstock.bus.sealing import conversation_of
from penstock.bus.write import fence, objects
from penstock.bus.write.overwriting import overwrite, overwrite_object
from penstock.dialects.base import Draft
from penstock_normalizer.fold.envelope import canonical_event

log = logging.getLogger(__name__)

ERASED: Final = "system.erased"
CONSUMER: Final = Consumer(
    stream=streams.COMMANDS,
    durable="normalizer-erase",
    subjects=(subjects.command(subjects.NORMALIZER, "erase", "*"),),
    at_once=1000,  # nearly all of these wait for their turn in `Eraser._deleting`
)
# The runs whose messages a process deletes at the same time. It is one, because all deletes of a
# stream wait for the same disk, and so do the publishes of others.
RUNS_AT_ONCE: Final = 1
# The consumers that must have handled the run's events before these are deleted, because they add
# up what runs use, or withdraw its requests; and the most seconds to wait for them.
HANDLING: Final = frozenset({"normalizer-costs", "approvals-budgets", "approvals"})
HANDLED_S: Final = 600.0
LOOK_AGAIN_S: Final = 0.5
WITHHELD_AT_ONCE: Final = 16  # the runs whose content a process begins to withhold at once


class Eraser:
    """Erases the content of runs."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._runs = bus.bucket("runs")
        self._withholding = asyncio.Semaphore(WITHHELD_AT_ONCE)
        self._deleting = asyncio.Semaphore(RUNS_AT_ONCE)
        self._looking = asyncio.Lock()
        # By stream: when its consumers were looked at last, and what they were.
        self._looked: dict[str, tuple[float, list[dict[str, Any]]]] = {}

    async def handle(self, stored: Stored) -> None:
        """Erase the runs of a command that can be erased. Raises BusError."""
        payload = await objects.unwrap(self._bus, stored.payload)
        command = EraseCommand.model_validate_json(payload)
        for run_id in command.runs:
            async with self._withholding:
                await self._withhold(run_id, command)
        for run_id in command.runs:
            await self._delete(run_id)

    async def _withhold(self, run_id: str, command: EraseCommand) -> None:
        """Withhold the run's content, unless this is not allowed or was done before."""
        stream, pattern = streams.events_for(run_id), subjects.events_of_run(run_id)
        while True:
            entry = await self._runs.get(run_id)
            if entry is None:
                log.warning("run %s: its content is not erased: it has no record", run_id)
                return
            record = RunRecord.model_validate_json(entry.value)
            if record.erasure is None and record.not_erasable is not None:
                if await self._tombstone(run_id) is None:
                    text = "run %s: its content is not erased: %s"
                    log.warning(text, run_id, record.not_erasable)
                    return
                # It was erased before, so it had ended, and a hold was lifted: NATS has come back
                # with an older record.
                record.hold = None
            if record.erasure is not None and (
                record.erasure.erased_at or await self._tombstone(run_id)
            ):
                return
            tail = await fence.tail(self._bus, stream, pattern)
            sequence = next_number(record, tail)
            if record.erasure is None or record.erasure.sequence != sequence:
                erasure = record.erasure or await self.new_erasure(run_id, command, sequence)
                erasure = erasure.model_copy(update={"sequence": sequence})
                record.erasure = erasure
                value = without_content("runs", record.dump())
                await self._runs.update(run_id, value, entry.revision)
                continue  # with the record that is stored now
            # Edges refuse subscribers the key from now on, since the record says that it is erased.
            await self._bus.content.let_forget(run_id)
            await self.overwrite_records(run_id)
            await self._delete_requests(record)
            # Administrators can read and replay dead letters.
            letters = subjects.deadletter("*", run_id)
            await overwrite(self._bus, streams.DEADLETTERS, letters)
            try:
                message = self._event(record, record.erasure, tail)
                last = tail.sequence if tail is not None else 0
                await fence.append(self._bus, pattern, [message], last)
            except (FenceConflict, OutcomeUnknown):
                continue  # a later event of the run was published, or this one was
            telemetry.EVENTS.labels(ERASED).inc()
            log.info("run %s: its content is withheld, and will be erased", run_id)
            return

    async def new_erasure(self, run_id: str, command: EraseCommand, sequence: int) -> Erasure:
        return Erasure(
            id=command.erasure_id,
            by=command.by,
            at=command.at,
            reason=command.reason,
            sequence=sequence,
            receivers=await self._receivers(run_id),
            audit_has_details=any("details" in each for each in await self._audit(run_id)),
        )

    async def _receivers(self, run_id: str) -> list[Receiver]:
        found = []
        for key in await self._deliveries(run_id):
            entry = await self._bus.bucket("deliveries").get(key)
            receiver = _receiver(orjson.loads(entry.value)) if entry is not None else None
            found += [receiver] if receiver is not None else []
        return found

    async def _deliveries(self, run_id: str) -> list[str]:
        """Return the keys of the deliveries that the run's events name."""
        pattern = subjects.event("automation.triggered", run_id)
        found = direct.replay(self._bus, streams.events_for(run_id), pattern)
        payloads = list[bytes]()
        async for each in found:
            with suppress(ContentErased):  # by an earlier attempt, which has done this before
                payloads.append(await objects.unwrap(self._bus, each.payload))
        bodies = map(orjson.loads, payloads)
        ids = [each["data"]["delivery_id"].partition(".") for each in bodies]
        # `<rule>.<run>.<sequence>` is the id of the delivery `<rule>.<run>-<sequence>`.
        return [f"{rule}.{source.replace('.', '-')}" for rule, _, source in ids]

    async def _audit(self, run_id: str) -> list[dict[str, Any]]:
        """Return the records of the run's audit that can be read."""
        found = []
        async for stored in direct.replay(self._bus, streams.AUDIT, subjects.audit(run_id)):
            with suppress(orjson.JSONDecodeError):
                found.append(orjson.loads(stored.payload))
        return found

    async def _approvals(self, run_id: str) -> set[str]:
        named = [each.get("approval_id") for each in await self._audit(run_id)]
        return {str(each) for each in named if each}

    async def overwrite_records(self, run_id: str) -> None:
        """Take the content out of the records about the run."""
        for approval_id in await self._approvals(run_id):
            await self._take_content_out("approvals", approval_id)
        for key in await self._deliveries(run_id):
            await self._take_content_out("deliveries", key)
            await self._delete_value("deliveries", f"run.{key}")

    async def _delete_requests(self, record: RunRecord) -> None:
        """Delete what the run's agent server was sent: by its legs, its session, and its rule."""
        run_id, threads = record.run_id, self._bus.bucket("threads")
        session = subjects.session_key(record.user_id, record.agent, record.session_id)
        now, key = self._bus.clock.stamp(), f"thread.{session}"

        def mark(found: SessionRecord) -> None:
            found.erased_at = now

        # Edges do not relay what an ADK server itself has of such a session.
        await self._bus.bucket("sessions").change(session, SessionRecord, mark)
        conversation = await threads.get(key)
        if conversation is not None or await threads.get(f"run.{run_id}") is not None:
            # The conversation with an AG-UI server does not say which run a message is of. What is
            # left of it says that no run which has begun before may add its messages. It is written
            # before the key is destroyed, and again with the next key.
            emptied = orjson.dumps({"erased_at": now})
            await threads.put(key, emptied)
            await overwrite_object(self._bus, key)
            await self._bus.content.destroy(conversation_of(session))
            await threads.put(key, emptied)
        for own in (f"run.{run_id}", f"input.{run_id}"):
            await self._delete_value("threads", own)
        if record.parent_run_id is not None and record.automations:
            for plan in await self._plans(record.parent_run_id, record.automations[-1], run_id):
                await self._delete_value("deliveries", plan)

    async def _plans(self, parent_run_id: str, rule: str, run_id: str) -> list[str]:
        """Return the keys of what the rule has started the run with, for events of its parent."""
        found = []
        for key in await self._deliveries(parent_run_id):
            if key.startswith(f"{rule}."):
                entry = await self._bus.bucket("deliveries").get(f"run.{key}")
                with suppress(ContentErased):
                    plan = await objects.unwrap(self._bus, entry.value) if entry else b"{}"
                    found += [f"run.{key}"] if orjson.loads(plan).get("run_id") == run_id else []
        return found

    async def _delete_value(self, bucket: str, key: str) -> None:
        if (entry := await self._bus.bucket(bucket).get(key)) is not None:
            await self._overwrite_referenced(entry.value)
            await self._bus.bucket(bucket).delete(key)

    async def _delete_pauses(self, run_id: str) -> None:
        await self._delete_value("pauses", run_id)
        # The objects of the run's approvals to which nothing refers any more: earlier versions of
        # large records, and what large pauses, decisions and reports have carried.
        if approvals := await self._approvals(run_id):
            of_approvals = tuple(
                prefix for each in approvals for prefix in (f"{each}.", f"approval.{each}.")
            )
            for name in await objects.names(self._bus):
                if name.startswith(of_approvals):
                    await overwrite_object(self._bus, name)

    async def _take_content_out(self, bucket: str, key: str) -> None:
        while (entry := await self._bus.bucket(bucket).get(key)) is not None:
            before = await objects.unwrap(self._bus, entry.value)
            after = without_content(bucket, before)
            if after == before:
                return
            if await self._bus.bucket(bucket).update(key, after, entry.revision) is not None:
                await self._overwrite_referenced(entry.value)
                return

    async def _overwrite_referenced(self, value: bytes) -> None:
        if objects.is_reference(value):
            await overwrite_object(self._bus, objects.name_in(value))

    def _event(self, record: RunRecord, erasure: Erasure, tail: Stored | None) -> Message:
        """Return the run's event `system.erased`. Its headers name no new source frame."""
        run_id, before = record.run_id, tail.headers if tail is not None else {}
        data = {"erasure_id": erasure.id, "by": erasure.by, "reason": erasure.reason}
        facts = record.model_dump(
            include={"session_id", "parent_run_id", "step_id", "workflow_depth"}, exclude_none=True
        )
        event = canonical_event(
            Draft(ERASED, {name: each for name, each in data.items() if each is not None}),
            run_id=run_id,
            sequence=erasure.sequence,
            timestamp=self._bus.clock.stamp(),
            facts=facts,
            leg=max(record.legs, 1),
            attempt=1,
        )
        first = before.get(messages.FIRST) or (tail and str(tail.sequence))
        headers = {
            **({messages.FIRST: first} if first else {}),
            messages.RAW_FIRST: before.get(messages.RAW_FIRST, "0"),
            messages.RAW_POSITION: before.get(messages.RAW_POSITION, "0"),
            messages.SEQUENCE: str(erasure.sequence),
            "ce-specversion": "1.0",
            "ce-id": f"{run_id}.{erasure.sequence}",
            "ce-source": f"/penstock/{record.agent}",
            "ce-type": ERASED,
            "ce-time": event.timestamp,
            "ce-datacontenttype": "application/json",
        }
        return Message(subjects.event_input(ERASED, run_id), event.body, headers)

    async def _until_handled(self, stream: str, erased: Stored) -> None:
        """Wait until the events before `system.erased` are in the sums of costs and budgets, and
        their requests are withdrawn. If a service does not run, a run whose events it had handled
        before does not wait, and no other for more than `HANDLED_S` after `system.erased`, however
        many runs wait for their turn."""
        last = int(erased.headers[messages.EXPECTED_SEQUENCE])  # the run's event before this one
        while self._bus.clock.age_s(erased.stored_at) < HANDLED_S:
            found = await self._consumers(stream)
            waits = [each for each in found if each["name"] in HANDLING]
            if not any(_lacks(each, last) for each in waits):
                return
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _consumers(self, stream: str) -> list[dict[str, Any]]:
        """Return the consumers of a stream as they are now, by one request for all runs that
        wait."""
        asked_s = time.monotonic()
        async with self._looking:
            if self._looked.get(stream, (0.0, []))[0] < asked_s:
                looked_s = time.monotonic()
                self._looked[stream] = looked_s, await self._bus.jetstream.consumers(stream)
            return self._looked[stream][1]

    async def _tombstone(self, run_id: str) -> Stored | None:
        subject = subjects.event(ERASED, run_id)
        return await fence.tail(self._bus, streams.events_for(run_id), subject)

    async def _delete(self, run_id: str) -> None:
        """Delete all messages of a run whose content is withheld, except `system.erased` and later
        events."""
        record = await self._runs.load(run_id, RunRecord)
        if record is None or record.erasure is None or record.erasure.erased_at is not None:
            return
        erased = await self._tombstone(run_id)
        if erased is not None:
            # Others need not wait for a service that lacks events of this run.
            await self._until_handled(streams.events_for(run_id), erased)
        async with self._deleting:
            await self._delete_all(record, erased)

    async def _delete_all(self, record: RunRecord, erased: Stored | None) -> None:
        run_id = record.run_id
        raw = subjects.raw_of_run(run_id)
        raw_first = int(erased.headers[messages.RAW_FIRST]) if erased is not None else 0
        events, first = streams.events_for(run_id), record.first_event or 1
        # Services may have written records while the content was withheld.
        await self.overwrite_records(run_id)
        # Approvals finds by the pause what it has to withdraw.
        await self._delete_pauses(run_id)
        # What is sealed with the run's key is unreadable from here on, also where it is a copy or
        # an earlier version. The loops below would find the messages of this run one by one.
        await self._bus.content.destroy(run_id)
        if erased is not None:
            pattern = subjects.events_of_run(run_id)
            await overwrite(self._bus, events, pattern, first, erased.sequence)
        await overwrite(self._bus, streams.raw_for(run_id), raw, raw_first)
        for stream, pattern in (
            (streams.JOURNAL, subjects.journal(run_id)),
            (streams.JOURNAL, subjects.journal_value(run_id, "*")),
            (streams.DEADLETTERS, subjects.deadletter("*", run_id)),
            *(
                (streams.COMMANDS, subjects.command(target, "*", run_id))
                for target in ("connector", subjects.WORKFLOWS)
            ),
        ):
            await overwrite(self._bus, stream, pattern)
        await overwrite_object(self._bus, f"{run_id}.start")
        done = self._bus.clock.stamp()

        def finish(record: RunRecord) -> None:
            if record.erasure is not None:
                record.erasure.erased_at = record.erasure.erased_at or done

        await self._runs.change(run_id, RunRecord, finish)
        log.info("run %s: its content is erased", run_id)


def _lacks(consumer: Mapping[str, Any], sequence: int) -> bool:
    """Return whether a consumer may have messages up to this stream sequence that are not
    handled."""
    waiting = consumer["num_pending"] + consumer["num_ack_pending"]
    return bool(waiting) and consumer["ack_floor"]["stream_seq"] < sequence


def next_number(record: RunRecord, tail: Stored | None) -> int:
    """Return the number of the run's next event, after its last event in EVENTS."""
    published = int(tail.headers[messages.SEQUENCE]) if tail is not None else 0
    return max(published, record.sequence) + 1


def without_content(bucket: str, value: bytes) -> bytes:
    """Return a record of a run as it is without content, which is what stays readable where content
    is sealed."""
    before = orjson.loads(value)
    after = ENVELOPES[bucket](before)
    return value if after == before else orjson.dumps(after)


def _receiver(record: Mapping[str, Any]) -> Receiver | None:
    """Return who has got the delivery, a `DeliveryRecord` as JSON; None if nobody has."""
    request, attempts = record.get("request"), record.get("attempts")
    if not request or not attempts:
        return None
    # The rule may be another user's, and the path of a webhook often is its only secret.
    url = urlsplit(request["url"])
    origin = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
    return Receiver(automation=record["rule"], url=origin, at=attempts[-1]["at"])
