"""Every event of every run as it comes: one subscription for all who follow many runs.

Of a filtered subject nobody can tell whether a message is missing. Of the whole stream everybody
can: its sequence has no gaps. So the process follows it once, whole, while somebody follows many
runs, and hands each message to whom it concerns.
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
from penstock.bus.streams import EVENTS
from penstock_edge.views.items import type_of

# What was just published may not have reached every replica, so that much of the past is read
# by the feed, which sees gaps, and not by its listeners, who would not.
RECENT: Final = 500
RECENT_BYTES: Final = 4 * 1024 * 1024
KNOWN_RUNS: Final = 20_000


class Listener(Protocol):
    """Somebody who follows many runs: by type, or of one session id."""

    session_id: str | None

    def wants(self, type: str) -> bool:
        """Whether events of this `category.action` concern it."""
        ...

    def hear(self, batch: list[Stored]) -> None:
        """Messages that concern it, or may, in the stream's order. Must neither wait nor raise."""
        ...


class Feed:
    """The one reading of EVENTS in this process. It stands while somebody listens."""

    def __init__(self, bus: Bus, probe_s: float = PROBE_S) -> None:
        self._bus = bus
        self._probe_s = probe_s
        self._users = 0
        self._opening: asyncio.Task[Follow] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._next = 1
        self._recent: deque[Stored] = deque()
        self._recent_bytes = 0
        self._by_type: set[Listener] = set()
        self._by_session: dict[str, set[Listener]] = {}
        self._wanting: dict[str, tuple[Listener, ...]] = {}  # by type
        self._session_of: dict[str, str] = {}  # by run

    async def join(self, listener: Listener) -> int:
        """Listen; returns the stream sequence from which on it hears all. Raises BusError."""
        self._users += 1
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        try:
            await asyncio.shield(self._opening)
        except BaseException:
            self._release()
            raise
        # without a turn of the loop in between, or something would fall between
        self._add(listener)
        recent = list(self._recent)
        heard = [stored for stored in recent if listener in self._concerned(stored)]
        if heard:
            listener.hear(heard)
        return recent[0].sequence if recent else self._next

    def leave(self, listener: Listener) -> None:
        """Hear nothing more."""
        if listener in self._by_type:
            self._by_type.discard(listener)
            self._wanting.clear()
        elif listener in self._by_session.get(listener.session_id or "", ()):
            others = self._by_session[listener.session_id or ""]
            others.discard(listener)
            if not others:
                del self._by_session[listener.session_id or ""]
        else:
            return
        self._release()

    def forget(self) -> None:
        """What was heard last is lost, and will be made again: no new listener is to hear both."""
        self._recent.clear()
        self._recent_bytes = 0

    async def close(self) -> None:
        """Wait for what is being given back."""
        await asyncio.gather(*self._closing)

    def _add(self, listener: Listener) -> None:
        if listener.session_id is None:
            self._by_type.add(listener)
            self._wanting.clear()
        else:
            self._by_session.setdefault(listener.session_id, set()).add(listener)

    def _release(self) -> None:
        self._users -= 1
        if self._users == 0 and self._opening is not None:
            task = asyncio.create_task(self._give_back(self._opening))
            self._opening = None
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _open(self) -> Follow:
        state = (await self._bus.api(f"STREAM.INFO.{EVENTS}"))["state"]
        self._next = max(state["last_seq"] + 1 - RECENT, state["first_seq"], 1)
        self._recent.clear()
        self._recent_bytes = 0
        whole = Followed(EVENTS, ">", "live.>", _is_next)
        follow = Follow(self._bus, whole, self._next, self._deliver, self._probe_s)
        await follow.start()
        return follow

    async def _give_back(self, opening: asyncio.Task[Follow]) -> None:
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().stop()

    def _deliver(self, batch: list[Stored]) -> None:
        self._next = batch[-1].sequence + 1
        batch = [stored for stored in batch if subjects.run_id_of(stored.subject) != NOBODY]
        self._remember(batch)
        heard: dict[Listener, list[Stored]] = {}
        for stored in batch:
            for listener in self._concerned(stored):
                heard.setdefault(listener, []).append(stored)
        for listener, messages in heard.items():
            listener.hear(messages)

    def _remember(self, batch: list[Stored]) -> None:
        for stored in batch:
            self._recent.append(stored)
            self._recent_bytes += len(stored.payload)
        while len(self._recent) > RECENT or self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft().payload)

    def _concerned(self, stored: Stored) -> Iterator[Listener]:
        type = type_of(stored)
        wanting = self._wanting.get(type)
        if wanting is None:
            wanting = tuple(listener for listener in self._by_type if listener.wants(type))
            self._wanting[type] = wanting
        yield from wanting
        if self._by_session:
            session_id = self._session(stored)
            if session_id is not None:
                yield from self._by_session.get(session_id, ())
                return
            for listeners in self._by_session.values():
                yield from listeners

    def _session(self, stored: Stored) -> str | None:
        """The session id of the message's run; None where the message does not tell."""
        run_id = subjects.run_id_of(stored.subject)
        known = self._session_of.get(run_id)
        if known is not None:
            return known
        try:
            told = orjson.loads(stored.payload).get("session_id")
        except (orjson.JSONDecodeError, AttributeError):
            return None
        if not isinstance(told, str):
            return None
        if len(self._session_of) >= KNOWN_RUNS:
            self._session_of.clear()
        self._session_of[run_id] = told
        return told


def _is_next(before: Stored, after: Stored) -> bool:
    return after.sequence == before.sequence + 1
