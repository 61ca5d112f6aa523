"""Streams over many runs: of chosen types, or of a session; what is read, and how it is encoded."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from penstock.bus import Bus, Followed, Stored, subjects
from penstock.bus.messages import FIRST
from penstock.bus.streams import EVENTS
from penstock.dialects.base import Encoder
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock_edge.sources.feed import Feed
from penstock_edge.sources.sessions import Records, Session, records_of
from penstock_edge.views.dialects import View, noticing, rendering
from penstock_edge.views.framing import Form
from penstock_edge.views.items import Encoding, Item, Render, rendered
from penstock_edge.views.run_source import Deliver

OPEN_RUNS: Final = 1000  # whose encoders are kept; another's is made again by folding


@dataclass(slots=True)
class ManyEncoding(Encoding):
    """The events of many runs, each run by an encoder of its own; the stream has no end."""

    encoder: Callable[[], Encoder]
    render: Render
    stateful: bool
    _encoders: OrderedDict[str, Encoder] = field(default_factory=OrderedDict)

    def lacks(self, stored: Stored) -> int | None:
        """Where the run begins, if it is in the middle and nothing is known of it."""
        if not self.stateful or subjects.run_id_of(stored.subject) in self._encoders:
            return None
        first = stored.headers.get(FIRST)
        return int(first) if first else None

    def fold(self, stored: Stored) -> None:
        """Raises ValueError, KeyError or TypeError on a body that is no event."""
        self._of(stored).feed(orjson.loads(stored.payload))

    def feed(self, stored: Stored) -> Item:
        """Raises ValueError, KeyError or TypeError on a body that is no event."""
        frames = self._of(stored).feed(orjson.loads(stored.payload))
        return Item(stored.sequence, rendered(frames, stored.sequence, self.render))

    def cut(self) -> list[bytes]:
        """Nothing: a client comes back with its cursor."""
        return []

    def _of(self, stored: Stored) -> Encoder:
        run_id = subjects.run_id_of(stored.subject) if self.stateful else ""
        encoder = self._encoders.get(run_id)
        if encoder is None:
            encoder = self._encoders[run_id] = self.encoder()
            if len(self._encoders) > OPEN_RUNS:
                self._encoders.popitem(last=False)
        self._encoders.move_to_end(run_id)
        return encoder


class Chosen(ABC):
    """Delivers those of the feed's messages whose run is one of ours, which takes a look at KV."""

    session_id: str | None = None

    def __init__(self, feed: Feed, deliver: Deliver) -> None:
        self._feed = feed
        self._deliver = deliver
        self._heard: list[Stored] = []
        self._wake = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    @abstractmethod
    def wants(self, type: str) -> bool:
        """Whether events of this `category.action` concern us."""

    @abstractmethod
    def patterns(self) -> Collection[str]:
        """The stored subjects of what is delivered."""

    @abstractmethod
    async def keep(self, stored: Stored) -> bool:
        """Whether the message is one of ours."""

    @abstractmethod
    async def prepare(self) -> None:
        """Find out what the patterns are. Raises BusError."""

    async def start(self) -> int:
        """Begin to deliver. Raises BusError when it cannot."""
        floor = await self._feed.join(self)
        await self.prepare()
        self._working = asyncio.create_task(self._work())
        return floor

    async def stop(self) -> None:
        """Deliver nothing more."""
        self._feed.leave(self)
        if self._working:
            self._working.cancel()
            self._working = None  # what ended it holds its frame, which holds this

    def hear(self, batch: list[Stored]) -> None:
        """What may concern us."""
        self._heard += batch
        self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            heard, self._heard = self._heard, []
            if kept := [stored for stored in heard if await self.keep(stored)]:
                self._deliver(kept)


