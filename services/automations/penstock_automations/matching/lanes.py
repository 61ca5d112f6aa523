"""Keeps events that take long to match out of the way of other users' events.

Each user has a lane. The events of a lane are matched one after another, and all lanes are matched
side by side.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from penstock_automations.broker import AGAIN_S

log = logging.getLogger(__name__)

# How many events a user may have in a lane. Further ones are delivered again after `FULL_S`.
MAX_WAITING: Final = 100
FULL_S: Final = 2.0


class Answerable(Protocol):
    """An event that NATS delivers again if it is not acknowledged in time."""

    async def give_back(self, delay_s: float) -> None:
        """Have the event delivered again after a time in seconds."""

    async def working(self) -> None:
        """Report that the event is still being handled."""


T = TypeVar("T", bound=Answerable)


class Lanes(Generic[T]):
    """Calls `handle` with each event. `working_s`: seconds between two reports to NATS."""

    def __init__(self, handle: Callable[[T], Awaitable[None]], working_s: float) -> None:
        self._handle = handle
        self._working_s = working_s
        self._waiting: dict[str, deque[T]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_busy(self, owner: str) -> bool:
        """Return whether events of the user wait or are being handled."""
        return owner in self._waiting

    async def add(self, owner: str, item: T) -> None:
        """Have an event handled after the user's earlier events, or give it back if too many
        wait."""
        waiting = self._waiting.get(owner)
        if waiting is None:
            self._waiting[owner] = deque([item])
            task = asyncio.create_task(self._work(owner))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif len(waiting) < MAX_WAITING:
            waiting.append(item)
        else:
            await item.give_back(FULL_S)

    async def finish(self, grace_s: float) -> None:
        """Handle the waiting events for up to `grace_s` seconds, and give the other events back."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, owner: str) -> None:
        waiting = self._waiting[owner]
        reported_s = time.monotonic()
        try:
            while waiting:
                try:
                    await self._handle(waiting[0])
                except Exception:
                    log.exception("an event is matched again")
                    await waiting[0].give_back(AGAIN_S)
                waiting.popleft()
                if time.monotonic() - reported_s > self._working_s:
                    reported_s = time.monotonic()
                    for each in tuple(waiting):
                        await each.working()
        finally:
            del self._waiting[owner]
            for each in waiting:
                await each.give_back(0)
