"""Divides places between owners, so that no owner can take all of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

# Seconds after which a published job counts no longer as coming: another process has it.
COMING_S: Final = 1.0
MAX_COMING: Final = 64  # how many jobs of one owner stand before another owner's in DELIVERIES


class Shares:
    """Places that owners share.

    An owner gets a place while the owner has fewer places than are free. So a single owner can have
    half of the places, two owners a third each, and there is always a place for one more owner.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._taken: Counter[str] = Counter()
        # by owner: when jobs were published that no process is known to have got
        self._coming: defaultdict[str, deque[float]] = defaultdict(deque)
        # by owner, in the order in which the places came: the tasks that wait for a place
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def room(self, owner: str) -> int:
        """Return how many more places the owner could take now."""
        return max((self._free - self._taken[owner] + 1) // 2, 0)

    def publishable(self, owner: str) -> int:
        """Return how many more jobs of the owner should be published now."""
        coming, since = self._coming[owner], time.monotonic() - COMING_S
        while coming and coming[0] < since:
            coming.popleft()
        count = len(coming)
        if not coming:
            del self._coming[owner]
        return max(min(self.room(owner), MAX_COMING) - count, 0)

    def expect(self, owner: str) -> None:
        """Note that a job of the owner is being published, and will want a place."""
        self._coming[owner].append(time.monotonic())

    def note_arrival(self, owner: str) -> None:
        """Note that a job of the owner has come, and wants a place."""
        if coming := self._coming.get(owner):
            coming.popleft()

    def take(self, owner: str) -> bool:
        """Take a place; return False if the owner can get none now."""
        if self._taken[owner] >= self._free:
            return False
        self._taken[owner] += 1
        self._free -= 1
        return True

    def give_back(self, owner: str) -> None:
        """Give a place back. Owners with few places are first among those who wait."""
        self._free += 1
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        for other in sorted(self._waiting, key=self._taken.__getitem__):
            waiting = self._waiting[other]
            while waiting and (waiting[0].done() or self.take(other)):
                waiter = waiting.popleft()
                if not waiter.done():
                    waiter.set_result(None)
            if not waiting:
                del self._waiting[other]

    @property
    def is_idle(self) -> bool:
        return not self._taken

    @asynccontextmanager
    async def place(self, owner: str) -> AsyncIterator[None]:
        """Wait for a place, and give it back when the context ends."""
        if owner in self._waiting or not self.take(owner):
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(owner, deque()).append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():  # the place came just before the cancellation
                    self.give_back(owner)
                raise
        try:
            yield
        finally:
            self.give_back(owner)
