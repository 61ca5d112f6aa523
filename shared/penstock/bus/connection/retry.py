"""Repeats a request while nobody answers, as during the election of a leader.

A killed leader does not answer, and its successor never saw the request. The length of an election
is unknown: a long timeout would add its rest to the election, and a short timeout would give up on
a server that is merely slow. So the request is sent every half second, and the first answer counts,
also a late answer to an early request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

AGAIN_S = 0.5


async def first_answer(ask: Callable[[], Awaitable[T]]) -> T:
    """The result of the first call of `ask` that ends.

    `ask` is called at once, and every half second while no call has ended. It must be harmless to
    repeat, and must have a timeout of its own.

    Raises:
        Exception: whatever the first call that ends raises, its timeout included.
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
            task.exception()  # asyncio logs an exception that nobody has retrieved
    # A raised error refers to the frame that it passed through. If that frame still referred to
    # the failed task, both would stay in memory until the garbage collector finds the cycle.
    asked.clear()
