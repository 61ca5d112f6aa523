"""What a leg holds of a response's body: unstored bytes, and a frame that is not complete.

The bytes of both are counted for the leg and for the process. Without the limit for the process,
many legs together could take all memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.bus import messages
from penstock.bus.budget import Budget
from penstock.sse import Frame, FrameTooLarge, Parser

SMALL_FRAME_BYTES = 1024 * 1024  # an unfinished frame of this size is always allowed


class Body:
    """Holds the bytes of one leg between its reader and its writer, until they are stored.

    One limit applies to the bytes of this leg, and a common budget to the bytes of all legs. A
    reader that waits for room continues when its own writer has stored bytes. Even when other legs
    use up the budget, a leg without unstored bytes may read one more chunk. All chunks are in one
    buffer, since a list of tiny chunks would take many times the memory that is counted.
    """

    def __init__(
        self, limit_bytes: int, budget: Budget, stamp: Callable[[], str] = messages.now
    ) -> None:
        self._stamp = stamp  # the time of receipt, RFC 3339
        self._limit_bytes = limit_bytes
        self._budget = budget
        self._unwritten = bytearray()
        self._held_bytes = 0  # bytes in `_unwritten`, and bytes that are being written
        self._writing_bytes = 0
        self._received = ""  # when the first byte of `_unwritten` came
        self._closed = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, chunk: bytes) -> None:
        """Add a chunk; return when there is room for more."""
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
        """Wait for bytes, and take all bytes that are not stored; no bytes at the body's end.

        Return the time of receipt of the first byte, and the bytes. The caller stores the bytes
        before it calls again, since each call counts the bytes of the previous call as stored.
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
        """Note that no more chunks come."""
        self._closed = True
        self._changed.set()

    def drop(self) -> None:
        """Give all bytes back to the budget, also unstored ones."""
        self._writing_bytes = 0
        self._give_back(self._held_bytes)

    def _give_back(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._budget.give_back(size_bytes)
        self._room.set()


class FramesTooLarge(FrameTooLarge):
    """The unfinished frames of all legs together are too large."""

    def __init__(self, limit_bytes: int, frames: list[Frame]) -> None:
        super().__init__(limit_bytes, frames)
        self.args = (f"the unfinished frames of all runs here take up the {limit_bytes} bytes",)


class Frames:
    """Parses a body into frames. The unfinished frame counts in a budget of all legs."""

    def __init__(self, limit_bytes: int, budget: Budget) -> None:
        self._parser = Parser(limit_bytes)
        self._budget = budget
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that the chunk completes.

        Raises:
            FrameTooLarge: the unfinished frame is over the limit, or over its share of the budget.
        """
        frames = self._parser.feed(chunk)
        self._hold(self._parser.pending_bytes)
        if self._held_bytes > SMALL_FRAME_BYTES and not self._budget.admits(self._held_bytes):
            raise FramesTooLarge(self._budget.limit_bytes, frames)
        return frames

    def drop(self) -> None:
        """Give the unfinished frame back to the budget."""
        self._hold(0)

    def _hold(self, size_bytes: int) -> None:
        self._budget.take(size_bytes - self._held_bytes)
        self._held_bytes = size_bytes
