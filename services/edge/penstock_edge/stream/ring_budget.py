"""Limits the memory that the rings of all hubs use together (decision 0090)."""

from __future__ import annotations

from typing import Protocol

from penstock.telemetry import RING_BYTES


class EvictableHub(Protocol):
    """A hub whose ring can be emptied, because clients can replay the evicted items."""

    flush_at: float  # grows with each flush, so it is greatest for the hub with the newest items

    def evict_all(self) -> int:
        """Evict as many items as possible; return the number of bytes that the ring still has."""
        ...


class RingBudget:
    """Empties rings if all rings together have more bytes than the limit.

    The rings that have had no new items for the longest time are emptied first. The frames of such
    a ring were written long ago, so only a client that reconnects may still need them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[EvictableHub, int] = {}  # maps each hub to the bytes of its ring
        self.held_bytes = 0
        self._most_bytes = limit_bytes  # rings are emptied when `held_bytes` exceeds this number

    def hold(self, hub: EvictableHub, held_bytes: int) -> None:
        """Record that the hub has added items to its ring, which now has `held_bytes`."""
        self.held_bytes += held_bytes - self._held.get(hub, 0)
        self._held[hub] = held_bytes
        if self.held_bytes > self._most_bytes:
            self._empty_rings()

    def forget(self, hub: EvictableHub) -> None:
        self.held_bytes -= self._held.pop(hub, 0)
        self._most_bytes = self._limit_bytes
        self.report()

    def report(self) -> None:
        """Set the metric, at most once every `REPORT_S` (`Flushes`), not for each event."""
        RING_BYTES.set(self.held_bytes)

    def _empty_rings(self) -> None:
        # An eighth of the limit is freed at once, because the hubs must be sorted each time.
        slack_bytes = self._limit_bytes // 8
        for hub in sorted(self._held, key=lambda hub: hub.flush_at):
            if self.held_bytes <= self._limit_bytes - slack_bytes:
                break
            left_bytes = hub.evict_all()
            self.held_bytes += left_bytes - self._held[hub]
            self._held[hub] = left_bytes
        # A ring may keep its last item. If these items alone exceed the limit, the next attempt is
        # made only after the rings have grown by an eighth of the limit, or a hub has ended.
        self._most_bytes = max(self._limit_bytes, self.held_bytes + slack_bytes)
