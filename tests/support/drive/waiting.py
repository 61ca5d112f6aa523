"""Wait for a condition with a deadline; tests use this in place of a bare sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_SHORTEST_S, _LONGEST_S = 0.01, 0.2


def _pause_s(waited_s: float) -> float:
    """Return the pause before the next look: a fifth of the time that was waited so far.

    Many probes are HTTP requests, or expressions that a browser evaluates. With a look every 10 ms,
    the waiting tests would take the CPU from what they wait for.
    """
    return min(max(_SHORTEST_S, waited_s / 5), _LONGEST_S)


def wait_for(probe: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Return the first true value of `probe`.

    Raises: TimeoutError after the deadline, with `what` in its text.
    """
    begun = time.monotonic()
    while not (value := probe()):
        if (waited_s := time.monotonic() - begun) > timeout_s:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        time.sleep(_pause_s(waited_s))
    return value


async def eventually(
    probe: Callable[[], Awaitable[T | None]], timeout_s: float = 60, what: str = "the condition"
) -> T:
    """Like `wait_for`, for a probe that is awaited."""
    begun = time.monotonic()
    while not (value := await probe()):
        if (waited_s := time.monotonic() - begun) > timeout_s:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        await asyncio.sleep(_pause_s(waited_s))
    return value
