"""What a leg holds of its upstream's body: what is not stored, a frame that is not whole.

Both are counted for the whole process: many legs together must not take what one may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.bus import messages
from penstock.bus.budget import Budget
from penstock.sse import Frame, FrameTooLarge, Parser

SMALL_FRAME_BYTES = 1024 * 1024  # may always be held


class Body:
    """Chunks between the reader and the writer, held until they are stored.

    Bounded in bytes for this leg, and with all other legs by their common budget. Who waits for
    room is let go on by its own writer: even where others use up the budget, a leg that has
    nothing unstored may read one chunk more. They are one buffer, since a list of tiny ones would
    take many times what is counted.
    """

    def __init__(
        self, limit_bytes: int, budget: Budget, stamp: Callable[[], str] = messages.now
    ) -> None:
        self._stamp = stamp  # the time of receipt, RFC 3339
        self._limit_bytes = limit_bytes
        self._budget = budget
        self._unwritten = bytearray()
        self._held_bytes = 0  # of it, and of what is being written
        self._writing_bytes = 0
        self._received = ""
        self._closed = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, chunk: bytes) -> None:
        """Add what has arrived; returns when there is room for more."""
        if not self._unwritten:
            self._received = self._stamp()
        self._unwritten += chunk
        self._held_bytes += len(chunk)
        self._budget.take(len(chunk))
        self._changed.set()
        while self._held_bytes > self._limit_bytes or not self._budget.admits(self._held_bytes):
            self._room.clear()
            await self._room.wait()

    async def take(self) -> tuple[str, bytes]:
        """All that has arrived and when it began to; empty at the end.

        What was taken before is stored by now.
        """
        self._give_back(self._writing_bytes)
        self._writing_bytes = 0
        while not self._unwritten and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        self._writing_bytes = self._held_bytes
        taken, self._unwritten = bytes(self._unwritten), bytearray()
        return self._received, taken

    def close(self) -> None:
        """Nothing more arrives."""
        self._closed = True
        self._changed.set()

    def drop(self) -> None:
        """Hold nothing any more, whatever was not stored."""
        self._writing_bytes = 0
        self._give_back(self._held_bytes)

    def _give_back(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._budget.give_back(size_bytes)
        self._room.set()


class FramesTooLarge(FrameTooLarge):
    """Too many legs are in the middle of a large frame."""

    def __init__(self, limit_bytes: int, frames: list[Frame]) -> None:
        super().__init__(limit_bytes, frames)
        self.args = (f"the unfinished frames of all runs here take up the {limit_bytes} bytes",)


class Frames:
    """The frames of a body; the one under way counts in a budget of all legs."""

    def __init__(self, limit_bytes: int, budget: Budget) -> None:
        self._parser = Parser(limit_bytes)
        self._budget = budget
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that the chunk completes.

        Raises FrameTooLarge when the one under way passes the limit, or its share of the budget.
        """
        frames = self._parser.feed(chunk)
        self._hold(self._parser.pending_bytes)
        if self._held_bytes > SMALL_FRAME_BYTES and not self._budget.admits(self._held_bytes):
            raise FramesTooLarge(self._budget.limit_bytes, frames)
        return frames

    def drop(self) -> None:
        """No more is read."""
        self._hold(0)

    def _hold(self, size_bytes: int) -> None:
        self._budget.take(size_bytes - self._held_bytes)
        self._held_bytes = size_bytes
