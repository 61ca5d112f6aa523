"""Keeps the bucket `costs`: what each run used and cost, for longer than its events are kept.

A record names the last event that it has. Whoever handles an event adds all events of the run from
there up to this event, in their order, and writes the record if nobody else has. So an event that
is delivered twice, out of order, or to several processes is added once, and a process that is
killed leaves nothing half done.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.bus import Bus, Consumer, Stored, streams
from penstock.bus.read.direct import between
from penstock.bus.records import CostRecord
from penstock.bus.subjects import run_id_of
from penstock.bus.write import objects
from penstock.dialects.usage import USAGE
from penstock_normalizer.costs.sums import add_events
from penstock_normalizer.runs.run_index import RunIndex

BUCKET: Final = "costs"
CONSUMER: Final = Consumer(
    stream=streams.EVENTS, durable="normalizer-costs", subjects=(f"{USAGE}.*",)
)


class Ledger:
    """Adds published events to the records of their runs' costs."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket(BUCKET)
        self._index = RunIndex(bus)

    async def add(self, stored: Stored) -> None:
        """Add an `llm.usage`, unless the record has it.

        Raises:
            BusError: the bus does not answer; the call can be repeated.
            ValueError: the run has no record, so its user is not known.
        """
        run_id = run_id_of(stored.subject)
        while True:
            entry = await self._bucket.get(run_id)
            if entry is not None:
                record = CostRecord.model_validate_json(entry.value)
            else:
                record = await self._new(run_id)
            if record.last >= stored.sequence:
                return
            events = await between(
                self._bus,
                streams.events_for(run_id),
                [stored.subject],
                record.last,
                stored.sequence,
            )
            bodies = [await self._body(each) for each in events]
            added = add_events(record, bodies, stored.sequence)
            revision = entry.revision if entry is not None else 0
            if await self._bucket.update(run_id, added.dump(), revision) is not None:
                return

    async def _new(self, run_id: str) -> CostRecord:
        run = await self._index.record(run_id)
        if run is None:
            raise ValueError("the run has no record, so nobody knows whose costs these are")
        return CostRecord(
            run_id=run_id,
            agent=run.agent,
            user_id=run.user_id,
            session_id=run.session_id,
            parent_run_id=run.parent_run_id,
        )

    async def _body(self, stored: Stored) -> dict[str, Any]:
        body: dict[str, Any] = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        return body
