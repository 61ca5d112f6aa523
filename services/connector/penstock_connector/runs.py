"""A run as RAW and the records tell of it, and how it is ended by somebody who does not hold it."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from penstock.bus import Bus, FenceConflict, Stored, messages
from penstock.bus.fence import RawWriter, tail
from penstock.bus.records import ENDED, RunRecord
from penstock.bus.streams import RAW
from penstock.bus.subjects import raw_stored

log = logging.getLogger(__name__)

WRITER = "upstream"
CLOSED = frozenset({"end", "lost", "event"})


class Runs:
    """What is known of runs, and the fenced last word on one."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._bus = bus
        self._pod = pod
        self._connections = 0

    def writer(self, run_id: str, last: Stored | None = None) -> RawWriter:
        """A writer that goes on after `last`; a run that anybody else moves refuses it."""
        self._connections += 1
        connection = f"{self._pod}/{self._connections}"
        return RawWriter(self._bus, run_id, WRITER, connection, last.sequence if last else 0)

    async def end(self, run_id: str, last: Stored, kind: str, facts: dict[str, Any]) -> None:
        """Write the last word after `last`, unless somebody was first."""
        try:
            await self.writer(run_id, last).write(
                kind, orjson.dumps(facts), leg=int(last.headers[messages.LEG])
            )
        except FenceConflict:
            log.info("run %s: somebody else ended it first", run_id)

    async def tail(self, run_id: str) -> Stored | None:
        """The last source frame of the upstream's writer."""
        return await tail(self._bus, RAW, raw_stored(run_id, WRITER))

    async def record(self, run_id: str) -> RunRecord | None:
        """The run in the list of runs."""
        entry = await self._bus.bucket("runs").get(run_id)
        if entry is None or entry.value is None:
            return None
        return RunRecord.model_validate_json(entry.value)

    async def has_ended(self, run_id: str) -> bool:
        """Whether its last event was terminal; the record follows the event at once."""
        record = await self.record(run_id)
        return record is not None and record.status in ENDED

    async def cancel_between_legs(self, run_id: str, told: dict[str, str]) -> None:
        """End a run that nobody holds a connection of."""
        if await self.has_ended(run_id):
            return
        last = await self.tail(run_id)
        if last is not None and kind_of(last) in CLOSED:
            last_word = ending("lifecycle.cancelled", **told, confirmed=True)
            await self.end(run_id, last, "event", last_word)


def ending(type_: str, **data: Any) -> dict[str, Any]:
    """A terminal event that is no upstream's."""
    return {"type": type_, "data": data}


def kind_of(stored: Stored) -> str:
    """The kind of a source frame."""
    return stored.headers[messages.KIND]


def holder_of(stored: Stored) -> str:
    """The connector that wrote a source frame."""
    return stored.headers[messages.CONNECTION].partition("/")[0]
