"""Key-value buckets: compare-and-set, TTLs, and reads from the leader.

nats-py's KeyValue reads by direct get, which a lagging replica may answer, and has no TTL on
update; a claim or a lease needs both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bus.direct import Stored, replay
from penstock.bus.errors import FenceConflict, OutcomeUnknown
from penstock.bus.publisher import EXPECTED_SEQUENCE, Message

if TYPE_CHECKING:
    from penstock.bus.client import Bus

_OPERATION = "KV-Operation"
_MARKER = "Nats-Marker-Reason"


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value; `revision` is what an update must name. `value` None: deleted."""

    key: str
    value: bytes | None
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
        entry = await self._last(key)
        return entry if entry is not None and entry.value is not None else None

    async def put(self, key: str, value: bytes) -> int:
        """Write whatever was there; returns the revision."""
        return await self._bus.publisher.publish(Message(self._prefix + key, value, {}))

    async def create(self, key: str, value: bytes, ttl_s: float | None = None) -> int | None:
        """Write only where there is nothing; None when somebody was first."""
        return await self.update(key, value, 0, ttl_s)

    async def update(
        self, key: str, value: bytes, revision: int, ttl_s: float | None = None
    ) -> int | None:
        """Write only over that revision; None when it is another by now.

        An unknown outcome is looked up: the value that stands is either ours or somebody else's.
        """
        headers = {EXPECTED_SEQUENCE: str(revision)}
        if ttl_s is not None:
            headers["Nats-TTL"] = f"{max(1, round(ttl_s))}s"
        message = Message(self._prefix + key, value, headers)
        try:
            return await self._bus.publisher.publish(message)
        except FenceConflict:
            if revision:
                return None
        except OutcomeUnknown:
            entry = await self._last(key)
            if entry is not None and entry.value == value and entry.revision > revision:
                return entry.revision
            raise
        # a deleted or expired key leaves a marker: create over it
        entry = await self._last(key)
        if entry is None or entry.value is not None:
            return None
        headers[EXPECTED_SEQUENCE] = str(entry.revision)
        try:
            return await self._bus.publisher.publish(message)
        except FenceConflict:
            return None

    async def delete(self, key: str, revision: int | None = None) -> bool:
        """Delete, if a revision is given only that one; False when it is another by now."""
        headers = {_OPERATION: "PURGE", "Nats-Rollup": "sub"}
        if revision is not None:
            headers[EXPECTED_SEQUENCE] = str(revision)
        try:
            await self._bus.publisher.publish(Message(self._prefix + key, b"", headers))
        except FenceConflict:
            return False
        return True

    async def entries(self, pattern: str = ">") -> list[Entry]:
        """What stands now under the pattern, in the order of the last write.

        Read without a consumer: a bucket keeps one message a key.
        """
        found: dict[str, Entry] = {}
        async for stored in replay(self._bus, self._stream, self._prefix + pattern):
            key = stored.subject.removeprefix(self._prefix)
            found[key] = _entry(key, stored)
        return [entry for entry in found.values() if entry.value is not None]

    async def keys(self, pattern: str = ">") -> list[str]:
        """The keys that have a value, in the order of their last write."""
        return [entry.key for entry in await self.entries(pattern)]

    async def _last(self, key: str) -> Entry | None:
        stored = await self._bus.tail(self._stream, self._prefix + key)
        if stored is None:
            return None
        return _entry(key, stored)


def _entry(key: str, stored: Stored) -> Entry:
    gone = _OPERATION in stored.headers or _MARKER in stored.headers
    return Entry(key, None if gone else stored.payload, stored.sequence)
