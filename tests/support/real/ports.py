"""Ports for servers of the tests, which no other process takes before the server listens.

A port that the system picks is free only at that moment. Until the server listens, the system may
give the port to any new connection, or to another test process. The ports here are below the range
that systems give to connections (Linux: from 32768, macOS: from 49152), and each test process
reserves blocks of them as long as it runs. So a server that is restarted also finds its port free.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from functools import cache

_FIRST, _LAST = 20_000, 32_000
_BLOCK = 50  # ports per lock, because a process may open few files


class Ports:
    """Blocks of ports of this process. A UDP socket on the first port of a block locks it."""

    def __init__(self, first: int = _FIRST, last: int = _LAST, block: int = _BLOCK) -> None:
        self._locks: list[socket.socket] = []
        self._block = block
        self._blocks = [*range(first, last, block)]
        random.shuffle(self._blocks)  # processes that start together rarely try the same block
        self._left: Iterator[int] = iter(())

    def take(self) -> int:
        """Return a free port that no other caller gets.

        Raises RuntimeError if no block is left.
        """
        while True:
            for port in self._left:
                if _is_free(port):
                    return port
            self._left = self._reserve()

    def close(self) -> None:
        """Release all blocks."""
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
    """Return whether nothing listens on the port, on this machine's address or on all addresses."""
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as probe:
            # Servers set the same option, so that closed connections do not keep them from
            # listening.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


@cache
def _of_process(_pid: int) -> Ports:
    """Return the ports of a process; a process that is forked from it has others."""
    return Ports()


def free_port() -> int:
    """Return a port for a server that stays free for this process."""
    return _of_process(os.getpid()).take()
