"""Dialects by name: what each is read from, and how it is encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock import sse
from penstock.bus import Bus, Followed
from penstock.bus.read.follow import events, raw
from penstock.dialects.agui.encode import PROFILES
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock_edge.views.framing import Form, Sse
from penstock_edge.views.items import Encoding, EventEncoding, Render, notice, selected
from penstock_edge.views.run_source import UPSTREAM, Deliver, EventsOfRun, FramesUntilEnd, Source
from penstock_edge.views.upstream_frames import LegEncoding, RawEncoding

RAW_DIALECT: Final = "raw"
# AG-UI's encoders need ids that a run's events do not contain: see `surfaces/agui/views.py`.
DIALECTS: Final = (*CLIENT_DIALECTS, *PROFILES, RAW_DIALECT)
NAMED: Final = Sse()


@dataclass(frozen=True, slots=True)
class View:
    """A run, or many, as clients see them. Views of the same `key` share reading and encoding.

    `run_id` is empty where there are many, and `sources` then says what is read.
    """

    key: tuple[str, ...]
    run_id: str
    dialect: str
    followed: Followed
    encoding: Callable[[], Encoding]
    notice: Callable[[str, str], bytes]  # code and message; without an id
    over_raw: bool = False
    stateful: bool = False  # must be read from the run's start, whatever the cursor
    form: Form = field(default_factory=Sse)
    droppable: bool = True  # clients can be told, and can come back
    kept_alive: bool | None = None  # default: as it is droppable
    sources: Callable[[Deliver], Source] | None = None

    def source(self, bus: Bus, start: int, events_start: int, deliver: Deliver) -> Source:
        """What delivers the messages, from these stream sequences on."""
        if self.sources is not None:
            return self.sources(deliver)
        if self.over_raw:
            return FramesUntilEnd(bus, self.run_id, start, events_start, deliver)
        return EventsOfRun(bus, self.followed, start, deliver)


def view(
    run_id: str, dialect: str, form: Form = NAMED, types: frozenset[str] | None = None
) -> View:
    """A whole run: the upstream's own frames, or events in a dialect of `CLIENT_DIALECTS`.

    `types`: only frames of these types, in a dialect that has types.
    """
    if dialect == RAW_DIALECT:
        return View(
            (run_id, dialect),
            run_id,
            dialect,
            raw(run_id, UPSTREAM),
            RawEncoding,
            # a frame of ours among the upstream's would be taken for one of its own
            lambda code, message: sse.comment(f"{code}: {message}"),
            over_raw=True,
            stateful=True,
        )
    known = CLIENT_DIALECTS[dialect]
    render = rendering(form, types)
    return View(
        (run_id, dialect, form.key, *sorted(types or ())),
        run_id,
        dialect,
        events(run_id),
        lambda: EventEncoding(known.encoder(), render),
        noticing(dialect, form, run_id),
        stateful=known.stateful,
        form=form,
    )


def noticing(
    dialect: str, form: Form, run_id: str, session_id: str = ""
) -> Callable[[str, str], bytes]:
    """What the edge says of its own in that dialect: a comment where it has no event for it."""
    known = CLIENT_DIALECTS[dialect]
    if not known.has_warnings:
        told = isinstance(form, Sse)
        return lambda code, message: sse.comment(f"{code}: {message}") if told else b""
    return lambda code, message: form.notice(
        notice(known.encoder(), run_id, code, message, session_id)
    )


def rendering(form: Form, types: frozenset[str] | None) -> Render:
    """A dialect's frames in that form; of some types only, where they are given."""
    return form.event if types is None else partial(selected, render=form.event, types=types)


def leg_view(run_id: str, leg: int, timeout_s: float, hosts: tuple[str, ...] = ()) -> View:
    """One leg's body, byte for byte; the rest is the agent's, for the text of its error."""
    return View(
        (run_id, "leg", str(leg)),
        run_id,
        "adk",
        raw(run_id, UPSTREAM),
        partial(LegEncoding, leg, timeout_s, hosts),
        lambda code, message: b"",
        over_raw=True,
        stateful=True,
        droppable=False,
    )
