"""Keeps the filter subjects of the event consumers equal to the types that the rules name."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from penstock.bus import Bus, BusUnavailable, Lease, streams, subjects
from penstock.bus.connection.retry import first_answer
from penstock_automations.rules.store import CurrentRules

NOTHING: Final = "custom.none.none"  # a subject without messages
# So many events may be unacknowledged. Those of full lanes are acknowledged, and wait elsewhere.
MAX_PENDING: Final = 10_000
LEASE_TTL_S, LEASE_WAIT_S, CHECK_S = 5.0, 30.0, 0.05
_NANO: Final = 1_000_000_000


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
        """Give all consumers the subjects of the current rules; make missing consumers. Raises
        BusError."""
        async with self._alone():
            await self._rules.refresh()
            for shard in range(self._bus.shards.made):
                await self._declare(streams.events_of(shard))

    async def _declare(self, stream: str) -> None:
        config: dict[str, Any] = {
            "durable_name": self._name,
            "filter_subjects": list(filters(self._rules.types())),
            "deliver_policy": "new",  # no rule waits for events that are stored already
            "ack_policy": "explicit",
            "ack_wait": int(self._ack_wait_s * _NANO),
            "max_ack_pending": MAX_PENDING,
            "max_deliver": -1,
        }
        call = f"CONSUMER.DURABLE.CREATE.{stream}.{self._name}"
        body = {"stream_name": stream, "config": config}
        await first_answer(lambda: self._bus.jetstream.api(call, body))

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
