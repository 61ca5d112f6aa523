"""Tells a command that kills connectors from one whose connectors ended for other reasons.

The server counts how often it has delivered a command. When connectors are killed again and again,
a sound command is delivered many times and never finished, so the count says nothing about the
command. Therefore, from a number of deliveries on, a connector records each attempt before it
begins, and deletes the record when it has survived the attempt, whatever the result. While a
command only waits, for a leg or for its next attempt, no attempt is under way. When several
attempts in a row were not survived, the command is the reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.bus import Bus, NeverFinished, Stored
from penstock.bus.subjects import run_id_of

UNCOUNTED = 10  # deliveries without a record; nearly every command needs only one delivery
MAX_UNSURVIVED = 5  # attempts in a row; then the command is the reason


class Attempts:
    """Counts how many attempts in a row no connector survived, in KV `claims`.

    The key is `attempts.<run>.<stream sequence>.<step>`. Each step of a command has a count of its
    own, since a connector that survives the first step may end in the second.
    """

    def __init__(self, bus: Bus) -> None:
        self._bucket = bus.bucket("claims")

    @asynccontextmanager
    async def at(self, step: str, stored: Stored) -> AsyncIterator[None]:
        """Record an attempt. Within the context, the command may end this process.

        The attempt is recorded for a command that was delivered more than 10 times, or that has a
        record. (`delivered` is 0 where the command was read from the stream, not delivered.)

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
        # Without this write before the attempt, a command that ends the process leaves no trace.
        await self._bucket.put(key, str(unsurvived + 1).encode())
        try:
            yield
        finally:
            await self._bucket.delete(key)
