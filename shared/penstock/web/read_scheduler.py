"""Order the reads of a process, so that the requests and streams of one user read one after
another.

In one turn, a request reads and encodes one batch of messages. Without this order, 60 requests of
one user would have 60 batches in progress, and all other users would wait for all 60 batches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

# A function that waits for one user's turn to read.
Turn = Callable[[], AbstractAsyncContextManager[None]]

# The longest pause between two turns of one user, in seconds. If other requests of the same user
# wait, the next turn begins after a pause that is as long as the last turn, up to this limit. So
# one user gets at most half of the process's time, unless a turn takes longer than the limit.
MAX_REST_S: Final = 0.1


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0  # the number of requests that have the lock or wait for it


class Reader(Protocol):
    """The part of a caller that the scheduler needs."""

    @property
    def user_id(self) -> str: ...


class ReadScheduler:
    """Lets the requests of each user read in turns. The scheduler has a lock for each user with
    requests that read or wait."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def for_caller(self, who: Reader) -> Turn:
        return partial(self.of, who.user_id)

    @asynccontextmanager
    async def of(self, user_id: str) -> AsyncIterator[None]:
        """Wait for the user's turn. The turn lasts until the context ends."""
        turn = self._turns.setdefault(user_id, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                begun = time.monotonic()
                yield
                if turn.users > 1:
                    await asyncio.sleep(min(time.monotonic() - begun, MAX_REST_S))
        finally:
            turn.users -= 1
            if not turn.users:
                self._turns.pop(user_id, None)
