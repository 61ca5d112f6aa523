"""Repeats erasures after NATS has lost data.

An older store, as after a power cut, may have an erased run's content again, or may lack the
command of an erasure that had begun. What is left says which runs: a record, an event
`system.erased`, or a destroyed key. A repeated erasure deletes what it finds. The loss of the last
moments before everything ended is known to nobody, so each start repeats the last erasures: those
since shortly before a normalizer last noted that it runs. When NATS was last written would not do:
the first writes after a long power cut may come before this look.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import orjson
import uuid_utils
from pydantic import ValidationError

from penstock.bus import Bus, Message, Stored, streams, subjects
from penstock.bus.read import direct, leader
from penstock.bus.records.erasures import EraseCommand
from penstock.bus.records.runs import RunRecord
from penstock.bus.sealing import destruction
from penstock_normalizer.erasing.eraser import ERASED

log = logging.getLogger(__name__)

BUCKET: Final = "checkpoints"
KEY: Final = "erasures-repeated"  # when the last loss was found after which all were repeated
RUNS: Final = "erasures-noted"  # when a normalizer last ran that had repeated what its start found
LOOK_S: Final = 2.0
NOTE_S: Final = 60.0  # seconds between two notes that this process runs
# How much a disk may lose without anybody noticing: the ends of streams are noted more often.
UNNOTICED: Final = timedelta(minutes=2)
# Keys that were destroyed earlier before a loss have left other traces.
KEYS_BEFORE: Final = timedelta(hours=1)
_EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class AfterLosses:
    """Commands erasures again: all, once after each loss, and at its start the last ones."""

    def __init__(self, bus: Bus, is_mine: Callable[[], bool]) -> None:
        """`is_mine` says whether this process has to command. If two do, nothing is lost."""
        self._bus = bus
        self._runs = bus.bucket("runs")
        self._is_mine = is_mine

    async def run(self) -> None:
        """Follow the losses. Raises BusError; a repeated call goes on."""
        bucket, noted_s = self._bus.bucket(BUCKET), -NOTE_S
        while not self._is_mine():
            await asyncio.sleep(LOOK_S)
        ran = await bucket.get(RUNS)
        at = self._bus.clock.now() if ran is None else datetime.fromisoformat(ran.value.decode())
        await self._repeat(at - UNNOTICED, at - UNNOTICED)
        while True:
            if self._is_mine() and time.monotonic() - noted_s >= NOTE_S:
                noted_s = time.monotonic()
                await bucket.put(RUNS, self._bus.clock.stamp().encode())
            newest = max((loss.found_at for loss in self._bus.continuity.all), default="")
            if newest and self._is_mine():
                entry = await bucket.get(KEY)
                if entry is None or entry.value.decode() < newest:
                    await self._repeat(_EVER, datetime.fromisoformat(newest) - KEYS_BEFORE)
                    await bucket.put(KEY, newest.encode())
            await asyncio.sleep(LOOK_S)

    async def _repeat(self, since: datetime, keys_since: datetime) -> None:
        """Command the erasures of which something was stored since this time."""
        commands = {
            run_id: command
            for source in (self._keys(keys_since), self._events(since), self._records(since))
            async for run_id, command in source
        }
        for run_id, command in commands.items():
            if await self._runs.change(run_id, RunRecord, _begin_anew) is None:
                continue  # not a run: the conversation of a session has a key, too
            log.info("run %s: its erasure is repeated, since NATS may have lost data", run_id)
            subject = subjects.command(subjects.NORMALIZER, "erase", run_id)
            await self._bus.publisher.publish(Message(subject, command.dump(), {}))

    async def _keys(self, since: datetime) -> AsyncIterator[tuple[str, EraseCommand]]:
        """Yield the runs whose keys were destroyed, also if nothing else of their erasure is
        left."""
        pattern, reason = subjects.content_key("*"), "its key was destroyed before NATS lost data"
        stored = await leader.since(self._bus, streams.KEYS, since)
        while stored is not None:
            if destruction(stored.payload) is None:
                run_id, now = stored.subject.rpartition(".")[2], self._bus.clock.stamp()
                yield run_id, _command(run_id, str(uuid_utils.uuid7()), "penstock", now, reason)
            stored = await leader.first(self._bus, streams.KEYS, pattern, stored.sequence + 1)

    async def _events(self, since: datetime) -> AsyncIterator[tuple[str, EraseCommand]]:
        for shard in range(self._bus.shards.made):
            stream, pattern = streams.events_of(shard), subjects.event(ERASED, "*")
            async for stored in self._since(stream, pattern, since):
                event = orjson.loads(stored.payload)
                data, run_id = event["data"], str(event["run_id"])
                erased = (data["erasure_id"], data["by"], event["timestamp"], data.get("reason"))
                yield run_id, _command(run_id, *erased)

    async def _records(self, since: datetime) -> AsyncIterator[tuple[str, EraseCommand]]:
        async for stored in self._since("KV_runs", ">", since):
            try:
                record = RunRecord.model_validate_json(stored.payload)
            except ValidationError:
                continue  # a deleted record, or one that cannot be read
            if (each := record.erasure) is not None:
                run_id = record.run_id
                yield run_id, _command(run_id, each.id, each.by, each.at, each.reason)

    async def _since(self, stream: str, pattern: str, since: datetime) -> AsyncIterator[Stored]:
        first = await leader.since(self._bus, stream, since)
        if first is not None:
            async for stored in direct.replay(self._bus, stream, pattern, first.sequence):
                yield stored


def _command(run_id: str, id_: str, by: str, at: str, reason: str | None) -> EraseCommand:
    return EraseCommand(erasure_id=id_, runs=[run_id], by=by, at=at, reason=reason)


def _begin_anew(record: RunRecord) -> None:
    if record.erasure is not None:
        record.erasure.erased_at = None
