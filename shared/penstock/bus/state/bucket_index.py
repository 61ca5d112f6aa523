"""Keeps rows in memory about the values of a bucket, so that a list need not read the bucket.

An index is read from the bucket's stream, and no service writes it. So an index is complete even if
a process ends between two writes. Records of older versions are in the index, too. Every process
has its own index: see docs/decisions/0140.

`BucketIndex.caught_up` reads what was written between its last call and this one. A list that calls
`caught_up` first therefore shows what the caller has just written. Rows may still be wrong in one
direction: a value that expired, or that was deleted while this process had no connection, may still
have a row. So a list reads the values of the rows that it shows, and `BucketIndex.values` drops
rows without a value.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import BusError, BusUnavailable, ObjectGone
from penstock.bus.messages import STORED_AT, Stored
from penstock.bus.read.direct import read
from penstock.bus.state.continuity import Continuity
from penstock.bus.state.kv import Bucket, Buckets, Entry, is_marker
from penstock.bus.state.losses import Loss
from penstock.bus.write.objects import unwrap

log = logging.getLogger(__name__)

Row = TypeVar("Row", bound=Sequence[Any])

# The most messages of one read: of the first reading of the whole bucket, and later. The process
# handles 50 of them without a break, in 1.5 ms. Lists wait for the later reads, each of which takes
# long in a busy process.
BATCH, LATER_BATCH = 50, 200
# The longest rest, in seconds, between two batches. A process that reads a whole bucket after its
# start rests between two batches for as long as the last batch took, so that other requests get
# half of the process's time. With batches of 200 messages, and with all indexes reading at once,
# other requests took 38 ms instead of 4 ms.
MAX_REST_S: Final = 0.02
TICK_S: Final = 2.0  # seconds between two reads of the bucket by `run`
CHECK_S: Final = 30.0  # seconds between two checks of the stream's first and last sequence by `run`
WAIT_S: Final = 5.0  # the most seconds that a list waits for the first reading of the bucket
FORGOTTEN: Final = 1000  # the most rows that are dropped without a break


class Change(NamedTuple):
    """The last write of a key. `value` is None if the key was deleted."""

    key: str
    value: bytes | None
    sequence: int  # the sequence of the write in the bucket's stream
    stored_at: str  # RFC 3339, by NATS's clock


class Rows(Protocol):
    """The rows that a `BucketIndex` keeps equal to a bucket. The methods do not wait."""

    def put(self, changes: Sequence[Change]) -> None:
        """Take over the changes, in this order. A value that cannot be parsed must not raise."""
        ...

    def drop(self, key: str, sequence: int) -> None:
        """Drop the row of a key, unless the row is of a later sequence."""
        ...

    def forget_before(self, sequence: int, limit: int) -> bool:
        """Drop up to `limit` rows of older sequences; return whether there may be more."""
        ...

    def clear(self) -> None:
        """Drop all rows."""
        ...


class HasBuckets(Buckets, HasJetStream, Protocol):
    """The interface of a `Bus` that an index needs."""

    continuity: Continuity


# By bus: the lock under which an index reads its whole bucket. So the indexes of a process read
# their buckets one after another.
_reading_whole: WeakKeyDictionary[HasBuckets, asyncio.Lock] = WeakKeyDictionary()


class StillReading(BusUnavailable):
    """The process has started, and has not read the whole bucket yet. A later attempt succeeds."""


def is_single_token(key: str) -> bool:
    return "." not in key


class BucketIndex:
    """Keeps rows equal to the values of a bucket."""

    def __init__(
        self,
        bus: HasBuckets,
        name: str,
        rows: Rows,
        has_row: Callable[[str], bool] = is_single_token,
    ) -> None:
        """Take the bucket's name and its rows. `has_row` says which keys have rows."""
        self._has_row = has_row
        self._bus = bus
        self._name = name
        self._rows = rows
        self._stream = f"KV_{name}"
        self._prefix = f"$KV.{name}."
        self._next = 1  # the sequence from which the next read begins
        self._lock = asyncio.Lock()
        self._begun = 0  # the number of the last catch-up
        self._done = 0  # the number of the last catch-up that succeeded
        # Whether NATS has lost messages of this bucket. Rows and `_next` may then refer to messages
        # that no longer exist.
        self._stale = False
        self._looked_s = time.monotonic()
        self._created = ""  # when the stream was made
        # Whether the next catch-up must check the stream, because NATS may have come back with an
        # older store.
        self._must_look = True
        bus.continuity.on_loss(self._on_loss)
        bus.jetstream.on_reconnect(self._on_reconnect)

    @property
    def bucket(self) -> Bucket:
        return self._bus.bucket(self._name)

    @property
    def is_complete(self) -> bool:
        """True if this process has read the whole bucket, and NATS has not lost messages since."""
        return self._done > 0 and not self._stale

    async def run(self) -> None:
        while True:
            try:
                await self._turn(self._begun)
                if time.monotonic() - self._looked_s > CHECK_S:
                    await self._check_stream()
            except BusError as error:
                log.debug("the index of KV %s is read again later: %s", self._name, error)
            await asyncio.sleep(TICK_S)

    async def caught_up(self) -> None:
        """Wait until the rows include everything that was written before this call. Raises
        StillReading if the process reads the bucket for the first time, which takes longer."""
        arrived = self._begun
        if self.is_complete:
            await self._turn(arrived)
            return
        try:
            async with asyncio.timeout(WAIT_S):
                await self._turn(arrived)
        except TimeoutError as error:
            raise StillReading(
                f"this process has started and still reads the {self._name}; ask again in some "
                "seconds"
            ) from error

    async def values(self, keys: Sequence[str]) -> dict[str, Entry]:
        """Return the present values of these keys; drop the rows of keys without a value."""
        bucket = self.bucket
        found = await bucket.many(keys)
        for key in keys:
            if key in found:
                continue
            # A lagging replica may have answered. A row that is dropped never comes back, so the
            # leader must confirm that there is no value. A later write has a later sequence than
            # `_next`, so such a write brings the row back.
            end = self._next
            entry = await bucket.get(key)
            if entry is None:
                self._rows.drop(key, end)
            else:
                found[key] = entry
        return found

    async def _turn(self, arrived: int) -> None:
        """Catch up, unless a catch-up after number `arrived` has begun and ended meanwhile. So many
        requests that wait at the same time need only one read."""
        async with self._lock:
            if self._done > arrived:
                return
            self._begun += 1
            if self.is_complete:
                await self._catch_up()
            else:
                async with _reading_whole.setdefault(self._bus, asyncio.Lock()):
                    await self._catch_up()
            self._done = self._begun

    async def _catch_up(self) -> None:
        if self._must_look:
            await self._check_stream()
        if self._stale:
            self._rows.clear()
            self._next = 1
            self._done = 0
            self._stale = False
        left: int | None = None  # how many messages of those stored at the first read are unread
        while True:
            begun = time.monotonic()
            # Without a filter, the server needs 6 us for a message. With a filter, the server also
            # counts, in each request, how many messages follow. This takes 20 ms while 50,000
            # messages follow.
            limit = LATER_BATCH if self._done else BATCH
            found, pending = await read(self._bus, self._stream, ">", self._next, limit)
            if found:
                keys = [stored.subject.removeprefix(self._prefix) for stored in found]
                changes = [
                    await self._change(key, stored)
                    for key, stored in zip(keys, found, strict=True)
                    if self._has_row(key)
                ]
                # There must be no `await` between these two lines. A cancellation between them
                # would leave `_next` behind the rows.
                self._rows.put(changes)
                self._next = found[-1].sequence + 1
            # What others have written since the first read is left to the next catch-up. While
            # somebody writes faster than this process reads, a list would wait without end.
            left = pending if left is None else min(pending, left - len(found))
            if not found or left <= 0:
                return
            if not self._done:
                await asyncio.sleep(min(time.monotonic() - begun, MAX_REST_S))

    async def _change(self, key: str, stored: Stored) -> Change:
        value: bytes | None = None
        if not is_marker(stored):
            try:
                value = await unwrap(self._bus, stored.payload)
            except ObjectGone:
                value = b""  # an empty value, which the rows log as a value that is no record
        at = stored.headers.get(STORED_AT, "")
        return Change(key, value, stored.sequence, at)

    async def _check_stream(self) -> None:
        """Drop the rows of values that have aged out, and notice a shorter stream."""
        info = await self._bus.jetstream.api(f"STREAM.INFO.{self._stream}")
        state, created = info["state"], str(info["created"])
        self._looked_s, self._must_look = time.monotonic(), False
        if int(state["last_seq"]) < self._next - 1 or self._created not in ("", created):
            self._stale = True
        self._created = created
        if self._stale:
            return
        while self._rows.forget_before(int(state["first_seq"]), FORGOTTEN):
            await asyncio.sleep(0)

    def _on_reconnect(self) -> None:
        self._must_look = True

    def _on_loss(self, loss: Loss) -> None:
        if loss.stream == self._stream:
            self._stale = True


