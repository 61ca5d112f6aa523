"""Limits the requests of each subscriber that an edge answers over NATS, so that the flood of one
keeps no other waiting."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

# The requests of one subscriber that an edge answers in a second. As many more are refused, and the
# rest gets no answer: the answers to a flood of 20,000 a second took all of an edge's time. Each
# subscriber asks once a minute for the key of a run that it reads, and for large events once for
# each 512 KiB.
PER_SECOND: Final = 200
# The requests of one subscriber that may wait. While NATS is slow, they would pile up.
MAX_WAITING_EACH: Final = PER_SECOND


class Askers:
    """The requests of one kind. The tasks that answer them run `at_once` for all subscribers, and
    `at_once_each` for one."""

    def __init__(self, at_once: int, at_once_each: int) -> None:
        self._second = 0  # of the monotonic clock
        self._asked: Counter[str] = Counter()  # the requests of each subscriber in this second
        self._room = asyncio.Semaphore(at_once)
        self._at_once_each = at_once_each
        # by subscriber, while it has requests: how many are waiting or answered, and their places
        self._places: dict[str, tuple[set[asyncio.Task[None]], asyncio.Semaphore]] = {}

    def take(
        self, asker: str, answer: Callable[[], Awaitable[None]], refuse: Callable[[], None]
    ) -> None:
        """Answer the request in a task when there is a place, or refuse it, or do neither."""
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._asked.clear()
        self._asked[asker] += 1
        waiting = len(self._places[asker][0]) if asker in self._places else 0
        if self._asked[asker] > PER_SECOND or waiting >= MAX_WAITING_EACH:
            if self._asked[asker] <= 2 * PER_SECOND:
                refuse()
            return
        new = set[asyncio.Task[None]](), asyncio.Semaphore(self._at_once_each)
        tasks, places = self._places.setdefault(asker, new)
        task = asyncio.create_task(self._in_place(places, answer))
        tasks.add(task)
        task.add_done_callback(lambda done: self._leave(asker, done))

    async def stop(self) -> None:
        tasks = [task for each, _ in self._places.values() for task in each]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_place(
        self, places: asyncio.Semaphore, answer: Callable[[], Awaitable[None]]
    ) -> None:
        async with places, self._room:
            await answer()

    def _leave(self, asker: str, task: asyncio.Task[None]) -> None:
        tasks, _ = self._places[asker]
        tasks.discard(task)
        if not tasks:
            del self._places[asker]
