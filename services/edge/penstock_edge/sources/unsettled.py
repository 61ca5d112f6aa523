"""Runs that were started of late and are neither over nor paused: read once for all who ask.

Every stream that ends with its session asks twice a second. Each asking by itself, they would all
read all records of the last minutes, again and again; here each record is read once.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Final
from weakref import WeakKeyDictionary

from penstock.bus import Bus
from penstock.bus.read.direct import replay
from penstock.bus.records import ENDED, RunRecord

RUNS: Final = "KV_runs"
PATTERN: Final = "$KV.runs.>"
OLDEST_S: Final = 600.0  # a run whose record was written before is no business of this
_AT_REST: Final = ENDED | {"paused"}


class Unsettled:
    """The records, as the stream of KV `runs` has them."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = asyncio.Lock()
        self._records: dict[str, tuple[float, RunRecord]] = {}  # with when it was read here

    async def now(self, bus: Bus) -> list[RunRecord]:
        """Those that stand now, each as it was written last. Raises BusError."""
        async with self._lock:
            if not self._next:
                since = bus.clock.now() - timedelta(seconds=OLDEST_S)
                first = await bus.since(RUNS, since)
                if first is None:
                    return []
                self._next = first.sequence
            async for stored in replay(bus, RUNS, PATTERN, self._next):
                self._next = stored.sequence + 1
                self._learn(stored.subject, stored.payload)
        self._forget()
        return [record for _, record in self._records.values()]

    def _learn(self, subject: str, payload: bytes) -> None:
        self._records.pop(subject, None)
        if not payload:
            return
        record = RunRecord.model_validate_json(payload)
        if record.status not in _AT_REST:
            self._records[subject] = (time.monotonic(), record)

    def _forget(self) -> None:
        """Leave out what is too old; they stand in the order in which they were written."""
        oldest = time.monotonic() - OLDEST_S
        for subject, (read_at, _) in list(self._records.items()):
            if read_at >= oldest:
                return
            del self._records[subject]


_of: WeakKeyDictionary[Bus, Unsettled] = WeakKeyDictionary()


async def unsettled(bus: Bus) -> list[RunRecord]:
    """The records that stand now. Raises BusError."""
    return await _of.setdefault(bus, Unsettled()).now(bus)
