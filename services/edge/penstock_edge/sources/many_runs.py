"""Makes views over many runs: the events of chosen types, or all events of a session's runs
(decision 0092)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from penstock.bus import Bus, Stored, subjects
from penstock.bus.messages import FIRST
from penstock.bus.streams import events_of
from penstock.dialects.base import Encoder
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.web.read_scheduler import Turn
from penstock_edge.sources.feed import Feed, Feeds
from penstock_edge.sources.history import History
from penstock_edge.sources.locate import ancestors_of
from penstock_edge.sources.run_source import TaskSource, ignore_failure
from penstock_edge.sources.sessions import RunRecords, Session, records_of
from penstock_edge.views.cursor import StreamSequence
from penstock_edge.views.dialects import notices, reads_from_of, rendering
from penstock_edge.views.framing import Framing
from penstock_edge.views.items import Encoding, Item, Render, UnchangedEncoding, rendered
from penstock_edge.views.view import Deliver, ManyRuns, ReadFrom, Source, View

# The number of runs whose encoders are kept. If a run without an encoder has an event, it gets a
# new encoder, and the run's earlier events are folded into this encoder.
OPEN_RUNS: Final = 1000


@dataclass(slots=True)
class ManyEncoding(Encoding):
    """Encodes the events of many runs; the stream has no end. In a dialect with state (`reads_from`
    is START), each run has a separate encoder."""

    encoder: Callable[[], Encoder]
    render: Render
    reads_from: ReadFrom
    _encoders: OrderedDict[str, Encoder] = field(default_factory=OrderedDict)

    def is_ready(self, stored: Stored) -> bool:
        return self.missing_from(stored) is None

    def missing_from(self, stored: Stored) -> StreamSequence | None:
        if (
            self.reads_from is ReadFrom.CURSOR
            or subjects.run_id_of(stored.subject) in self._encoders
        ):
            return None
        first = stored.headers.get(FIRST)
        return StreamSequence(int(first)) if first else None

    def fold(self, stored: Stored) -> None:
        self._of(stored).feed(orjson.loads(stored.payload))

    def feed(self, stored: Stored) -> Item:
        frames = self._of(stored).feed(orjson.loads(stored.payload))
        return Item(stored.sequence, rendered(frames, stored.sequence, self.render))

    def _of(self, stored: Stored) -> Encoder:
        run_id = "" if self.reads_from is ReadFrom.CURSOR else subjects.run_id_of(stored.subject)
        encoder = self._encoders.get(run_id)
        if encoder is None:
            encoder = self._encoders[run_id] = self.encoder()
            if len(self._encoders) > OPEN_RUNS:
                self._encoders.popitem(last=False)
        self._encoders.move_to_end(run_id)
        return encoder


class FilteredSource(TaskSource, ABC):
    """Delivers the messages of the feed that `accepts` selects. `accepts` is asynchronous, because
    it may have to read records in KV."""

    session_id: str | None = None

    def __init__(self, feed: Feed, deliver: Deliver) -> None:
        super().__init__()
        self._feed = feed
        self._deliver = deliver
        self._received: list[Stored] = []
        self._wake = asyncio.Event()

    @abstractmethod
    def wants(self, event_type: str) -> bool:
        """Take a type `category.action`."""

    @abstractmethod
    def patterns(self) -> Collection[str]: ...

    @abstractmethod
    async def accepts(self, stored: Stored) -> bool: ...

    @abstractmethod
    async def prepare(self) -> None:
        """Read the records that `patterns` needs, if any."""

    async def start(self) -> int:
        """Begin to deliver; return the stream sequence of the first message to be delivered. After
        a BusError, the caller must stop the source."""
        live_from = await self._feed.join(self)
        await self.prepare()
        self.begin(self._work())
        return live_from

    async def stop(self) -> None:
        self._feed.leave(self)
        self.cancel()

    def receive(self, batch: list[Stored]) -> None:
        self._received += batch
        self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            received, self._received = self._received, []
            if kept := [stored for stored in received if await self.accepts(stored)]:
                self._deliver(kept)


class TypesSource(FilteredSource):
    """Delivers the events of some types, of all runs or only of some owners' runs."""

    def __init__(
        self,
        feed: Feed,
        records: RunRecords,
        types: Sequence[str],
        owners: frozenset[str] | None,
        deliver: Deliver,
    ) -> None:
        super().__init__(feed, deliver)
        self._records = records
        self._types = [event_type.split(".") for event_type in types]
        self._patterns = tuple(subjects.event(event_type, "*") for event_type in types)
        self._owners = owners

    def wants(self, event_type: str) -> bool:
        category, _, action = event_type.partition(".")
        return any(own[0] in ("*", category) and own[1] in ("*", action) for own in self._types)

    def patterns(self) -> Collection[str]:
        return self._patterns

    async def accepts(self, stored: Stored) -> bool:
        if await self._records.withholds(stored):
            return False
        if self._owners is None:
            return True
        record = await self._records.of(subjects.run_id_of(stored.subject))
        return record is not None and record.user_id in self._owners

    async def prepare(self) -> None:
        """Do nothing, because the patterns are known from the beginning."""


