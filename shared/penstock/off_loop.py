"""Runs computations that may take long in one thread, so that the event loop of a service stays
free.

Python runs one thread at a time, and a thread that computes gives way to the event loop after
`SWITCH_S`. A second computing thread would only make the event loop wait longer. So one thread per
process computes for all services, and tenants and users take turns.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from penstock.turns import TenantUser, Turns

T = TypeVar("T")

SWITCH_S: Final = 0.001  # Python's own interval is 5 ms, for which each callback would wait.
TURN_S: Final = 0.02  # the seconds for which a call that is made in parts runs in one turn


class FairThread:
    """A thread that runs one call at a time. Each user's calls run in their order. A user, or a
    tenant, with many calls delays another's call by one call."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(
            1, "off-loop", initializer=lambda: sys.setswitchinterval(SWITCH_S)
        )
        self._is_busy = False
        self._turns: Turns[asyncio.Future[None]] = Turns()

    @property
    def waiting(self) -> int:
        """How many calls wait for their turn."""
        return len(self._turns)

    async def run(self, owner: TenantUser, call: Callable[[], T]) -> T:
        """Return the call's result, or raise its exception.

        `call` must use no data that the event loop changes meanwhile. If the caller is cancelled
        while the call runs, the call still runs to its end.
        """
        await self._take_turn(owner)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        finally:
            self._end_turn()

    async def run_in_parts(self, owner: TenantUser, parts: Generator[None, None, T]) -> T:
        """Return the generator's result, or raise its exception. It is resumed for `TURN_S` in one
        turn, so it delays a call of another owner by little more than that."""
        result: list[T] = []
        while not result:
            await self.run(owner, partial(_resume, parts, result))
        return result[0]

    async def _take_turn(self, owner: TenantUser) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._turns.add(owner, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end_turn()
            raise

    def _end_turn(self) -> None:
        while turns := self._turns.take():
            if not turns[0].done():
                turns[0].set_result(None)
                return
        self._is_busy = False


def _resume(parts: Generator[None, None, T], result: list[T]) -> None:
    until = time.monotonic() + TURN_S
    try:
        while time.monotonic() < until:
            next(parts)
    except StopIteration as end:
        result.append(end.value)


OFF_LOOP: Final = FairThread()  # the thread of this process
