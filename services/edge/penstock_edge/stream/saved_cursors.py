"""Saves, under a name (`?cursor=<name>`), the positions of clients that cannot save positions
(decision 0173).

A client that connects with a cursor's name and without `Last-Event-ID` continues at the saved
position. The server of an event stream does not learn which events a client has processed. So a
position counts as received under three conditions: the edge wrote it at least `settle_s` seconds
ago, the connection is still open, and the client's system has acknowledged the bytes. Therefore a
client that restarts gets the events of the last `settle_s` seconds once more. A client misses
nothing if it reads the bytes that reach its system within `settle_s` seconds.

Only the newest connection with a cursor saves positions. An old connection may be broken although
the edge still considers it open. If an old connection could save, the cursor could pass events that
the new connection has not got.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self

import orjson

from penstock.bus import Bus, BusError
from penstock.bus.subjects import key_of
from penstock.web.auth import Identity
from penstock.web.problems import Problem
from penstock_edge.stream.client import Client
from penstock_edge.stream.drivers import acknowledged, written

log = logging.getLogger(__name__)

BUCKET: Final = "cursors"
MAX_PER_OWNER: Final = 100
CHECK_S: Final = 1.0  # seconds between two samples of a stream's position
# Seconds after which `complete_until` is saved again although the position is the same. If this
# time were saved only with a new position, it would become too old when events are rare.
TIME_EVERY_S: Final = 60.0
CLOSE_S: Final = 2.0
# the greatest number of seconds between the storage of an event and its arrival in a stream
LAG_S: Final = 5.0

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Position:
    """A saved position: the cursor, and a time before which the client has got all events. `holder`
    is the id of the connection that may save the next position."""

    cursor: str
    complete_until: float | None  # Unix seconds by NATS's clock
    holder: str

    @classmethod
    def parse(cls, value: bytes) -> Self:
        record = orjson.loads(value)
        return cls(record["cursor"], record["complete_until"], record["holder"])

    def dump(self) -> bytes:
        return orjson.dumps(
            {
                "cursor": self.cursor,
                "complete_until": self.complete_until,
                "holder": self.holder,
            }
        )

    @property
    def time(self) -> datetime | None:
        until = self.complete_until
        return None if until is None else datetime.fromtimestamp(until, UTC)


class Sample(NamedTuple):
    """The state of a stream at one moment by the loop's clock (`at`), and by NATS's clock `LAG_S`
    seconds before (`unix_s`), because an event may reach the stream so late after it was stored."""

    at: float
    unix_s: float
    cursor: str | None  # the newest position that was written at that moment
    is_complete: bool  # whether all events that were stored at that moment were written
    written: Sequence[int | None]  # the number of bytes that were written to each client


class SavedCursors:
    """Opens and saves the named cursors, in KV `cursors`."""

    def __init__(self, bus: Bus, settle_s: float) -> None:
        self.bus = bus
        self.settle_s = settle_s
        self._following: set[asyncio.Task[None]] = set()

    async def open(self, who: Identity, name: str) -> SavedCursor:
        """Return the cursor of the user and of the name of the stream token. So a new token with
        the same name continues with it, and a token with another name cannot move it."""
        if not _NAME.fullmatch(name):
            raise Problem(422, "cursor: must have 1 to 64 letters, digits, - and _")
        owner = key_of("cursor", who.user_id, who.grant.name if who.grant is not None else None)
        bucket = self.bus.bucket(BUCKET)
        entry = await bucket.get(f"{owner}.{name}")
        if entry is None and len(await bucket.entries(f"{owner}.*")) >= MAX_PER_OWNER:
            raise Problem(409, f"cursor: there are {MAX_PER_OWNER} cursors; use one of them")
        found = None
        if entry is not None:
            try:
                found = Position.parse(entry.value)
            except (ValueError, KeyError, TypeError):
                text = "the saved cursor %s of user %s cannot be read, so it counts as new"
                log.error(text, name, who.user_id)
        return SavedCursor(self, f"{owner}.{name}", found, entry.revision if entry else 0)

    def follow(self, following: asyncio.Task[None]) -> None:
        self._following.add(following)
        following.add_done_callback(self._following.discard)

    async def close(self) -> None:
        if self._following:
            await asyncio.wait(self._following, timeout=CLOSE_S)


class SavedCursor:
    """A named cursor, as one connection uses it. `found` was saved before this connection."""

    def __init__(
        self, cursors: SavedCursors, key: str, found: Position | None, revision: int
    ) -> None:
        self.found = found
        self._cursors = cursors
        self._bucket = cursors.bus.bucket(BUCKET)
        self._key = key
        self._revision = revision
        self._holder = secrets.token_hex(8)
        self._saved = Position("", None, self._holder)
        self._saved_at = 0.0
        self._left = asyncio.Event()
        self._is_taken = False  # whether a newer connection uses the cursor

    async def begin(self, cursor: str, complete_until: float | None = None) -> None:
        """From now on, only this connection saves."""
        self._saved = Position(cursor, complete_until, self._holder)
        while True:
            revision = await self._bucket.update(self._key, self._saved.dump(), self._revision)
            if revision is not None:
                self._revision = revision
                return
            entry = await self._bucket.get(self._key)
            self._revision = entry.revision if entry is not None else 0

    def follow(self, clients: Sequence[Client], cursor: Callable[[], str | None]) -> None:
        """Save the positions of a stream until it ends. `clients` are one, or one for each shard,
        which all leave together. `cursor` returns the newest position that was written to the
        connection."""
        clients[0].when_left(self._left.set)
        self._cursors.follow(asyncio.create_task(self._follow(tuple(clients), cursor)))

    async def _follow(self, clients: Sequence[Client], cursor: Callable[[], str | None]) -> None:
        loop, bus = asyncio.get_running_loop(), self._cursors.bus
        self._saved_at = loop.time()
        waiting: deque[Sample] = deque()
        settled: Sample | None = None
        received: list[int | None] = [None] * len(clients)
        while not self._is_taken:
            if not self._left.is_set():
                sample = Sample(
                    loop.time(),
                    bus.clock.now().timestamp() - LAG_S,
                    cursor(),
                    bus.since_reconnect_s > LAG_S
                    and all(client.has_all_events for client in clients),
                    [written(client.transport) for client in clients],
                )
                if not any(client.writing.since is not None for client in clients):
                    waiting.append(sample)
                received = [acknowledged(client.transport) for client in clients]
            while waiting and self._is_settled(waiting[0], loop.time(), received):
                settled = waiting.popleft()
            if settled is not None:
                await self._keep(settled)
            if self._left.is_set():
                return
            try:
                async with asyncio.timeout(CHECK_S):
                    await self._left.wait()
            except TimeoutError:
                pass

    def _is_settled(self, sample: Sample, now: float, received: Sequence[int | None]) -> bool:
        return now - sample.at >= self._cursors.settle_s and all(
            written is None or (acked is not None and acked >= written)
            for written, acked in zip(sample.written, received, strict=True)
        )

    async def _keep(self, sample: Sample) -> None:
        wanted = replace(self._saved, cursor=sample.cursor or self._saved.cursor)
        if sample.is_complete:
            wanted = replace(wanted, complete_until=sample.unix_s)
        now = asyncio.get_running_loop().time()
        is_same = wanted.cursor == self._saved.cursor
        if wanted == self._saved or (is_same and now - self._saved_at < TIME_EVERY_S):
            return
        try:
            revision = await self._bucket.update(self._key, wanted.dump(), self._revision)
            if revision is None:
                self._is_taken = True
                log.info("a newer connection has the cursor %s", self._key)
                return
        except BusError as error:
            log.warning("a cursor cannot be saved now; trying again later: %s", error)
            return
        self._revision, self._saved, self._saved_at = revision, wanted, now
