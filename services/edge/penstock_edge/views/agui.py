"""Runs and threads for AG-UI clients: a leg, a whole run, or a thread's runs in turn. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import orjson

from penstock import sse
from penstock.bus import Stored, subjects
from penstock.dialects.agui.encode import PROFILES, STRICT, AguiEncoder, Phase, Profile
from penstock.dialects.agui.vocabulary import is_modern
from penstock.dialects.base import Encoder
from penstock.sse import Frame
from penstock_edge.views.encoded_leg import EncodedLeg
from penstock_edge.views.framing import Framing, PageItems, Sse
from penstock_edge.views.items import Encoding, EventEncoding, Item, Render, rendered, type_of
from penstock_edge.views.upstream_frames import INTERRUPTED
from penstock_edge.views.view import Deliver, Delivery, ManyRuns, ReadFrom, RunEvents, Source, View

log = logging.getLogger(__name__)

CUT: Final = "stream_interrupted"
# A client of POST must ignore event names, so it gets none. It gets cursors, since it can continue
# on the thread's stream.
UNNAMED: Final = Sse(named=False)

Event = dict[str, Any]
FeedEvent = Callable[[AguiEncoder, Event], Sequence[Frame]]

_BEGIN_A_LEG: Final = frozenset({"lifecycle.started", "lifecycle.resumed"})


@dataclass(frozen=True, slots=True)
class Audience:
    """The clients of a profile that declare this version of the protocol."""

    profile: Profile = STRICT
    protocol_version: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Part of a view's key: the frames depend on nothing else of the version."""
        return self.profile.name, f"modern={is_modern(self.protocol_version)}"


class LegNames(Protocol):
    """The ids that AG-UI clients have for threads and legs. Both calls wait for the bus."""

    async def thread_of(self, run_id: str) -> str:
        """The thread of a run."""
        ...

    async def name(self, run_id: str, leg: int) -> str:
        """The AG-UI runId of a leg."""
        ...


def default_name(run_id: str, leg: int) -> str:
    """The AG-UI runId of a leg that no client has named."""
    return run_id if leg == 1 else f"{run_id}-{leg}"


# Ids of ended runs that a reading remembers. Events may follow the end of a run for some seconds.
ENDED_RUNS: Final = 10_000


@dataclass(slots=True)
class RunEncoders:
    """The encoders of the runs of one reading, one for each run.

    The encoder of an ended run can be dropped (`forget`): no frame of the run follows.
    """

    names: LegNames
    audience: Audience
    _encoders: dict[str, AguiEncoder] = field(default_factory=dict)
    _names: dict[tuple[str, int], str] = field(default_factory=dict)
    _ended: dict[str, None] = field(default_factory=dict)  # the oldest first

    def __len__(self) -> int:
        """How many encoders are kept."""
        return len(self._encoders)

    async def prepare(self, stored: Stored) -> None:
        """Look up what the message's run and leg are called. Waits for the bus."""
        run_id = subjects.run_id_of(stored.subject)
        if run_id in self._ended:
            return
        if run_id not in self._encoders:
            self._encoders[run_id] = AguiEncoder(
                self.audience.profile,
                await self.names.thread_of(run_id),
                lambda leg: self._names.get((run_id, leg)) or default_name(run_id, leg),
                self.audience.protocol_version,
            )
        if type_of(stored) in _BEGIN_A_LEG:
            leg = orjson.loads(stored.payload)["leg"]
            self._names[run_id, leg] = await self.names.name(run_id, leg)

    def of(self, run_id: str) -> AguiEncoder:
        """The encoder of a run that was prepared."""
        return self._encoders[run_id]

    def has_ended(self, run_id: str) -> bool:
        """Whether the run has ended, and its encoder was dropped."""
        return run_id in self._ended

    def forget(self, run_id: str) -> None:
        """The run has ended: drop its encoder. Without this a thread would keep one per run."""
        del self._encoders[run_id]
        for key in [key for key in self._names if key[0] == run_id]:
            del self._names[key]
        self._ended[run_id] = None
        if len(self._ended) > ENDED_RUNS:
            del self._ended[next(iter(self._ended))]

    def interrupted(self) -> list[Frame]:
        """An error: the stream ends before the run, and a client would take that for success."""
        open_ = [each for each in self._encoders.values() if each.phase is Phase.RUNNING]
        encoder = open_[0] if open_ else AguiEncoder(self.audience.profile, "", lambda leg: "")
        return list(encoder.cut(INTERRUPTED, CUT))


@dataclass(slots=True)
class RunEncoder(Encoder):
    """The encoder of one run, which is made when its first message is prepared."""

    encoders: RunEncoders
    run_id: str

    def feed(self, event: Event) -> Sequence[Frame]:
        """The frames of one event."""
        return self.encoders.of(self.run_id).feed(event)

    def interrupted(self) -> list[bytes]:
        """An error, which ends the stream of a leg: its client does not reconnect by itself."""
        return [sse.encode(each.data) for each in self.encoders.interrupted()]


@dataclass(slots=True)
class AguiRun(EventEncoding):
    """A whole run with its pauses."""

    encoders: RunEncoders

    async def prepare(self, stored: Stored) -> None:
        """Look up the names of the run and its leg. Waits for the bus."""
        await self.encoders.prepare(stored)


