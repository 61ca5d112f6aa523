"""An agent server that misbehaves: it sends raw HTTP over asyncio, with a script per answer.

A script is a coroutine that gets the `Answer` to one request that starts or continues a run (or to
a request that `scripted` selects). The script sends any bytes in any way. A request that reconnects
to a run gets a 404, as from a server without that endpoint, unless `comes_back` has a script for
it. All other requests (ADK's sessions, cancels) get a 200 with `{}` unless `other` returns
something else. The server records every request.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from penstock.settings import Config
from support.drive.waiting import eventually

_RUN = re.compile(r"/runs$|/continue$|/run_sse$")
_COME_BACK = re.compile(r"/resume$|/v1/runs/[^/]+/events(\?|$)")
_HEAD_LIMIT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `at` is the time of its arrival on the loop's clock."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def form(self) -> dict[str, str]:
        """The body as a form."""
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))


@dataclass(slots=True)
class Answer:
    """The means of a script to send its answer. `sent` is the body that was sent so far."""

    request: Request
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: bytearray = field(default_factory=bytearray)

    async def head(self, status: int = 200, content_type: str = "text/event-stream") -> None:
        """Send the status and headers of a chunked answer."""
        await self.raw(
            f"HTTP/1.1 {status} Whatever\r\ncontent-type: {content_type}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )

    async def send(self, data: bytes) -> None:
        """Send a piece of the body as one chunk."""
        await self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.sent += data

    async def end(self) -> None:
        """End the body properly."""
        await self.raw(b"0\r\n\r\n")

    async def whole(self, body: bytes, status: int = 200, **more: str) -> None:
        """Send head, body and end."""
        await self.head(status, **more)
        if body:
            await self.send(body)
        await self.end()

    async def raw(self, data: bytes) -> None:
        """Send these bytes unchanged; they need not be HTTP."""
        self.writer.write(data)
        await self.writer.drain()

    def cut(self) -> None:
        """Drop the connection without ending the body."""
        self.writer.transport.abort()

    async def left(self) -> None:
        """Wait until the client closes the connection."""
        with suppress(ConnectionError):
            await self.reader.read()


Script = Callable[[Answer], Awaitable[None]]


class Misbehaving:
    """The server; see the module's docstring."""

    def __init__(self, port: int = 0) -> None:
        self.answering: set[asyncio.Task[None]] = set()  # one task for each connection
        self.requests: list[Request] = []
        self.other: Callable[[Request], tuple[int, Any]] = lambda request: (200, {})
        self.scripted: Callable[[Request], bool] = _runs_something
        self.comes_back: Script | None = None
        self._scripts: list[Script] = []
        self._port = port
        self._closed = 0

    @property
    def url(self) -> str:
        """The server's URL. After `stop`, nothing listens there."""
        return f"http://127.0.0.1:{self._port}"

    def script(self, *scripts: Script) -> None:
        """Set the answers, one script per request. The last script answers all further requests."""
        self._scripts = list(scripts)

    @property
    def calls(self) -> list[Request]:
        """The requests that would have run something."""
        return [request for request in self.requests if _runs_something(request)]

    @property
    def returns(self) -> list[Request]:
        """The requests that reconnect to a run."""
        return [request for request in self.requests if _COME_BACK.search(request.path)]

    async def called(self, times: int = 1) -> Request:
        """Wait for `times` calls; return the last call."""

        async def probe() -> bool:
            return len(self.calls) >= times

        await eventually(probe, what=f"{times} calls of the upstream")
        return self.calls[-1]

    async def dropped(self, times: int = 1) -> None:
        """Wait until clients have closed `times` connections before the end of the answer."""

        async def probe() -> bool:
            return self._closed >= times

        await eventually(probe, what=f"{times} closed connections")

    async def serve(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = server.sockets[0].getsockname()[1]
        return server

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._on_connection(reader, writer))
        self.answering.add(task)
        task.add_done_callback(self.answering.discard)
        # A task that is cancelled before its first step closes nothing by itself.
        task.add_done_callback(lambda _: writer.close())

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                answer = Answer(request, reader, writer)
                if self.scripted(request):
                    script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
                    await script(answer)
                elif _COME_BACK.search(request.path):
                    await (self.comes_back or _is_unknown)(answer)
                else:
                    status, body = self.other(request)
                    await answer.whole(
                        json.dumps(body).encode(), status, content_type="application/json"
                    )
        except (ConnectionError, asyncio.IncompleteReadError):
            self._closed += 1
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            writer.close()


def _runs_something(request: Request) -> bool:
    return _RUN.search(request.path) is not None


@asynccontextmanager
async def misbehaving(port: int = 0) -> AsyncIterator[Misbehaving]:
    """Run a server for one test, on a free port unless one is named."""
    made = Misbehaving(port)
    server = await made.serve()
    try:
        yield made
    finally:
        server.close()
        # Without this, a later test would collect an answer that never ends, and fail.
        for task in tuple(made.answering):
            task.cancel()
        if made.answering:
            await asyncio.wait(set(made.answering))


async def _read(reader: asyncio.StreamReader) -> Request | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = await reader.readline()
        if not line or len(head) > _HEAD_LIMIT_BYTES:
            return None
        head += line
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.lower(): value for line in lines if line for name, value in [line.split(": ", 1)]
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, asyncio.get_running_loop().time())


def agents(upstream: Misbehaving, **fields: Any) -> Config:
    """Return a configuration with the agents `agno` and `adk`, both on this server."""
    common = {"url": upstream.url, **fields}
    return Config.model_validate(
        {"agents": [{"id": each, "protocol": each, **common} for each in ("agno", "adk")]}
    )


def plays(body: bytes, then: Script | None = None) -> Script:
    """Return a script that sends the body, and then runs the script `then` or ends the answer."""

    async def script(answer: Answer) -> None:
        await answer.head()
        await answer.send(body)
        await (then(answer) if then else answer.end())

    return script


async def _is_unknown(answer: Answer) -> None:
    await answer.whole(b'{"detail":"Not Found"}', 404, content_type="application/json")


async def stalls(answer: Answer) -> None:
    """Send nothing more until the client closes the connection."""
    await answer.left()
    raise ConnectionResetError


async def cuts(answer: Answer) -> None:
    """Break the connection."""
    answer.cut()
