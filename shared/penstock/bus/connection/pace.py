"""Decides how long a busy connection rests between two reads. Pure.

A process that follows thousands of runs gets each live message separately, because the server sends
a message as soon as the message arrives. Waking for one message costs the edge 20 µs. All other
work on the message before the edge's write costs as much again. So while many messages arrive, this
process rests for some milliseconds between two reads. The operating system keeps the messages
meanwhile, and the next read takes all of them.
"""

from __future__ import annotations

from typing import Final

LONGEST_S: Final = 0.005  # the longest rest, in seconds
# the rate, in messages a second, from which on the rest lasts `LONGEST_S`
BUSY_PER_S: Final = 10_000
# The shortest rest, in seconds. A shorter rest would join no two messages, so there is none.
SHORTEST_S: Final = 0.001
CHECK_S: Final = 0.05  # the least number of seconds over which the rate is measured


class Pace:
    """Measures the rate of the messages that may wait. The caller adds the number of new messages
    to `messages`."""

    __slots__ = ("_looked_at_s", "_rest_s", "messages")

    def __init__(self) -> None:
        self.messages = 0  # the messages since the last measurement
        self._looked_at_s = 0.0
        self._rest_s = 0.0

    def rest_s(self, now_s: float) -> float:
        """Return how long to rest after the read that has just ended.

        The rest grows with the rate: 1 ms for 2,000 messages a second, and 5 ms for 10,000.
        """
        passed_s = now_s - self._looked_at_s
        if passed_s >= CHECK_S:
            share = min(1.0, self.messages / passed_s / BUSY_PER_S)
            rest_s = LONGEST_S * share
            self._rest_s = rest_s if rest_s >= SHORTEST_S else 0.0
            self.messages, self._looked_at_s = 0, now_s
        return self._rest_s
