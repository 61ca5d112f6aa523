"""Wait for a condition with a deadline; tests use this in place of a bare sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_S = 0.01


def wait_for(probe: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Return the first true value of `probe`.

    Raises: TimeoutError after the deadline, with `what` in its text.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        time.sleep(_PAUSE_S)
    return value


async def eventually(
    probe: Callable[[], Awaitable[T | None]], timeout_s: float = 60, what: str = "the condition"
) -> T:
    """Like `wait_for`, for a probe that is awaited."""
    deadline = time.monotonic() + timeout_s
    while not (value := await probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        await asyncio.sleep(_PAUSE_S)
    return value
