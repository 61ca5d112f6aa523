"""Writes a stream directly to its connection, without ASGI and without a task (decision 0113).

ASGI sends the head of the response. Then the stream takes the connection over from uvicorn, and the
ASGI application returns. From then until the end of the response, the hub writes to the transport
while the client is in sync. At all other times a task writes. So an idle stream has no task, and
takes 7 KB of memory. With a suspended ASGI call and two tasks, an idle stream would take 24 KB.
The hub makes the HTTP chunk of an item once for all clients in sync.

This module uses objects of uvicorn that are not public. So the edge uses this module only with the
uvicorn versions in `TRIED`, and only with the server of `penstock.web`. In all other cases ASGI
writes all bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import uvicorn
from starlette.types import Receive
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from penstock import sse
from penstock.log_fields import run_of
from penstock.web.protocol import HttpProtocol
from penstock_edge.stream.client import Client
from penstock_edge.stream.drivers import Driver
from penstock_edge.stream.in_sync import Write
from penstock_edge.stream.phases import End, Idle
from penstock_edge.stream.ring import http_chunk
from penstock_edge.views.view import Delivery

log = logging.getLogger(__name__)

TRIED: Final = ("0.54.",)
SLICE_BYTES: Final = 256 * 1024
DROPPED_S: Final = 5.0  # the time limit, in seconds, to write `DROPPED` to a slow connection
DROPPED: Final = sse.comment(
    "dropped: this connection reads too slowly; reconnect with Last-Event-ID to continue"
)
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Direct(Driver):
    """The driver of a stream that has taken over its connection."""

    __slots__ = ("_client", "_cycle", "_first", "_protocol", "_resumed", "_task", "_write")

    def __init__(self, client: Client, cycle: RequestResponseCycle, protocol: HttpProtocol) -> None:
        self._client = client
        self._cycle = cycle
        self._protocol = protocol
        self._write: Write = protocol.transport.write
        self._task: asyncio.Task[None] | None = None
        self._resumed: asyncio.Future[None] | None = None
        self._first = b""

    def start(self, body: bytes) -> None:
        """Take the connection over; the stream begins with the bytes `body`."""
        self._protocol.take_over(self)
        # With this flag set, uvicorn lets the ASGI application return before the response is
        # complete.
        self._cycle.disconnected = True
        if not self._client.has_left:
            self._client.driver = self
        self._first = body
        self.wake()

    # The following methods are called by `Client`.

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self._protocol.transport

    @property
    def write(self) -> Write | None:
        """Return None while too many bytes wait in the transport."""
        return None if self._protocol.flow.write_paused else self._write

    def wake(self) -> None:
        if self._task is None and self._protocol.stream is self:
            self._task = asyncio.create_task(self._run())

    def drop(self) -> bool:
        """Let the task see that `Client.end` is `End.SLOW`; return False if no task runs."""
        return self._task is not None and self._task.cancel()

    def fail(self) -> None:
        self._protocol.transport.abort()

    # The following methods are called by `HttpProtocol`.

    def paused(self) -> None:
        """Let the client leave the group in sync, because too many bytes wait in the transport."""
        self._client.leave_in_sync()

    def resumed(self) -> None:
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._client.wake()

    def lost(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._client.leave()

    # The following methods belong to the task.

    async def _run(self) -> None:
        client, in_frame = self._client, False
        body: bytes | Idle | None
        body, self._first = self._first, b""
        try:
            while not isinstance(body, Idle):
                if body is None:
                    self._complete()
                    return
                for start in range(0, len(body), SLICE_BYTES):
                    in_frame = start > 0
                    await self._write_chunk(body[start : start + SLICE_BYTES])
                in_frame = False
                body = await client.next_write()
        except asyncio.CancelledError:
            if client.end is not End.SLOW or self._protocol.stream is not self:
                client.leave()
                raise
            await self._write_dropped(in_frame)
        except Exception:
            extra = run_of(client.hub.view.run_id)
            log.exception("a stream ends, because its bytes cannot be written", extra=extra)
            self._protocol.transport.abort()
        finally:
            self._task = None

    async def _write_chunk(self, body: bytes) -> None:
        client = self._client
        client.writing.begin()
        await self._writable()
        self._write(http_chunk(body))
        client.writing.end()

    async def _writable(self) -> None:
        while self._protocol.flow.write_paused:
            self._resumed = asyncio.get_running_loop().create_future()
            try:
                await self._resumed
            finally:
                self._resumed = None

    def _complete(self, body: bytes = b"") -> None:
        """Write the end of the response, and give the connection back to uvicorn."""
        client, cycle, protocol = self._client, self._cycle, self._protocol
        if protocol.stream is self:
            protocol.give_back(self)
            self._write((http_chunk(body) if body else b"") + _LAST_CHUNK)
            cycle.response_complete = True
            # The client is asked to reconnect, perhaps to another edge. So the connection is
            # closed, and the client's next request opens a new connection.
            if not cycle.keep_alive or client.end in (End.AGED, End.DRAINED):
                protocol.transport.close()
            protocol.on_response_complete()
        client.leave()

    async def _write_dropped(self, in_frame: bool) -> None:
        """Write the reason why the stream ends, and close the connection. Nothing is written if the
        last write ended inside a frame, or if the connection does not accept the bytes in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DROPPED_S):
                await self._writable()
                self._complete(b"" if in_frame else dropped(self._client))
                return
        self._protocol.transport.abort()


def dropped(client: Client) -> bytes:
    is_resumable = client.hub.view.delivery is Delivery.RESUMABLE
    return DROPPED if is_resumable else client.interruption()


def is_tried() -> bool:
    return uvicorn.__version__.startswith(TRIED)


def cycle_of(receive: Receive) -> RequestResponseCycle | None:
    """Return None if another server or version handles the request."""
    # Middleware wraps `send`, but not `receive`. So `receive` is still a method of uvicorn's own
    # object.
    cycle = getattr(receive, "__self__", None)
    return cycle if is_tried() and isinstance(cycle, RequestResponseCycle) else None


def direct_of(receive: Receive, client: Client) -> Direct | None:
    """Return None if ASGI must be used; the response's head has been sent."""
    cycle = cycle_of(receive)
    if cycle is None or not cycle.chunked_encoding or cycle.disconnected:
        return None
    protocol = cycle.transport.get_protocol()
    if not isinstance(protocol, HttpProtocol) or protocol.cycle is not cycle:
        return None
    return Direct(client, cycle, protocol)
