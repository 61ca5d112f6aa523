"""Receives webhooks, and fails for a given share of the requests, in all ways."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from support.fakes.receiver import (
    OK,
    Behaviour,
    Received,
    answers,
    garbage,
    hangs,
    resets,
    trickles,
)

# The failures of the receiver, and their shares of all its failures.
FAILURES: dict[Behaviour, int] = {
    answers(500, "out of order"): 4,
    answers(404): 6,
    answers(302, location="http://127.0.0.1:9/else"): 6,
    answers(400): 6,
    answers(429, Retry_After="1"): 3,
    garbage: 3,
    resets: 3,
    hangs(5): 1,
    trickles(5): 1,
}


class Hostile:
    """Behaves badly for a share of the requests, which the seed gives."""

    def __init__(self, seed: int, fails: float) -> None:
        self._luck = random.Random(seed)
        self._fails = fails
        self.failed: Counter[Behaviour] = Counter()

    async def behave(self, writer: asyncio.StreamWriter, received: Received) -> None:
        """Answer one request."""
        behaviour = OK
        if self._luck.random() < self._fails:
            [behaviour] = self._luck.choices(list(FAILURES), list(FAILURES.values()))
            self.failed[behaviour] += 1
        await behaviour(writer, received)
