"""Keeps the part of a response's body that is in memory: unstored bytes and an incomplete frame.

These bytes have a limit for each leg, and a limit for the process. Without the limit for the
process, many legs together could take all memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.bus import messages
from penstock.bus.budget import Budget
from penstock.busyness import Pace
from penstock.sse import Frame, FrameTooLarge, Parser

LONGEST_S: Final = 0.005  # the longest time, in seconds, that a piece waits
# The CPU time, in seconds, that a piece which is written alone costs broker, normalizer and edge
# together. A connector that sends thousands of pieces a second is itself idle for most of the time,
# but each of these three is busy.
COSTS_S: Final = 0.0004


class Flush:
    """Calls the legs of a process when they must write.

    A message costs the connector 350 µs if it wakes for each message, and 140 µs if it handles many
    at once. The broker, the normalizer and the edge each save about the same. So while one of them
    is busy, the bytes wait for up to 5 ms, and all legs write in the same turn of the event loop.
    Their messages go to NATS in one write to the socket, and the bytes that one leg has read become
    one source frame. While all are idle, no bytes wait (decision 0370).
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = pace or Pace(LONGEST_S, costs_s=COSTS_S)
        self._waiting: list[Callable[[], None]] = []

    def count(self) -> None:
        self._pace.messages += 1

    def request(self, due: Callable[[], None]) -> None:
        """Call `due` when the caller's bytes must be written: now, or together with other legs'
        bytes.

        The delay begins with the first leg that waits, so no leg waits for longer than 5 ms.
        """
        if self._waiting:
            self._waiting.append(due)
            return
        delay = self._pace.wait_s
        if not delay:
            due()
            return
        self._waiting.append(due)
        asyncio.get_running_loop().call_later(delay, self._flush)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for due in waiting:
            due()


# an incomplete frame of at most this size is accepted even if the budget is used up
SMALL_FRAME_BYTES = 1024 * 1024
# the number of unwritten bytes above which a leg writes at once, without waiting for other legs
AT_ONCE_BYTES = 256 * 1024


class Body:
    """Keeps the bytes of one leg from the read until they are stored.

    The bytes of this leg have a limit, and the bytes of all legs have a common budget. A paused
    reader continues only after its own leg has stored bytes. A leg without unstored bytes may read
    one more chunk, even if other legs use up the budget. All chunks are in one buffer, because a
    list of tiny chunks would take many times the memory that is counted.

    `on_room` is called when there is room again after `has_room` was False.
    """

    def __init__(
        self,
        limit_bytes: int,
        budget: Budget,
        flush: Flush,
        stamp: Callable[[], str] = messages.now,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._stamp = stamp  # returns the time of receipt, RFC 3339
        self._limit_bytes = limit_bytes
        self._budget = budget
        self._flush = flush
        self._on_room = on_room
        self._unwritten = bytearray()
        self._held_bytes = 0  # bytes in `_unwritten`, and bytes that are being written
        self._writing_bytes = 0
        self._received = ""  # the time at which the first byte of `_unwritten` was received
        self._is_due = False  # whether the bytes in `_unwritten` must be written now
        self._is_closed = False
        self._was_full = False
        self._taker: asyncio.Future[None] | None = None
        # The loop is kept, because Python 3.11 makes a system call in each `get_running_loop`.
        self._loop = asyncio.get_running_loop()

    @property
    def has_room(self) -> bool:
        return self._held_bytes <= self._limit_bytes and self._budget.admits(self._held_bytes)

    def feed(self, chunk: bytes) -> None:
        is_first = not self._unwritten
        if is_first:
            self._received = self._stamp()
        self._unwritten += chunk
        self._held_bytes += len(chunk)
        self._budget.take(len(chunk))
        self._was_full = self._was_full or not self.has_room
        self._flush.count()
        if is_first:
            self._flush.request(self._set_due)
        elif len(self._unwritten) > AT_ONCE_BYTES:
            self._set_due()

    async def take(self) -> tuple[str, bytes]:
        """Wait until bytes must be written; return the first byte's time of receipt, and all bytes.

        The bytes are empty if the body has ended and all its bytes were taken before. The caller
        must store the bytes before it calls again, because each call counts the bytes of the last
        call as stored.
        """
        self._give_back(self._writing_bytes)
        self._writing_bytes = 0
        while not (self._is_due or self._is_closed):
            self._taker = self._loop.create_future()
            await self._taker
        self._is_due = False
        self._writing_bytes = self._held_bytes
        taken, self._unwritten = bytes(self._unwritten), bytearray()
        return self._received, taken

    def close(self) -> None:
        self._is_closed = True
        self._wake()

    def drop(self) -> None:
        self._writing_bytes = 0
        self._give_back(self._held_bytes)

    def _set_due(self) -> None:
        if self._unwritten:  # otherwise the bytes were written before this call
            self._is_due = True
            self._wake()

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    def _give_back(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._budget.give_back(size_bytes)
        if self._was_full and self.has_room:
            self._was_full = False
            self._on_room()


class FramesTooLarge(FrameTooLarge):
    """The incomplete frames of all legs together are larger than the budget that they share."""

    def __init__(self, limit_bytes: int, frames: list[Frame]) -> None:
        super().__init__(limit_bytes, frames)
        self.args = (f"the unfinished frames of all runs here take up the {limit_bytes} bytes",)


class Frames:
    """Parses a body into frames, and counts the incomplete frame in a budget of all legs."""

    def __init__(self, limit_bytes: int, budget: Budget) -> None:
        self._parser = Parser(limit_bytes)
        self._budget = budget
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that the chunk completes. Raises FrameTooLarge if the incomplete frame
        is over the limit, or over its share of the budget."""
        frames = self._parser.feed(chunk)
        self._hold(self._parser.pending_bytes)
        if self._held_bytes > SMALL_FRAME_BYTES and not self._budget.admits(self._held_bytes):
            raise FramesTooLarge(self._budget.limit_bytes, frames)
        return frames

    def drop(self) -> None:
        self._hold(0)

    def _hold(self, size_bytes: int) -> None:
        self._budget.take(size_bytes - self._held_bytes)
        self._held_bytes = size_bytes
