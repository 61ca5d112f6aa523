"""What the rings of all hubs hold together, within one limit."""

from __future__ import annotations

from typing import Protocol

from penstock.telemetry import RING_BYTES


class Ring(Protocol):
    """Recent frames, which can be read from the stream again."""

    def empty(self) -> int:
        """Give up all that can be read again; returns the bytes that are still held."""
        ...


class Budget:
    """Empties the ring that has been silent for longest while all hold more than the limit.

    So those stay whole that their clients are reading from: frames that went out long ago are
    needed by nobody but who comes back for them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[Ring, int] = {}  # the first has been silent for longest
        self._emptied: dict[Ring, int] = {}  # nothing can be had from them until they hold more
        self.held_bytes = 0

    def hold(self, ring: Ring, held_bytes: int) -> None:
        """The ring has been written to, and holds so much now."""
        self.forget(ring)
        self.held_bytes += held_bytes
        self._held[ring] = held_bytes
        while self.held_bytes > self._limit_bytes and self._held:
            oldest = next(iter(self._held))
            left = oldest.empty()
            self.held_bytes += left - self._held.pop(oldest)
            self._emptied[oldest] = left
        RING_BYTES.set(self.held_bytes)

    def forget(self, ring: Ring) -> None:
        """The ring is gone."""
        self.held_bytes -= self._held.pop(ring, 0) + self._emptied.pop(ring, 0)
        RING_BYTES.set(self.held_bytes)
