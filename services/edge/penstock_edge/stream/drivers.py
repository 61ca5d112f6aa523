"""Defines `Driver`, the interface of objects that write a client's stream, and the driver for
ASGI."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock_edge.stream.in_sync import Write


class Driver(Protocol):
    """Writes a client's stream, by calling `Client.next_write` after each `wake`."""

    @property
    def write(self) -> Write | None:
        """The connection's own `write`, which takes HTTP chunks; None if ASGI must be used.

        The value is also None while the connection is paused because too many bytes wait in it.
        """
        ...

    @property
    def transport(self) -> asyncio.WriteTransport | None:
        """The connection's transport; None for a response that ASGI sends."""
        ...

    def wake(self) -> None:
        """Call `Client.next_write` soon, at least once."""
        ...

    def drop(self) -> bool:
        """End the stream of a client that does not read; return False if no write is in
        progress."""
        ...

    def fail(self) -> None:
        """Close the connection, because its `write` has raised an exception."""
        ...


class ByTask(Driver):
    """The driver of a response that is sent by ASGI: the response's task calls `Client.take`."""

    write = None
    transport = None

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._task = asyncio.current_task()

    async def wait(self) -> None:
        """Wait for a call of `wake`; return at once if `wake` was called since the last wait."""
        await self._wake.wait()
        self._wake.clear()

    def wake(self) -> None:
        self._wake.set()

    def drop(self) -> bool:
        return self._task is not None and self._task.cancel()

    def fail(self) -> None:
        """Do nothing: this method is called only for clients in sync, and ASGI clients are never
        in sync."""
