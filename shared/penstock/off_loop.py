"""Runs computations that may take long in one thread, so that the event loop of a service stays
free.

Python runs one thread at a time, and a thread that computes gives way to the event loop after
`SWITCH_S`. A second computing thread would only make the event loop wait longer. So one thread per
process computes for all services, and the owners of the computations take turns.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

SWITCH_S: Final = 0.001  # Python's own interval is 5 ms, for which each callback would wait.


class FairThread:
    """A thread that runs one call at a time. Each owner's calls run in their order. An owner with
    many calls delays another owner's call by one call."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(
            1, "off-loop", initializer=lambda: sys.setswitchinterval(SWITCH_S)
        )
        self._is_busy = False
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many calls wait for their turn."""
        return sum(map(len, self._queues.values()))

    async def run(self, owner: str, call: Callable[[], T]) -> T:
        """Return the call's result, or raise its exception.

        `call` must use no data that the event loop changes meanwhile. If the caller is cancelled
        while the call runs, the call still runs to its end.
        """
        await self._take_turn(owner)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        finally:
            self._end_turn()

    async def _take_turn(self, owner: str) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end_turn()
            raise

    def _end_turn(self) -> None:
        while self._queues:
            owner, queue = next(iter(self._queues.items()))
            turn = queue.popleft()
            if queue:
                self._queues.move_to_end(owner)
            else:
                del self._queues[owner]
            if not turn.done():
                turn.set_result(None)
                return
        self._is_busy = False


OFF_LOOP: Final = FairThread()  # the thread of this process