class TypesSource(Chosen):
    """The events of some types, of everybody's runs or of some owners'."""

    def __init__(
        self,
        feed: Feed,
        records: Records,
        types: Sequence[str],
        owners: frozenset[str] | None,
        deliver: Deliver,
    ) -> None:
        super().__init__(feed, deliver)
        self._records = records
        self._types = [type.split(".") for type in types]
        self._patterns = tuple(subjects.event(type, "*") for type in types)
        self._owners = owners

    def wants(self, type: str) -> bool:
        """Whether one of the patterns matches it."""
        category, _, action = type.partition(".")
        return any(own[0] in ("*", category) and own[1] in ("*", action) for own in self._types)

    def patterns(self) -> Collection[str]:
        """The types, of all runs."""
        return self._patterns

    async def keep(self, stored: Stored) -> bool:
        """Whether its run is one of the owners'."""
        if self._owners is None:
            return True
        record = await self._records.of(subjects.run_id_of(stored.subject))
        return record is not None and record.user_id in self._owners

    async def prepare(self) -> None:
        """The patterns are known."""


class SessionSource(Chosen):
    """All events of a session's runs: those on record when it starts, and those that follow."""

    def __init__(
        self, bus: Bus, feed: Feed, records: Records, session: Session, deliver: Deliver
    ) -> None:
        super().__init__(feed, deliver)
        self.session_id = session.session_id
        self._bus = bus
        self._records = records
        self._session = session
        self._runs: dict[str, bool] = {}  # whether they are ours
        self._patterns: dict[str, None] = {}

    def wants(self, type: str) -> bool:
        """Every type."""
        return True

    def patterns(self) -> Collection[str]:
        """The runs that are known by now."""
        return self._patterns

    async def keep(self, stored: Stored) -> bool:
        """Whether its run is one of the session's."""
        run_id = subjects.run_id_of(stored.subject)
        if run_id not in self._runs:
            record = await self._records.of(run_id)
            self._learn(run_id, record is not None and self._session.has(record))
        return self._runs[run_id]

    async def prepare(self) -> None:
        """Look up the session's runs. Raises BusError."""
        for record in await records_of(self._bus, self._session):
            for run_id in record.runs:
                self._learn(run_id, True)

    def _learn(self, run_id: str, ours: bool) -> None:
        self._runs[run_id] = ours
        if ours:
            self._patterns[subjects.events_of_run(run_id)] = None


@dataclass(frozen=True, slots=True)
class Many:
    """Makes the views over many runs."""

    bus: Bus
    feed: Feed
    records: Records

    def types(
        self, types: Sequence[str], owners: frozenset[str] | None, deliver: Deliver
    ) -> TypesSource:
        """The events of these `category.action` patterns; of some owners' runs, if given."""
        return TypesSource(self.feed, self.records, types, owners, deliver)

    def session(self, session: Session, deliver: Deliver) -> SessionSource:
        """The events of a session's runs."""
        return SessionSource(self.bus, self.feed, self.records, session, deliver)

    def of_types(self, types: Sequence[str], owners: frozenset[str] | None, form: Form) -> View:
        """Canonical events of these `category.action` patterns; of some owners' runs, if given."""
        chosen = sorted(set(types))
        # as JSON: a user's id may hold anything, and views of one key are shared
        whose = "*" if owners is None else orjson.dumps(sorted(owners)).decode()
        key = ("types", whose, *chosen)
        return _view(key, "canonical", form, lambda deliver: self.types(chosen, owners, deliver))

    def of_session(
        self, session: Session, dialect: str, form: Form, types: frozenset[str] | None = None
    ) -> View:
        """A session's runs, one after another, in a dialect of `CLIENT_DIALECTS`."""
        agents = ("*",) if session.any_agent else session.agents
        return _view(
            ("session", session.owner, session.session_id, *agents),
            dialect,
            form,
            lambda deliver: self.session(session, deliver),
            session.session_id,
            types,
        )


def _view(
    key: tuple[str, ...],
    dialect: str,
    form: Form,
    sources: Callable[[Deliver], Chosen],
    session_id: str = "",
    types: frozenset[str] | None = None,
) -> View:
    known = CLIENT_DIALECTS[dialect]
    render = rendering(form, types)
    return View(
        (*key, dialect, form.key, *sorted(types or ())),
        "",
        dialect,
        # the feed sees to it that nothing is missing
        Followed(EVENTS, ">", "live.>", lambda before, after: True),
        lambda: ManyEncoding(known.encoder, render, known.stateful),
        noticing(dialect, form, "", session_id),
        form=form,
        sources=sources,
    )
