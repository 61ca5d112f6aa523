"""Repeats steps that must be completed even if the bus does not answer for a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.bus import RETRY_S, BusError, FenceConflict

log = logging.getLogger(__name__)

T = TypeVar("T")


async def with_retries(step: Callable[[], Awaitable[T]]) -> T:
    """Return the step's result; if the bus does not answer, repeat the step every 0.25 s.

    Raises:
        FenceConflict: another connector has written to the run.
    """
    level = logging.WARNING
    while True:
        try:
            return await step()
        except FenceConflict:
            raise
        except (BusError, TimeoutError) as error:
            log.log(level, "the bus does not answer, trying again: %r", error)
            level = logging.DEBUG  # with a thousand legs, one warning for each step is enough
            await asyncio.sleep(RETRY_S)
