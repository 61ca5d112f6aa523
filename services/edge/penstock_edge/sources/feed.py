"""The feed follows all events of a shard, once for all client streams over many runs (decision
0092), and passes each message to the listeners that need it.

The sequences of a filtered subscription have gaps, because the filter leaves out messages, so a gap
does not show that a message was lost. The sequences of the whole stream have no gaps, so there it
does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import orjson

from penstock.bus import Bus, Follow, Followed, Stored, subjects
from penstock.bus.read.follow import PROBE_S
from penstock.bus.state.continuity import NOBODY
from penstock.bus.streams import EVENTS, events_of, kind_and_shard
from penstock_edge.views.cursor import StreamSequence
from penstock_edge.views.items import type_of

# The number of the stream's newest messages that the feed reads when it opens, and keeps for new
# listeners. A replica of the stream may lack the newest messages. The feed notices a missing
# message by the gap in the sequences. A replay reads only some subjects, so it cannot notice this.
# Therefore a replay reads only messages that are older than the messages of the feed.
RECENT: Final = 500
RECENT_BYTES: Final = 4 * 1024 * 1024
# Within `Feed.remember_more`, the feed remembers up to this number of messages, and up to this
# number of bytes. A source uses `Feed.remember_more` while it catches up with the feed.
KEPT: Final = 20_000
KEPT_BYTES: Final = 32 * 1024 * 1024
KNOWN_RUNS: Final = 20_000


class Listener(Protocol):
    """A source of the events of some types, or of one session."""

    session_id: str | None

    def wants(self, event_type: str) -> bool: ...

    def receive(self, batch: list[Stored]) -> None:
        """Neither block nor raise an exception."""
        ...


class Watcher(Protocol):
    """A source of all events of some runs, by their ids."""

    def take(self, stored: Stored) -> None:
        """Neither block nor raise an exception; `Feed.watch` and `Feed.unwatch` may be called."""
        ...


class Feed:
    """Follows the stream EVENTS of one shard for all listeners, as long as there is a listener."""

    def __init__(self, bus: Bus, probe_s: float = PROBE_S, shard: int = 0) -> None:
        self._bus = bus
        self._stream = events_of(shard)
        self._probe_s = probe_s
        self._users = 0
        self._opening: asyncio.Task[Follow] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._next = StreamSequence(1)
        self._recent: deque[Stored] = deque()
        self._recent_bytes = 0
        self._keepers = 0  # the number of blocks of `remember_more` that are active
        self._watchers: dict[str, set[Watcher]] = {}  # by run id
        self._by_type: set[Listener] = set()
        self._by_session: dict[str, set[Listener]] = {}
        self._listeners_by_type: dict[str, tuple[Listener, ...]] = {}
        self._session_of: dict[str, str] = {}  # maps run ids to session ids

    async def join(self, listener: Listener) -> StreamSequence:
        """Return the sequence from which on the listener receives all messages that it needs. If
        this raises BusError, the listener is not added."""
        await self.acquire()
        # If there were an `await` between the following lines, the listener could receive a message
        # twice or in the wrong order.
        self._add(listener)
        recent = list(self._recent)
        needed = [stored for stored in recent if listener in self._listeners_of(stored)]
        if needed:
            listener.receive(needed)
        return StreamSequence(recent[0].sequence) if recent else self._next

    def leave(self, listener: Listener) -> None:
        if listener in self._by_type:
            self._by_type.discard(listener)
            self._listeners_by_type.clear()
        elif listener in self._by_session.get(listener.session_id or "", ()):
            others = self._by_session[listener.session_id or ""]
            others.discard(listener)
            if not others:
                del self._by_session[listener.session_id or ""]
        else:
            return
        self.release()

    async def acquire(self) -> None:
        """Follow the stream until `release`. After a BusError, do not call `release`."""
        self._users += 1
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        try:
            await asyncio.shield(self._opening)
        except BaseException:
            self.release()
            raise

    @property
    def oldest(self) -> StreamSequence:
        return StreamSequence(self._recent[0].sequence) if self._recent else self._next

    @contextmanager
    def remember_more(self) -> Iterator[None]:
        """Give a reader of stored messages time to reach the oldest one that the feed remembers."""
        self._keepers += 1
        try:
            yield
        finally:
            self._keepers -= 1

    def watch(self, run_id: str, watcher: Watcher) -> None:
        self._watchers.setdefault(run_id, set()).add(watcher)

    def unwatch(self, run_id: str, watcher: Watcher) -> None:
        watchers = self._watchers.get(run_id)
        if watchers is not None:
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[run_id]

    def recent_messages(self) -> list[Stored]:
        """Return the newest messages in order and without gaps, beginning at `oldest`."""
        return list(self._recent)

    def forget(self) -> None:
        """Drop the remembered messages: NATS has lost them, publishers send them again, and a new
        listener would otherwise receive each of them twice."""
        self._recent.clear()
        self._recent_bytes = 0

    def forget_run(self, run_id: str) -> None:
        """Drop the remembered messages of a run, because its content is being erased."""
        kept = [each for each in self._recent if subjects.run_id_of(each.subject) != run_id]
        self._recent = deque(kept)
        self._recent_bytes = sum(len(each.payload) for each in kept)

    async def close(self) -> None:
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _add(self, listener: Listener) -> None:
        if listener.session_id is None:
            self._by_type.add(listener)
            self._listeners_by_type.clear()
        else:
            self._by_session.setdefault(listener.session_id, set()).add(listener)

    def release(self) -> None:
        self._users -= 1
        if self._users == 0 and self._opening is not None:
            task = asyncio.create_task(self._end(self._opening))
            self._opening = None
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _open(self) -> Follow:
        state = (await self._bus.api(f"STREAM.INFO.{self._stream}"))["state"]
        self._next = StreamSequence(max(state["last_seq"] + 1 - RECENT, state["first_seq"], 1))
        self._recent.clear()
        self._recent_bytes = 0
        whole = Followed(self._stream, ">", "live.>", _numbers)
        follow = Follow(self._bus, whole, self._next, self._deliver, self._probe_s)
        await follow.start()
        return follow

    async def _end(self, opening: asyncio.Task[Follow]) -> None:
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().stop()

    def _deliver(self, batch: list[Stored]) -> None:
        self._next = StreamSequence(batch[-1].sequence + 1)
        batch = [stored for stored in batch if subjects.run_id_of(stored.subject) != NOBODY]
        self._remember(batch)
        needed: dict[Listener, list[Stored]] = {}
        for stored in batch:
            for listener in self._listeners_of(stored):
                needed.setdefault(listener, []).append(stored)
        for listener, messages in needed.items():
            listener.receive(messages)
        if self._watchers:
            self._to_watchers(batch)

    def _to_watchers(self, batch: list[Stored]) -> None:
        # A watcher may begin to watch a run during the call, and then gets this run's later
        # messages in the same batch.
        for stored in batch:
            for watcher in tuple(self._watchers.get(subjects.run_id_of(stored.subject), ())):
                watcher.take(stored)

    def _remember(self, batch: list[Stored]) -> None:
        for stored in batch:
            self._recent.append(stored)
            self._recent_bytes += len(stored.payload)
        most, most_bytes = (KEPT, KEPT_BYTES) if self._keepers else (RECENT, RECENT_BYTES)
        while len(self._recent) > most or self._recent_bytes > most_bytes:
            self._recent_bytes -= len(self._recent.popleft().payload)

    def _listeners_of(self, stored: Stored) -> Iterator[Listener]:
        event_type = type_of(stored)
        wanting = self._listeners_by_type.get(event_type)
        if wanting is None:
            wanting = tuple(listener for listener in self._by_type if listener.wants(event_type))
            self._listeners_by_type[event_type] = wanting
        yield from wanting
        if self._by_session:
            session_id = self._session(stored)
            if session_id is not None:
                yield from self._by_session.get(session_id, ())
                return
            for listeners in self._by_session.values():
                yield from listeners

    def _session(self, stored: Stored) -> str | None:
        run_id = subjects.run_id_of(stored.subject)
        known = self._session_of.get(run_id)
        if known is not None:
            return known
        try:
            session_id = orjson.loads(stored.payload).get("session_id")
        except (orjson.JSONDecodeError, AttributeError):
            return None
        if not isinstance(session_id, str):
            return None
        if len(self._session_of) >= KNOWN_RUNS:
            self._session_of.clear()
        self._session_of[run_id] = session_id
        return session_id


class Feeds:
    """Makes the feed of a shard when the feed is first needed, and keeps the feed."""

    def __init__(self, bus: Bus, probe_s: float = PROBE_S) -> None:
        self._bus = bus
        self._probe_s = probe_s
        self._feeds: dict[int, Feed] = {}

    def of(self, shard: int) -> Feed:
        if shard not in self._feeds:
            self._feeds[shard] = Feed(self._bus, self._probe_s, shard)
        return self._feeds[shard]

    def forget(self, stream: str) -> None:
        kind, shard = kind_and_shard(stream)
        if kind == EVENTS and shard in self._feeds:
            self._feeds[shard].forget()

    def forget_run(self, run_id: str) -> None:
        for feed in self._feeds.values():
            feed.forget_run(run_id)

    def forget_all(self) -> None:
        for feed in self._feeds.values():
            feed.forget()

    async def close(self) -> None:
        await asyncio.gather(*(feed.close() for feed in self._feeds.values()))


def _numbers(stored: Stored) -> tuple[int, int]:
    return stored.sequence, stored.sequence - 1
