"""Measures how busy the event loop of this process is, and so for how long work may wait for more
work (decision 0370).

A process that handles several messages at once does so with less CPU time than one by one. So some
parts of Penstock let a message wait for further messages. But a process whose event loop is idle
has CPU time left over. So such a wait lasts for its longest time only while the event loop is busy
all the time, and an idle process does everything at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.1  # the least number of seconds over which the share is measured
# The time constant, in seconds, with which the measured share follows the load. A burst of 0.1 s
# raises the share of an idle process to at most 0.2.
FOLLOWS_S: Final = 0.5
# The shortest wait, in seconds. A shorter wait is replaced by 0, because the timers of uvloop count
# whole milliseconds.
SHORTEST_S: Final = 0.0005
# The least number of messages for which a wait is worth its timer. With 1,000 frames a second, a
# wait of 1 ms in the connector saves nothing, and one of 2 ms saves 13 % of the CPU time.
JOINED: Final = 2


def until_tick_s(every_s: float, now_s: float) -> float:
    """Return the seconds until a multiple of `every_s`, which is at least half of `every_s` away.

    Loops that wait until the same moment wake their process once. A timer of uvloop may end a
    millisecond early, and a multiple of 0.2 is not exact. If a loop then waited for the same
    moment again, it would turn without a rest until this moment.
    """
    return round(now_s / every_s + 1) * every_s - now_s


class Busyness:
    """The share of the time for which the event loop computes, as a running mean.

    `clock` returns seconds, `used` the seconds of CPU time of this thread. `used` is read at most
    every `LOOK_S`, and only when somebody asks, so an idle process has no timer for this.

    The time for which the thread waits for a core does not count. More messages come meanwhile, and
    are handled at once.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._used = used
        # Nothing was measured yet, so the first look finds a share of 0. A first look at the import
        # of this module would count the imports, and a forked process has a clock of its own.
        self._looked_at_s = -math.inf
        self._used_s = 0.0
        self._share = 0.0

    @property
    def share(self) -> float:
        """From 0, if the event loop only waits, to 1, if it never waits."""
        now_s = self._clock()
        passed_s = now_s - self._looked_at_s
        if passed_s >= LOOK_S:
            before_s, self._used_s = self._used_s, self._used()
            share = min(1.0, (self._used_s - before_s) / passed_s)
            faded = math.exp(-passed_s / FOLLOWS_S)
            self._share = share + (self._share - share) * faded
            self._looked_at_s = now_s
        return self._share

    def wait_s(self, longest_s: float, least_share: float = 0.0) -> float:
        """Return the seconds for which work may wait for more work.

        Because of the square, a loop that is busy for half of the time waits for a quarter of the
        longest time, and one that is busy for a fifth of the time for 4 % of it. `least_share`
        counts if it is greater than the share.
        """
        return longest_s * max(self.share, min(1.0, least_share)) ** 2


class Pace:
    """Decides for how long the messages of one source wait for each other.

    The caller adds the number of new messages that may wait to `messages`. `costs_s` is the CPU
    time, in seconds, that a message which is sent alone costs other processes, if these are to
    count as busy, too.
    """

    __slots__ = (
        "_busyness",
        "_clock",
        "_costs_s",
        "_longest_s",
        "_looked_at_s",
        "_wait_s",
        "messages",
    )

    def __init__(
        self,
        longest_s: float,
        busyness: Busyness | None = None,
        clock: Callable[[], float] = time.monotonic,
        costs_s: float = 0.0,
    ) -> None:
        self.messages = 0  # the messages since the last measurement
        self._longest_s = longest_s
        self._costs_s = costs_s
        self._busyness = busyness or BUSYNESS
        self._clock = clock
        self._looked_at_s = clock()
        self._wait_s = 0.0

    @property
    def wait_s(self) -> float:
        """0 if fewer than `JOINED` messages are expected in the wait."""
        now_s = self._clock()
        passed_s = now_s - self._looked_at_s
        if passed_s >= LOOK_S:
            per_s = self.messages / passed_s
            wait_s = self._busyness.wait_s(self._longest_s, per_s * self._costs_s)
            is_worth = wait_s >= SHORTEST_S and per_s * wait_s >= JOINED
            self._wait_s = wait_s if is_worth else 0.0
            self.messages, self._looked_at_s = 0, now_s
        return self._wait_s


BUSYNESS: Final = Busyness()  # of this process; only the thread of the event loop asks it
