"""Bytes in flight: counted for the whole process, divided fairly, bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

OVERHEAD_BYTES = 1024  # of a message in memory, besides its payload: headers, mostly


def weight(payload: bytes) -> int:
    """What a message counts for, so that a flood of empty ones counts, too."""
    return len(payload) + OVERHEAD_BYTES


@dataclass(slots=True)
class Budget:
    """Bytes that many share, where nobody may hold more than is left for the others.

    One that floods gets half of it, two get a third each, and whoever comes new finds room. (The
    dynamic threshold of Choudhury and Hahne, IEEE/ACM ToN 6(2), 1998, with alpha 1.) It is passed
    by no more than what each holder takes at a time, since who holds nothing may always take.
    """

    limit_bytes: int
    used_bytes: int = 0

    def take(self, size_bytes: int) -> None:
        """Somebody holds so much more."""
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Somebody holds so much less."""
        self.used_bytes -= size_bytes

    @property
    def free_bytes(self) -> int:
        """What nobody holds; 0 when it is used up."""
        return max(0, self.limit_bytes - self.used_bytes)

    def admits(self, held_bytes: int) -> bool:
        """Whether somebody who holds `held_bytes` may take more."""
        return held_bytes <= self.free_bytes


@dataclass(slots=True)
class Gate:
    """Lets through as long as there is room, in the order of arrival.

    What is larger than the whole limit goes alone.
    """

    limit_bytes: int
    inside_bytes: int = 0
    _waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)

    async def enter(self, size_bytes: int) -> None:
        """Wait for room, and take it; `leave` gives it back."""
        if not self._waiting and self._fits(size_bytes):
            self.inside_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._let_in()  # it may have stood first
            else:
                self.leave(size_bytes)  # let in and cancelled at once
            raise

    def leave(self, size_bytes: int) -> None:
        """Give the room back, and let in who has waited longest."""
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
