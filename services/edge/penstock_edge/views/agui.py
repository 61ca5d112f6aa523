"""Views for AG-UI clients: one leg, a whole run, or the runs of a thread one after another.

A profile is the set of fields with which a dialect writes AG-UI events (`PROFILES`). For AG-UI
clients, each leg is a run of its own with its own runId. Pure.
"""

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
# The framing of the response to a POST. The clients ignore event names, so the frames have no lines
# `event:`. The frames have cursors, because a client can continue the POST's stream on the thread's
# stream.
UNNAMED: Final = Sse(named=False)

Event = dict[str, Any]
FeedEvent = Callable[[AguiEncoder, Event], Sequence[Frame]]

_BEGIN_A_LEG: Final = frozenset({"lifecycle.started", "lifecycle.resumed"})
_SUBJECTS_THAT_BEGIN_A_LEG: Final = tuple(f"{event_type}." for event_type in _BEGIN_A_LEG)


@dataclass(frozen=True, slots=True)
class Audience:
    """The clients that read one profile and declare the same version of the AG-UI protocol."""

    profile: Profile = STRICT
    protocol_version: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The audience's part of a view's key. The frames depend only on the result of `is_modern`,
        not on the protocol's version."""
        return self.profile.name, f"modern={is_modern(self.protocol_version)}"


class LegIds(Protocol):
    """Looks up the ids that AG-UI clients use for threads and legs. Each method waits if the bus
    does not answer."""

    async def thread_of(self, run_id: str) -> str: ...

    async def agui_run_id(self, run_id: str, leg: int) -> str: ...


def default_agui_run_id(run_id: str, leg: int) -> str:
    return run_id if leg == 1 else f"{run_id}-{leg}"


# The number of ended runs whose ids a `RunEncoders` remembers. For some seconds after its terminal
# event, a run may have further events. `RunEncoders` makes no new encoder for a run whose id it
# remembers, so these events have no frames.
ENDED_RUNS: Final = 10_000


@dataclass(slots=True)
class RunEncoders:
    """The encoders of one stream or page, one for each run. `forget` drops the encoder of a run
    that has ended, because no further frame of the run follows."""

    leg_ids: LegIds
    audience: Audience
    _encoders: dict[str, AguiEncoder] = field(default_factory=dict)
    _leg_ids: dict[tuple[str, int], str] = field(default_factory=dict)
    _ended: dict[str, None] = field(default_factory=dict)  # ids of ended runs, the oldest first

    def __len__(self) -> int:
        return len(self._encoders)

    def is_ready(self, stored: Stored) -> bool:
        run_id = subjects.run_id_of(stored.subject)
        if run_id in self._ended:
            return True
        return run_id in self._encoders and type_of(stored) not in _BEGIN_A_LEG

    async def prepare(self, stored: Stored) -> None:
        """Look up the ids of the message's run and leg; wait if the bus does not answer."""
        run_id = subjects.run_id_of(stored.subject)
        if run_id in self._ended:
            return
        await self.begin(run_id)
        if type_of(stored) in _BEGIN_A_LEG:
            await self.look_up(run_id, orjson.loads(stored.payload)["leg"])

    async def begin(self, run_id: str) -> None:
        if run_id not in self._encoders:
            self._encoders[run_id] = AguiEncoder(
                self.audience.profile,
                await self.leg_ids.thread_of(run_id),
                lambda leg: self._leg_ids.get((run_id, leg)) or default_agui_run_id(run_id, leg),
                self.audience.protocol_version,
            )

    async def look_up(self, run_id: str, leg: int) -> None:
        self._leg_ids[run_id, leg] = await self.leg_ids.agui_run_id(run_id, leg)

    def has(self, run_id: str) -> bool:
        return run_id in self._encoders or run_id in self._ended

    def of(self, run_id: str) -> AguiEncoder:
        """Require that `prepare` was called for a message of the run."""
        return self._encoders[run_id]

    def has_ended(self, run_id: str) -> bool:
        return run_id in self._ended

    def forget(self, run_id: str) -> None:
        """Drop the encoder of a run that has ended. If the encoder were kept, the stream of a
        thread would have one encoder for each run of the thread."""
        del self._encoders[run_id]
        for key in [key for key in self._leg_ids if key[0] == run_id]:
            del self._leg_ids[key]
        self._ended[run_id] = None
        if len(self._ended) > ENDED_RUNS:
            del self._ended[next(iter(self._ended))]

    def interrupted(self) -> list[Frame]:
        """Return the frames of an error, for a stream that ends before its run does. If there were
        no error, a client would conclude that the run has succeeded."""
        open_ = [each for each in self._encoders.values() if each.phase is Phase.RUNNING]
        encoder = open_[0] if open_ else AguiEncoder(self.audience.profile, "", lambda leg: "")
        return list(encoder.cut(INTERRUPTED, CUT))


