"""Dialects by name: what each is read from, and how it is encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock import sse
from penstock.bus import Bus
from penstock.bus.follow import Follow, Followed, events, raw
from penstock.dialects.base import Encoder
from penstock.dialects.canonical import CanonicalEncoder
from penstock.dialects.executions import ExecutionsEncoder
from penstock_edge.items import Encoding, EventEncoding, notice
from penstock_edge.sources import UPSTREAM, Deliver, FramesUntilEnd, Source
from penstock_edge.upstream import LegEncoding, RawEncoding

ENCODERS: Final[Mapping[str, Callable[[], Encoder]]] = {
    "canonical": CanonicalEncoder,
    "executions": ExecutionsEncoder,
}
RAW_DIALECT: Final = "raw"
DIALECTS: Final = (*ENCODERS, RAW_DIALECT)


@dataclass(frozen=True, slots=True)
class View:
    """A run as its clients see it. Views of the same `key` share one reading and encoding."""

    key: tuple[str, ...]
    run_id: str
    dialect: str
    followed: Followed
    encoding: Callable[[], Encoding]
    notice: Callable[[str, str], bytes]  # code and message; without an id
    over_raw: bool = False
    stateful: bool = False  # must be read from the run's start, whatever the cursor
    comments: bool = True  # keep-alives may be sent, and last words to whoever is dropped

    def source(self, bus: Bus, start: int, events_start: int, deliver: Deliver) -> Source:
        """What delivers the messages, from these stream sequences on."""
        if self.over_raw:
            return FramesUntilEnd(bus, self.run_id, start, events_start, deliver)
        return Follow(bus, self.followed, start, deliver)


def view(run_id: str, dialect: str, named: bool = True) -> View:
    """A whole run in one of `DIALECTS`."""
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
    encoder = ENCODERS[dialect]

    def told(code: str, message: str) -> bytes:
        frame = notice(encoder(), run_id, code, message)
        return sse.encode(frame.data, event=frame.event if named else None)

    return View(
        (run_id, dialect, str(named)),
        run_id,
        dialect,
        events(run_id),
        lambda: EventEncoding(encoder(), named),
        told,
    )


def leg_view(run_id: str, leg: int, timeout_s: float) -> View:
    """One leg's body, byte for byte; `timeout_s` is the agent's, for the text of its error."""
    return View(
        (run_id, "leg", str(leg)),
        run_id,
        "adk",
        raw(run_id, UPSTREAM),
        partial(LegEncoding, leg, timeout_s),
        lambda code, message: b"",
        over_raw=True,
        stateful=True,
        comments=False,
    )
