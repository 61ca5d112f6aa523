"""A receiver of webhooks that checks every signature, and misbehaves on request.

It uses HTTP over plain sockets, because a server library would not reset connections, send garbage,
or trickle an answer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

SECRET = "whsec_MDEyMzQ1Njc4OUFCQ0RFRkdISUpLTE1OT1BRUlNUVVY="  # ASCII text, as n8n needs it


@dataclass(frozen=True, slots=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float  # on the monotonic clock
    method: str = "POST"

    @property
    def id(self) -> str:
        """The delivery's id."""
        return self.headers["penstock-delivery"]

    @property
    def json(self) -> Any:
        """The body."""
        return orjson.loads(self.body)


Behaviour: TypeAlias = Callable[[asyncio.StreamWriter, Received], Awaitable[None]]


def answers(status: int, body: str = "", **headers: str) -> Behaviour:
    """Send a complete answer."""

    async def behave(writer: asyncio.StreamWriter, received: Received) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body.encode())}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "connection: close", "", body]).encode())

    return behave


OK = answers(200, "ok")


def hangs(seconds: float = 60) -> Behaviour:
    """Send no answer."""

    async def behave(writer: asyncio.StreamWriter, received: Received) -> None:
        await asyncio.sleep(seconds)

    return behave


def late(seconds: float) -> Behaviour:
    """Send a good answer after a delay."""

    async def behave(writer: asyncio.StreamWriter, received: Received) -> None:
        await asyncio.sleep(seconds)
        await OK(writer, received)

    return behave


def trickles(seconds: float = 60) -> Behaviour:
    """Send a 200 at once, and then a body that arrives very slowly."""

    async def behave(writer: asyncio.StreamWriter, received: Received) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        for _ in range(int(seconds * 10)):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.1)

    return behave


async def echoes(writer: asyncio.StreamWriter, received: Received) -> None:
    """Send an answer that contains the headers of the request."""
    await answers(200, str(received.headers))(writer, received)


async def garbage(writer: asyncio.StreamWriter, received: Received) -> None:
    """Send something that is no HTTP."""
    writer.write(b"\x00\x01\x02 this is no HTTP at all\r\n\r\n")


async def resets(writer: asyncio.StreamWriter, received: Received) -> None:
    """Reset the connection."""
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass
class Receiver:
    """The receiver. The next requests for a path get `plans`; further ones get `usual` or 200."""

    port: int = 0
    secret: str = SECRET
    requests: list[Received] = field(default_factory=list)
    bad_signatures: list[str] = field(default_factory=list)
    plans: dict[str, list[Behaviour]] = field(default_factory=lambda: defaultdict(list))
    usual: dict[str, Behaviour] = field(default_factory=dict)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    # By the delivery's id: the id by which receivers know it, which must stay the same.
    webhook_ids: dict[str, str] = field(default_factory=dict)
    # Number of 200s by id.
    answered: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def url(self, path: str = "/hook") -> str:
        """Return the URL of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    def got(self, path: str = "/hook") -> list[Received]:
        """Return the requests for a path, in order."""
        return [each for each in self.requests if each.path == path]

    async def until(self, enough: Callable[[], bool], timeout_s: float = 60) -> None:
        """Wait until the predicate accepts the requests for a path."""
        try:
            async with asyncio.timeout(timeout_s):
                while not enough():
                    self.moved.clear()
                    await self.moved.wait()
        except TimeoutError:
            seen = [(each.path, each.id) for each in self.requests][-20:]
            raise TimeoutError(f"not enough after {timeout_s:g} s: {seen}") from None

    async def count(self, count: int, path: str = "/hook", timeout_s: float = 60) -> list[Received]:
        """Wait until a path has this many requests."""
        await self.until(lambda: len(self.got(path)) >= count, timeout_s)
        return self.got(path)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection with one request."""
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                received = await _read(reader)
                self._check(received)
                self.requests.append(received)
                plan = self.plans[received.path]
                behave = plan.pop(0) if plan else self.usual.get(received.path, OK)
                self.moved.set()
                await behave(writer, received)
                if behave is OK:
                    self.answered[received.id] += 1
                await writer.drain()
        finally:
            writer.close()

    def _check(self, received: Received) -> None:
        webhook_id = received.headers["webhook-id"]
        if self.webhook_ids.setdefault(received.id, webhook_id) != webhook_id:
            self.bad_signatures.append(f"{received.id} has two ids: {webhook_id}")
        try:
            Webhook(self.secret).verify(received.body, received.headers)
        except WebhookVerificationError as error:
            self.bad_signatures.append(f"{received.path}: {error}")


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = first.split(" ")
    return Received(path, headers, body, asyncio.get_running_loop().time(), method)


@asynccontextmanager
async def receiver(secret: str = SECRET) -> AsyncIterator[Receiver]:
    """Run a receiver on a free port of this machine."""
    made = Receiver(secret=secret)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(made.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # A task that is cancelled before its first step closes nothing by itself.
        task.add_done_callback(lambda _: writer.close())

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
