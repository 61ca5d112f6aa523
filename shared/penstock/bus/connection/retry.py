"""Repeats a request while no server answers, as during the election of a leader.

A killed leader does not answer, and the new leader never gets the request. The length of an
election is unknown. With a long timeout, the request could be repeated long after the end of the
election. With a short timeout, a slow server would seem to be gone. So the request is sent every
half second, and the first answer counts, even a late answer to an early request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from penstock.bus.errors import (
    BusError,
    BusUnavailable,
    FenceConflict,
    MessageTooLarge,
    OutcomeUnknown,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_S = 0.25  # seconds between two attempts while the bus is away
AGAIN_S = 0.5  # seconds between two sendings of a request
START_AGAIN_S = 1.0  # seconds between two attempts of a step of a start


async def first_answer(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the result of the first call of `ask` that ends, also if that is an error.

    `ask` is called at once, and every half second while no call has ended. A repeated call must do
    no harm, and each call must have a timeout.
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


async def with_retries(
    step: Callable[[], Awaitable[T]], what: str = "the bus does not answer"
) -> T:
    """Return the step's result; if the bus does not answer, repeat the step every 0.25 s.

    `what` says in the log what is delayed. A repeated call of `step` must do no harm.

    Raises:
        FenceConflict: another process has written first.
        MessageTooLarge: a repeated write would be as large.
    """
    level = logging.WARNING
    while True:
        try:
            return await step()
        except (FenceConflict, MessageTooLarge):
            raise
        except (BusError, TimeoutError) as error:
            log.log(level, "%s, trying again: %r", what, error)
            level = logging.DEBUG  # with a thousand runs, one warning for each step is enough
            await asyncio.sleep(RETRY_S)


async def until_answered(what: str, step: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a step of a service's start; repeat the step while no server answers it.

    A broker may end while a service starts. Without the repetition, the process would end, too.
    `what` names the step in the log. A repeated call of `step` must do no harm.
    """
    while True:
        try:
            return await step()
        except (BusUnavailable, OutcomeUnknown) as error:
            log.warning("%s is tried again in %g s: %s", what, START_AGAIN_S, error)
            await asyncio.sleep(START_AGAIN_S)


def _give_up(asked: set[asyncio.Future[T]]) -> None:
    for task in asked:
        abandon(task)
    # A raised error refers to the frame of `first_answer`. If that frame still referred to the
    # failed task, both would stay in memory until the garbage collector finds the cycle.
    asked.clear()


def abandon(future: asyncio.Future[Any]) -> None:
    """Wait no longer for a result."""
    if not future.cancel() and not future.cancelled():
        future.exception()  # asyncio would log an exception that was never retrieved
