"""Keeps the bucket `costs`: what each run used and cost, for longer than its events are kept.

A record names the last event that it has. Whoever handles an event adds all events of the run from
there up to this event, in their order, and writes the record if nobody else has. So an event that
is delivered twice, out of order, or to several processes is added once, and a process that is
killed leaves nothing half done. Calls of models and calls of tools are two such sequences.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from penstock.bus import Bus, Consumer, Loss, Stored, messages, streams
from penstock.bus.read.direct import between, read
from penstock.bus.records.costs import CostRecord
from penstock.bus.subjects import run_id_of
from penstock.bus.write import objects
from penstock.dialects.usage import TOOL_RESULT, USAGE
from penstock_normalizer.costs.sums import add_model_calls, add_tool_calls
from penstock_normalizer.runs.run_index import RunIndex

BUCKET: Final = "costs"
CONSUMER: Final = Consumer(
    stream=streams.EVENTS,
    durable="normalizer-costs",
    subjects=(f"{USAGE}.*", f"{TOOL_RESULT}.*"),
    at_once=2000,  # most of these handlers wait for `GATHER_S`
)
# The seconds from one moment at which events are added to the next. The events of a run that came
# since are one write.
GATHER_S: Final = 2.0
AT_ONCE: Final = 64  # the runs whose events a process adds at the same time
# The number of runs whose records are remembered: a record is then not read before it is written.
REMEMBERED: Final = 1000


class Ledger:
    """Adds published events to the records of their runs' costs."""

    def __init__(self, bus: Bus, gather_s: float = GATHER_S) -> None:
        self._bus = bus
        self._gather_s = gather_s
        self._bucket = bus.bucket(BUCKET)
        self._index = RunIndex(bus)
        # By run: the record and its revision, as this process has last seen them.
        self._seen: OrderedDict[str, tuple[CostRecord, int]] = OrderedDict()
        # By run: so that handlers of one process do not write the same events against each other.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._places = asyncio.Semaphore(AT_ONCE)
        bus.continuity.on_loss(self._on_loss)

    def _on_loss(self, loss: Loss) -> None:
        if loss.stream == f"KV_{BUCKET}":
            self._seen.clear()

    async def add(self, stored: Stored) -> None:
        """Add an `llm.usage`, or an `llm.tool_result` that has a cost, unless the record has it.

        Raises:
            BusError: the bus does not answer; the call can be repeated.
            ValueError: the run has no record, so its user is not known.
        """
        run_id = run_id_of(stored.subject)
        is_tool = stored.subject.startswith(TOOL_RESULT)
        if is_tool and messages.COST not in stored.headers:
            return
        await self._gather()
        async with self._locks.setdefault(run_id, asyncio.Lock()), self._places:
            while True:
                if run_id in self._seen:
                    record, revision = self._seen.pop(run_id)
                else:
                    record, revision = await self._read(run_id)
                last = record.last_tool if is_tool else record.last
                if last < stored.sequence:
                    events = await self._events(run_id, last, stored)
                    last = max(stored.sequence, events[-1].sequence)
                    if is_tool:
                        priced = [each for each in events if messages.COST in each.headers]
                        record = add_tool_calls(record, await self._bodies(priced), last)
                    else:
                        record = add_model_calls(record, await self._bodies(events), last)
                    written = await self._bucket.update(run_id, record.dump(), revision)
                    if written is None:
                        continue  # another process has written the record
                    revision = written
                self._seen[run_id] = record, revision
                if len(self._seen) > REMEMBERED:
                    self._seen.popitem(last=False)
                return

    async def _gather(self) -> None:
        if self._gather_s:
            # All handlers wait for the same moment, so that their requests go out together: most of
            # what an event costs is its share of the system calls.
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(self._gather_s - now % self._gather_s)

    async def _read(self, run_id: str) -> tuple[CostRecord, int]:
        entry = await self._bucket.get(run_id)
        if entry is None:
            return await self._new(run_id), 0
        return CostRecord.model_validate_json(entry.value), entry.revision

    async def _events(self, run_id: str, after: int, upto: Stored) -> list[Stored]:
        """Return all events of the run after a stream sequence, at least up to this event."""
        stream = streams.events_for(run_id)
        found, _ = await read(self._bus, stream, upto.subject, after + 1)
        if found and found[-1].sequence >= upto.sequence:
            return found
        # A lagging replica has answered, or there are many events.
        return await between(self._bus, stream, [upto.subject], after, upto.sequence) or [upto]

    async def _new(self, run_id: str) -> CostRecord:
        run = await self._index.record(run_id)
        if run is None:
            raise ValueError("the run has no record, so nobody knows whose costs these are")
        return CostRecord(
            run_id=run_id,
            agent=run.agent,
            user_id=run.user_id,
            session_id=run.session_id,
            tenant=run.tenant,
            parent_run_id=run.parent_run_id,
        )

    async def _bodies(self, events: list[Stored]) -> list[dict[str, Any]]:
        return [orjson.loads(await objects.unwrap(self._bus, each.payload)) for each in events]
