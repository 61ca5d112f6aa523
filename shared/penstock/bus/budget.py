"""Limits the bytes in flight of a process: by fair shares (`Budget`) or by a queue (`Gate`)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

# the bytes of memory that a message needs besides its payload, mostly for headers
OVERHEAD_BYTES = 1024


def counted_bytes(payload: bytes) -> int:
    """Return how many bytes a message counts as; an empty one counts, too."""
    return len(payload) + OVERHEAD_BYTES


@dataclass(slots=True)
class Budget:
    """Shares a limit of bytes among many holders: no holder may hold more bytes than are free.

    One holder that takes as much as possible gets half of the limit. Two such holders get a third
    of the limit each. So some bytes are always free for a new holder. This rule is the dynamic
    threshold of Choudhury and Hahne (IEEE/ACM ToN 6(2), 1998) with alpha 1. A holder without bytes
    may always take some bytes, so the holders can exceed the limit by one `take` of each holder.
    """

    limit_bytes: int
    used_bytes: int = 0

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    def admits(self, held_bytes: int) -> bool:
        return held_bytes <= self.free_bytes


@dataclass(slots=True)
class Gate:
    """Admits callers while there is room, in the order of arrival. A request that is larger than
    the whole limit is admitted alone."""

    limit_bytes: int
    inside_bytes: int = 0
    _waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)

    async def enter(self, size_bytes: int) -> None:
        """Wait until there is room for `size_bytes`, and take it; `leave` returns the room."""
        if not self._waiting and self._fits(size_bytes):
            self.inside_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                # the caller may have been the first in the queue, and the next caller may fit
                self._admit_waiting()
            else:
                self.leave(size_bytes)  # the caller was admitted and cancelled in the same step
            raise

    def enter_now(self, size_bytes: int) -> bool:
        """Take the room for `size_bytes` as `enter` does; return False if the caller would have to
        wait."""
        if self._waiting or not self._fits(size_bytes):
            return False
        self.inside_bytes += size_bytes
        return True

    def leave(self, size_bytes: int) -> None:
        """Return the room for `size_bytes`, and admit the callers that have waited longest."""
        self.inside_bytes -= size_bytes
        self._admit_waiting()

    def _fits(self, size_bytes: int) -> bool:
        return not self.inside_bytes or self.inside_bytes + size_bytes <= self.limit_bytes

    def _admit_waiting(self) -> None:
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(size_bytes):
                    return
                self.inside_bytes += size_bytes
                turn.set_result(None)
            self._waiting.popleft()
