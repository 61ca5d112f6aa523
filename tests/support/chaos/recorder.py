"""An HTTP proxy in front of an agent server that keeps every request and every response byte.

The proxy is not under test: it shows what an upstream really sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import h11

from support.fakes.serving import close_after

_READ_BYTES = 64 * 1024

Ended = Literal["whole", "cut", "client left", "server left"]


@dataclass(slots=True)
class Exchange:
    """One complete request, and the response as far as the server sent it."""

    method: str
    path: str
    request: bytes
    status: int | None = None
    body: bytearray = field(default_factory=bytearray)
    ended: Ended | None = None  # "whole": the server sent all, and the client was still connected


class _Gone(Exception):
    """One of the two sides has closed its connection."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended)
        self.ended = ended


@dataclass(eq=False, slots=True)
class _Active:
    exchange: Exchange
    task: asyncio.Task[None]


class Recorder:
    """A proxy in front of one server. `exchanges` are in the order of their requests."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._active: set[_Active] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.exchanges: list[Exchange] = []
        self.url = ""

    async def listen(self) -> None:
        """Take a free port and listen."""
        self._server = await asyncio.start_server(close_after(self._accept), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> int:
        """Break every response that is under way; return their number."""
        cut = 0
        for active in tuple(self._active):
            if active.exchange.ended is None:
                active.exchange.ended = "cut"
                active.task.cancel()
                cut += 1
        return cut

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        client = _Side(h11.Connection(h11.SERVER), reader, writer)
        try:
            while await self._exchange(client):
                client.http.start_next_cycle()
        except (_Gone, asyncio.CancelledError, h11.RemoteProtocolError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _exchange(self, client: _Side) -> bool:
        """Pass on one request and its response; return whether another request may follow."""
        request = await client.next("client left")
        if not isinstance(request, h11.Request):
            return False
        body = bytearray()
        while isinstance(event := await client.next("client left"), h11.Data):
            body += event.data
        exchange = Exchange(request.method.decode(), request.target.decode(), bytes(body))
        self.exchanges.append(exchange)
        task = asyncio.create_task(self._answer(client, request, exchange))
        active = _Active(exchange, task)
        self._active.add(active)
        leaves = asyncio.create_task(client.leaves())
        try:
            await asyncio.wait({task, leaves}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._active.discard(active)
            for each in (task, leaves):
                each.cancel()
            await asyncio.wait({task, leaves})
        exchange.ended = exchange.ended or "client left"
        return exchange.ended == "whole" and client.http.our_state is h11.DONE

    async def _answer(self, client: _Side, request: h11.Request, exchange: Exchange) -> None:
        assert self._target.hostname is not None
        reader, writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        server = _Side(h11.Connection(h11.CLIENT), reader, writer)
        headers = [pair for pair in request.headers if pair[0] != b"connection"]
        try:
            await server.send(
                h11.Request(
                    method=request.method,
                    target=request.target,
                    headers=[*headers, (b"connection", b"close")],
                ),
                h11.Data(data=exchange.request),
                h11.EndOfMessage(),
            )
            await self._pass_on(server, client, exchange)
        except _Gone as gone:
            exchange.ended = gone.ended
        except (ConnectionError, h11.ProtocolError):
            exchange.ended = exchange.ended or "server left"
        finally:
            writer.transport.abort()

    async def _pass_on(self, server: _Side, client: _Side, exchange: Exchange) -> None:
        while True:
            event = await server.next("server left")
            if isinstance(event, h11.Response):
                exchange.status = event.status_code
                headers = [pair for pair in event.headers if pair[0] != b"connection"]
                event = h11.Response(
                    status_code=event.status_code, headers=headers, reason=event.reason
                )
            elif isinstance(event, h11.Data):
                exchange.body += event.data
            elif isinstance(event, h11.ConnectionClosed):
                raise _Gone("server left")
            await client.send(event)
            if isinstance(event, h11.EndOfMessage):
                exchange.ended = "whole"
                return


@dataclass(slots=True)
class _Side:
    """One connection with its HTTP state."""

    http: h11.Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def next(self, ended: Ended) -> h11.Event:
        """Return the next event from the other end. Raises _Gone."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            try:
                self.http.receive_data(await self.reader.read(_READ_BYTES))
            except (ConnectionError, h11.RemoteProtocolError) as error:
                raise _Gone(ended) from error
        assert isinstance(event, h11.Event)  # PAUSED comes only without a send between two calls
        return event

    async def send(self, *events: h11.Event) -> None:
        """Send the event. Raises ConnectionError."""
        for event in events:
            self.writer.write(self.http.send(event) or b"")
        await self.writer.drain()

    async def leaves(self) -> None:
        """Wait until the other end has closed; keep the bytes that arrive before that."""
        try:
            while data := await self.reader.read(_READ_BYTES):
                self.http.receive_data(data)
        except ConnectionError:
            return


@asynccontextmanager
async def recorder(target: str) -> AsyncIterator[Recorder]:
    """Run a recorder in front of that server."""
    made = Recorder(target)
    await made.listen()
    try:
        yield made
    finally:
        await made.close()
