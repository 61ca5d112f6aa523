"""Reads the records of active runs that changed in the last ten minutes, once for all streams.

A run is active if it has neither ended nor paused. Each stream with `until=idle` needs the active
runs twice a second. If each stream read these records itself, the cost would grow with the number
of streams.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from typing import Final
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from penstock.bus import Bus
from penstock.bus.read.direct import replay
from penstock.bus.records import ENDED, RunRecord
from penstock.log_fields import run_of

log = logging.getLogger(__name__)

RUNS: Final = "KV_runs"
# The pattern matches all keys. With a narrower pattern, the NATS server would have to count the
# matching messages at each request.
PATTERN: Final = ">"
OLDEST_S: Final = 600.0  # a record that was read longer ago than these seconds is dropped
_AT_REST: Final = ENDED | {"paused"}


class ActiveRuns:
    """Reads the newest records of active runs from the stream of KV `runs`, and keeps them."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = asyncio.Lock()
        # Maps a record's subject to a pair: the time when the record was read, and the record. The
        # pairs are in the order in which the records were read.
        self._records: dict[str, tuple[float, RunRecord]] = {}

    async def now(self, bus: Bus) -> list[RunRecord]:
        """Return the records of the runs that are active now.

        Raises:
            BusError: the stream cannot be read now.
        """
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
        try:
            record = RunRecord.model_validate_json(payload)
        except ValidationError as error:
            # If this error were raised, one bad record would fail the requests of all sessions.
            log.warning("%s cannot be read: %s", subject, error, extra=run_of(subject))
            return
        if record.status not in _AT_REST:
            self._records[subject] = (time.monotonic(), record)

    def _forget(self) -> None:
        """Drop the records that were read too long ago."""
        oldest = time.monotonic() - OLDEST_S
        for subject, (read_at, _) in list(self._records.items()):
            if read_at >= oldest:
                return
            del self._records[subject]


_of: WeakKeyDictionary[Bus, ActiveRuns] = WeakKeyDictionary()


async def active_runs(bus: Bus) -> list[RunRecord]:
    """Return the records of the runs that are active now.

    Raises:
        BusError: the stream cannot be read now.
    """
    return await _of.setdefault(bus, ActiveRuns()).now(bus)
