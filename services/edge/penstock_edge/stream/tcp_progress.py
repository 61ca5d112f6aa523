"""Finds out how many bytes of a connection were written, and how many the peer has acknowledged."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Final

_TCP_INFO_BYTES: Final = 256
_ACKED_AT: Final = 120  # the offset of the 64-bit field tcpi_bytes_acked
_TIOCOUTQ: Final = 0x5411  # the number of the ioctl that returns how many bytes are unacknowledged


def acknowledged(transport: asyncio.WriteTransport) -> int | None:
    """Return how many bytes the peer's system has acknowledged; None if unknown.

    If the client connects through a proxy, the peer is the proxy.
    """
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


def written(transport: asyncio.WriteTransport) -> int | None:
    """Return how many bytes the process has written to the connection; None if unknown.

    Bytes that wait in the transport or in the system's queue are counted, too.
    """
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
