"""Who reads the past next: the requests and streams of one user take turns, step by step.

A step is one batch, read and encoded. Without turns, 60 requests of one user would have 60 batches
under way, and the event loop would come to anybody else after all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.web.auth.identity import Identity

Turn = Callable[[], AbstractAsyncContextManager[None]]

# A user whose reads crowd each other rests after a step for as long as the step took, at most so
# long: it uses half of the process, and the others the rest.
MAX_REST_S: Final = 0.1


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0  # requests that hold the turn or wait for it


class ReadTurns:
    """One turn for each user who reads now; of one process."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def named(self, who: Identity) -> Turn:
        """What takes the caller's turns."""
        return partial(self.of, who.user_id)

    @asynccontextmanager
    async def of(self, user_id: str) -> AsyncIterator[None]:
        """Wait for the user's turn, and hold it within."""
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
