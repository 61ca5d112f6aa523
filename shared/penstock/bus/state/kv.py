"""Key-value buckets: compare-and-set, TTLs, and reads from the leader.

nats-py's KeyValue reads by direct get, which a lagging replica may answer, and has no TTL on
update; a claim or a lease needs both.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bus.errors import FenceConflict, OutcomeUnknown
from penstock.bus.read.direct import STORED_AT, Stored, replay
from penstock.bus.write.publisher import EXPECTED_SEQUENCE, Message

if TYPE_CHECKING:
    from penstock.bus.bus import Bus

MARKER_S = 60
CLOCKS_S = 10  # by which the clocks of a cluster's servers may differ

_OPERATION = "KV-Operation"
_MARKER = "Nats-Marker-Reason"
_MARKERS = frozenset({_OPERATION, _MARKER})
_TTL = "Nats-TTL"
_WRITE = "Penstock-Write"  # tells a write whose answer was lost from another of the same value


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value; `revision` is what an update must name."""

    key: str
    value: bytes
    revision: int


class Bucket:
    """One bucket. Keys are tokens joined by dots: run ids, and hashes of foreign ids."""

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus = bus
        self._name = name
        self._stream = f"KV_{name}"
        self._prefix = f"$KV.{name}."

    async def get(self, key: str) -> Entry | None:
        """The value as the leader has it; None when there is none."""
        stored = await self._last(key)
        standing = await self._standing([stored]) if stored is not None else []
        return self._entry(standing[0]) if standing else None

    async def put(self, key: str, value: bytes) -> int:
        """Write whatever was there; returns the revision."""
        return await self._publish(key, value, {})

    async def create(self, key: str, value: bytes, ttl_s: float | None = None) -> int | None:
        """Write only where there is nothing; None when somebody was first."""
        return await self.update(key, value, 0, ttl_s)

    async def update(
        self,
        key: str,
        value: bytes,
        revision: int,
        ttl_s: float | None = None,
        further: Mapping[str, str] | None = None,
    ) -> int | None:
        """Write only over that revision (0: nothing there); None when it is another by now.

        A TTL is a whole number of seconds, rounded up. `further`: more headers. Where no answer
        came, the write that stands is looked at; OutcomeUnknown only when that cannot tell either.
        """
        write = secrets.token_hex(8)
        headers = {**(further or {}), _WRITE: write, EXPECTED_SEQUENCE: str(revision)}
        if ttl_s is not None:
            headers[_TTL] = f"{math.ceil(ttl_s)}s"
        while True:
            try:
                return await self._publish(key, value, headers)
            except FenceConflict:
                if revision:
                    return None
                # a key that was deleted or has expired leaves a marker: create over it
                stored = await self._last(key)
                if stored is not None and await self._standing([stored]):
                    return None
                headers[EXPECTED_SEQUENCE] = str(stored.sequence if stored else 0)
            except OutcomeUnknown:
                stored = await self._last(key)
                if stored is not None and stored.headers.get(_WRITE) == write:
                    return stored.sequence
                raise

    async def delete(self, key: str, revision: int | None = None) -> bool:
        """Delete, if a revision is given only that one; False when it is another by now.

        What is left of it goes by itself: a bucket would fill with the markers of its past.
        """
        headers = {_OPERATION: "PURGE", "Nats-Rollup": "sub", _TTL: f"{MARKER_S}s"}
        if revision is not None:
            headers[EXPECTED_SEQUENCE] = str(revision)
        try:
            await self._publish(key, b"", headers)
        except FenceConflict:
            return False
        return True

    async def entries(self, pattern: str = ">") -> list[Entry]:
        """What stands now under the pattern, in the order of the last write.

        Read without a consumer: a bucket keeps one message a key.
        """
        found: dict[str, Stored] = {}
        async for stored in replay(self._bus, self._stream, self._prefix + pattern):
            found.pop(stored.subject, None)  # written again while we read
            found[stored.subject] = stored
        return [self._entry(stored) for stored in await self._standing(found.values())]

    async def keys(self, pattern: str = ">") -> list[str]:
        """The keys that have a value, in the order of their last write."""
        return [entry.key for entry in await self.entries(pattern)]

    async def _publish(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        return await self._bus.publisher.publish(Message(self._prefix + key, value, headers))

    async def _last(self, key: str) -> Stored | None:
        return await self._bus.tail(self._stream, self._prefix + key)

    def _entry(self, stored: Stored) -> Entry:
        return Entry(stored.subject.removeprefix(self._prefix), stored.payload, stored.sequence)

    async def _standing(self, found: Iterable[Stored]) -> list[Stored]:
        """Those that are values: neither markers nor overdue."""
        values = [each for each in found if not _MARKERS & each.headers.keys()]
        if any(map(self._overdue, values)):
            # the server's clock may have been set back since it last told us its time
            await self._bus.clock.look()
        return [each for each in values if not self._overdue(each)]

    def _overdue(self, stored: Stored) -> bool:
        """Whether its TTL has passed for so long that the server must have forgotten to expire it.

        nats-server 2.15.1 does, after a kill -9 (nats-server #8505), and a dead process would seem
        to live for ever. The margin is for a cluster whose servers' clocks differ.
        """
        ttl = stored.headers.get(_TTL, "")
        stored_at = stored.stored_at or stored.headers.get(STORED_AT)
        if not ttl.endswith("s") or not stored_at:
            return False
        return self._bus.clock.age_s(stored_at) > 2 * int(ttl[:-1]) + CLOCKS_S
