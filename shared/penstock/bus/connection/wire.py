"""Carries the bytes of one connection to a NATS server.

nats-py uses one task to read and another task to write. Here the event loop hands arriving bytes to
the parser at once, and written bytes go to the socket at the end of the turn.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import cast
from urllib.parse import ParseResult

from nats.aio.transport import Transport
from nats.errors import ProtocolError

from penstock.bus.connection.protocol import Parser
from penstock.busyness import until_tick_s

# The seconds for which arriving messages are delivered before the event loop does other work.
# Without this limit, a burst of messages would delay everything else in this process.
SLICE_S = 0.003
MAX_GREETING_BYTES = 1024 * 1024  # the most bytes that a server may send before `begin`
# The limit of bytes that were written and that the operating system has not taken. Above this
# limit, a writer waits (`drain`), so that a slow server does not fill this process's memory.
MAX_UNSENT_BYTES = 2 * 1024 * 1024
MAX_JOINED_BYTES = 64 * 1024  # the most bytes that wait for the end of the event loop's turn
# While nobody waits for an acknowledgement, this process wakes only for this many bytes: more than
# an acknowledgement has, and fewer than a message of a stream has.
QUIET_BYTES = 192
QUIET_S = 0.2  # seconds between two looks for fewer bytes
# the most seconds that `close` waits for the last bytes; a hanging server never takes these bytes
CLOSE_S = 2.0


class Wire(asyncio.Protocol, Transport):
    """A transport for nats-py's client. The client reads the server's greeting by `readline`.

    After `begin`, the parser gets all bytes until the connection ends. Then `ended` is called with
    the error that ended the connection, or with None after a regular end.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._transport: asyncio.Transport | None = None
        self._greeting = bytearray()  # the bytes that came before `begin`
        self._parser: Parser | None = None
        self._ended: Callable[[Exception | None], None] = lambda error: None
        self._on_read: Callable[[], object] = lambda: None
        self._error: Exception | None = None  # the error that ended the connection
        self._held = False  # whether `hold` was called, and `release` was not
        self._is_behind = False  # whether the parser has not yet used all bytes that have come
        # whether reading is paused, so that the operating system keeps further bytes
        self._is_paused = False
        self._resting: asyncio.TimerHandle | None = None  # ends the rest that `rest` began
        self._is_quiet = False  # whether a few bytes do not wake this process
        self._waking: asyncio.TimerHandle | None = None  # calls `wake`
        # aborts the connection some time after `close`
        self._aborting: asyncio.TimerHandle | None = None
        self._unsent: list[bytes] = []  # the bytes that were written in this turn of the event loop
        self._unsent_bytes = 0
        self._changed: set[asyncio.Future[None]] = set()  # the futures that `_change` waits for
        self.is_lost = False  # true once the connection has ended
        self.is_full = False  # true while more than MAX_UNSENT_BYTES are unsent

    # connecting

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_timeout):
                await self._loop.create_connection(
                    lambda: self, uri.hostname or "", uri.port or 4222
                )
        except BaseException:
            # If the attempt is cancelled after `connection_made`, uvloop closes the connection and
            # never calls `connection_lost`. Without this call, `wait_closed` would wait for ever. A
            # process that closes its bus during a reconnect would then never end.
            self.abort()
            self.connection_lost(None)
            raise

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        """Encrypt the connection, within `connect_timeout` seconds; abort it if the handshake
        fails."""
        plain = self._transport
        assert plain is not None, "connect comes first"
        name = uri if isinstance(uri, str) else uri.hostname
        try:
            async with asyncio.timeout(connect_timeout):
                made = await self._loop.start_tls(plain, self, ssl_context, server_hostname=name)
            if made is None:
                raise ConnectionResetError("the connection was lost in the TLS handshake")
        except BaseException:
            # After a failed handshake, the event loop does not call `connection_lost`.
            plain.abort()
            self.connection_lost(None)
            raise
        self._use(made)

    async def readline(self) -> bytes:
        """Return the next line of the greeting; empty when the connection has ended."""
        while (end := self._greeting.find(b"\n") + 1) == 0:
            if self.is_lost:
                if self._error is not None:
                    raise self._error
                return b""
            if len(self._greeting) > MAX_GREETING_BYTES:
                raise ProtocolError
            await self._change()
        line = bytes(self._greeting[:end])
        del self._greeting[:end]
        return line

    # reading

    def begin(
        self,
        parser: Parser,
        ended: Callable[[Exception | None], None],
        on_read: Callable[[], object] = lambda: None,
    ) -> None:
        """Give all further bytes to `parser`, and call `ended` when the connection has ended.
        `on_read` is called after each read whose messages are all delivered."""
        self._parser, self._ended, self._on_read = parser, ended, on_read
        early, self._greeting = bytes(self._greeting), bytearray()
        if early:
            self.data_received(early)
        if self.is_lost:
            ended(self._error)

    def hold(self) -> None:
        """Take no more bytes from the operating system, until `release`."""
        self._held = True
        self._pause_or_resume()

    def release(self) -> None:
        self._held = False
        self._pause_or_resume()

    def rest(self, rest_s: float) -> None:
        """Take no bytes from the operating system for `rest_s` seconds, or until `end_rest`."""
        if self._resting is None and not self.is_lost:
            self._resting = self._loop.call_later(rest_s, self.end_rest)
            self._pause_or_resume()

    def end_rest(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
            self._pause_or_resume()

    def quiet(self) -> None:
        """Leave a few bytes, such as an acknowledgement, to the operating system until more bytes
        come, or until `wake` is called, but for at most 1.5 times `QUIET_S` (decision 0403)."""
        if not self._is_quiet and self._wakes_for(QUIET_BYTES):
            self._is_quiet = True
            if self._waking is None:
                after_s = until_tick_s(QUIET_S, self._loop.time())
                self._waking = self._loop.call_later(after_s, self._tick)

    def wake(self) -> None:
        """Take bytes at once again, also those that have come meanwhile."""
        if self._is_quiet:
            self._is_quiet = False
            self._wakes_for(1)

    def _tick(self) -> None:
        self._waking = None
        self.wake()

    def _wakes_for(self, count: int) -> bool:
        if self._transport is None or self._transport.is_closing():
            return False
        made = self._transport.get_extra_info("socket")
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        except OSError:
            return False  # the system does not have this option
        return True

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self._greeting += data
            self._notify_waiters()
            return
        self._parser.feed(data)
        if not self._is_behind:
            self._parse()

    def _parse(self) -> None:
        if self._parser is None:
            return  # the connection was lost or aborted
        try:
            behind = self._parser.parse(time.monotonic() + SLICE_S)
        except ProtocolError as error:
            self._error = error
            self.abort()
            return
        if behind:
            self._loop.call_soon(self._parse)
        else:
            self._on_read()
        if behind is not self._is_behind:
            self._is_behind = behind
            self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        pauses = self._held or self._is_behind or self._resting is not None
        transport = self._transport
        if pauses is self._is_paused or transport is None or transport.is_closing():
            return
        self._is_paused = pauses
        if pauses:
            transport.pause_reading()
        else:
            transport.resume_reading()

    async def read(self, buffer_size: int) -> bytes:
        raise NotImplementedError

    def at_eof(self) -> bool:
        return self.is_lost

    # writing

    def write(self, payload: bytes) -> None:
        """Send bytes at the end of this turn of the event loop; drop them if the connection has
        ended.

        All bytes of one turn are written together. With a separate write for each of 100 messages,
        a message takes 5 µs; with one write for all 100, a message takes 0.5 µs.
        """
        if self.is_lost:
            return
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(payload)
        self._unsent_bytes += len(payload)
        if self._unsent_bytes > MAX_JOINED_BYTES:
            self._send()

    def _send(self) -> None:
        if self._unsent and self._transport is not None and not self.is_lost:
            pieces, self._unsent, self._unsent_bytes = self._unsent, [], 0
            self._transport.write(b"".join(pieces))

    def writelines(self, payload: list[bytes]) -> None:
        self.write(b"".join(payload))

    async def drain(self) -> None:
        """Wait while too many bytes are unsent; return when the connection has ended."""
        while self.is_full and not self.is_lost:
            await self._change()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._notify_waiters()

    # the end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._use(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost, self.is_full = True, False
        self.end_rest()
        if self._waking is not None:
            self._waking.cancel()
        self._error = self._error or error
        self._parser = None  # bytes that were not delivered are lost with the connection
        if self._aborting:
            self._aborting.cancel()
        self._notify_waiters()
        self._ended(self._error)

    def abort(self) -> None:
        """End the connection at once. Unsent bytes and undelivered messages are dropped."""
        self._parser = None
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the connection once everything is sent, or after CLOSE_S at the latest."""
        if self._transport is None or self.is_lost:
            return
        # In Python 3.11.2, a TLS transport that is closed while it is closing can no longer be
        # aborted: `abort` raises AttributeError, and the client never reconnects.
        if not self._transport.is_closing():
            self._send()
            self._transport.close()
        if self._aborting is None:
            self._aborting = self._loop.call_later(CLOSE_S, self.abort)

    async def wait_closed(self) -> None:
        while self._transport is not None and not self.is_lost:
            await self._change()

    def __bool__(self) -> bool:
        return True

    def _use(self, transport: asyncio.BaseTransport) -> None:
        # not `isinstance`: uvloop's transports have the methods and not the base class
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)

    async def _change(self) -> None:
        changed: asyncio.Future[None] = self._loop.create_future()
        self._changed.add(changed)
        try:
            await changed
        finally:
            self._changed.discard(changed)

    def _notify_waiters(self) -> None:
        for changed in self._changed:
            if not changed.done():
                changed.set_result(None)