@dataclass(slots=True)
class RunEncoder(Encoder):
    """Encodes one run with the encoder that `encoders` has for this run. `RunEncoders.prepare`
    makes this encoder, so it must be called with a message of the run before `feed`."""

    encoders: RunEncoders
    run_id: str
    _encoder: AguiEncoder | None = None  # known from the first event on

    def feed(self, event: Event) -> Sequence[Frame]:
        encoder = self._encoder
        if encoder is None:
            encoder = self._encoder = self.encoders.of(self.run_id)
        return encoder.feed(event)

    def is_ready(self, stored: Stored) -> bool:
        if self._encoder is None:
            return self.encoders.is_ready(stored)
        return not stored.subject.startswith(_SUBJECTS_THAT_BEGIN_A_LEG)

    def interrupted(self) -> list[bytes]:
        return [sse.encode(each.data) for each in self.encoders.interrupted()]


@dataclass(slots=True)
class AguiRun(EventEncoding):
    """Encodes a whole run with its pauses for AG-UI clients."""

    encoder: RunEncoder
    encoders: RunEncoders

    def is_ready(self, stored: Stored) -> bool:
        return self.encoder.is_ready(stored)

    async def prepare(self, stored: Stored) -> None:
        await self.encoders.prepare(stored)


@dataclass(slots=True)
class AguiLeg(EncodedLeg):
    """Encodes one leg of a run for AG-UI clients."""

    encoders: RunEncoders

    def is_ready(self, stored: Stored) -> bool:
        return self.encoders.is_ready(stored)

    async def prepare(self, stored: Stored) -> None:
        await self.encoders.prepare(stored)


@dataclass(slots=True)
class RunsInTurn:
    """Encodes the runs of a thread one after another: AG-UI clients cannot process two at once, so
    while one run is open, the events of the others wait until it ends or pauses. `feed_event`
    encodes one event with the encoder of the event's run."""

    encoders: RunEncoders
    feed_event: FeedEvent = AguiEncoder.feed
    current: AguiEncoder | None = None  # the encoder of the event that was encoded last
    _waiting: list[tuple[str, Event]] = field(default_factory=list)  # events, each with its run id
    _open: str | None = None

    def feed(self, run_id: str, event: Event) -> list[Frame]:
        """Return the frames of this event, and of the waiting events that can follow now. If this
        event waits, the result is empty."""
        self._waiting.append((run_id, event))
        frames: list[Frame] = []
        while (next_ := self._next()) is not None:
            try:
                frames += self._encode(*self._waiting.pop(next_))
            except (ValueError, KeyError, TypeError) as error:
                if not frames:
                    raise
                log.warning("an event that waited for run %s cannot be read: %r", run_id, error)
        return frames

    def _next(self) -> int | None:
        fits = (at for at, (run_id, _) in enumerate(self._waiting) if self._open in (None, run_id))
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
    """Encodes all runs of a thread. The thread must be read from its start; the stream has no
    end."""

    turns: RunsInTurn
    render: Render

    def is_ready(self, stored: Stored) -> bool:
        return self.turns.encoders.is_ready(stored)

    async def prepare(self, stored: Stored) -> None:
        await self.turns.encoders.prepare(stored)

    def feed(self, stored: Stored) -> Item:
        run_id = subjects.run_id_of(stored.subject)
        frames = self.turns.feed(run_id, orjson.loads(stored.payload))
        return Item(stored.sequence, rendered(frames, stored.sequence, self.render))


@dataclass(frozen=True, slots=True)
class AguiViews:
    """Makes the views for AG-UI clients. The dialects are the names in `PROFILES`."""

    leg_ids: LegIds

    def encoders(self, audience: Audience) -> RunEncoders:
        return RunEncoders(self.leg_ids, audience)

    def of_run(self, run_id: str, dialect: str, framing: Framing) -> View:
        audience = Audience(PROFILES[dialect])
        if isinstance(framing, Sse):
            framing = replace(framing, id_first=audience.profile.id_first)

        def encoding() -> Encoding:
            encoders = self.encoders(audience)
            return AguiRun(RunEncoder(encoders, run_id), framing.event, encoders)

        key = (run_id, dialect, framing.key)
        return self._run(key, run_id, audience, framing, encoding, Delivery.RESUMABLE)

    def of_leg(self, run_id: str, leg: int, audience: Audience) -> View:
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
        shard: int,
    ) -> View:
        return View(
            ("thread", *key, *audience.key, framing.key),
            audience.profile.name,
            ManyRuns(source, shard),
            lambda: ThreadEncoding(RunsInTurn(self.encoders(audience)), framing.event),
            notices(framing),
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
            notices(framing),
            ReadFrom.START,
            framing,
            delivery,
        )


def notices(framing: Framing) -> Callable[[str, str], bytes]:
    """In a stream, a notice is a comment, because no event may come before RUN_STARTED. On a page,
    it is a CUSTOM event, because a page may begin with any event."""

    def comment(code: str, message: str) -> bytes:
        return sse.comment(f"{code}: {message}")

    def custom(code: str, message: str) -> bytes:
        value: Mapping[str, str] = {"code": code, "message": message}
        return orjson.dumps({"type": "CUSTOM", "name": "penstock.system.warning", "value": value})

    return custom if isinstance(framing, PageItems) else comment
