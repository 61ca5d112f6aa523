"""Order the reads of a process, so that the requests and streams of one user read one after
another, and those of a few users of a tenant at a time.

In one turn, a request reads and encodes one batch of messages. Without this order, 60 requests of
one user would have 60 batches in progress, and all other users would wait for all 60 batches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from penstock.turns import Level, TenantUser

# A function that waits for one user's turn to read.
Turn = Callable[[], AbstractAsyncContextManager[None]]

# The longest pause between two turns of one user, in seconds. If other requests of the same user
# wait, the next turn begins after a pause that is as long as the last turn, up to this limit. So
# one user gets at most half of the process's time, unless a turn takes longer than the limit.
MAX_REST_S: Final = 0.1


USERS_OF_TENANT: Final = 4  # how many users of one tenant read at a time


@dataclass(slots=True)
class _Turn:
    places: asyncio.Semaphore
    requests: int = 0  # the number of requests that have a place or wait for one


class Reader(Protocol):
    """The part of a caller that the scheduler needs."""

    @property
    def tenant_user(self) -> TenantUser: ...


class ReadScheduler:
    """Lets the requests of each user read in turns, and the users of each tenant. The scheduler has
    a semaphore for each user and tenant with requests that read or wait."""

    def __init__(self) -> None:
        self._turns: dict[Level, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def for_caller(self, who: Reader) -> Turn:
        return partial(self.of, who.tenant_user)

    @asynccontextmanager
    async def of(self, user: TenantUser) -> AsyncIterator[None]:
        """Wait for the user's turn. The turn lasts until the context ends."""
        tenant, own = user.levels
        async with self._turn(own, 1):
            if not user.tenant:
                yield
                return
            # Of each user, one request waits here, so users of a tenant take turns, too.
            async with self._turn(tenant, USERS_OF_TENANT):
                yield

    @asynccontextmanager
    async def _turn(self, level: Level, at_once: int) -> AsyncIterator[None]:
        turn = self._turns.setdefault(level, _Turn(asyncio.Semaphore(at_once)))
        turn.requests += 1
        try:
            async with turn.places:
                begun = time.monotonic()
                yield
                if turn.requests > at_once:
                    await asyncio.sleep(min(time.monotonic() - begun, MAX_REST_S))
        finally:
            turn.requests -= 1
            if not turn.requests:
                self._turns.pop(level, None)
