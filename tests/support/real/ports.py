"""Ports for servers of the tests, which no other process takes before the server listens.

A port that the system picks is free only at that moment: until the server listens, any connection
that anybody opens may get it, and so may another test process that asks. The ports here lie below
those that systems give to connections (Linux: from 32768, macOS: from 49152), and a test process
keeps blocks of them to itself for as long as it lives. So a server also finds its port free when
it comes back.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

_FIRST, _LAST = 20_000, 32_000
_BLOCK = 50  # ports that one lock keeps: a process may open few files


class Ports:
    """Blocks of ports that belong to this process, by a UDP socket on the first of each."""

    def __init__(self, first: int = _FIRST, last: int = _LAST, block: int = _BLOCK) -> None:
        self._locks: list[socket.socket] = []
        self._block = block
        self._blocks = [*range(first, last, block)]
        random.shuffle(self._blocks)  # processes that start together seldom want the same one
        self._left: Iterator[int] = iter(())

    def take(self) -> int:
        """A port that is free, and is given to nobody else.

        Raises RuntimeError when no block is left.
        """
        while True:
            for port in self._left:
                if _is_free(port):
                    return port
            self._left = self._reserve()

    def close(self) -> None:
        """Let others have the ports."""
        for lock in self._locks:
            lock.close()

    def _reserve(self) -> Iterator[int]:
        while self._blocks:
            first = self._blocks.pop()
            lock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                lock.bind(("127.0.0.1", first))
            except OSError:
                lock.close()  # another process has this block
                continue
            self._locks.append(lock)
            return iter(range(first, first + self._block))
        raise RuntimeError("no free ports: end other test processes")


def _is_free(port: int) -> bool:
    """Whether nobody listens there; servers listen on this machine's address, or on all."""
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as probe:
            # as servers do: connections that have just been closed keep nobody from listening
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


_PORTS = Ports()


def free_port() -> int:
    """A port for a server, free now and later."""
    return _PORTS.take()
