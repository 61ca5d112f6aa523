"""Distinguishes a command that kills connectors from a command whose connectors died for other
reasons.

NATS counts how often it has delivered a command. If connectors are killed again and again, even a
harmless command is delivered many times and is never finished. So this count alone does not show
that the command kills connectors.

Therefore, after `UNCOUNTED` deliveries of a command, a connector records each attempt before the
attempt begins. If the connector survives the attempt, the connector deletes the record, whatever
the result is. A command that only waits, for a leg or for its next attempt, has no record. If
several attempts in a row were not survived, the command kills connectors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.bus import Bus, NeverFinished, Stored
from penstock.bus.subjects import run_id_of

# the number of deliveries before attempts are recorded; nearly every command needs only one
# delivery
UNCOUNTED = 10
# the number of attempts in a row that no connector survived, after which the command counts as the
# cause and is not tried again
MAX_UNSURVIVED = 5


class Attempts:
    """Counts, in KV `claims`, the attempts in a row that no connector has survived.

    The key is `attempts.<run>.<stream sequence>.<step>`. Each step of a command has its own count,
    because a connector may survive the first step and die in the second.
    """

    def __init__(self, bus: Bus) -> None:
        self._bucket = bus.bucket("claims")

    @asynccontextmanager
    async def at(self, step: str, stored: Stored) -> AsyncIterator[None]:
        """Record an attempt; within the context, the command may kill this process.

        The attempt is recorded if the command was delivered more than 10 times, or if it has a
        record already. `delivered` is 0 if the command was read from the stream and not delivered.

        Raises:
            NeverFinished: five connectors in a row did not survive this step.
            BusError: the record cannot be read or written.
        """
        if 0 < stored.delivered <= UNCOUNTED:
            yield
            return
        key = f"attempts.{run_id_of(stored.subject)}.{stored.sequence}.{step}"
        entry = await self._bucket.get(key)
        if entry is None and stored.delivered == 0:
            yield
            return
        unsurvived = int(entry.value) if entry is not None else 0
        if unsurvived >= MAX_UNSURVIVED:
            raise NeverFinished(stored.delivered - 1)
        # The record is written before the attempt, because a command that kills the process leaves
        # no other trace.
        await self._bucket.put(key, str(unsurvived + 1).encode())
        try:
            yield
        finally:
            await self._bucket.delete(key)
