"""Runs and threads as AG-UI clients see them: a leg, a whole run, or a thread's runs in turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from penstock import sse
from penstock.bus import Followed, Stored, subjects
from penstock.bus.read.follow import events
from penstock.bus.streams import EVENTS
from penstock.dialects.agui.encode import PROFILES, RUNS, STRICT, AguiEncoder, Phase, Profile
from penstock.dialects.agui.vocabulary import is_modern
from penstock.events.catalogue import TERMINAL
from penstock.sse import Frame
from penstock_edge.sources.sessions import Session
from penstock_edge.surfaces.agui.run_ids import AguiRuns, unnamed
from penstock_edge.views.dialects import View
from penstock_edge.views.framing import Form, Page, Sse
from penstock_edge.views.items import Encoding, Item, Render, rendered, type_of
from penstock_edge.views.run_source import Deliver, Source
from penstock_edge.views.upstream_frames import INTERRUPTED

log = logging.getLogger(__name__)

CUT: Final = "stream_interrupted"
# A client of POST is not told our event names, which it must ignore, but where it can come back.
UNNAMED: Final = Sse(named=False)

Event = dict[str, Any]
Tell = Callable[[AguiEncoder, Event], Sequence[Frame]]

_BEGIN_A_LEG: Final = frozenset({"lifecycle.started", "lifecycle.resumed"})


@dataclass(frozen=True, slots=True)
class Audience:
    """Who is told: a profile's clients, of the version that they declare."""

    profile: Profile = STRICT
    protocol_version: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Among the keys of a view: what is told depends on no more of the version than this."""
        return self.profile.name, f"modern={is_modern(self.protocol_version)}"


# Ids of ended runs that a reading remembers. Events may follow the end of a run for some seconds.
ENDED_RUNS: Final = 10_000


@dataclass(slots=True)
class Voices:
    """The encoders of the runs that a reading has met, each with what is known of its run.

    The encoder of an ended run can be dropped (`forget`): the run says nothing more.
    """

    runs: AguiRuns
    audience: Audience
    _encoders: dict[str, AguiEncoder] = field(default_factory=dict)
    _names: dict[tuple[str, int], str] = field(default_factory=dict)
    _ended: dict[str, None] = field(default_factory=dict)  # the oldest first

    def __len__(self) -> int:
        """How many encoders are kept."""
        return len(self._encoders)

    async def meet(self, stored: Stored) -> None:
        """Learn what must be known before the message is told. Waits for the bus."""
        run_id = subjects.run_id_of(stored.subject)
        if run_id in self._ended:
            return
        if run_id not in self._encoders:
            self._encoders[run_id] = AguiEncoder(
                self.audience.profile,
                await self.runs.thread_of(run_id),
                lambda leg: self._names.get((run_id, leg)) or unnamed(run_id, leg),
                self.audience.protocol_version,
            )
        if type_of(stored) in _BEGIN_A_LEG:
            leg = orjson.loads(stored.payload)["leg"]
            self._names[run_id, leg] = await self.runs.name(run_id, leg)

    def of(self, run_id: str) -> AguiEncoder:
        """The encoder of a run that was met."""
        return self._encoders[run_id]

    def has_ended(self, run_id: str) -> bool:
        """Whether the run has said its last word, and its encoder was dropped."""
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
        """That the stream ends before the run: a client would take silence for success."""
        open_ = [each for each in self._encoders.values() if each.phase is Phase.RUNNING]
        encoder = open_[0] if open_ else AguiEncoder(self.audience.profile, "", lambda leg: "")
        return list(encoder.cut(INTERRUPTED, CUT))


@dataclass(slots=True)
class RunEncoding(Encoding):
    """One run. `leg`: only this one, to its pause or the run's end; 0 for all."""

    voices: Voices
    render: Render
    leg: int = 0

    async def meet(self, stored: Stored) -> None:
        """Learn what must be known of the run."""
        await self.voices.meet(stored)

    def feed(self, stored: Stored) -> Item:
        """Raises ValueError, KeyError or TypeError on a body that is no event."""
        event, type = orjson.loads(stored.payload), type_of(stored)
        frames = self.voices.of(subjects.run_id_of(stored.subject)).feed(event)
        last = type in TERMINAL
        if self.leg:
            # a run may end before its leg was opened
            if not last and event["leg"] < self.leg:
                return Item(stored.sequence, [])
            last = last or type == "lifecycle.paused"
        return Item(stored.sequence, rendered(frames, stored.sequence, self.render), last)

    def cut(self) -> list[bytes]:
        """Of a leg, an error: its client does not come back by itself. Of a run, nothing."""
        return [sse.encode(each.data) for each in self.voices.interrupted()] if self.leg else []


