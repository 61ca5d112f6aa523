"""Implements key-value buckets with compare-and-set, TTLs, and reads from the leader.

Claims need reads from the leader, and leases also need a TTL on updates. nats-py's KeyValue has
neither. Its reads are direct gets, which a lagging replica may answer.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.bus.errors import FenceConflict, OutcomeUnknown
from penstock.bus.messages import EXPECTED_SEQUENCE, STORED_AT, Message, Stored
from penstock.bus.read import leader
from penstock.bus.read.direct import last_of_each, replay
from penstock.bus.records.base import Record
from penstock.bus.write.fence import Writes
from penstock.bus.write.objects import unwrap

MARKER_S = 60  # seconds after which the marker of a deletion expires
# The most keys that one request reads. The process handles the answer without a break: a hundred
# records take 2 ms, in which other requests wait.
MANY = 100
CLOCKS_S = 10  # the largest expected difference, in seconds, between two servers' clocks

_OPERATION = "KV-Operation"
_MARKER = "Nats-Marker-Reason"
_MARKERS = frozenset({_OPERATION, _MARKER})
_TTL = "Nats-TTL"
_WRITE = "Penstock-Write"  # identifies a write; needed when the answer to the write was lost


RecordT = TypeVar("RecordT", bound=Record)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry is a key, its value, and the revision that an update of the key must name."""

    key: str
    value: bytes
    revision: int


class Bucket:
    """Reads and writes one bucket. Keys are tokens joined by dots, such as run ids and hashes of
    foreign ids."""

    def __init__(self, bus: Writes, name: str) -> None:
        self._bus = bus
        self._name = name
        self._stream = f"KV_{name}"
        self._prefix = f"$KV.{name}."

    async def get(self, key: str) -> Entry | None:
        """Return the entry of a key as the stream's leader has it; None without a value."""
        stored = await self._last(key)
        values = await self._values([stored]) if stored is not None else []
        return self._entry(values[0]) if values else None

    async def load(self, key: str, model: type[RecordT]) -> RecordT | None:
        """Return the record under a key, perhaps from the object store; None without a value.

        Raises:
            ValidationError: the value is not such a record.
            ObjectGone: the record is in the object store, which no longer has it.
        """
        entry = await self.get(key)
        if entry is None:
            return None
        return model.model_validate_json(await unwrap(self._bus, entry.value))

    async def change(
        self,
        key: str,
        model: type[RecordT],
        change: Callable[[RecordT], None],
        new: RecordT | None = None,
        ttl_s: float | None = None,
    ) -> RecordT | None:
        """Let `change` change the record under a key, or else the record `new`, and return it.

        Returns None without a record and without `new`. If another process writes at the same time,
        `change` is called again with its record. A record that `change` leaves as it is, is not
        written.
        """
        while True:
            entry = await self.get(key)
            record = model.model_validate_json(entry.value) if entry is not None else new
            if record is None:
                return None
            before = record.dump()
            change(record)
            after = record.dump()
            if entry is not None and after == before:
                return record
            revision = entry.revision if entry is not None else 0
            if await self.update(key, after, revision, ttl_s) is not None:
                return record

    async def put(self, key: str, value: bytes) -> int:
        """Write a value, whatever the key holds; return the new revision."""
        return await self._publish(key, value, {})

    async def create(self, key: str, value: bytes, ttl_s: float | None = None) -> int | None:
        """Write a value if the key has none, and return the revision; else return None."""
        return await self.update(key, value, 0, ttl_s)

    async def update(
        self,
        key: str,
        value: bytes,
        revision: int,
        ttl_s: float | None = None,
        further: Mapping[str, str] | None = None,
    ) -> int | None:
        """Write a value if the key has this revision, and return the new revision.

        Returns None when the key has another revision. Revision 0 means that the key has no value.
        The TTL is rounded up to whole seconds. `further` are additional headers. When no answer
        comes, the key's last write is read: its random header `_WRITE` shows whether it is the
        write of this call. If it is not, OutcomeUnknown is raised.
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
                # A deleted or expired key leaves a marker, whose revision the new write must name.
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
        """Delete a key's value and return True; with `revision`, delete only that revision.

        Returns False when the key has another revision. The marker of a deletion has a TTL, so that
        old markers do not fill the bucket.
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
        """Return the entries of all keys that match and have a value, in the order of last writes.

        The entries are read by direct gets, without a consumer. A bucket keeps only the last
        message of each key, so each key has at most one entry.
        """
        found: dict[str, Stored] = {}
        # Without a filter, the server need not count in each request how many messages follow.
        subjects = pattern if pattern == ">" else self._prefix + pattern
        async for stored in replay(self._bus, self._stream, subjects):
            found.pop(stored.subject, None)  # the key was written again during the read
            found[stored.subject] = stored
        return [self._entry(stored) for stored in await self._values(found.values())]

    async def many(self, keys: Sequence[str]) -> dict[str, Entry]:
        """Return the entries of those keys that have a value, by key.

        The entries are read by direct gets, which a lagging replica may answer. So an entry may be
        older than the entry that `get` returns, and a key that was just written may be missing.
        """
        found: list[Stored] = []
        for first in range(0, len(keys), MANY):
            subjects = [self._prefix + key for key in keys[first : first + MANY]]
            found += await last_of_each(self._bus, self._stream, subjects)
        entries = map(self._entry, await self._values(found))
        return {entry.key: entry for entry in entries}

    async def keys(self, pattern: str = ">") -> list[str]:
        return [entry.key for entry in await self.entries(pattern)]

    async def _publish(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        return await self._bus.publisher.publish(Message(self._prefix + key, value, headers))

    async def _last(self, key: str) -> Stored | None:
        return await leader.tail(self._bus, self._stream, self._prefix + key)

    def _entry(self, stored: Stored) -> Entry:
        return Entry(stored.subject.removeprefix(self._prefix), stored.payload, stored.sequence)

    async def _values(self, found: Iterable[Stored]) -> list[Stored]:
        """Return the messages that are values, without markers and without overdue values."""
        values = [each for each in found if not is_marker(each)]
        if any(map(self._overdue, values)):
            # The server's clock may have been set back since its last answer.
            await self._bus.clock.refresh()
        return [each for each in values if not self._overdue(each)]

    def _overdue(self, stored: Stored) -> bool:
        """Return whether a value is so much older than its TTL that the server must have missed its
        end.

        nats-server 2.15.1 misses expiries after a kill -9
        (https://github.com/nats-io/nats-server/issues/8505). Without this check the lease of a
        process that has ended would count as held forever. The margin allows for different clocks
        within a cluster.
        """
        ttl = stored.headers.get(_TTL, "")
        stored_at = stored.stored_at or stored.headers.get(STORED_AT)
        if not ttl.endswith("s") or not stored_at:
            return False
        return self._bus.clock.age_s(stored_at) > 2 * int(ttl[:-1]) + CLOCKS_S


def is_marker(stored: Stored) -> bool:
    """Return whether the message marks its key as deleted or expired."""
    return bool(_MARKERS & stored.headers.keys())


class Buckets(Writes, Protocol):
    """The interface of objects that have buckets, such as a `Bus`."""

    def bucket(self, name: str) -> Bucket: ...
