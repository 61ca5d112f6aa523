"""Keeps events that take long to match out of the way of other users' events.

Each user has a lane. The events of a lane are matched one after another, and all lanes are matched
side by side, of each tenant one at a time. Together, they get half of the event loop's time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from penstock.turns import TenantUser

T = TypeVar("T")

MAX_WAITING: Final = 100  # how many events a user may have in a lane
TURN_S: Final = 0.005  # the seconds of work after which other tasks of the process get as much time


class Lanes(Generic[T]):
    """Calls `handle` with each event. `handle` must not raise."""

    def __init__(self, handle: Callable[[T], Awaitable[None]]) -> None:
        self._handle = handle
        self._waiting: dict[TenantUser, deque[T]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._worked_s = 0.0  # since the last pause
        self._pausing = asyncio.Lock()
        self._tenants: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def is_busy(self, owner: TenantUser) -> bool:
        return owner in self._waiting

    def is_full(self, owner: TenantUser) -> bool:
        return len(self._waiting.get(owner, ())) >= MAX_WAITING

    def is_half_free(self, owner: TenantUser) -> bool:
        return len(self._waiting.get(owner, ())) <= MAX_WAITING // 2

    def add(self, owner: TenantUser, item: T) -> None:
        """Have an event handled after the user's earlier events. The lane must not be full."""
        waiting = self._waiting.get(owner)
        if waiting is not None:
            waiting.append(item)
            return
        self._waiting[owner] = deque([item])
        task = asyncio.create_task(self._work(owner))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait until a lane of this tenant may work on the event loop. Nothing is awaited within
        the context."""
        # Without this lock, a tenant with a hundred lanes would get a hundred turns for each turn
        # of another tenant.
        async with self._tenants.setdefault(tenant, asyncio.Lock()):
            while self._worked_s > TURN_S:
                async with self._pausing:
                    if self._worked_s > TURN_S:
                        await asyncio.sleep(self._worked_s)
                        self._worked_s = 0.0
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._worked_s += time.perf_counter() - begun

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, owner: TenantUser) -> None:
        waiting = self._waiting[owner]
        while waiting:
            await self._handle(waiting[0])
            waiting.popleft()
        del self._waiting[owner]
