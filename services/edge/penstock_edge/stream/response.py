"""A client's stream as an HTTP response of type `text/event-stream`."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock import sse
from penstock.web.auth import identity_of
from penstock_edge.stream.client import Client, End
from penstock_edge.stream.credential import while_valid
from penstock_edge.stream.direct_write import direct_of
from penstock_edge.stream.leaving import until_closed
from penstock_edge.views.view import Delivery

SLICE_BYTES = 256 * 1024
DROPPED_S = 5.0  # the time that a slow connection gets for the comment
DROPPED = sse.comment(
    "dropped: this connection reads too slowly; reconnect with Last-Event-ID to continue"
)


class EventStream:
    """The response of one client; it ends when the client's stream is over.

    `ended`: the run is over. If the client has all of it already, the answer is 204, which keeps an
    EventSource from reconnecting. So the first bytes are taken before the head is sent.
    """

    def __init__(self, client: Client, *, ended: bool = False) -> None:
        self._client = client
        self._ended = ended

    def discard(self) -> None:
        """Leave the hub: this response will not be sent."""
        self._client.leave()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this one response; it ends when the credential does."""
        client = self._client
        # A client of a POST does not reconnect by itself, and the same request would not continue.
        client.resumable = scope["method"] == "GET" and client.hub.view.framing.resumable
        client.read_for(identity_of(scope))
        with while_valid(scope, client.expire, client.warn):
            await self._respond(receive, send)

    async def _respond(self, receive: Receive, send: Send) -> None:
        client = self._client
        run_id = client.hub.view.run_id
        client.task = asyncio.current_task()
        leaving = asyncio.create_task(self._watch(receive))
        mid_frame = False
        try:
            body = await client.take() if self._ended else b""
            if body is None:
                await send(head(204, run_id))
                await send({"type": "http.response.body"})
                return
            await send(head(200, run_id))
            client.direct = direct_of(receive)
            while body is not None:
                for start in range(0, len(body), SLICE_BYTES):
                    mid_frame = start > 0
                    await self._write(send, body[start : start + SLICE_BYTES])
                mid_frame = False
                body = await client.take()
            if client.end in (End.AGED, End.DRAINED) and client.direct:
                client.direct.close_after()
            await send({"type": "http.response.body"})
        except asyncio.CancelledError:
            if client.end is not End.SLOW:
                raise
            # The hub's beat has cancelled this task, not the server: the task goes on.
            if task := asyncio.current_task():
                task.uncancel()
            await self._say_dropped(send, mid_frame)
        finally:
            leaving.cancel()
            client.leave()

    async def _write(self, send: Send, body: bytes) -> None:
        self._client.begin_write()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._client.wrote()

    async def _say_dropped(self, send: Send, mid_frame: bool) -> None:
        """Say why the stream ends, unless a frame is half written or the connection is stuck."""
        resumable = self._client.hub.view.delivery is Delivery.RESUMABLE
        text = DROPPED if resumable else self._client.interruption()
        body = b"" if mid_frame else text
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DROPPED_S):
                await send({"type": "http.response.body", "body": body})

    async def _watch(self, receive: Receive) -> None:
        await until_closed(receive)
        self._client.leave()


class Prefaced:
    """A stream with some bytes before its body."""

    def __init__(self, stream: ASGIApp, preface: bytes) -> None:
        self._stream = stream
        self._preface = preface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this one response."""

        async def send_both(message: Message) -> None:
            await send(message)
            if self._preface and message["type"] == "http.response.start":
                body = {"type": "http.response.body", "body": self._preface, "more_body": True}
                await send(body)

        await self._stream(scope, receive, send_both)


def head(status: int, run_id: str = "") -> Message:
    """The head of a response: 200 with `text/event-stream`, or 204."""
    headers = [(b"penstock-run-id", run_id.encode())] if run_id else []
    if status == 200:
        headers += [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"connection", b"keep-alive"),
            (b"x-accel-buffering", b"no"),
        ]
    return {"type": "http.response.start", "status": status, "headers": headers}
