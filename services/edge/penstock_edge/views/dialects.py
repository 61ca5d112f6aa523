"""Makes the views of whole runs, in each dialect for clients. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock import sse
from penstock.bus import Stored
from penstock.dialects.agui.encode import PROFILES
from penstock.dialects.base import ClientDialect
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.sse import Frame
from penstock_edge.views.agui import CUT
from penstock_edge.views.cursor import StreamSequence
from penstock_edge.views.framing import NAMED_SSE, Framing, Sse
from penstock_edge.views.items import (
    Encoding,
    EventEncoding,
    Item,
    Render,
    UnchangedEncoding,
    notice,
    selected,
)
from penstock_edge.views.upstream_frames import INTERRUPTED, RawEncoding
from penstock_edge.views.view import ReadFrom, RunEvents, RunFrames, View

RAW_DIALECT: Final = "raw"
DIALECTS: Final = (*CLIENT_DIALECTS, *PROFILES, RAW_DIALECT)


def run_view(
    run_id: str,
    dialect: str,
    framing: Framing = NAMED_SSE,
    types: frozenset[str] | None = None,
) -> View:
    """Take a dialect of `CLIENT_DIALECTS`, or `RAW_DIALECT`; with `types`, only frames of these."""
    if dialect == RAW_DIALECT:
        return _raw_view(run_id)
    known = CLIENT_DIALECTS[dialect]
    render = rendering(framing, types)

    def encoding() -> Encoding:
        return (
            UnchangedEncoding(framing.unchanged, types)
            if known.unchanged
            else EventEncoding(known.encoder(), render)
        )

    return View(
        (run_id, dialect, framing.key, *sorted(types or ())),
        dialect,
        RunEvents(run_id),
        finished(encoding, known, framing),
        notices(dialect, framing, run_id),
        reads_from_of(dialect),
        framing,
        headers=known.headers,
    )


def _raw_view(run_id: str) -> View:
    # A frame may be split over several messages, so these are read from the run's start.
    return View(
        (run_id, RAW_DIALECT),
        RAW_DIALECT,
        RunFrames(run_id),
        RawEncoding,
        # A notice is a comment. If a notice were an event, a client could not distinguish it from
        # the agent server's events.
        lambda code, message: sse.comment(f"{code}: {message}"),
        ReadFrom.START,
    )


@dataclass(slots=True)
class Finished(Encoding):
    """Adds the last frame and the error of a dialect to another encoding of a run."""

    encoding: Encoding
    dialect: ClientDialect
    framing: Framing

    def is_ready(self, stored: Stored) -> bool:
        return self.encoding.is_ready(stored)

    async def prepare(self, stored: Stored) -> None:
        await self.encoding.prepare(stored)

    def missing_from(self, stored: Stored) -> StreamSequence | None:
        return self.encoding.missing_from(stored)

    def fold(self, stored: Stored) -> None:
        self.encoding.fold(stored)

    def feed(self, stored: Stored) -> Item:
        item = self.encoding.feed(stored)
        if not item.last or self.dialect.last is None:
            return item
        last = self.framing.last(self.dialect.last, f"{item.sequence}-{len(item.frames)}")
        return Item(item.sequence, [*item.frames, last], last=True)

    def interruption(self) -> list[bytes]:
        if self.dialect.error is None:
            return self.encoding.interruption()
        frames = [self.dialect.error(CUT, INTERRUPTED)]
        frames += [] if self.dialect.last is None else [Frame(self.dialect.last)]
        return [self.framing.notice(frame) for frame in frames]


def finished(
    encoding: Callable[[], Encoding], dialect: ClientDialect, framing: Framing
) -> Callable[[], Encoding]:
    if dialect.last is None and dialect.error is None:
        return encoding
    return lambda: Finished(encoding(), dialect, framing)


def reads_from_of(dialect: str) -> ReadFrom:
    return ReadFrom.START if CLIENT_DIALECTS[dialect].stateful else ReadFrom.CURSOR


def notices(
    dialect: str, framing: Framing, run_id: str, session_id: str = ""
) -> Callable[[str, str], bytes]:
    """If the dialect has no event for a notice, it is an SSE comment, or nothing where the framing
    has no comments."""
    known = CLIENT_DIALECTS[dialect]
    if not known.has_warnings:
        has_comments = isinstance(framing, Sse)
        return lambda code, message: sse.comment(f"{code}: {message}") if has_comments else b""
    return lambda code, message: framing.notice(
        notice(known.encoder(), run_id, code, message, session_id)
    )


def rendering(framing: Framing, types: frozenset[str] | None) -> Render:
    if types is None:
        return framing.event
    return partial(selected, render=framing.event, types=types)
