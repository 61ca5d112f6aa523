"""Limits the bytes that the rings of all hubs hold together."""

from __future__ import annotations

from typing import Protocol

from penstock.telemetry import RING_BYTES


class Emptiable(Protocol):
    """A hub, whose ring can be emptied: clients read its frames from the stream again."""

    def evict_all(self) -> int:
        """Evict all that can be evicted; returns the bytes that are still held."""
        ...


class RingBudget:
    """While all rings hold more than the limit, empties the one that was silent for longest.

    Its frames were written long ago, so only a client that reconnects may still need them. The
    rings that clients read from now stay whole.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[Emptiable, int] = {}  # the first was silent for longest
        self._emptied: dict[Emptiable, int] = {}  # emptied already: no bytes can be freed here
        self.held_bytes = 0

    def hold(self, hub: Emptiable, held_bytes: int) -> None:
        """The hub has written to its ring, which holds so many bytes now."""
        self.forget(hub)
        self.held_bytes += held_bytes
        self._held[hub] = held_bytes
        while self.held_bytes > self._limit_bytes and self._held:
            oldest = next(iter(self._held))
            left = oldest.evict_all()
            self.held_bytes += left - self._held.pop(oldest)
            self._emptied[oldest] = left
        RING_BYTES.set(self.held_bytes)

    def forget(self, hub: Emptiable) -> None:
        """The hub was stopped."""
        self.held_bytes -= self._held.pop(hub, 0) + self._emptied.pop(hub, 0)
        RING_BYTES.set(self.held_bytes)
