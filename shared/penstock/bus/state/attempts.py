"""Distinguishes a message that kills processes from a message whose processes died for other
reasons.

NATS counts how often it has delivered a message. If processes are killed again and again, or are so
slow that a message is delivered anew while they handle it, even a harmless message is delivered
many times. So this count alone does not show that the message kills processes.

Therefore, after `UNCOUNTED` deliveries of a message, a service records each attempt before the
attempt begins, and makes only one such attempt at a time. If the process survives the attempt, it
deletes the record, whatever the result is. A message that only waits for its next attempt has no
record. If several attempts in a row were not survived, the message kills processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.bus.messages import Stored
from penstock.bus.read.work_queue import NeverFinished
from penstock.bus.state.kv import Buckets

# the number of deliveries before attempts are recorded; nearly every message needs only one
# delivery
UNCOUNTED = 10
# the number of attempts in a row that no process survived, after which the message counts as the
# cause and is not tried again
MAX_UNSURVIVED = 5


class Attempts:
    """Counts, in KV `claims`, the attempts in a row that no process of a service has survived.

    The key is `attempts.<service>.<step>.<stream sequence>.<subject>`. Each step of a message has
    its own count, because a process may survive the first step and die in the second.
    """

    def __init__(self, bus: Buckets, service: str) -> None:
        self._bucket = bus.bucket("claims")
        self._service = service
        # If two recorded attempts ran side by side, a message that kills the process would leave a
        # record of the other message, too.
        self._alone = asyncio.Lock()

    @asynccontextmanager
    async def at(self, step: str, stored: Stored) -> AsyncIterator[None]:
        """Record an attempt; within the context, the message may kill this process.

        The attempt is recorded if the message was delivered more than 10 times, or if it has a
        record already. `delivered` is 0 if the message was read from the stream and not delivered.
        Raises NeverFinished if five processes in a row did not survive this step.
        """
        if 0 < stored.delivered <= UNCOUNTED:
            yield
            return
        key = f"attempts.{self._service}.{step}.{stored.sequence}.{stored.subject}"
        if stored.delivered == 0 and await self._bucket.get(key) is None:
            yield
            return
        async with self._alone:
            entry = await self._bucket.get(key)
            unsurvived = int(entry.value) if entry is not None else 0
            if unsurvived >= MAX_UNSURVIVED:
                raise NeverFinished(stored.delivered - 1)
            # The record is written before the attempt, because a message that kills the process
            # leaves no other trace.
            await self._bucket.put(key, str(unsurvived + 1).encode())
            try:
                yield
            finally:
                await self._bucket.delete(key)