SLICE: Final = 20_000  # the most rows that one statement looks through, in at most 2 ms


def number_of(text: str) -> int:
    """Return the number of 64 bits that the rows contain in place of a foreign id.

    With numbers instead of ids, all rows are small and have the same size. The numbers differ in
    every process. Two ids may have the same number, so a list compares the ids themselves in the
    values that it reads.
    """
    return hash(text)


class IndexRows:
    """The rows of one index, in SQLite in memory: one table with the columns `key` and `seq`.

    A key may have several rows, which are written and dropped together. SQLite sorts, filters and
    counts 50,000 rows in some milliseconds, and needs 180 bytes for a row with three indexes, where
    Python objects in dictionaries and lists need 450.
    """

    def __init__(self, table: str, *statements: str, beside: IndexRows | None = None) -> None:
        """Take the table's name, and the statements that create the table and its indexes. The
        table is in the database of `beside`, or in a database of its own."""
        memory = ":memory:"
        self.db: sqlite3.Connection = (
            sqlite3.connect(memory, isolation_level=None) if beside is None else beside.db
        )
        self._table = table
        self.db.execute("PRAGMA journal_mode = OFF")  # a batch that fails is put again as a whole
        # Otherwise texts of rows that were updated or deleted would stay in this memory.
        self.db.execute("PRAGMA secure_delete = ON")
        for statement in statements:
            self.db.execute(statement)
        self.db.execute(f"CREATE INDEX {table}_by_seq ON {table}(seq)")

    def rows(
        self, sql: str, given: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        return self.db.execute(sql, given).fetchall()

    def write(self, sql: str, rows: Sequence[Sequence[Any] | Mapping[str, Any]]) -> None:
        self.db.execute("BEGIN")
        try:
            self.db.executemany(sql, rows)
        finally:
            self.db.execute("COMMIT")

    def key_of(self, key: str) -> Any:
        """Return a bucket's key as the column `key` has it; None if it can have no rows."""
        return key

    def upsert(
        self,
        changes: Sequence[Change],
        rows_of: Callable[[Change], Sequence[Row]],
        sql: str,
    ) -> list[Row]:
        """Write and return the rows of all changes with `sql`, whose conflicts update a row; drop
        those of a key without rows, so without a value, too. The keys without rows come first."""
        rows: list[Row] = []
        gone = []
        for change in changes:
            found = rows_of(change) if change.value is not None else ()
            rows += found
            if not found:
                gone.append((self.key_of(change.key),))
        self.write(f"DELETE FROM {self._table} WHERE key = ?", gone)
        self.write(sql, rows)
        return rows

    def drop(self, key: str, sequence: int) -> None:
        sql = f"DELETE FROM {self._table} WHERE key = ? AND seq < ?"
        self.write(sql, [(self.key_of(key), sequence)])

    def forget_before(self, sequence: int, limit: int) -> bool:
        """Drop the rows of up to `limit` keys whose rows have lower sequences than `sequence`.
        Returns whether more such rows may be left."""
        table = self._table
        old = f"SELECT DISTINCT key FROM {table} WHERE seq < ? LIMIT ?"
        sql = f"DELETE FROM {table} WHERE key IN ({old})"
        return self.db.execute(sql, (sequence, limit)).rowcount >= limit

    def clear(self) -> None:
        self.db.execute(f"DELETE FROM {self._table}")
