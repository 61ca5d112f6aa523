"""Stops tasks."""

from __future__ import annotations

import asyncio
from typing import Any


async def stop(task: asyncio.Future[Any]) -> None:
    """Cancel the task, and wait until the task has ended; the task's result or exception is
    dropped."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs that the exception was never retrieved
