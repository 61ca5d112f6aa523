"""How many bytes of a connection the other side has acknowledged, as Linux says."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Final

_TCP_INFO_BYTES: Final = 256
_ACKED_AT: Final = 120  # tcpi_bytes_acked, 64 bits
_TIOCOUTQ: Final = 0x5411  # the number of bytes that were not acknowledged


def acknowledged(transport: asyncio.WriteTransport) -> int | None:
    """Return how many bytes the other side's system has acknowledged; None if unknown.

    The other side is a proxy, where there is one.
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
    """Return how many bytes were written to the connection, sent or not; None if unknown."""
    connection = transport.get_extra_info("socket")
    if connection is None or not sys.platform.startswith("linux"):
        return None
    import fcntl  # noqa: PLC0415  # Windows has none

    try:
        queue = fcntl.ioctl(connection.fileno(), _TIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return None
    # Bytes that are acknowledged between the two calls count twice, so the result is too large
    # rather than too small.
    before = acknowledged(transport)
    if before is None:
        return None
    return before + int(struct.unpack("i", queue)[0]) + transport.get_write_buffer_size()
