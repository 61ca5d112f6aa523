"""Cancel the work for a request when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


async def while_connected(receive: Receive, answer: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `answer`.

    If the client disconnects first, cancel the work and return None.
    """
    answering, leaving = asyncio.create_task(answer), asyncio.create_task(until_closed(receive))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else None
    finally:
        leaving.cancel()
        if not answering.done():
            answering.cancel()
            await asyncio.wait({answering})


async def until_closed(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
