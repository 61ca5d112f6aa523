"""Sends one request and reads its response, on its own connection, with the parser of httptools.

httpx's own transport takes 17 % of the connector's CPU for a frame; this module takes 7 %
(`tests/bench/README.md`). The reasons are that this module has no pool, no stream objects, and no
timeout scope around every read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Final, Protocol, cast

import httptools
import httpx

# The number of bytes of a response that may wait for a reader. If more bytes wait, the socket is
# not read.
MAX_UNREAD_BYTES: Final = 64 * 1024
# The most bytes in a row that a server may send without any part of the body: the head, chunk
# extensions, trailers. Without this limit, a server could send an endless head, which would fill
# the memory.
MAX_OVERHEAD_BYTES: Final = 256 * 1024
_INFORMATIONAL: Final = range(100, 200)
_SWITCHING_PROTOCOLS: Final = 101
_WITHOUT_BODY: Final = (204, 304)


class State(Enum):
    """How much of a response has been received."""

    HEAD = "head"  # the status and the headers have not been received completely
    BODY = "body"
    COMPLETE = "complete"
    BROKEN = "broken"  # the connection broke, or the server sent something that is not HTTP


class Receiver(Protocol):
    """Takes a body piece by piece, in the turn of the event loop that reads the bytes."""

    def feed(self, chunk: bytes) -> None: ...

    def end(self, error: httpx.HTTPError | None) -> None:
        """Record that no more pieces come: the body is complete, or `error` broke the
        connection."""
        ...


# The buffer into which all connections read. The connections can share the buffer, because the
# bytes are parsed before the next read. A buffer for each connection would take 640 MB for 10,000
# legs. A plain `asyncio.Protocol` would get `bytes` of any size, so one read could exceed the limit
# of a leg by 256 KiB.
_BUFFER: Final = memoryview(bytearray(64 * 1024))


class Exchange(asyncio.BufferedProtocol):
    """The protocol of one connection; the code that opens an Exchange must call `close`."""

    # set by `connection_made`, which is called before all other methods
    _transport: asyncio.Transport

    def __init__(self) -> None:
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._state = State.HEAD
        self._error: httpx.HTTPError | None = None
        self._parser = httptools.HttpResponseParser(self)
        # The parser is lenient, because a strict parser would refuse the responses of some servers
        # that httpx can read. A lenient parser may take two responses on one connection for one
        # response. This can do no harm here, because each connection has only one response.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_chunked_length=True,
            lenient_keep_alive=True,
            lenient_transfer_encoding=True,
            lenient_data_after_close=True,
            lenient_optional_lf_after_cr=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        # whether the end of the connection marks the end of the body
        self._ends_with_connection = True
        self._overhead_bytes = 0
        self._has_body = False  # whether the bytes that are parsed now contain a piece of the body
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._receiver: Receiver | None = None
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._cannot_write = False

    # Called by `transport.py` and `reading.py`

    async def send(self, request: bytes, timeout_s: float | None) -> None:
        """Send the request; return when the connection has accepted it, or a response has begun.
        Raises httpx.WriteTimeout if the server does not read the request."""
        self._transport.write(request)
        try:
            async with asyncio.timeout(timeout_s):
                while self._cannot_write and self._state is State.HEAD:
                    await self._wait()
        except TimeoutError as error:
            raise httpx.WriteTimeout(f"the request was not taken in {timeout_s:g} s") from error

    async def head(self, timeout_s: float | None) -> None:
        """Wait until the status and the headers have been received.

        Raises:
            httpx.ReadTimeout: the status and the headers were not received in time.
            httpx.HTTPError: the connection broke, or the server sent something that is not HTTP.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._state is State.HEAD:
                    await self._wait()
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no answer came in {timeout_s:g} s") from error
        if self.status == 0 and self._error is not None:
            raise self._error

    async def read(self, timeout_s: float | None) -> bytes:
        """Return the next piece of the body; empty bytes if the body has ended.

        Raises:
            httpx.ReadTimeout: no piece was received in time.
            httpx.HTTPError: the connection broke.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self._unread and self._state is State.BODY:
                    await self._wait()
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"nothing came in {timeout_s:g} s") from error
        if self._unread:
            chunk = self._unread.popleft()
            self._unread_bytes -= len(chunk)
            if self._unread_bytes <= MAX_UNREAD_BYTES:
                self.resume()
            return chunk
        if self._error is not None:
            raise self._error
        return b""

    def start(self, receiver: Receiver) -> None:
        """Give all further pieces of the body to the receiver; `read` must not be called any
        more."""
        self._receiver = receiver
        unread, self._unread, self._unread_bytes = self._unread, deque(), 0
        # Reading may be paused, because more than `MAX_UNREAD_BYTES` were waiting. A receiver that
        # has room never calls `resume`. So reading is resumed here. Otherwise, the socket would
        # never be read again.
        self.resume()
        for chunk in unread:
            receiver.feed(chunk)  # this call may pause the reading
        if self._state is not State.BODY:
            receiver.end(self._error)

    async def stop(self) -> None:
        """Give no more pieces to the receiver."""
        self._receiver = None

    def pause(self) -> None:
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection: gracefully after a complete response, else at once."""
        if self._state is State.COMPLETE:
            self._transport.close()
        else:
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has another base class
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        if self._state not in (State.HEAD, State.BODY):
            return  # bytes after the end of the response are ignored
        self._has_body = False
        try:
            self._parser.feed_data(_BUFFER[:nbytes])
        except httptools.HttpParserUpgrade:
            self.on_message_complete()
        except httptools.HttpParserError as error:
            self._broken(httpx.RemoteProtocolError(f"the server does not speak HTTP: {error}"))
            return
        if self._has_body:
            self._overhead_bytes = 0
            return
        self._overhead_bytes += nbytes
        if self._overhead_bytes > MAX_OVERHEAD_BYTES:
            self._broken(
                httpx.RemoteProtocolError(
                    f"the server sent {MAX_OVERHEAD_BYTES} bytes of headers, and no body"
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response: complete if the end of the connection marks the end of the body, else
        broken."""
        self._cannot_write = False
        if self._state is State.BODY and self._ends_with_connection and exc is None:
            self._complete()
        elif exc is not None:
            self._broken(httpx.ReadError(str(exc) or type(exc).__name__))
        elif self._state is State.HEAD:
            self._broken(
                httpx.RemoteProtocolError("the server closed the connection without an answer")
            )
        else:
            self._broken(
                httpx.RemoteProtocolError("the server closed the connection in its answer")
            )

    def pause_writing(self) -> None:
        self._cannot_write = True

    def resume_writing(self) -> None:
        self._cannot_write = False
        self._wake()

    # Called by httptools

    def on_message_begin(self) -> None:
        """Begin the final response, or an informational one (1xx) before it."""
        self.reason, self.headers = b"", []
        self._ends_with_connection = True

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header of the head, and find out how the body ends; ignore trailers."""
        if self._state is not State.HEAD:
            return
        self.headers.append((name, value))
        lower = name.lower()
        if lower == b"content-length":
            self._ends_with_connection = False
        elif lower == b"transfer-encoding":
            encodings = value.lower().rpartition(b",")[2].strip()
            self._ends_with_connection = encodings != b"chunked"

    def on_headers_complete(self) -> None:
        """Begin the body, unless this head is informational (1xx)."""
        status = self._parser.get_status_code()
        if status in _INFORMATIONAL and status != _SWITCHING_PROTOCOLS:
            return
        if self._state is State.HEAD:
            self.status = status
            self._state = State.BODY
            if status in _WITHOUT_BODY:
                self._complete()
            self._wake()

    def on_body(self, chunk: bytes) -> None:
        self._has_body = True
        if self._receiver is not None:
            self._receiver.feed(chunk)
        elif self._state is State.BODY:
            self._unread.append(chunk)
            self._unread_bytes += len(chunk)
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self.pause()
            self._wake()

    def on_message_complete(self) -> None:
        if self._state is State.BODY:
            self._complete()

    # The end of the response

    def _complete(self) -> None:
        self._end(State.COMPLETE, None)

    def _broken(self, error: httpx.HTTPError) -> None:
        self._end(State.BROKEN, error)

    def _end(self, state: State, error: httpx.HTTPError | None) -> None:
        if self._state not in (State.HEAD, State.BODY):
            return
        self._state, self._error = state, error
        self.close()
        if self._receiver is not None:
            self._receiver.end(error)
        self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
