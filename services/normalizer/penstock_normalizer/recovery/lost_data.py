"""Makes each run consistent again after NATS has lost data.

The partition has read RAW again from a frame before the lost events (`partitions/checkpoint.py`).
So each lost event whose frame still exists was published again. Two kinds of contradiction remain:
- a run whose frames are lost is ended with code `history_lost`;
- a record that differs from its run's events is written again from the events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError

from penstock.bus import Bus, Loss, Stored, messages, streams, subjects
from penstock.bus.admin.migrate import partitions
from penstock.bus.read import direct
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.events import TERMINAL
from penstock_normalizer.recovery.abandoned_runs import MIN_AGE_S
from penstock_normalizer.runs.ending import write_failed
from penstock_normalizer.runs.pauses import can_continue_from_state
from penstock_normalizer.runs.run_index import RunIndex

log = logging.getLogger(__name__)

RUNS = "KV_runs"
# A run that changed within this time before a loss is checked, too, because clocks may differ and
# messages may have been delayed.
MARGIN = timedelta(minutes=5)
TEXT = (
    "NATS has lost source frames of this run (a power cut, or an older store that was put back): "
    "nobody can go on with it"
)


async def repair_runs(bus: Bus, shard: int, partition: int, losses: Iterable[Loss]) -> None:
    """Repair or end the partition's runs; call this after all its frames were read."""
    # The streams that contain a run's state. Connectors and the approvals service handle losses of
    # other streams.
    streams_of_run = (streams.raw_of(shard), streams.events_of(shard), streams.COMMANDS, RUNS)
    relevant = tuple(loss for loss in losses if loss.stream in streams_of_run)
    if not relevant:
        return
    since = await _earliest_loss(bus, relevant)
    if any(loss.stream == RUNS for loss in relevant):
        await _restore_records(bus, shard, partition, since)
    too_young = [
        record
        async for record in _records(bus, shard, partition)
        if not await _repaired(bus, record, since)
    ]
    if too_young:
        await asyncio.sleep(MIN_AGE_S)  # The commands of young runs may not be stored yet.
    for record in too_young:
        await _repaired(bus, record, since, wait_for_young=False)


async def _earliest_loss(bus: Bus, losses: Iterable[Loss]) -> datetime:
    """Return a time before which no data was lost."""
    earliest = bus.clock.now()
    for loss in losses:
        last_left = await bus.at(loss.stream, loss.last_left) if loss.last_left else None
        if last_left is None:
            return datetime.fromtimestamp(0, UTC)
        earliest = min(earliest, datetime.fromisoformat(last_left.stored_at))
    return earliest - MARGIN


async def _records(bus: Bus, shard: int, partition: int) -> AsyncIterator[RunRecord]:
    count = await partitions(bus, shard)
    async for stored in direct.replay(bus, RUNS, "$KV.runs.>"):
        run_id = stored.subject.removeprefix("$KV.runs.")
        if not stored.payload:
            continue
        if not subjects.is_in_partition(run_id, shard, partition, count):
            continue
        try:
            yield RunRecord.model_validate_json(stored.payload)
        except ValidationError as error:
            log.error("run %s: its record cannot be read, so it is not repaired: %s", run_id, error)


async def _repaired(
    bus: Bus, record: RunRecord, since: datetime, *, wait_for_young: bool = True
) -> bool:
    """Compare a run with its events, and repair or end it; return False if it is too young."""
    updated = datetime.fromisoformat(record.updated_at)
    if record.status in ENDED and updated < since:
        return True
    last = await bus.tail(
        streams.events_for(record.run_id), subjects.event("lifecycle.*", record.run_id)
    )
    if last is not None and int(last.headers[messages.SEQUENCE]) > record.sequence:
        await RunIndex(bus).update_from_stored(record.run_id, last)
    if last is not None and last.headers["ce-type"] in TERMINAL:
        return True
    # Two cases may be only delays. A run without events may be starting. And a run's record is
    # written before its terminal event is published. So if the record says that the run has ended,
    # the terminal event may still follow.
    is_unclear = last is None or record.status in ENDED
    if wait_for_young and is_unclear and bus.clock.age_s(record.updated_at) < MIN_AGE_S:
        return False
    if await _has_lost_data(bus, record, last):
        log.error("run %s: its data is lost, so it is ended", record.run_id)
        await write_failed(bus, record, {"code": "history_lost", "error": TEXT})
    return True


async def _has_lost_data(bus: Bus, record: RunRecord, lifecycle: Stored | None) -> bool:
    if lifecycle is None:
        if record.status in ENDED:
            return False  # the run had ended, and all its events have expired or are lost
        if (
            await bus.tail(streams.raw_for(record.run_id), subjects.raw_of_run(record.run_id))
            is not None
        ):
            return False  # the partition is reading these frames
        if await can_continue_from_state(bus, record.run_id, is_paused=record.status == "paused"):
            return False  # the run waits, and can continue although its frames have expired
        start = subjects.command("*", "start", record.run_id)
        return await bus.tail(streams.COMMANDS, start) is None
    if record.status in ENDED:
        return True  # the terminal event was published and lost, and its frame is lost, too
    last = await bus.tail(streams.events_for(record.run_id), subjects.events_of_run(record.run_id))
    return last is not None and any(
        bus.continuity.covers(streams.raw_for(record.run_id), int(last.headers[name]))
        for name in (messages.RAW_POSITION, messages.RAW_FIRST)
    )


async def _restore_records(bus: Bus, shard: int, partition: int, since: datetime) -> None:
    first = await bus.since(streams.events_of(shard), since)
    if first is None:
        return
    count = await partitions(bus, shard)
    index = RunIndex(bus)
    pattern = subjects.event("lifecycle.*", "*")
    async for stored in direct.replay(bus, streams.events_of(shard), pattern, first.sequence):
        run_id = subjects.run_id_of(stored.subject)
        if subjects.is_in_partition(run_id, shard, partition, count):
            await index.update_from_stored(run_id, stored)
