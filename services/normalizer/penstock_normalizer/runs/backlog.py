"""Queues the source frames of a run, in memory if the budget allows it.

If the budget is used up, only a frame's position in RAW is kept. The frame is read again when all
earlier frames of the run are done. So a run with very many frames does not delay the other runs of
its partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

from penstock.bus import RETRY_S, Bus, Stored, streams, subjects
from penstock.bus.budget import Budget, counted_bytes
from penstock.bus.connection.retry import with_retries
from penstock.bus.read import direct
from penstock.bus.write import fence

log = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024  # the greatest number of bytes that are read from RAW at once


class Backlog:
    """The waiting frames of one run, in the order of RAW; all positions are sequences in RAW."""

    __slots__ = (
        "_arrived",
        "_budget",
        "_bus",
        "_done",
        "_frames",
        "_held_bytes",
        "_loaded",
        "_newest",
        "_run_id",
        "remnant",
    )

    def __init__(self, bus: Bus, run_id: str, budget: Budget) -> None:
        self._bus = bus
        self._run_id = run_id
        self._budget = budget
        # A list is used, because an empty deque takes 760 bytes and most open runs have no waiting
        # frames.
        self._frames: list[Stored] = []
        self._held_bytes = 0
        self._done = 0  # the position of the last frame that is done
        self._arrived = 0  # the position of the last frame that was pushed
        self._loaded = 0  # the position of the last frame that is or was in memory
        # the last frame that is not in memory, without its payload
        self._newest: Stored | None = None
        # RAW may delete the frames that are not in memory before they are read again. If all these
        # frames were deleted, `remnant` is the newest of them, without its payload. In all other
        # cases `remnant` is None.
        self.remnant: Stored | None = None

    def __len__(self) -> int:
        return len(self._frames)

    def __bool__(self) -> bool:
        return bool(self._frames) or self._loaded < self._arrived

    @property
    def _is_behind(self) -> bool:
        return self._loaded < self._arrived

    @property
    def done_up_to(self) -> int:
        return self._frames[0].sequence - 1 if self._frames else self._done

    def push(self, stored: Stored) -> None:
        """Add the next frame; keep only the frame's position if the budget is used up."""
        if not self._arrived:
            self._done = stored.sequence - 1
        if not self._is_behind and self._budget.admits(self._held_bytes):
            self._hold(stored)
        else:
            self._newest = replace(stored, payload=b"")
        self._arrived = stored.sequence

    def _hold(self, stored: Stored) -> None:
        size_bytes = counted_bytes(stored.payload)
        self._budget.take(size_bytes)
        self._held_bytes += size_bytes
        self._frames.append(stored)
        self._loaded = stored.sequence

    async def first(self) -> Stored:
        """Return the first waiting frame; one that is not in memory is read again."""
        while not self._frames:
            assert self._is_behind
            await self._read_again()
        return self._frames[0]

    async def _read_again(self) -> None:
        # If other runs have used up the budget, only one frame is read at a time.
        limit = direct.BATCH if self._budget.free_bytes > READ_BYTES else 1
        newest = self._newest
        assert newest is not None
        found = await read(self._bus, self._run_id, self._done + 1, limit)
        if not found or found[0].sequence > newest.sequence:
            self.remnant = newest
            self._hold(newest)
            return
        for stored in found:
            if stored.sequence <= self._arrived:  # later frames will be pushed
                self._hold(stored)
        if found[-1].sequence >= self._arrived:
            self._loaded = self._arrived  # RAW has no further frame up to `_arrived`

    def after(self, count: int) -> Stored | None:
        return self._frames[count] if count < len(self._frames) else None

    def done(self, count: int) -> None:
        """Remove the first `count` frames, whose events are published."""
        for stored in self._frames[:count]:
            if stored is self.remnant:
                self.remnant = None
            self._done = stored.sequence
            self._release(counted_bytes(stored.payload))
        del self._frames[:count]
        if not self:
            self._done = self._arrived

    def drop(self) -> None:
        """Free the memory of all frames; the frames do not count as done."""
        self._frames.clear()
        self._release(self._held_bytes)

    def _release(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._budget.give_back(size_bytes)


async def replay(bus: Bus, run_id: str, start: int, before: int) -> AsyncIterator[Stored]:
    """Yield the run's frames in RAW from `start` up to, and without, `before`; wait for the bus."""
    while found := await read(bus, run_id, start, direct.BATCH):
        for stored in found:
            if stored.sequence >= before:
                return
            yield stored
        start = found[-1].sequence + 1


async def read(bus: Bus, run_id: str, start: int, limit: int, writer: str = "*") -> list[Stored]:
    """Return the run's next frames from position `start` on, at most `limit`; wait for the bus. The
    list is empty only if the stream's leader has no frame of the run from `start` on."""
    stream, pattern = streams.raw_for(run_id), subjects.raw_stored(run_id, writer)
    ask = partial(direct.read, bus, stream, pattern, start, limit, READ_BYTES)
    while True:
        found, _ = await with_retries(ask, f"run {run_id}: its frames cannot be read yet")
        if found:
            return found  # a replica that lags behind returns fewer frames but skips none
        tail = await fence.tail(bus, stream, pattern)
        if tail is None or tail.sequence < start:
            return []
        await asyncio.sleep(RETRY_S)
