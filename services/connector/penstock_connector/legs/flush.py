"""Decides when the bytes that legs have read are written, for all legs of a process.

A message that wakes the connector for itself costs 350 µs there, a message among many 140 µs; the
broker, the normalizer and the edge save as much. So in a busy process the bytes wait for up to 5
ms, and all legs write in the same turn of the loop: then the connection to NATS has one write, and
what one leg has read is one source frame. In a quiet process nothing waits.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

QUIET_PER_S: Final = 50.0  # pieces a second up to which nothing waits
BUSY_PER_S: Final = 1000.0  # pieces a second from which on they wait for `LONGEST_S`
LONGEST_S: Final = 0.005
# The rate follows the load with this time constant: it has fallen to a third half a second after
# the last piece.
FOLLOWS_S: Final = 0.5
SHORTEST_S: Final = 0.0005  # the timers of uvloop count whole milliseconds


def delay_s(per_s: float) -> float:
    """How long a piece waits at that rate: nothing when quiet, 5 ms when busy, linear between."""
    share = (per_s - QUIET_PER_S) / (BUSY_PER_S - QUIET_PER_S)
    delay = LONGEST_S * min(1.0, share)
    return delay if delay >= SHORTEST_S else 0.0


class Flush:
    """Tells legs when to write. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._per_s = 0.0
        self._at_s = clock()
        self._waiting: list[Callable[[], None]] = []

    @property
    def delay_s(self) -> float:
        """How long a piece that comes now waits."""
        return delay_s(self._per_s)

    def count(self) -> None:
        """Count a piece of a body, which has come now."""
        now_s = self._clock()
        faded = math.exp((self._at_s - now_s) / FOLLOWS_S)
        self._per_s = self._per_s * faded + 1 / FOLLOWS_S
        self._at_s = now_s

    def request(self, due: Callable[[], None]) -> None:
        """Call `due` when the caller's bytes are to be written: now, or with those of other legs.

        The delay counts from the first leg that waits, so no leg waits for longer than 5 ms.
        """
        if self._waiting:
            self._waiting.append(due)
            return
        delay = self.delay_s
        if not delay:
            due()
            return
        self._waiting.append(due)
        asyncio.get_running_loop().call_later(delay, self._flush)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for due in waiting:
            due()
