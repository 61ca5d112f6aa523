"""One request and its response on a connection of their own, parsed by httptools.

Of the connector's CPU for a frame, httpx's own transport took 17 %, and this one takes 7 %
(`tests/bench/README.md`): no pool, no stream objects, no timeout scope around every read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Final, Protocol, cast

import httptools
import httpx

# Bytes of a response that wait for a reader. Above this, the socket is not read.
MAX_UNREAD_BYTES: Final = 64 * 1024
# Bytes that bring nothing of the body: the head, chunk extensions, trailers. Without a limit, a
# server could send an endless head, and it would be kept in memory.
MAX_OVERHEAD_BYTES: Final = 256 * 1024
_INFORMATIONAL: Final = range(100, 200)
_SWITCHING_PROTOCOLS: Final = 101
_WITHOUT_BODY: Final = (204, 304)


class State(Enum):
    """How far a response has come."""

    HEAD = "head"  # its status and headers have not all come
    BODY = "body"
    COMPLETE = "complete"
    BROKEN = "broken"  # the connection broke, or what came is no HTTP


class Receiver(Protocol):
    """Takes a body as it comes. Both methods are called in the turn of the loop that reads."""

    def feed(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        ...

    def end(self, error: httpx.HTTPError | None) -> None:
        """Note that nothing more comes: the body is complete, or the connection broke."""
        ...


# All connections read into this buffer, because what was read is parsed before the next read. A
# buffer for each connection would take 640 MB for 10,000 legs. `bytes` of any size, as a plain
# `asyncio.Protocol` gets them, would go past the limit of a leg by 256 KiB at a time.
_BUFFER: Final = memoryview(bytearray(64 * 1024))


class Exchange(asyncio.BufferedProtocol):
    """The protocol of one connection. Whoever gets one must call `close`."""

    _transport: asyncio.Transport  # set by `connection_made`, before anything else is called

    def __init__(self) -> None:
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._state = State.HEAD
        self._error: httpx.HTTPError | None = None
        self._parser = httptools.HttpResponseParser(self)
        # The connection carries one response, so what these leniencies endanger (two responses that
        # are taken for one) cannot happen. Without them, servers would fail that httpx has read.
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
        self._ends_with_connection = True
        self._overhead_bytes = 0
        self._has_body = False  # the bytes that are being parsed hold a piece of the body
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._receiver: Receiver | None = None
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._cannot_write = False

    # What the transport uses

    async def send(self, request: bytes, timeout_s: float | None) -> None:
        """Send the request; return when it is on its way, or when an answer has come before.

        Raises:
            httpx.WriteTimeout: the server does not take the request.
            httpx.HTTPError: the connection broke.
        """
        self._transport.write(request)
        try:
            async with asyncio.timeout(timeout_s):
                while self._cannot_write and self._state is State.HEAD:
                    await self._wait()
        except TimeoutError as error:
            raise httpx.WriteTimeout(f"the request was not taken in {timeout_s:g} s") from error

    async def head(self, timeout_s: float | None) -> None:
        """Wait until the status and the headers have come.

        Raises:
            httpx.ReadTimeout: they did not come in time.
            httpx.HTTPError: the connection broke, or no HTTP came.
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
        """The next piece of the body; no bytes at its end.

        Raises:
            httpx.ReadTimeout: no piece came in time.
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

    def attach(self, receiver: Receiver) -> None:
        """Give the rest of the body to the receiver as it comes, in place of `read`."""
        self._receiver = receiver
        unread, self._unread, self._unread_bytes = self._unread, deque(), 0
        # More than `MAX_UNREAD_BYTES` may have come before. Without this, nobody would ever read
        # the socket again: a receiver that has room has no reason to call `resume`.
        self.resume()
        for chunk in unread:
            receiver.feed(chunk)  # which may pause
        if self._state is not State.BODY:
            receiver.end(self._error)

    def detach(self) -> None:
        """Give nothing more to the receiver."""
        self._receiver = None

    def pause(self) -> None:
        """Leave the rest of the body in the socket, so that the server is held back."""
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on after `pause`."""
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection: in order after a complete response, else at once."""
        if self._state is State.COMPLETE:
            self._transport.close()
        else:
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base class

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes are read to."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what was read."""
        if self._state not in (State.HEAD, State.BODY):
            return  # bytes after the end of the response mean nothing
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
        """Note how the connection ended, and what that means for the response."""
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
        """Note that the server takes no more at present."""
        self._cannot_write = True

    def resume_writing(self) -> None:
        """Note that the server takes more."""
        self._cannot_write = False
        self._wake()

    # httptools

    def on_message_begin(self) -> None:
        """Begin a response: the one that counts, or an informational one before it."""
        self.reason, self.headers = b"", []
        self._ends_with_connection = True

    def on_status(self, reason: bytes) -> None:
        """Take a part of the reason phrase."""
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self.headers.append((name, value))
        lower = name.lower()
        if lower == b"content-length":
            self._ends_with_connection = False
        elif lower == b"transfer-encoding":
            encodings = value.lower().rpartition(b",")[2].strip()
            self._ends_with_connection = encodings != b"chunked"

    def on_headers_complete(self) -> None:
        """Take the head, unless it is informational (1xx)."""
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
        """Take a piece of the body."""
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
        """End the body, unless the message was informational."""
        if self._state is State.BODY:
            self._complete()

    # Ends

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
