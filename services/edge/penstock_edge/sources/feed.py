"""The feed follows all events of all runs, once for all client streams over many runs.

In a filtered subscription, a gap in the sequences does not show that a message is missing, because
the filter leaves out messages, too. The whole stream has no gaps. So a gap in the whole stream
shows that a message is missing. Therefore the process follows the whole stream once, as long as
there are client streams over many runs. The feed passes each message to the listeners that need the
message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

import orjson

from penstock.bus import Bus, Follow, Followed, Stored, subjects
from penstock.bus.read.follow import PROBE_S
from penstock.bus.state.skipping import NOBODY
from penstock.bus.streams import EVENTS, events_of, kind_and_shard
from penstock_edge.views.items import type_of
from penstock_edge.views.positions import StreamSequence

# The number of the newest messages that the feed reads when it opens, and keeps for new listeners.
# A replica may lack the newest messages. The feed notices such a gap, but a replay does not. So a
# replay reads only messages that are older than the messages of the feed.
RECENT: Final = 500
RECENT_BYTES: Final = 4 * 1024 * 1024
KNOWN_RUNS: Final = 20_000


class Listener(Protocol):
    """A source over many runs that needs events of some types, or of one session id."""

    session_id: str | None

    def wants(self, type: str) -> bool:
        """Return whether the listener needs the events of this `category.action`."""
        ...

    def receive(self, batch: list[Stored]) -> None:
        """Take messages that the listener may need, in the stream's order.

        This method must not block, and must not raise an exception.
        """
        ...


class Feed:
    """Follows EVENTS of a shard for all listeners, as long as there is a listener."""

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
        self._by_type: set[Listener] = set()
        self._by_session: dict[str, set[Listener]] = {}
        self._listeners_by_type: dict[str, tuple[Listener, ...]] = {}
        self._session_of: dict[str, str] = {}  # maps run ids to session ids

    async def join(self, listener: Listener) -> StreamSequence:
        """Add a listener.

        Returns:
            The stream sequence from which on the listener receives all messages that it needs.

        Raises:
            BusError: the stream cannot be followed now. The listener is not added.
        """
        self._users += 1
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        try:
            await asyncio.shield(self._opening)
        except BaseException:
            self._release()
            raise
        # If there were an `await` between the following lines, the listener could miss a message.
        self._add(listener)
        recent = list(self._recent)
        needed = [stored for stored in recent if listener in self._listeners_of(stored)]
        if needed:
            listener.receive(needed)
        return StreamSequence(recent[0].sequence) if recent else self._next

    def leave(self, listener: Listener) -> None:
        """Remove a listener; do nothing if the listener was not added."""
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
        self._release()

    def forget(self) -> None:
        """Drop the remembered messages, because NATS has lost them and they are published again.

        Otherwise a new listener would receive both the lost messages and the messages that are
        published again.
        """
        self._recent.clear()
        self._recent_bytes = 0

    async def close(self) -> None:
        """Wait until the subscriptions that no listener needs any more have ended."""
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _add(self, listener: Listener) -> None:
        if listener.session_id is None:
            self._by_type.add(listener)
            self._listeners_by_type.clear()
        else:
            self._by_session.setdefault(listener.session_id, set()).add(listener)

    def _release(self) -> None:
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
        whole = Followed(self._stream, ">", "live.>", _is_next)
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

    def _remember(self, batch: list[Stored]) -> None:
        for stored in batch:
            self._recent.append(stored)
            self._recent_bytes += len(stored.payload)
        while len(self._recent) > RECENT or self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft().payload)

    def _listeners_of(self, stored: Stored) -> Iterator[Listener]:
        type = type_of(stored)
        wanting = self._listeners_by_type.get(type)
        if wanting is None:
            wanting = tuple(listener for listener in self._by_type if listener.wants(type))
            self._listeners_by_type[type] = wanting
        yield from wanting
        if self._by_session:
            session_id = self._session(stored)
            if session_id is not None:
                yield from self._by_session.get(session_id, ())
                return
            for listeners in self._by_session.values():
                yield from listeners

    def _session(self, stored: Stored) -> str | None:
        """Return the session id of the message's run; None if the session id is not known."""
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
    """The feeds of all shards that this process has needed."""

    def __init__(self, bus: Bus, probe_s: float = PROBE_S) -> None:
        self._bus = bus
        self._probe_s = probe_s
        self._feeds: dict[int, Feed] = {}

    def of(self, shard: int) -> Feed:
        """Return the feed of a shard."""
        if shard not in self._feeds:
            self._feeds[shard] = Feed(self._bus, self._probe_s, shard)
        return self._feeds[shard]

    def forget(self, stream: str) -> None:
        """Drop the remembered messages of this stream (see `Feed.forget`)."""
        kind, shard = kind_and_shard(stream)
        if kind == EVENTS and shard in self._feeds:
            self._feeds[shard].forget()

    async def close(self) -> None:
        """Wait until the subscriptions that no listener needs any more have ended."""
        await asyncio.gather(*(feed.close() for feed in self._feeds.values()))


def _is_next(before: Stored, after: Stored) -> bool:
    return after.sequence == before.sequence + 1
