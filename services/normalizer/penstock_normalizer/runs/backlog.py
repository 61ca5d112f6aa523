"""The source frames of a run that are not done yet: in memory as far as the budget allows.

Beyond it only their place is remembered, and they are read from RAW again when their turn comes.
So a run that floods holds up no other one: its partition is read on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

from penstock.bus import Bus, BusError, Stored, streams, subjects
from penstock.bus.budget import Budget, weight
from penstock.bus.read import direct
from penstock.bus.write import fence

log = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024  # of RAW at a time


class Backlog:
    """One run's, in the order of RAW."""

    def __init__(self, bus: Bus, run_id: str, budget: Budget) -> None:
        self._bus = bus
        self._run_id = run_id
        self._budget = budget
        self._frames: deque[Stored] = deque()
        self._held_bytes = 0
        self._floor = 0  # the last frame that is done
        self._seen = 0  # the last one that there is
        self._kept = 0  # the last one that was kept or read again
        self._newest: Stored | None = None  # of those that were not kept, without its payload
        self.remnant: Stored | None = None  # all that is left of some that were deleted meanwhile
        self._arrived = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._frames) or self._is_behind

    @property
    def _is_behind(self) -> bool:
        """Whether frames came that were not kept."""
        return self._kept < self._seen

    @property
    def floor(self) -> int:
        """A sequence in RAW up to which all of the run's frames are done."""
        return self._frames[0].sequence - 1 if self._frames else self._floor

    def push(self, stored: Stored) -> None:
        """Take the next frame, or remember that there is one."""
        if not self._seen:
            self._floor = stored.sequence - 1
        if not self._is_behind and self._budget.admits(self._held_bytes):
            self._keep(stored)
        else:
            self._newest = replace(stored, payload=b"")
        self._seen = stored.sequence
        self._arrived.set()

    def _keep(self, stored: Stored) -> None:
        size_bytes = weight(stored.payload)
        self._budget.take(size_bytes)
        self._held_bytes += size_bytes
        self._frames.append(stored)
        self._kept = stored.sequence

    async def first(self) -> Stored:
        """The first frame, once there is one."""
        while not self._frames:
            if self._is_behind:
                await self._read_on()
            else:
                self._arrived.clear()
                await self._arrived.wait()
        return self._frames[0]

    async def _read_on(self) -> None:
        # one at a time when others have used up the budget
        limit = direct.BATCH if self._budget.free_bytes > READ_BYTES else 1
        newest = self._newest
        assert newest is not None
        found = await read(self._bus, self._run_id, self._floor + 1, limit)
        if not found or found[0].sequence > newest.sequence:
            self.remnant = newest
            self._keep(newest)
            return
        for stored in found:
            if stored.sequence <= self._seen:  # what is newer will be handed over
                self._keep(stored)
        if found[-1].sequence >= self._seen:
            self._kept = self._seen  # all that is left of them

    def after(self, count: int) -> Stored | None:
        """The frame behind the first `count`, if it is there."""
        return self._frames[count] if count < len(self._frames) else None

    def done(self, count: int) -> None:
        """The first `count` frames are done."""
        for _ in range(count):
            stored = self._frames.popleft()
            if stored is self.remnant:
                self.remnant = None
            self._floor = stored.sequence
            self._give_back(weight(stored.payload))
        if not self:
            self._floor = self._seen

    def drop(self) -> None:
        """Hold nothing any more."""
        self._frames.clear()
        self._give_back(self._held_bytes)

    def _give_back(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._budget.give_back(size_bytes)


async def replay(bus: Bus, run_id: str, start: int, before: int) -> AsyncIterator[Stored]:
    """The run's frames in RAW from `start` to `before`, all that there are."""
    while found := await read(bus, run_id, start, direct.BATCH):
        for stored in found:
            if stored.sequence >= before:
                return
            yield stored
        start = found[-1].sequence + 1


async def read(bus: Bus, run_id: str, start: int, limit: int) -> list[Stored]:
    """The run's next frames from `start` on; none only when the leader has none, either."""
    pattern = subjects.raw_of_run(run_id)
    while True:
        try:
            found, _ = await direct.read(bus, streams.RAW, pattern, start, limit, READ_BYTES)
        except BusError as error:
            log.warning("run %s: reading its frames: %s", run_id, error)
            await asyncio.sleep(fence.RETRY_S)
            continue
        if found:
            return found  # a replica that lags gives less, but never leaves one out
        tail = await fence.tail(bus, streams.RAW, pattern)
        if tail is None or tail.sequence < start:
            return []
        await asyncio.sleep(fence.RETRY_S)
