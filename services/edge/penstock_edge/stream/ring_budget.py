"""Limits the memory that the rings of all hubs use together."""

from __future__ import annotations

from typing import Protocol

from penstock.telemetry import RING_BYTES


class EvictableHub(Protocol):
    """A hub whose ring can be emptied, because clients can replay the evicted items."""

    def evict_all(self) -> int:
        """Evict as many items as possible; return the number of bytes that the ring still has."""
        ...


class RingBudget:
    """Empties rings while all rings together have more bytes than the limit.

    The first ring to be emptied is the one that has had no new items for the longest time. The
    frames of this ring were written long ago, so only a client that reconnects may still need them.
    After a ring was emptied, it is not emptied again until it has new items.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        # maps each hub to the bytes of its ring; the hub that added an item most recently is last
        self._held: dict[EvictableHub, int] = {}
        # maps each hub whose ring was emptied to the bytes that its ring still has
        self._emptied: dict[EvictableHub, int] = {}
        self.held_bytes = 0

    def hold(self, hub: EvictableHub, held_bytes: int) -> None:
        """Record that the hub has added items to its ring, which now has `held_bytes`."""
        self.held_bytes += held_bytes - self._held.pop(hub, 0)
        if self._emptied:
            self.held_bytes -= self._emptied.pop(hub, 0)
        self._held[hub] = held_bytes
        while self.held_bytes > self._limit_bytes and self._held:
            oldest = next(iter(self._held))
            left = oldest.evict_all()
            self.held_bytes += left - self._held.pop(oldest)
            self._emptied[oldest] = left

    def forget(self, hub: EvictableHub) -> None:
        """Stop counting the bytes of a hub."""
        self.held_bytes -= self._held.pop(hub, 0) + self._emptied.pop(hub, 0)
        self.report()

    def report(self) -> None:
        """Set the metric. `Flushes` calls this method at most once every `REPORT_S`, not for each
        event."""
        RING_BYTES.set(self.held_bytes)
