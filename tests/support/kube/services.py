"""A Service of Kubernetes as kube-proxy makes it: each new connection goes to one of its pods.

An open connection stays with its pod, also after the pod has left the Service. Nodes hear of a
change after a delay, for which the chart has its preStop hooks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from support.fakes.serving import close_after

_READ_BYTES = 64 * 1024


@dataclass(slots=True)
class Service:
    """Forwards the connections to `port` to the ports of the pods.

    `refused` has a line for each connection that found no pod, or a pod whose port was closed.
    """

    name: str
    chance: random.Random
    late_s: tuple[float, float]  # the least and the greatest delay of a change
    port: int = 0
    refused: list[str] = field(default_factory=list)
    connections: int = 0
    _targets: tuple[int, ...] = ()
    _changes: count[int] = field(default_factory=lambda: count(1))
    _change: int = 0  # the number of the change that the nodes know
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        """Take a free port and listen."""
        self._server = await asyncio.start_server(
            close_after(self._accept), "127.0.0.1", 0, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def change(self, targets: Sequence[int]) -> None:
        """Let the nodes know after a delay that these are the ports of the pods that are ready."""

        async def known(number: int) -> None:
            await asyncio.sleep(self.chance.uniform(*self.late_s))
            if number > self._change:
                self._change, self._targets = number, tuple(targets)

        self._spawn(known(next(self._changes)))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            await self._forward(reader, writer)
        finally:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._targets:
            self.refused.append(f"{self.name}: no pod is ready")
            return
        port = self._targets[self.connections % len(self._targets)]
        try:
            its_reader, its_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            self.refused.append(f"{self.name}: {error}")
            return
        up = asyncio.create_task(_copy(reader, its_writer))
        try:
            await _copy(its_reader, writer)
            with suppress(OSError):  # the client gets what was written, and then the end
                writer.close()
                await writer.wait_closed()
        finally:
            up.cancel()
            its_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy all bytes and the end. After a reset, the other side is reset, too."""
    try:
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()
