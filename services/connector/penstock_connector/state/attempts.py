"""Tells a command that kills connectors from one whose connectors died of something else.

The server counts how often it has delivered a command. When connectors are killed again and again,
a sound command is delivered many times and never finished: its deliveries say nothing about it. So
from a number of deliveries on, a connector writes down each attempt before it begins, and deletes
the record as soon as it has survived the attempt, whatever came of it. Time that a command only
waits, for a leg or for its next attempt, is no part of an attempt. Attempts in a row that no
connector has survived are the command's own doing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.bus import Bus, NeverFinished, Stored
from penstock.bus.subjects import run_id_of

UNCOUNTED = 10  # deliveries before attempts are written down: nearly every command needs one
MAX_UNSURVIVED = 5


class Attempts:
    """How many attempts in a row nobody survived: KV `claims`.

    The key is `attempts.<run>.<stream sequence>.<step>`. Each step of a command has a count of its
    own, since whoever survives the first one may die of the second.
    """

    def __init__(self, bus: Bus) -> None:
        self._bucket = bus.bucket("claims")

    @asynccontextmanager
    async def at(self, step: str, stored: Stored) -> AsyncIterator[None]:
        """Within, the command may kill this connector.

        Written down for a command that was delivered often, or was before (`delivered` is 0 where
        it is read from the stream, and tells nothing).

        Raises NeverFinished when too many connectors did not survive it; BusError.
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
        await self._bucket.put(key, str(unsurvived + 1).encode())
        try:
            yield
        finally:
            await self._bucket.delete(key)
