"""Keeps the filter subjects of the event consumers equal to the types that the rules name."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.bus import Bus, BusUnavailable, Lease, streams, subjects
from penstock_automations.broker import Consumer, declare
from penstock_automations.rules.store import CurrentRules

log = logging.getLogger(__name__)

NOTHING = "custom.none.none"  # a subject without messages
# So many events may be unacknowledged. Events of users whose lane is full count, too.
MAX_PENDING = 10_000
LEASE_TTL_S, LEASE_WAIT_S, CHECK_S = 5.0, 30.0, 0.05


class Consumers:
    """The durable consumers of all shards. All processes share these consumers.

    A process takes a lease, reads the rules, and then changes the subjects. Without the lease, a
    process that has not yet read a new rule could remove the rule's subjects again. Then the server
    would skip events for this rule.
    """

    def __init__(self, bus: Bus, rules: CurrentRules, name: str, ack_wait_s: float) -> None:
        self._bus = bus
        self._rules = rules
        self._name = name
        self._ack_wait_s = ack_wait_s

    async def update(self) -> None:
        """Give all consumers the subjects of the current rules; make missing consumers.

        Raises:
            BusError: the bus does not answer, or another process holds the lease for too long.
        """
        async with self._alone():
            await self._rules.refresh()
            for shard in range(self._bus.shards.made):
                await declare(self._bus, self.of(shard))

    def of(self, shard: int) -> Consumer:
        """Return the consumer of a shard's events."""
        stream, patterns = streams.events_of(shard), filters(self._rules.types())
        return Consumer(stream, self._name, patterns, self._ack_wait_s, MAX_PENDING, from_now=True)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        holder = f"consumers-{secrets.token_hex(8)}"
        lease = Lease(self._bus, f"{self._name}.consumers", holder, LEASE_TTL_S)
        try:
            async with asyncio.timeout(LEASE_WAIT_S):
                while not await lease.acquire():
                    await asyncio.sleep(CHECK_S)
        except TimeoutError:
            raise BusUnavailable(
                f"another process changes the consumers of {self._name} for too long"
            ) from None
        try:
            yield
        finally:
            await lease.release()


def filters(types: frozenset[str]) -> tuple[str, ...]:
    """Return the filter subjects for a consumer that gets events of these types.

    Without types, the result is `NOTHING`, a subject without messages, because a consumer without
    filters would get every event.
    """
    return tuple(subjects.event(type_, "*") for type_ in sorted(types)) or (NOTHING,)
