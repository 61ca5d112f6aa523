"""Decides when the bytes that legs have read are written, for all legs of a process.

A message costs 350 µs if the connector wakes for each message, and 140 µs if the connector handles
many messages at once. The broker, the normalizer and the edge each save about the same. So in a
busy process the bytes wait for up to 5 ms, and all legs write in the same turn of the event loop.
The messages of all legs then go to NATS in one write to the socket, and the bytes that one leg has
read become one source frame. In a quiet process no bytes wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

QUIET_PER_S: Final = 50.0  # the rate, in received pieces a second, up to which no piece waits
# the rate, in received pieces a second, from which on a piece waits for `LONGEST_S`
BUSY_PER_S: Final = 1000.0
LONGEST_S: Final = 0.005  # the longest time, in seconds, that a piece waits
# The time constant, in seconds, with which the measured rate follows the load. Half a second after
# the last piece, the measured rate has fallen to about a third.
FOLLOWS_S: Final = 0.5
# The shortest delay in seconds. A shorter delay is replaced by 0, because the timers of uvloop
# count whole milliseconds.
SHORTEST_S: Final = 0.0005


def delay_s(per_s: float) -> float:
    """Return the seconds that a piece waits: 0 at a low rate, 5 ms at a high rate, linear
    between."""
    share = (per_s - QUIET_PER_S) / (BUSY_PER_S - QUIET_PER_S)
    delay = LONGEST_S * min(1.0, share)
    return delay if delay >= SHORTEST_S else 0.0


class Flush:
    """Calls the legs when they must write; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._per_s = 0.0
        self._at_s = clock()
        self._waiting: list[Callable[[], None]] = []

    @property
    def delay_s(self) -> float:
        """The number of seconds that a piece would wait if it came now."""
        return delay_s(self._per_s)

    def count(self) -> None:
        """Count a piece of a body that has been received now."""
        now_s = self._clock()
        faded = math.exp((self._at_s - now_s) / FOLLOWS_S)
        self._per_s = self._per_s * faded + 1 / FOLLOWS_S
        self._at_s = now_s

    def request(self, due: Callable[[], None]) -> None:
        """Call `due` when the caller's bytes must be written: now, or together with other legs'
        bytes.

        The delay begins with the first leg that waits, so no leg waits for longer than 5 ms.
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