@dataclass(slots=True)
class AguiLeg(EncodedLeg):
    """One leg of a run."""

    encoders: RunEncoders

    async def prepare(self, stored: Stored) -> None:
        """Look up the names of the run and its leg. Waits for the bus."""
        await self.encoders.prepare(stored)


@dataclass(slots=True)
class RunsInTurn:
    """The runs of a thread, one after another: AG-UI clients cannot take two at once.

    Events of another run are held until the open one ends or pauses. `feed_event` gives an event
    to its encoder.
    """

    encoders: RunEncoders
    feed_event: FeedEvent = AguiEncoder.feed
    current: AguiEncoder | None = None  # the encoder that was fed last
    _held: list[tuple[str, Event]] = field(default_factory=list)  # each with its run
    _open: str | None = None

    def feed(self, run_id: str, event: Event) -> list[Frame]:
        """The frames of this event, and of the held events that can follow it.

        Raises:
            ValueError, KeyError, TypeError: the body is no event.
        """
        self._held.append((run_id, event))
        frames: list[Frame] = []
        while (next_ := self._next()) is not None:
            try:
                frames += self._encode(*self._held.pop(next_))
            except (ValueError, KeyError, TypeError) as error:
                if not frames:
                    raise
                log.warning("an event that was held until %s cannot be read: %r", run_id, error)
        return frames

    def _next(self) -> int | None:
        fits = (at for at, (run_id, _) in enumerate(self._held) if self._open in (None, run_id))
        return next(fits, None)

    def _encode(self, run_id: str, event: Event) -> Sequence[Frame]:
        if self.encoders.has_ended(run_id):
            return ()
        encoder = self.encoders.of(run_id)
        frames = self.feed_event(encoder, event)
        self.current = encoder
        self._open = run_id if encoder.phase is Phase.RUNNING else None
        if encoder.phase is Phase.OVER:
            self.encoders.forget(run_id)
        return frames


@dataclass(slots=True)
class ThreadEncoding(Encoding):
    """All runs of a thread, read from its start; the stream has no end."""

    turns: RunsInTurn
    render: Render

    async def prepare(self, stored: Stored) -> None:
        """Look up the names of the run and its leg. Waits for the bus."""
        await self.turns.encoders.prepare(stored)

    def feed(self, stored: Stored) -> Item:
        """The frames of one event.

        Raises:
            ValueError, KeyError, TypeError: the body is no event.
        """
        run_id = subjects.run_id_of(stored.subject)
        frames = self.turns.feed(run_id, orjson.loads(stored.payload))
        return Item(stored.sequence, rendered(frames, stored.sequence, self.render))

    def interruption(self) -> list[bytes]:
        """Nothing: a client reconnects with its cursor."""
        return []


@dataclass(frozen=True, slots=True)
class AguiViews:
    """Makes the views; `PROFILES` has the names of their dialects."""

    names: LegNames

    def encoders(self, audience: Audience) -> RunEncoders:
        """Encoders for these clients."""
        return RunEncoders(self.names, audience)

    def of_run(self, run_id: str, dialect: str, framing: Framing) -> View:
        """A whole run with its pauses; any client takes the frames of the strict profile."""
        audience = Audience(PROFILES[dialect])
        if isinstance(framing, Sse):
            framing = replace(framing, id_first=audience.profile.id_first)

        def encoding() -> Encoding:
            encoders = self.encoders(audience)
            return AguiRun(RunEncoder(encoders, run_id), framing.event, encoders)

        key = (run_id, dialect, framing.key)
        return self._run(key, run_id, audience, framing, encoding, Delivery.RESUMABLE)

    def of_leg(self, run_id: str, leg: int, audience: Audience) -> View:
        """One leg: an AG-UI run."""
        key = (run_id, *audience.key, f"leg {leg}")

        def encoding() -> Encoding:
            encoders = self.encoders(audience)
            encoder = RunEncoder(encoders, run_id)
            return AguiLeg(encoder, leg, UNNAMED.event, encoder.interrupted, encoders)

        return self._run(key, run_id, audience, UNNAMED, encoding, Delivery.ONCE)

    def of_thread(
        self,
        key: tuple[str, ...],
        audience: Audience,
        framing: Framing,
        source: Callable[[Deliver], Source],
    ) -> View:
        """The runs of a thread, one after another; `key` is the session's."""
        return View(
            ("thread", *key, *audience.key, framing.key),
            audience.profile.name,
            ManyRuns(source),
            lambda: ThreadEncoding(RunsInTurn(self.encoders(audience)), framing.event),
            _notice(framing),
            ReadFrom.START,
            framing,
        )

    def _run(
        self,
        key: tuple[str, ...],
        run_id: str,
        audience: Audience,
        framing: Framing,
        encoding: Callable[[], Encoding],
        delivery: Delivery,
    ) -> View:
        return View(
            key,
            audience.profile.name,
            RunEvents(run_id),
            encoding,
            _notice(framing),
            ReadFrom.START,
            framing,
            delivery,
        )


def _notice(framing: Framing) -> Callable[[str, str], bytes]:
    """A comment, since no event may precede RUN_STARTED; on a page, where any may, CUSTOM."""

    def comment(code: str, message: str) -> bytes:
        return sse.comment(f"{code}: {message}")

    def custom(code: str, message: str) -> bytes:
        value: Mapping[str, str] = {"code": code, "message": message}
        return orjson.dumps({"type": "CUSTOM", "name": "penstock.system.warning", "value": value})

    return custom if isinstance(framing, PageItems) else comment
