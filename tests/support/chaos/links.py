"""TCP proxies in front of the brokers. They cut a service's connections or let them hang."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from support.fakes.serving import close_after

_READ_BYTES = 64 * 1024
# A client first sends its name. The name of a service's client is <service>-<host>-<pid>-<random>.
_PID = re.compile(rb'"name":\s*"[^"]*-(\d+)-[0-9a-f]{6}"')


@dataclass(eq=False, slots=True)
class _Pipe:
    """One connection through a link, in both directions."""

    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    flows: asyncio.Event
    pid: int | None = None

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


@dataclass(slots=True)
class Link:
    """A proxy in front of one broker. It listens on `port` and connects to `target`.

    `target` is set when the broker has started.
    """

    port: int = 0
    target: int = 0
    _cut: set[int] = field(default_factory=set)  # process ids whose connections are refused
    _hanging: set[int] = field(default_factory=set)
    _pipes: set[_Pipe] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Take a free port and listen."""
        self._server = await asyncio.start_server(close_after(self._accept), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self, pid: int) -> None:
        """Break the connections of this process, and refuse new ones."""
        self._cut.add(pid)
        for pipe in [pipe for pipe in self._pipes if pipe.pid == pid]:
            pipe.abort()

    def hang(self, pid: int) -> None:
        """Stop the data of this process's connections without closing them."""
        self._hanging.add(pid)
        for pipe in self._pipes:
            if pipe.pid == pid:
                pipe.flows.clear()

    def heal(self, pid: int) -> None:
        """End `cut` and `hang` for this process."""
        self._cut.discard(pid)
        self._hanging.discard(pid)
        for pipe in self._pipes:
            pipe.flows.set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for pipe in tuple(self._pipes):
            pipe.abort()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connected(reader, writer)
        except (ConnectionError, OSError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        its_reader, its_writer = await asyncio.open_connection("127.0.0.1", self.target)
        flows = asyncio.Event()
        flows.set()
        pipe = _Pipe((writer, its_writer), flows)
        self._pipes.add(pipe)
        down = asyncio.create_task(_copy(its_reader, writer, pipe.flows))
        try:
            first = await reader.read(_READ_BYTES)
            if found := _PID.search(first):
                pipe.pid = int(found[1])
            if pipe.pid in self._cut:
                return
            if pipe.pid in self._hanging:
                pipe.flows.clear()
            await pipe.flows.wait()
            its_writer.write(first)
            up = asyncio.create_task(_copy(reader, its_writer, pipe.flows))
            try:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel()
        finally:
            down.cancel()
            its_writer.transport.abort()
            self._pipes.discard(pipe)


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_READ_BYTES):
            await flows.wait()
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def links(count: int) -> AsyncIterator[list[Link]]:
    """Listen with the given number of links; the caller sets each link's target later."""
    made = [Link() for _ in range(count)]
    try:
        for link in made:
            await link.listen()
        yield made
    finally:
        for link in made:
            await link.close()
