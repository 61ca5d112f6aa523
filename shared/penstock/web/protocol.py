"""Limit the size and the duration of requests in uvicorn's HTTP protocol.

httptools reads a request's head of any length, and uvicorn waits for any time until a request is
complete. So a client could keep any number of connections open by sending half a request on each of
them.
"""

from __future__ import annotations

import asyncio
import logging
from types import MappingProxyType
from typing import Any, Final, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.log_fields import run_of

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_S: Final = 15.0
BODY_S: Final = 60.0
BODY_BYTES_PER_S: Final = 1024
LINGER_S: Final = 5.0
# The number of bytes of framing that a chunked body may have for each byte of its content. A chunk
# with one byte of content has six bytes of framing.
FRAMING_PER_BYTE: Final = 16

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
# What all responses that streams have taken over share: an event for which no task waits, and the
# scope of their requests.
_UNHEARD: Final = asyncio.Event()
_NO_REQUEST: Final[Any] = MappingProxyType({})


class Stream(Protocol):
    """A response that writes directly to the transport after ASGI has sent the response's head."""

    def paused(self) -> None:
        """Note that the transport's buffer is full."""
        ...

    def resumed(self) -> None:
        """Note that the transport accepts bytes again."""
        ...

    def lost(self) -> None:
        """Note that the connection is closed."""
        ...


class _Pipeline(list[Any]):
    """The requests that wait for the end of a stream, with the methods of a deque that uvicorn
    calls. An empty deque takes 760 bytes."""

    __slots__ = ()

    def appendleft(self, request: Any) -> None:
        self.insert(0, request)


