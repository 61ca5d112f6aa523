"""Ask again while nobody answers: a leader that died says nothing, and the next one heard nothing.

How long an election takes nobody knows, and who waits for the end of a long timeout adds that to
it. Who uses a short one instead never hears a server that is merely slow. So the question is asked
again and again, and the first answer counts, also a late one to an early question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

AGAIN_S = 0.5


async def first_answer(ask: Callable[[], Awaitable[T]]) -> T:
    """What the first of these comes to that ends, whether it answers or fails.

    `ask` is called at once, and every half second while none has ended; so it must be harmless to
    ask several times, and must have a timeout of its own: the first one's ends it all.
    """
    asked: set[asyncio.Future[T]] = set()
    try:
        while True:
            asked.add(asyncio.ensure_future(ask()))
            done, _ = await asyncio.wait(
                asked, timeout=AGAIN_S, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return done.pop().result()
    finally:
        _give_up(asked)


def _give_up(asked: set[asyncio.Future[T]]) -> None:
    for task in asked:
        if not task.cancel() and not task.cancelled():
            task.exception()  # asyncio complains of one that nobody looked at
    # An error that is raised holds the frame it came through. If that frame still held the task
    # that failed, both would stay in memory until the garbage collector finds the cycle.
    asked.clear()
