"""A client's stream as an HTTP response: `text/event-stream`, written as it comes."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock import sse
from penstock.web.auth import identity_of
from penstock_edge.runs.access import while_it_holds
from penstock_edge.stream.client import Client, End
from penstock_edge.stream.direct_write import direct_of

SLICE_BYTES = 256 * 1024
LAST_WORDS_S = 5.0
LAST_WORDS = sse.comment(
    "dropped: this connection reads too slowly; come back with Last-Event-ID to go on"
)


class EventStream:
    """The response of one client. Its end is the end of what the client follows.

    Whoever comes back to the end of a finished run gets 204, which tells an EventSource not to
    come back again; `ended` says that this has to be looked at before the head is sent.
    """

    def __init__(self, client: Client, *, ended: bool = False) -> None:
        self._client = client
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this one response; it ends when the credential does."""
        client = self._client
        # a client of a POST does not ask again by itself, and has no place to ask for
        client.resumable = scope["method"] == "GET" and client.hub.view.form.resumable
        client.read_for(identity_of(scope))
        with while_it_holds(scope, client.expire, client.warn):
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
            # cancelled by the hub's beat, not by the server: this task lives on
            if task := asyncio.current_task():
                task.uncancel()
            await self._say_last_words(send, mid_frame)
        finally:
            leaving.cancel()
            client.leave()

    async def _write(self, send: Send, body: bytes) -> None:
        self._client.begin_write()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._client.wrote()

    async def _say_last_words(self, send: Send, mid_frame: bool) -> None:
        """Why it ends, if the connection takes that and no frame is half written."""
        words = LAST_WORDS if self._client.hub.view.droppable else self._client.last_words()
        body = b"" if mid_frame else words
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await send({"type": "http.response.body", "body": body})

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client.leave()


class Prefaced:
    """A stream with something in front of its body."""

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
    """The beginning of a response; 204 has no body."""
    headers = [(b"penstock-run-id", run_id.encode())] if run_id else []
    if status == 200:
        headers += [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"connection", b"keep-alive"),
            (b"x-accel-buffering", b"no"),
        ]
    return {"type": "http.response.start", "status": status, "headers": headers}