@dataclass(slots=True)
class Turns:
    """The runs of a thread, told one after another: no client takes two at once.

    What happens in another run while one is open is held until that one ends, or waits. `tell`
    feeds an event to its encoder.
    """

    voices: Voices
    tell: Tell = AguiEncoder.feed
    speaking: AguiEncoder | None = None  # the last that was fed
    _held: list[tuple[str, Event]] = field(default_factory=list)  # each with its run
    _open: str | None = None

    def feed(self, run_id: str, event: Event) -> list[Frame]:
        """The frames of this event, and of those that were held until it.

        Raises ValueError, KeyError or TypeError on what is no event.
        """
        self._held.append((run_id, event))
        frames: list[Frame] = []
        while (next_ := self._next()) is not None:
            try:
                frames += self._said(*self._held.pop(next_))
            except (ValueError, KeyError, TypeError) as error:
                if not frames:
                    raise
                log.warning("an event that was held until %s cannot be read: %r", run_id, error)
        return frames

    def _next(self) -> int | None:
        fits = (at for at, (run_id, _) in enumerate(self._held) if self._open in (None, run_id))
        return next(fits, None)

    def _said(self, run_id: str, event: Event) -> Sequence[Frame]:
        if self.voices.has_ended(run_id):
            return ()
        encoder = self.voices.of(run_id)
        frames = self.tell(encoder, event)
        self.speaking = encoder
        self._open = run_id if encoder.phase is Phase.RUNNING else None
        if encoder.phase is Phase.OVER:
            self.voices.forget(run_id)
        return frames


@dataclass(slots=True)
class ThreadEncoding(Encoding):
    """All runs of a thread, read from its start; the stream has no end."""

    turns: Turns
    render: Render

    async def meet(self, stored: Stored) -> None:
        """Learn what must be known of the run."""
        await self.turns.voices.meet(stored)

    def feed(self, stored: Stored) -> Item:
        """Raises ValueError, KeyError or TypeError on a body that is no event."""
        run_id = subjects.run_id_of(stored.subject)
        frames = self.turns.feed(run_id, orjson.loads(stored.payload))
        return Item(stored.sequence, rendered(frames, stored.sequence, self.render))

    def cut(self) -> list[bytes]:
        """Nothing: a client comes back with its cursor."""
        return []


@dataclass(frozen=True, slots=True)
class AguiViews:
    """Makes the views; `PROFILES` has the names of their dialects."""

    runs: AguiRuns

    def voices(self, audience: Audience) -> Voices:
        """Encoders for these clients."""
        return Voices(self.runs, audience)

    def of_run(self, run_id: str, dialect: str, form: Form) -> View:
        """A whole run, over its pauses; strict frames are what any client takes."""
        audience = Audience(PROFILES[dialect])
        if audience.profile is RUNS and isinstance(form, Sse):
            form = replace(form, id_first=True)  # agent-runs-sse.md fixes the order of the lines
        return self._run((run_id, dialect, form.key), run_id, audience, form)

    def of_leg(self, run_id: str, leg: int, audience: Audience) -> View:
        """One leg: an AG-UI run."""
        key = (run_id, *audience.key, f"leg {leg}")
        return self._run(key, run_id, audience, UNNAMED, leg)

    def of_thread(
        self,
        session: Session,
        audience: Audience,
        form: Form,
        source: Callable[[Deliver], Source],
    ) -> View:
        """The runs of a thread, one after another."""
        agents = ("*",) if session.any_agent else session.agents
        return View(
            ("thread", session.owner, session.session_id, *agents, *audience.key, form.key),
            "",
            audience.profile.name,
            # the source sees to it that nothing is missing
            Followed(EVENTS, ">", "live.>", lambda before, after: True),
            lambda: ThreadEncoding(Turns(self.voices(audience)), form.event),
            _notice(form),
            stateful=True,
            form=form,
            sources=source,
        )

    def _run(
        self, key: tuple[str, ...], run_id: str, audience: Audience, form: Form, leg: int = 0
    ) -> View:
        return View(
            key,
            run_id,
            audience.profile.name,
            events(run_id),
            lambda: RunEncoding(self.voices(audience), form.event, leg),
            _notice(form),
            stateful=True,
            form=form,
            # whoever reads a leg could not be told that it goes on elsewhere
            droppable=not leg,
            kept_alive=True,
        )


def _notice(form: Form) -> Callable[[str, str], bytes]:
    """A comment: no event may stand before RUN_STARTED. On a page, where any may, CUSTOM."""

    def comment(code: str, message: str) -> bytes:
        return sse.comment(f"{code}: {message}")

    def custom(code: str, message: str) -> bytes:
        value: Mapping[str, str] = {"code": code, "message": message}
        return orjson.dumps({"type": "CUSTOM", "name": "penstock.system.warning", "value": value})

    return custom if isinstance(form, Page) else comment
