"""Key-value buckets: compare-and-set, TTLs, and reads from the leader.

nats-py's KeyValue reads by direct get, which a lagging replica may answer, and has no TTL on
update. A claim or a lease needs both.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.bus.errors import FenceConflict, OutcomeUnknown
from penstock.bus.messages import Message, Stored
from penstock.bus.read import leader
from penstock.bus.read.direct import STORED_AT, replay
from penstock.bus.write.fence import Writes
from penstock.bus.write.publisher import EXPECTED_SEQUENCE

MARKER_S = 60
CLOCKS_S = 10  # the largest expected difference between the clocks of a cluster's servers

_OPERATION = "KV-Operation"
_MARKER = "Nats-Marker-Reason"
_MARKERS = frozenset({_OPERATION, _MARKER})
_TTL = "Nats-TTL"
_WRITE = "Penstock-Write"  # identifies a write, so that it is recognised when its answer was lost


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value, and the revision that an update of it must name."""

    key: str
    value: bytes
    revision: int


class Bucket:
    """One bucket. Keys are tokens joined by dots: run ids, and hashes of foreign ids."""

    def __init__(self, bus: Writes, name: str) -> None:
        self._bus = bus
        self._name = name
        self._stream = f"KV_{name}"
        self._prefix = f"$KV.{name}."

    async def get(self, key: str) -> Entry | None:
        """The value as the leader has it; None when there is none.

        Raises:
            BusError: the leader cannot be asked.
        """
        stored = await self._last(key)
        values = await self._values([stored]) if stored is not None else []
        return self._entry(values[0]) if values else None

    async def put(self, key: str, value: bytes) -> int:
        """Write over any value; returns the revision.

        Raises:
            BusError: the value was not stored, or its fate is unknown.
        """
        return await self._publish(key, value, {})

    async def create(self, key: str, value: bytes, ttl_s: float | None = None) -> int | None:
        """Write only where there is no value; None when there is one.

        Raises:
            BusError: as `update` does.
        """
        return await self.update(key, value, 0, ttl_s)

    async def update(
        self,
        key: str,
        value: bytes,
        revision: int,
        ttl_s: float | None = None,
        further: Mapping[str, str] | None = None,
    ) -> int | None:
        """Write only over that revision (0: no value); None when the revision is another one.

        A TTL is a whole number of seconds, rounded up. `further` are more headers. When no answer
        came, the last write is read: it is recognised by a random header.

        Raises:
            OutcomeUnknown: no answer came, and the last write is another one.
            BusError: nothing was stored, or the leader cannot be asked.
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
                # A deleted or expired key leaves a marker: create over the marker.
                stored = await self._last(key)
                if stored is not None and await self._values([stored]):
                    return None
                headers[EXPECTED_SEQUENCE] = str(stored.sequence if stored else 0)
            except OutcomeUnknown:
                stored = await self._last(key)
                if stored is not None and stored.headers.get(_WRITE) == write:
                    return stored.sequence
                raise

    async def delete(self, key: str, revision: int | None = None) -> bool:
        """Delete the value, or only that revision; False when the revision is another one.

        The marker of a deletion has a TTL, so that old markers do not fill the bucket.

        Raises:
            BusError: the value was not deleted, or its fate is unknown.
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
        """All present values under the pattern, in the order of their last write.

        Read by direct get, without a consumer: a bucket keeps one message for each key.

        Raises:
            BusError: the bucket cannot be read.
        """
        found: dict[str, Stored] = {}
        async for stored in replay(self._bus, self._stream, self._prefix + pattern):
            found.pop(stored.subject, None)  # the key was written again during the read
            found[stored.subject] = stored
        return [self._entry(stored) for stored in await self._values(found.values())]

    async def keys(self, pattern: str = ">") -> list[str]:
        """The keys that have a value, in the order of their last write.

        Raises:
            BusError: the bucket cannot be read.
        """
        return [entry.key for entry in await self.entries(pattern)]

    async def _publish(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        return await self._bus.publisher.publish(Message(self._prefix + key, value, headers))

    async def _last(self, key: str) -> Stored | None:
        return await leader.tail(self._bus, self._stream, self._prefix + key)

    def _entry(self, stored: Stored) -> Entry:
        return Entry(stored.subject.removeprefix(self._prefix), stored.payload, stored.sequence)

    async def _values(self, found: Iterable[Stored]) -> list[Stored]:
        """The messages that are values: neither markers nor overdue."""
        values = [each for each in found if not _MARKERS & each.headers.keys()]
        if any(map(self._overdue, values)):
            # The server's clock may have been set back since its last answer.
            await self._bus.clock.look()
        return [each for each in values if not self._overdue(each)]

    def _overdue(self, stored: Stored) -> bool:
        """Whether the TTL has passed for so long that the server must have missed its end.

        nats-server 2.15.1 does that after a kill -9
        (https://github.com/nats-io/nats-server/issues/8505). Without this check a dead process
        would seem to live forever. The margin allows for different clocks within a cluster.
        """
        ttl = stored.headers.get(_TTL, "")
        stored_at = stored.stored_at or stored.headers.get(STORED_AT)
        if not ttl.endswith("s") or not stored_at:
            return False
        return self._bus.clock.age_s(stored_at) > 2 * int(ttl[:-1]) + CLOCKS_S


class Buckets(Writes, Protocol):
    """Anything that has buckets: a `Bus`."""

    def bucket(self, name: str) -> Bucket:
        """The bucket of this name."""
