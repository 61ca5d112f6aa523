"""Limit the size and the duration of requests in uvicorn's HTTP protocol.

httptools reads a head of any length, and uvicorn waits without a limit until a request is complete.
Without limits, a client could keep any number of connections open by sending half a request on each
connection.
"""

from __future__ import annotations

import asyncio
import logging
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
# How many bytes of framing a chunked body may have for each byte of its content. A chunk of one
# byte has six bytes of framing.
FRAMING_PER_BYTE: Final = 16

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
# The event of all responses that streams have taken over. No task waits for it.
_UNHEARD: Final = asyncio.Event()


class Stream(Protocol):
    """A response that writes to the transport by itself, after ASGI has sent its head."""

    def paused(self) -> None:
        """Note that the transport has too many bytes."""
        ...

    def resumed(self) -> None:
        """Note that the transport accepts bytes again."""
        ...

    def lost(self) -> None:
        """Note that the connection is closed."""
        ...


class HttpProtocol(HttpToolsProtocol):
    """Closes a connection if its client sends too large a head, or sends too slowly.

    - The request line and headers may have `MAX_HEAD_BYTES`. A larger head is answered with 431.
      The bytes of one read (at most 256 KiB) may also contain a body, so the bytes are parsed
      before the bytes of the head are counted.
    - The framing of a chunked body (chunk sizes, extensions, trailers) may have `MAX_HEAD_BYTES`,
      plus `FRAMING_PER_BYTE` bytes for each byte of the body. If the framing is larger, the
      connection is closed. Trailers are dropped.
    - The head must be complete within `head_s`, else the answer is 408. The time begins when the
      connection is opened, or with the first byte of a later request. New bytes add no time.
    - The body must be complete within `body_s`, plus one second for every `BODY_BYTES_PER_S` bytes
      that have arrived. Otherwise the answer is 408. The time during which the application does not
      read is not counted.
    - Between requests a connection may be idle for uvicorn's `timeout_keep_alive`.

    These limits never end a response that is being sent, such as an event stream.

    A `Stream` may take the connection over. Until `give_back`, the stream hears what happens to
    the connection, and bytes that the client sends as a body are dropped.
    """

    stream: Stream | None = None

    head_s = HEAD_S
    body_s = BODY_S

    _head_bytes = 0
    _in_head = True
    _completed = False  # whether the last read completed a head, and so may contain a body
    _framing_bytes = 0  # bytes of framing, minus the framing that the body's bytes allow
    _left_s = 0.0  # the time left for the body at `_looked_at`
    _looked_at = 0.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time for the first head, because a client has connected."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, because the client has disconnected."""
        self._stop_waiting()
        super().connection_lost(exc)
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.lost()

    def take_over(self, stream: Stream) -> None:
        """Let the stream write the rest of the response."""
        self.stream = stream
        self.flow.resume_reading()  # otherwise a closed connection would not be noticed
        # The headers and the body of the request are not needed any more, but would stay in memory
        # until the response ends.
        self.scope["headers"], self.headers, self.cycle.body = [], [], bytearray()
        # No task waits for the event of this cycle any more. The event would take 816 bytes.
        self.cycle.message_event = _UNHEARD

    def give_back(self, stream: Stream) -> None:
        """Let uvicorn continue with the connection, because the response is complete."""
        assert self.stream is stream
        self.stream = None

    def pause_writing(self) -> None:
        """Tell the stream that the transport has too many bytes."""
        super().pause_writing()
        if self.stream is not None:
            self.stream.paused()

    def resume_writing(self) -> None:
        """Tell the stream that the transport accepts bytes again."""
        super().resume_writing()
        if self.stream is not None:
            self.stream.resumed()

    def data_received(self, data: bytes) -> None:
        """Parse and count arrived bytes; close the connection if a limit is exceeded."""
        self._completed = False
        if not self._in_head:
            self._left_s += len(data) / BODY_BYTES_PER_S
            self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > MAX_HEAD_BYTES:
            self._close_with(_TOO_LARGE)
            return
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
        """Keep a header; drop a trailer of a chunked body, because trailers have no limit."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Count a piece of the body."""
        self._framing_bytes -= (1 + FRAMING_PER_BYTE) * len(body)
        if self.stream is None:
            super().on_body(body)

    def on_headers_complete(self) -> None:
        """Start the time for the body, because the head is complete."""
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()
        self._left_s, self._looked_at = self.body_s, self.loop.time()
        self._deadline = self.loop.call_later(self._left_s, self._on_slow_body)

    def on_message_complete(self) -> None:
        """Reset the counts for the next request, because the body is complete."""
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
            # An earlier request is still being answered. After the answer, uvicorn closes an idle
            # connection at its own keep-alive limit.
            return
        self._close_with(_TOO_SLOW)

    def _on_slow_body(self) -> None:
        now = self.loop.time()
        # The client cannot send while the application does not read.
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
        """Return whether a response of this or an earlier request is being sent."""
        cycle: Any = self.cycle
        return bool(self.pipeline) or (
            cycle is not None and cycle.response_started and not cycle.response_complete
        )

    def _close_with(self, answer: bytes) -> None:
        """Close the connection; send the answer first if the request has no answer yet."""
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle
        is_answered = not self._in_head and cycle is not None and cycle.response_started
        if not is_answered and not self._is_answering():
            self.transport.write(answer)
        self.transport.close()
        # Without the abort, a client that does not read could keep the connection open.
        self.loop.call_later(LINGER_S, self.transport.abort)


def refusing_quietly(app: ASGIApp) -> ASGIApp:
    """Wrap the app so that refused WebSockets and disconnected clients are not logged as errors.

    uvicorn 0.54 treats a handshake that got an HTTP response as unanswered. uvicorn treats a client
    that disconnects before the answer as a failure of the application.
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