class SessionSource(FilteredSource):
    """Delivers all events of a session's runs, including runs that begin later."""

    def __init__(
        self, bus: Bus, feed: Feed, records: RunRecords, session: Session, deliver: Deliver
    ) -> None:
        super().__init__(feed, deliver)
        self.session_id = session.session_id
        self._bus = bus
        self._records = records
        self._session = session
        self._runs: dict[str, bool] = {}  # maps a run id to whether the run is in the session
        self._patterns: dict[str, None] = {}

    def wants(self, event_type: str) -> bool:
        return True

    def patterns(self) -> Collection[str]:
        return self._patterns

    async def accepts(self, stored: Stored) -> bool:
        if await self._records.withholds(stored):
            return False
        return await self._is_of_session(subjects.run_id_of(stored.subject))

    async def has_cursor(self, stored: Stored) -> bool:
        """Return whether a client of the session may have this message's cursor. The response that
        starts a workflow also has events of its steps' runs, which may be in other sessions."""
        run_id = subjects.run_id_of(stored.subject)
        if await self._is_of_session(run_id):
            return True
        above = await ancestors_of(self._bus, run_id)
        return any(self._session.has(record) for record in above)

    async def prepare(self) -> None:
        for record in await records_of(self._bus, self._session):
            for run_id in record.runs:
                self._learn(run_id, True)

    async def _is_of_session(self, run_id: str) -> bool:
        if run_id not in self._runs:
            record = await self._records.of(run_id)
            self._learn(run_id, record is not None and self._session.has(record))
        return self._runs[run_id]

    def _learn(self, run_id: str, is_of_session: bool) -> None:
        self._runs[run_id] = is_of_session
        if is_of_session:
            self._patterns[subjects.events_of_run(run_id)] = None


class SessionFromStart(Source):
    """Delivers the session's stored events from its start, then its live events. Dialects whose
    frames depend on all earlier events need this source."""

    def __init__(
        self, bus: Bus, many: ManyRunViews, session: Session, turn: Turn, deliver: Deliver
    ) -> None:
        self.on_failure = ignore_failure
        self._bus = bus
        self._stream = events_of(session.shard)
        self._turn = turn
        self._deliver = deliver
        self._live = many.session(session, self._on_live)
        # The live events that wait until all stored events are delivered; None after that.
        self._waiting: list[Stored] | None = []

    async def start(self) -> int:
        self._live.on_failure = self.on_failure
        live_from = await self._live.start()
        history = History(
            self._bus, self._stream, self._live.patterns, 1, self._live.accepts, self._turn
        )
        while batch := await history.before(live_from):
            self._deliver(batch)
        waiting, self._waiting = self._waiting, None
        if waiting:
            self._deliver(waiting)
        return 1

    def patterns(self) -> Collection[str]:
        return self._live.patterns()

    async def accepts(self, stored: Stored) -> bool:
        return await self._live.accepts(stored)

    async def stop(self) -> None:
        await self._live.stop()

    def _on_live(self, batch: list[Stored]) -> None:
        if self._waiting is None:
            self._deliver(batch)
        else:
            self._waiting += batch


@dataclass(frozen=True, slots=True)
class ManyRunViews:
    """Makes sources and views over many runs."""

    bus: Bus
    feeds: Feeds
    records: RunRecords

    def types(
        self, types: Sequence[str], owners: frozenset[str] | None, deliver: Deliver, shard: int = 0
    ) -> TypesSource:
        """Make a source of a shard's events that match one of these `category.action` patterns. If
        `owners` is given, only events of these owners' runs are delivered."""
        return TypesSource(self.feeds.of(shard), self.records, types, owners, deliver)

    def session(self, session: Session, deliver: Deliver) -> SessionSource:
        return SessionSource(self.bus, self.feeds.of(session.shard), self.records, session, deliver)

    async def prepared(self, session: Session) -> SessionSource:
        """Make a source that delivers nothing, but whose `patterns` and `accepts` can be used."""
        source = self.session(session, lambda batch: None)
        await source.prepare()
        return source

    def of_types(
        self,
        types: Sequence[str],
        owners: frozenset[str] | None,
        framing: Framing,
        shard: int = 0,
    ) -> View:
        chosen = sorted(set(types))
        # Clients whose views have the same key share a hub. If the views of different owners had
        # the same key, their clients would get each other's events. A user's id may have any
        # character, so joined ids of different owners could be the same text. The JSON texts of
        # different owners are always different.
        owner_key = "*" if owners is None else orjson.dumps(sorted(owners)).decode()
        key = ("types", f"{shard}", owner_key, *chosen)
        return _view(
            key,
            "canonical",
            framing,
            lambda deliver: self.types(chosen, owners, deliver, shard),
            shard,
        )

    def of_session(
        self, session: Session, dialect: str, framing: Framing, types: frozenset[str] | None = None
    ) -> View:
        return _view(
            ("session", *session.key),
            dialect,
            framing,
            lambda deliver: self.session(session, deliver),
            session.shard,
            session.session_id,
            types,
        )


def _view(
    key: tuple[str, ...],
    dialect: str,
    framing: Framing,
    sources: Callable[[Deliver], FilteredSource],
    shard: int,
    session_id: str = "",
    types: frozenset[str] | None = None,
) -> View:
    known = CLIENT_DIALECTS[dialect]
    render = rendering(framing, types)
    reads_from = reads_from_of(dialect)

    def encoding() -> Encoding:
        if known.unchanged:
            return UnchangedEncoding(framing.unchanged, types, ends=False)
        return ManyEncoding(known.encoder, render, reads_from)

    return View(
        (*key, dialect, framing.key, *sorted(types or ())),
        dialect,
        ManyRuns(sources, shard),
        encoding,
        notices(dialect, framing, "", session_id),
        reads_from,
        framing,
    )
