"""TCP proxies that fail as networks do: they break connections midway, or vanish and return.

`Cutter` is a proxy for an HTTP server that cuts responses at a byte. `Gate` is a proxy for any
server, and the test closes and opens it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from support.fakes.serving import close_after

_READ_BYTES = 64 * 1024


class Cutter:
    """A proxy in front of a server. `after` has the number of response bytes for each connection.

    A connection passes completely if it comes after the end of that list, or if its response is
    shorter.
    """

    def __init__(self, target: str, after: list[int]) -> None:
        self._target = urlsplit(target)
        self._after = list(after)
        self.cut = 0
        self.url = ""
        self.rewrites: tuple[bytes, bytes] | None = None  # in requests; both of the same length
        self._tasks: set[asyncio.Task[None]] = set()
        self._standing: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(close_after(self._on_connection), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def aim(self, target: str) -> None:
        """Let new connections go to another server."""
        self._target = urlsplit(target)

    async def drop(self) -> None:
        """Break all open connections."""
        for writer in self._standing.values():
            writer.transport.abort()
        if self._standing:
            await asyncio.wait(self._standing)

    def _rewritten(self, data: bytes) -> bytes:
        return data if self.rewrites is None else data.replace(*self.rewrites)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert self._target.hostname is not None
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(
                self._target.hostname, self._target.port
            )
        except OSError:
            return  # the target does not run, or runs no more
        task = asyncio.current_task()
        assert task is not None
        self._standing[task] = upstream_writer
        asking = asyncio.create_task(_copy(reader, upstream_writer, self._rewritten))
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
            del self._standing[task]
            asking.cancel()
            upstream_writer.transport.abort()
            writer.close()


class Gate:
    """A proxy that passes everything on until the test closes it.

    `silence` passes nothing on and informs nobody, as a network failure does. The bytes arrive
    after `open`. `cut` resets every connection and each new one.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._passes = asyncio.Event()
        self._passes.set()
        self._refuses = False
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.port = 0

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    async def serve(self, port: int = 0) -> None:
        """Listen, on a free port if the gate has none."""
        self._server = await asyncio.start_server(
            close_after(self._on_connection), "127.0.0.1", port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def open(self) -> None:
        """Pass everything on, also the bytes that `silence` kept."""
        self._refuses = False
        self._passes.set()

    def silence(self) -> None:
        """Pass nothing on, and keep the bytes."""
        self._passes.clear()

    def cut(self) -> None:
        """Reset every connection and each new one."""
        self._refuses = True
        for writer in self._connections.values():
            writer.transport.abort()

    async def close(self) -> None:
        """Reset every connection and stop listening."""
        assert self._server is not None
        self._server.close()
        self.cut()
        self._passes.set()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._refuses:
            writer.transport.abort()
            return
        self._connections[task] = writer
        try:
            await self._join(reader, writer)
        finally:
            del self._connections[task]
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            beyond = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            return
        ways = [
            asyncio.create_task(self._pass_on(reader, beyond[1])),
            asyncio.create_task(self._pass_on(beyond[0], writer)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        beyond[1].transport.abort()
        await asyncio.wait(ways)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    changed: Callable[[bytes], bytes],
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_READ_BYTES):
            writer.write(changed(data))
            await writer.drain()


@asynccontextmanager
async def cutter(target: str, after: list[int]) -> AsyncIterator[Cutter]:
    """Run a Cutter for one test."""
    made = Cutter(target, after)
    server = await made.serve()
    try:
        yield made
    finally:
        server.close()
        await made.drop()