class HttpProtocol(HttpToolsProtocol):
    """Closes a connection if the client's request is too large or comes too slowly.

    - The request line and the headers may have `MAX_HEAD_BYTES`. A larger head is answered with
      431. One read (at most 256 KiB) may contain the end of a head and a body. So the bytes of a
           read are parsed first. These bytes count as bytes of the head only if the head is still
           incomplete.
    - The framing of a chunked body (chunk sizes, extensions, trailers) may have `MAX_HEAD_BYTES`,
      plus `FRAMING_PER_BYTE` bytes for each byte of the body. If the framing is larger, the
      connection is closed. Trailers are dropped.
    - The head must be complete within `head_s` seconds, else the answer is 408. The time begins
      when the connection is opened, or with the first byte of a later request. Further bytes do not
      extend the time.
    - The body must be complete within `body_s` seconds, plus one second for every
      `BODY_BYTES_PER_S` bytes that have arrived. Otherwise the answer is 408. The time during which
      the application does not read is not counted.
    - The body is read when the application asks for it, and not before.
    - Between two requests, a connection may be idle for uvicorn's `timeout_keep_alive`.

    These limits never end a response that is being sent, such as an event stream.

    A `Stream` may take the connection over. The protocol then calls the stream's methods when
    something happens to the connection, and drops bytes that the client sends as a body. This ends
    when `give_back` is called.
    """

    # With these in its dictionary, an instance would have over 30 attributes. Python would give it
    # a dictionary with names of its own, which takes 1 KB more.
    __slots__ = (
        "_began",
        "_completed",
        "_deadline",
        "_framing_bytes",
        "_head_bytes",
        "_in_head",
        "_left_s",
        "_looked_at",
        "stream",
    )

    head_s = HEAD_S
    body_s = BODY_S

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.stream: Stream | None = None
        self._head_bytes = 0
        self._in_head = True
        self._completed = False  # Whether the last read contained the end of a request.
        self._began = False  # Whether the last read contained the end of a head.
        # The bytes of framing so far, minus the framing that the body's bytes allow.
        self._framing_bytes = 0
        self._left_s = 0.0  # The seconds that were left for the body at the time `_looked_at`.
        self._looked_at = 0.0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.lost()

    def take_over(self, stream: Stream) -> None:
        """Let the stream write the rest of the response."""
        self.stream = stream
        # only while the transport is read is a closed connection noticed
        self.flow.resume_reading()
        # The request is not needed any more. Without these lines, all of it would stay in memory
        # until the response ends.
        self.scope = self.cycle.scope = _NO_REQUEST
        self.headers, self.cycle.body = [], bytearray()
        # No task waits for these events until `give_back`: the stream is told when the transport
        # accepts bytes again. The shared event saves 816 bytes twice.
        self.cycle.message_event = self.flow._is_writable_event = _UNHEARD
        self.pipeline = _Pipeline(self.pipeline)  # type: ignore[assignment]  # see there

    def give_back(self, stream: Stream) -> None:
        assert self.stream is stream
        self.stream = None
        # ASGI writes the next response, and waits for this event while too many bytes wait.
        self.flow._is_writable_event = asyncio.Event()
        if not self.flow.write_paused:
            self.flow._is_writable_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.stream is not None:
            self.stream.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.stream is not None:
            self.stream.resumed()

    def data_received(self, data: bytes) -> None:
        self._completed = self._began = False
        if not self._in_head:
            self._left_s += len(data) / BODY_BYTES_PER_S
            self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > MAX_HEAD_BYTES:
            self._close_with(_TOO_LARGE)
            return
        if self._began and not self._in_head and self.stream is None:
            # The rest of the body waits in the sockets until the application reads it. So the
            # memory does not grow before the caller is authenticated.
            self.flow.pause_reading()
        if self._completed or not self._in_head:
            return
        if self._deadline is None:
            self._wait_for_head()  # the next request begins
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._close_with(_TOO_LARGE)

    def handle_websocket_upgrade(self) -> None:
        """Stop the timer, because the limits do not apply to WebSockets."""
        self._stop_waiting()
        super().handle_websocket_upgrade()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. A trailer of a chunked body is dropped, because the number of trailers is
        not limited."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= (1 + FRAMING_PER_BYTE) * len(body)
        if self.stream is None:
            super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_head, self._began = False, True
        self._stop_waiting()
        super().on_headers_complete()
        self._left_s, self._looked_at = self.body_s, self.loop.time()
        self._deadline = self.loop.call_later(self._left_s, self._on_slow_body)

    def on_message_complete(self) -> None:
        self._in_head = self._completed = True
        self._head_bytes = self._framing_bytes = 0
        self._stop_waiting()
        super().on_message_complete()

    def _wait_for_head(self) -> None:
        self._deadline = self.loop.call_later(self.head_s, self._on_slow_head)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_slow_head(self) -> None:
        self._deadline = None
        if self._is_answering():
            # An earlier request is still being answered. After the answer, uvicorn's own keep-alive
            # limit closes the connection if it stays idle.
            return
        self._close_with(_TOO_SLOW)

    def _on_slow_body(self) -> None:
        now = self.loop.time()
        # This time does not count if the application is not reading, because the client cannot send
        # then.
        if not self.flow.read_paused:
            self._left_s -= now - self._looked_at
        self._looked_at = now
        if self._left_s > 0 or self._is_answering():
            again_s = max(self._left_s, 1.0)
            self._deadline = self.loop.call_later(again_s, self._on_slow_body)
            return
        self._deadline = None
        self._close_with(_TOO_SLOW)

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return bool(self.pipeline) or (
            cycle is not None and cycle.response_started and not cycle.response_complete
        )

    def _close_with(self, answer: bytes) -> None:
        """Close the connection. If the request has no answer yet, send this answer first."""
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle
        is_answered = not self._in_head and cycle is not None and cycle.response_started
        if not is_answered and not self._is_answering():
            self.transport.write(answer)
        self.transport.close()
        # `close` waits until all bytes are sent. Without the abort, a client that does not read
        # could keep the connection open.
        self.loop.call_later(LINGER_S, self.transport.abort)


def refusing_quietly(app: ASGIApp) -> ASGIApp:
    """Wrap the app so that refused WebSockets and disconnected clients are not logged as errors.

    If a WebSocket's handshake gets an HTTP response, uvicorn 0.54 logs that the handshake got no
    answer. If a client disconnects before the answer, uvicorn logs a failure of the application.
    """

    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await app(scope, receive, send)
            return
        try:
            await app(scope, receive, send)
        except WebSocketDisconnect:
            path = scope["path"]
            log.debug("the client of WebSocket %s has left", path, extra=run_of(path))
        finally:
            connection: Any = getattr(send, "__self__", None)
            is_over = getattr(connection, "close_sent", False)
            if is_over or getattr(connection, "disconnected", False):
                connection.handshake_complete = True

    return refusing
