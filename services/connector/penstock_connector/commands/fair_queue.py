"""Queues starts fairly: while more starts wait than legs are free, tenants and users take turns.

A connector fetches more starts than it has free legs, and the starts wait in this queue. So the
connector also sees the start of a second user when the first user has sent many starts before. The
next free leg goes to the tenant with the fewest legs at this connector. If several tenants have
equally few legs, the leg goes to the tenant whose last turn was the longest time ago. The users of
the tenant are chosen between in the same way. The starts of one user keep their order.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from penstock.bus import Retry
from penstock.telemetry import STARTS_WAITING
from penstock.turns import Level, TenantUser

CHECK_S = 0.05  # seconds between two checks for legs that have ended


def next_user(
    waiting: Mapping[TenantUser, int], legs: Mapping[Level, int], served: Mapping[Level, int]
) -> TenantUser | None:
    """Return the user whose start is next; None if no start waits. Pure.

    `waiting` maps each user to the stream sequence of the user's first start that waits. `legs`
    maps each user and tenant to the number of its legs. `served` maps each user and tenant to the
    number of its last turn; all turns are numbered together.
    """

    def place(user: TenantUser) -> tuple[int, ...]:
        tenant, own = user.levels
        return (
            *(legs.get(tenant, 0), served.get(tenant, 0)),
            *(legs.get(own, 0), served.get(own, 0)),
            waiting[user],
        )

    return min(waiting, key=place, default=None)


@dataclass(order=True, slots=True)
class _Waiting:
    sequence: int  # the sequence of the start command in the stream COMMANDS
    tie: int  # increases with each start, and orders two starts with the same sequence
    run_id: str = field(compare=False)
    granted: asyncio.Future[None] = field(compare=False)


class FairQueue:
    """Gives starts their turns while there is room for legs; at most `at_once` legs open at a time.

    `room` returns the number of further legs that this connector may hold. `is_held` returns
    whether the leg of a run is held now.
    """

    def __init__(
        self, room: Callable[[], int], is_held: Callable[[str], bool], at_once: int
    ) -> None:
        self._room = room
        self._is_held = is_held
        self._at_once = at_once
        self._waiting: dict[TenantUser, list[_Waiting]] = {}  # a heap for each user
        # the runs that have had their turn but have no leg yet
        self._opening: Counter[str] = Counter()
        # the user of each run that has had its turn at this connector
        self._users: dict[str, TenantUser] = {}
        # the number of runs in `_users`, and of the last turn, by user and by tenant
        self._held: Counter[Level] = Counter()
        self._served: dict[Level, int] = {}
        self._number = itertools.count(1)
        self._looking: asyncio.Task[None] | None = None
        # The number of runs in `_users` above which the runs whose legs have ended are removed.
        self._forget_from = at_once
        self._closed = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def is_free(self) -> bool:
        return not self._waiting and min(self._room(), self._at_once) > self._opening.total()

    @asynccontextmanager
    async def turn(self, user: TenantUser, run_id: str, sequence: int) -> AsyncIterator[None]:
        """Wait for a turn; the caller opens the leg within the context. `sequence` is the stream
        sequence of the start command. Raises Retry when the connector stops."""
        if self._closed:
            raise Retry(1)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mine = _Waiting(sequence, next(self._number), run_id, granted)
        heapq.heappush(self._waiting.setdefault(user, []), mine)
        self._grant()
        if not granted.done():
            await self._wait(user, mine)
        try:
            yield
        finally:
            self._opened(run_id)

    def close(self) -> None:
        self._closed = True
        for heap in self._waiting.values():
            for each in heap:
                if not each.granted.done():
                    each.granted.set_exception(Retry(1))
        self._waiting.clear()
        self._update_metric()

    async def _wait(self, user: TenantUser, mine: _Waiting) -> None:
        self._update_metric()
        if self._looking is None:
            self._looking = asyncio.create_task(self._find_ended_legs())
        try:
            await mine.granted
        except asyncio.CancelledError:
            self._drop(user, mine)
            if mine.granted.done() and not mine.granted.cancelled():
                # the turn was granted and the start was cancelled at the same moment
                self._opened(mine.run_id)
            raise
        finally:
            self._update_metric()

    async def _find_ended_legs(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(CHECK_S)
                self._forget_ended()
                self._grant()
        finally:
            self._looking = None

    def _opened(self, run_id: str) -> None:
        """Give the next start its turn, because the leg of this run is held, or was not opened."""
        self._opening[run_id] -= 1
        if not self._opening[run_id]:
            del self._opening[run_id]
        self._grant()

    def _grant(self) -> None:
        if len(self._users) > self._forget_from:
            self._forget_ended()
        free = min(self._room(), self._at_once) - self._opening.total()
        for _ in range(free):
            firsts = {user: heap[0].sequence for user, heap in self._waiting.items()}
            if (chosen := next_user(firsts, self._held, self._served)) is None:
                return
            first = heapq.heappop(self._waiting[chosen])
            if not self._waiting[chosen]:
                del self._waiting[chosen]
            self._opening[first.run_id] += 1
            if first.run_id not in self._users:
                self._users[first.run_id] = chosen
                self._held.update(chosen.levels)
            self._served |= dict.fromkeys(chosen.levels, next(self._number))
            first.granted.set_result(None)

    def _forget_ended(self) -> None:
        ended = [
            run_id
            for run_id in self._users
            if not self._is_held(run_id) and run_id not in self._opening
        ]
        waiting = {level for user in self._waiting for level in user.levels}
        for run_id in ended:
            for level in self._users.pop(run_id).levels:
                self._held[level] -= 1
                if not self._held[level]:
                    del self._held[level]
                    if level not in waiting:
                        self._served.pop(level, None)
        self._forget_from = 2 * len(self._users) + self._at_once

    def _drop(self, user: TenantUser, mine: _Waiting) -> None:
        heap = self._waiting.get(user, [])
        if mine in heap:
            heap.remove(mine)
            heapq.heapify(heap)
        if not heap:
            self._waiting.pop(user, None)

    def _update_metric(self) -> None:
        STARTS_WAITING.set(len(self))
