"""Limits of bytes in flight, for a whole process: shared fairly (`Budget`), or queued (`Gate`)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

OVERHEAD_BYTES = 1024  # of a message in memory besides its payload, mostly headers


def weight(payload: bytes) -> int:
    """The bytes that a message counts for. Empty messages count, too."""
    return len(payload) + OVERHEAD_BYTES


@dataclass(slots=True)
class Budget:
    """A limit of bytes that many holders share: no holder may hold more than is free.

    One flooding holder gets half of the limit, two get a third each, and a new holder finds room
    (the dynamic threshold of Choudhury and Hahne, IEEE/ACM ToN 6(2), 1998, with alpha 1). A holder
    of nothing may always take, so the limit can be exceeded by one step of each holder.
    """

    limit_bytes: int
    used_bytes: int = 0

    def take(self, size_bytes: int) -> None:
        """Count bytes that a holder takes."""
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count bytes that a holder returns."""
        self.used_bytes -= size_bytes

    @property
    def free_bytes(self) -> int:
        """The bytes that nobody holds; 0 when the limit is used up."""
        return max(0, self.limit_bytes - self.used_bytes)

    def admits(self, held_bytes: int) -> bool:
        """Whether a holder of `held_bytes` may take more."""
        return held_bytes <= self.free_bytes


@dataclass(slots=True)
class Gate:
    """Admits callers while there is room, in the order of arrival.

    A request that is larger than the whole limit is admitted alone.
    """

    limit_bytes: int
    inside_bytes: int = 0
    _waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)

    async def enter(self, size_bytes: int) -> None:
        """Wait for room and take it; `leave` returns it."""
        if not self._waiting and self._fits(size_bytes):
            self.inside_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._let_in()  # the cancelled one may have been the first in the queue
            else:
                self.leave(size_bytes)  # it was admitted and cancelled in the same step
            raise

    def leave(self, size_bytes: int) -> None:
        """Return the room, and admit the callers that have waited longest."""
        self.inside_bytes -= size_bytes
        self._let_in()

    def _fits(self, size_bytes: int) -> bool:
        return not self.inside_bytes or self.inside_bytes + size_bytes <= self.limit_bytes

    def _let_in(self) -> None:
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(size_bytes):
                    return
                self.inside_bytes += size_bytes
                turn.set_result(None)
            self._waiting.popleft()
