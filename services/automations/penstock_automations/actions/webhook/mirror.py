"""Writes the breakers of this process that are not closed to KV `endpoints`, where the API reads
them.

Each process uses only its own breakers to admit requests, and never reads the bucket for this. When
a process has ended, its entries expire.
"""

from __future__ import annotations

import asyncio
import logging
import time
from hashlib import sha256
from typing import Final, Literal

from pydantic import ValidationError

from penstock.bus import Bus, BusError
from penstock.bus.records.base import Record
from penstock.events import timestamp
from penstock_automations.actions.webhook.breaker import State
from penstock_automations.actions.webhook.endpoints import Endpoint, Endpoints

log = logging.getLogger(__name__)

BUCKET: Final = "endpoints"
CHECK_S: Final = 1.0  # seconds between two checks of the breakers
TTL_S: Final = 60.0
RENEW_S: Final = 20.0
_NAMES: Final[dict[State, Literal["open", "half_open"]]] = {
    State.OPEN: "open",
    State.HALF_OPEN: "half_open",
}


class EndpointRecord(Record):
    """KV `endpoints`, key `<pod>.<hash of the endpoint>`: a breaker that is not closed."""

    endpoint: str
    rule: str
    owner: str
    process: str
    state: Literal["open", "half_open"]
    failures: int
    next_at: str


class Mirror:
    """Keeps the entries of one process in KV equal to the breakers in its memory."""

    def __init__(self, bus: Bus, pod: str, endpoints: Endpoints) -> None:
        self._bus = bus
        self._bucket = bus.bucket(BUCKET)
        self._pod = pod
        self._endpoints = endpoints
        # The written entries, by the endpoint's key: the state, the revision, and the time.
        self._written: dict[str, tuple[State, int, float]] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.update()
            except BusError as error:
                log.debug("the states of endpoints are written later: %s", error)

    async def update(self) -> None:
        """Write the breakers that have changed, and delete the entries of closed breakers."""
        now = time.monotonic()
        present = self._endpoints.not_closed()
        for key, endpoint in present.items():
            state, revision, at = self._written.get(key, (State.CLOSED, 0, 0.0))
            if state is not endpoint.breaker.state or now - at > RENEW_S:
                await self._write(key, endpoint, revision, now)
        for key in self._written.keys() - present.keys():
            await self._bucket.delete(self._key(key))
            del self._written[key]

    async def _write(self, key: str, endpoint: Endpoint, revision: int, now: float) -> None:
        breaker = endpoint.breaker
        next_at = self._bus.clock.time() + breaker.left_s(now)
        record = EndpointRecord(
            endpoint=endpoint.url,
            rule=endpoint.rule,
            owner=endpoint.owner.user_id,
            process=self._pod,
            state=_NAMES[breaker.state],
            failures=breaker.failures,
            next_at=timestamp(int(next_at * 1000)),
        )
        written = await self._bucket.update(self._key(key), record.dump(), revision, TTL_S)
        # `written` is None if the entry has another revision: the entry has expired, or an earlier
        # write was stored but the answer to that write was lost. The next call of `update` then
        # writes the entry again.
        if written is not None:
            self._written[key] = (breaker.state, written, now)
        else:
            await self._bucket.delete(self._key(key))
            self._written.pop(key, None)

    def _key(self, endpoint: str) -> str:
        return f"{self._pod}.{sha256(endpoint.encode()).hexdigest()[:16]}"


async def endpoints_of(bus: Bus) -> list[EndpointRecord]:
    """Return the breakers of all processes that are not closed. Raises BusError."""
    found = []
    for entry in await bus.bucket(BUCKET).entries():
        try:
            found.append(EndpointRecord.model_validate_json(entry.value))
        except ValidationError:
            log.warning("the entry %s of KV %s cannot be read, it is not shown", entry.key, BUCKET)
    return sorted(found, key=lambda each: (each.endpoint, each.rule, each.process))
