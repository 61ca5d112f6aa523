"""HTTP responses of type `text/event-stream`, which write a client's stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock import sse
from penstock.web.answers import until_closed
from penstock.web.auth import identity_of, keep_counting
from penstock_edge.stream.client import Client
from penstock_edge.stream.credential import watch
from penstock_edge.stream.direct_write import DROPPED_S, SLICE_BYTES, direct_of, dropped
from penstock_edge.stream.phases import End

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class EventStream:
    """The response for one client.

    If the client already has all events of a run that has `ended`, the status is 204, so that an
    EventSource does not reconnect. So the response to an ended run takes the client's first bytes
    before it sends the head with the status.
    """

    def __init__(self, client: Client, *, ended: bool = False) -> None:
        self._client = client
        self._ended = ended

    def discard(self) -> None:
        self._client.leave()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """End also when the caller's credential becomes invalid. If the connection can be taken
        over from uvicorn, return after the head, and `Direct` continues the response."""
        client = self._client
        # Clients of a POST do not reconnect on their own, and the same POST would not continue at
        # the client's position. So only a GET is resumable.
        client.is_resumable = scope["method"] == "GET" and client.hub.view.framing.is_resumable
        client.read_for(identity_of(scope))
        client.when_left(watch(scope, client.expire, client.warn))
        continues = False
        try:
            continues = await self._respond(scope, receive, send)
        finally:
            if not continues:
                client.leave()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Return True if `Direct` continues the response."""
        client = self._client
        run_id = client.hub.view.run_id
        body: bytes | None = b""
        if self._ended:
            async with self._until_closed(receive):
                body = await client.take()
        if body is None:
            await send(head(204, run_id))
            await send({"type": "http.response.body"})
            return False
        await send(head(200, run_id, client.hub.view.headers))
        if (direct := direct_of(receive, client)) is not None:
            client.when_left(keep_counting(scope))
            direct.start(body)
            return True
        async with self._until_closed(receive):
            await self._respond_by_asgi(body, send)
        return False

    @contextlib.asynccontextmanager
    async def _until_closed(self, receive: Receive) -> AsyncIterator[None]:
        leaving = asyncio.create_task(self._watch(receive))
        try:
            yield
        finally:
            leaving.cancel()

    async def _respond_by_asgi(self, body: bytes | None, send: Send) -> None:
        client, in_frame = self._client, False
        try:
            while body is not None:
                for start in range(0, len(body), SLICE_BYTES):
                    in_frame = start > 0
                    await self._write(send, body[start : start + SLICE_BYTES])
                in_frame = False
                body = await client.take()
            await send({"type": "http.response.body"})
        except asyncio.CancelledError:
            if client.end is not End.SLOW:
                raise
            # `Client.maintain`, not the server, has cancelled this task to drop a slow client. So
            # the cancellation is undone, and the task continues.
            if task := asyncio.current_task():
                task.uncancel()
            await self._write_dropped(send, in_frame)

    async def _write(self, send: Send, body: bytes) -> None:
        self._client.writing.begin()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._client.writing.end()

    async def _write_dropped(self, send: Send, in_frame: bool) -> None:
        """Write nothing if the last write ended in a frame, or if the connection is not ready in
        time."""
        body = b"" if in_frame else dropped(self._client)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DROPPED_S):
                await send({"type": "http.response.body", "body": body})

    async def _watch(self, receive: Receive) -> None:
        await until_closed(receive)
        self._client.leave()


class Prefaced:
    """A stream's response with additional bytes before its body."""

    def __init__(self, stream: ASGIApp, preface: bytes) -> None:
        self._stream = stream
        self._preface = preface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_both(message: Message) -> None:
            await send(message)
            if self._preface and message["type"] == "http.response.start":
                body = {"type": "http.response.body", "body": self._preface, "more_body": True}
                await send(body)

        await self._stream(scope, receive, send_both)


def head(status: int, run_id: str = "", of_dialect: Mapping[str, str] = _NONE) -> Message:
    headers = {"penstock-run-id": run_id} if run_id else {}
    if status == 200:
        headers |= {**sse.HEADERS, **of_dialect}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": encoded}
