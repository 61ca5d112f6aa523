"""After NATS has lost data: each run is brought into one state, or ended.

What was made of source frames is made again by reading them again (`partitions.py`). What then is
still contradictory has lost its source: a run whose frames are gone is ended with `history_lost`;
a run that the list shows in another state than its events is shown as its events say.
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
from penstock.bus.records import ENDED, RunRecord
from penstock.events import TERMINAL
from penstock_normalizer.recovery.expired import MIN_AGE_S
from penstock_normalizer.runs.failed_frame import write_end
from penstock_normalizer.runs.run_index import RunIndex

log = logging.getLogger(__name__)

RUNS = "KV_runs"
# What a run's state is known by; what the others have lost, connectors and approvals see to.
TELLING = (streams.RAW, streams.EVENTS, streams.COMMANDS, RUNS)
# By how much what is stamped by different clocks, or was on its way, may be older than the loss.
MARGIN = timedelta(minutes=5)
TEXT = (
    "NATS has lost source frames of this run (a power cut, or an older store that was put back): "
    "nobody can go on with it"
)


async def settle(bus: Bus, partition: int, losses: Iterable[Loss]) -> None:
    """Bring the partition's runs into order, once all its frames are read. Raises BusError."""
    found = tuple(loss for loss in losses if loss.stream in TELLING)
    if not found:
        return
    since = await _since(bus, found)
    if any(loss.stream == RUNS for loss in found):
        await _show_again(bus, partition, since)
    young = [
        record
        async for record in _records(bus, partition)
        if not await _settled(bus, record, since)
    ]
    if young:
        # their commands may be on their way
        await asyncio.sleep(MIN_AGE_S)
    for record in young:
        await _settled(bus, record, since, young=False)


async def _since(bus: Bus, losses: Iterable[Loss]) -> datetime:
    """Before this time nothing was lost."""
    earliest = bus.clock.now()
    for loss in losses:
        stands = await bus.at(loss.stream, loss.stands) if loss.stands else None
        if stands is None:
            return datetime.fromtimestamp(0, UTC)
        earliest = min(earliest, datetime.fromisoformat(stands.stored_at))
    return earliest - MARGIN


async def _records(bus: Bus, partition: int) -> AsyncIterator[RunRecord]:
    count = await partitions(bus)
    async for stored in direct.replay(bus, RUNS, "$KV.runs.>"):
        run_id = stored.subject.removeprefix("$KV.runs.")
        if not stored.payload or subjects.partition_of(run_id, count) != partition:
            continue
        try:
            yield RunRecord.model_validate_json(stored.payload)
        except ValidationError as error:
            log.error("run %s: whether it has lost data is not known: %s", run_id, error)


async def _settled(bus: Bus, record: RunRecord, since: datetime, *, young: bool = True) -> bool:
    """Compare a run with its events; False where it is too young for that."""
    updated = datetime.fromisoformat(record.updated_at)
    if record.status in ENDED and updated < since:
        return True
    last = await bus.tail(streams.EVENTS, subjects.event("lifecycle.*", record.run_id))
    if last is not None and int(last.headers[messages.SEQUENCE]) > record.sequence:
        await RunIndex(bus).show(record.run_id, last)
    if last is not None and last.headers["ce-type"] in TERMINAL:
        return True
    # it is being started, or its end is about to be published: the list is told first
    unclear = last is None or record.status in ENDED
    if young and unclear and bus.clock.age_s(record.updated_at) < MIN_AGE_S:
        return False
    if await _has_lost(bus, record, last):
        log.error("run %s: it has lost data, and is ended", record.run_id)
        await write_end(bus, record, {"code": "history_lost", "error": TEXT})
    return True


async def _has_lost(bus: Bus, record: RunRecord, lifecycle: Stored | None) -> bool:
    if lifecycle is None:
        if record.status in ENDED:
            return False  # nothing of it is left, and nobody waits for it
        if await bus.tail(streams.RAW, subjects.raw_of_run(record.run_id)) is not None:
            return False  # it is being read
        start = subjects.command("*", "start", record.run_id)
        return await bus.tail(streams.COMMANDS, start) is None
    if record.status in ENDED:
        return True  # its end was seen, and cannot be made again
    last = await bus.tail(streams.EVENTS, subjects.events_of_run(record.run_id))
    return last is not None and any(
        bus.continuity.covers(streams.RAW, int(last.headers[name]))
        for name in (messages.RAW_POSITION, messages.RAW_FIRST)
    )


async def _show_again(bus: Bus, partition: int, since: datetime) -> None:
    """Runs that have events, and are not in the list."""
    first = await bus.since(streams.EVENTS, since)
    if first is None:
        return
    count = await partitions(bus)
    index = RunIndex(bus)
    pattern = subjects.event("lifecycle.*", "*")
    async for stored in direct.replay(bus, streams.EVENTS, pattern, first.sequence):
        run_id = subjects.run_id_of(stored.subject)
        if subjects.partition_of(run_id, count) == partition:
            await index.show(run_id, stored)
