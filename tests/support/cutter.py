"""A TCP proxy that breaks connections in the middle of an answer, as networks do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

_READ_BYTES = 64 * 1024


class Cutter:
    """Stands before a server. `after` says when: one connection for each number of bytes.

    Connections beyond that list, and whatever answers with less, go through whole.
    """

    def __init__(self, target: str, after: list[int]) -> None:
        self._target = urlsplit(target)
        self._after = list(after)
        self.cut = 0
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> asyncio.Server:
        """Listen."""
        server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert self._target.hostname is not None
        upstream_reader, upstream_writer = await asyncio.open_connection(
            self._target.hostname, self._target.port
        )
        asking = asyncio.create_task(_copy(reader, upstream_writer))
        self._tasks.add(asking)
        asking.add_done_callback(self._tasks.discard)
        left = self._after.pop(0) if self._after else None
        try:
            while data := await upstream_reader.read(_READ_BYTES):
                if left is not None and len(data) >= left:
                    writer.write(data[:left])
                    await writer.drain()
                    self.cut += 1
                    break
                left = left - len(data) if left is not None else None
                writer.write(data)
                await writer.drain()
        finally:
            asking.cancel()
            upstream_writer.transport.abort()
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def cutter(target: str, after: list[int]) -> AsyncIterator[Cutter]:
    """One for a test."""
    made = Cutter(target, after)
    server = await made.serve()
    try:
        yield made
    finally:
        server.close()
