"""Defines `Driver`, the interface of objects that write a client's stream, and the driver for
ASGI."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Final, Protocol

from penstock_edge.stream.in_sync import Write
from penstock_edge.views.view import View


class Driver(Protocol):
    """Writes a client's stream, by calling `Client.next_write` after each `wake`."""

    @property
    def write(self) -> Write | None:
        """Take HTTP chunks; None if ASGI must be used, or while too many bytes wait in the
        connection."""
        ...

    @property
    def transport(self) -> asyncio.WriteTransport | None: ...

    def wake(self) -> None:
        """Call `Client.next_write` soon, at least once."""
        ...

    def drop(self) -> bool:
        """Return False if no write is in progress."""
        ...

    def fail(self) -> None: ...


class ByTask(Driver):
    """The driver of a response that is sent by ASGI: the response's task calls `Client.take`."""

    write = None
    transport = None

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._task = asyncio.current_task()

    async def wait(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    def wake(self) -> None:
        self._wake.set()

    def drop(self) -> bool:
        return self._task is not None and self._task.cancel()

    def fail(self) -> None:
        """Do nothing: only for clients in sync is this called, and ASGI clients never are."""


_TCP_INFO_BYTES: Final = 256
_ACKED_AT: Final = 120  # the offset of the 64-bit field tcpi_bytes_acked
_TIOCOUTQ: Final = 0x5411  # the number of the ioctl that returns how many bytes are unacknowledged


def acknowledged(transport: asyncio.WriteTransport | None) -> int | None:
    """Return how many bytes the peer's system has acknowledged; None if unknown. If the client
    connects through a proxy, the peer is the proxy."""
    if transport is None:
        return None
    connection = transport.get_extra_info("socket")
    if connection is None or not sys.platform.startswith("linux"):
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:  # the connection is closed
        return None
    if len(info) < _ACKED_AT + 8:
        return None
    return int(struct.unpack_from("Q", info, _ACKED_AT)[0])


def written(transport: asyncio.WriteTransport | None) -> int | None:
    """Return how many bytes the process has written to the connection; None if unknown. Bytes that
    wait in the transport or in the system's queue are counted, too."""
    if transport is None:
        return None
    connection = transport.get_extra_info("socket")
    if connection is None or not sys.platform.startswith("linux"):
        return None
    import fcntl  # noqa: PLC0415  # Windows has none

    try:
        queue = fcntl.ioctl(connection.fileno(), _TIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return None
    # Bytes that are acknowledged between the two calls are counted twice. So the result may be too
    # large, but is never too small.
    before = acknowledged(transport)
    if before is None:
        return None
    return before + int(struct.unpack("i", queue)[0]) + transport.get_write_buffer_size()


class Writing:
    """Whether a write is in progress, and when the last one ended, by the loop's clock in seconds.
    A write begins when the driver has the bytes, and ends when the connection has accepted them."""

    __slots__ = ("last_at", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        self.last_at = asyncio.get_running_loop().time()

    def begin(self) -> None:
        self.since = asyncio.get_running_loop().time()

    def end(self) -> None:
        self.since = None
        self.last_at = asyncio.get_running_loop().time()


class OwnFrames:
    """The frames that the edge itself writes to one client, between two items of the ring. The live
    marker follows the item with the sequence `live_after`, which is None without a marker."""

    __slots__ = ("_notices", "_view", "is_keep_alive_due", "live_after")

    def __init__(self, view: View, live_after: int | None) -> None:
        self._view = view
        self._notices = b""
        self.is_keep_alive_due = False
        self.live_after = live_after

    def warn(self, code: str, message: str) -> None:
        self._notices += self._view.notice(code, message)

    def mark_live(self) -> None:
        self._notices += self.take_live_marker()

    def next(self, *, is_at_marker: bool) -> bytes:
        if self._notices:
            return self.take_notices()
        if self.is_keep_alive_due:
            self.is_keep_alive_due = False
            return self._view.framing.keep_alive
        return self.take_live_marker() if is_at_marker else b""

    def take_notices(self) -> bytes:
        notices, self._notices = self._notices, b""
        return notices

    def take_live_marker(self) -> bytes:
        self.live_after = None
        return self._view.framing.live_marker
