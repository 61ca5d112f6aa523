"""Lets a server of a test close every connection, however the handler of the connection ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def close_after(handle: Handler) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """Return a callback of a server that closes each connection when its handler has ended.

    A handler does not close its connection if it is cancelled before its first step, or while it
    waits for a request: browsers open connections that they never use. Python warns about an open
    connection when the connection is collected, which makes a later test fail.
    """
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: writer.close())

    return connected
