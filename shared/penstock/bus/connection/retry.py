"""Repeats a request while no server answers, as during the election of a leader.

A killed leader does not answer, and the new leader never gets the request. The length of an
election is unknown. With a long timeout, the request could be repeated long after the end of the
election. With a short timeout, a slow server would seem to be gone. So the request is sent every
half second, and the first answer counts, even a late answer to an early request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

AGAIN_S = 0.5


async def first_answer(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the result of the first call of `ask` that ends.

    `ask` is called at once, and every half second while no call has ended. A repeated call of `ask`
    must do no harm, and each call must have a timeout.

    Raises:
        Exception: whatever the first call that ends raises, including its timeout.
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
            task.exception()  # asyncio would log an exception that was never retrieved
    # A raised error refers to the frame of `first_answer`. If that frame still referred to the
    # failed task, both would stay in memory until the garbage collector finds the cycle.
    asked.clear()
