"""Divides places between owners, so that no owner can take all of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from penstock.turns import Level, TenantUser

# Seconds after which a published job counts no longer as coming: another process has it.
COMING_S: Final = 1.0
MAX_COMING: Final = 64  # how many jobs of one owner stand before another owner's in DELIVERIES


class Shares:
    """Places that owners share.

    An owner gets a place while the owner has fewer places than are free. So a single owner can have
    half of the places, two owners a third each, and there is always a place for one more owner.
    Owners with a tenant divide the places that the tenant could take by the same rule.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._taken: Counter[Level] = Counter()
        # by owner: when jobs were published that no process is known to have got
        self._coming: defaultdict[TenantUser, deque[float]] = defaultdict(deque)
        # by owner, in the order in which the places came: the tasks that wait for a place
        self._waiting: dict[TenantUser, deque[asyncio.Future[None]]] = {}

    def room(self, owner: TenantUser) -> int:
        """Return how many more places the owner could take now."""
        return max((self._free_for(owner) - self._taken[owner] + 1) // 2, 0)

    def _free_for(self, owner: TenantUser) -> int:
        """Return how many places are free for the owner: all, or those that the tenant could take.

        Owners without a tenant are no tenant together: they share with all.
        """
        if not owner.tenant:
            return self._free
        return (self._free - self._taken[owner.levels[0]] + 1) // 2

    def publishable(self, owner: TenantUser) -> int:
        """Return how many more jobs of the owner should be published now."""
        coming, since = self._coming[owner], time.monotonic() - COMING_S
        while coming and coming[0] < since:
            coming.popleft()
        count = len(coming)
        if not coming:
            del self._coming[owner]
        return max(min(self.room(owner), MAX_COMING) - count, 0)

    def expect(self, owner: TenantUser) -> None:
        """Note that a job of the owner is being published, and will want a place."""
        self._coming[owner].append(time.monotonic())

    def note_arrival(self, owner: TenantUser) -> None:
        """Note that a job of the owner has come, and wants a place."""
        if coming := self._coming.get(owner):
            coming.popleft()

    def take(self, owner: TenantUser) -> bool:
        """Take a place; return False if the owner can get none now."""
        if self._taken[owner] >= self._free_for(owner):
            return False
        self._taken.update(owner.levels)
        self._free -= 1
        return True

    def give_back(self, owner: TenantUser) -> None:
        """Give a place back. Tenants and owners with few places are first of those who wait."""
        self._free += 1
        for level in owner.levels:
            self._taken[level] -= 1
            if not self._taken[level]:
                del self._taken[level]
        for other in sorted(self._waiting, key=self._order):
            waiting = self._waiting[other]
            while waiting and (waiting[0].done() or self.take(other)):
                waiter = waiting.popleft()
                if not waiter.done():
                    waiter.set_result(None)
            if not waiting:
                del self._waiting[other]

    def _order(self, owner: TenantUser) -> tuple[int, int]:
        tenant, own = owner.levels
        return (self._taken[tenant] if owner.tenant else 0, self._taken[own])

    @property
    def is_idle(self) -> bool:
        return not self._taken

    @asynccontextmanager
    async def place(self, owner: TenantUser) -> AsyncIterator[None]:
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
