"""Keeps events that take long to match out of the way of other users' events.

Each user has a lane. The events of a lane are matched one after another, and all lanes are matched
side by side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MAX_WAITING: Final = 100  # how many events a user may have in a lane


class Lanes(Generic[T]):
    """Calls `handle` with each event. `handle` must not raise."""

    def __init__(self, handle: Callable[[T], Awaitable[None]]) -> None:
        self._handle = handle
        self._waiting: dict[str, deque[T]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_busy(self, owner: str) -> bool:
        return owner in self._waiting

    def add(self, owner: str, item: T) -> bool:
        """Have an event handled after the user's earlier events; return False if too many wait."""
        waiting = self._waiting.get(owner)
        if waiting is not None:
            if len(waiting) >= MAX_WAITING:
                return False
            waiting.append(item)
            return True
        self._waiting[owner] = deque([item])
        task = asyncio.create_task(self._work(owner))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, owner: str) -> None:
        waiting = self._waiting[owner]
        while waiting:
            await self._handle(waiting[0])
            waiting.popleft()
        del self._waiting[owner]
