"""Events as JSON pages, for clients that do not stream.

A page is read in batches, within an allowance. If the allowance is spent before the page is full,
the page has the events found so far, and `next` is the position of the reading. So a client that
continues with `next` reaches the end, however few of the events are for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from penstock.bus import Bus, Stored
from penstock.web.read_scheduler import Turn
from penstock_edge.sources.allowance import Allowance
from penstock_edge.sources.encode import encode
from penstock_edge.sources.history import History
from penstock_edge.sources.locate import StartPosition
from penstock_edge.views.cursor import LAST_FRAME, Cursor
from penstock_edge.views.items import Encoding
from penstock_edge.views.view import Source, View

MAX_PAGE: Final = 1000
NO_END: Final = sys.maxsize


@dataclass(slots=True)
class _Page:
    """A page while it is filled. `cursor`: the client has all frames up to it."""

    bus: Bus
    view: View
    encoding: Encoding
    cursor: Cursor | None
    limit: int
    allowance: Allowance
    events: list[Any] = field(default_factory=list)
    ended: bool = False  # the run's terminal event is in the page
    advanced: bool = False  # the cursor is beyond the one that the client has sent

    async def add(self, batch: Sequence[Stored]) -> bool:
        """Add the frames of these messages; False once the page is full or the run has ended."""
        for stored in batch:
            item = await encode(self.bus, self.view, self.encoding, stored)
            for index, data in enumerate(item.frames):
                here = Cursor(stored.sequence, index)
                if not data or (self.cursor is not None and here <= self.cursor):
                    continue
                if len(self.events) >= self.limit:
                    return False
                self.events.append(orjson.loads(data))
                self.cursor = here
                self.advanced = True
            self.allowance.take(1, len(stored.payload) + len(item.body))
            if item.last:
                self.ended = True
                return False
            if not self.reach(stored.sequence):
                return False
        return True

    def reach(self, sequence: int) -> bool:
        """Note that all messages up to this one were read; False if the page must end with it.

        A dialect with state is read from the run's start. Up to the client's own cursor that is no
        progress. If the page ended there, the client would never get beyond.
        """
        if not self.allowance.spent:
            return True
        if self.cursor is None or sequence > self.cursor.sequence:
            self.cursor = Cursor(sequence, LAST_FRAME)
            self.advanced = True
        return not self.advanced

    def body(self) -> dict[str, Any]:
        """`{events, next}`."""
        following = None if self.ended or self.cursor is None else str(self.cursor)
        return {"events": self.events, "next": following}


async def page(
    bus: Bus,
    view: View,
    start: StartPosition,
    limit: int,
    allowance: Allowance,
    turn: Turn,
    *,
    source: Source | None = None,
    end: int = NO_END,
) -> dict[str, Any]:
    """`{events, next}` of a view whose framing is `PageItems`: the data of up to `limit` frames.

    `next` is null once the run's end is in the page. Otherwise it is a cursor: a request with it
    returns what follows. `source`: selects the messages of a view over many runs; it need not be
    started. `end`: only messages below this stream sequence. Each batch is read within a `turn`.

    Raises:
        BusError: the stream cannot be read now.
    """
    stream, pattern = view.followed.stream, view.followed.pattern
    if source is None:
        history = History(bus, stream, lambda: (pattern,), start.start)
    else:
        history = History(bus, stream, source.patterns, start.start, source.keep)
    filled = _begin(bus, view, start, limit, allowance)
    while True:
        async with turn():
            step = await history.step(end)
            if step.is_last or not await filled.add(step.kept):
                return filled.body()
            allowance.take(step.read - len(step.kept), 0)
            if not filled.reach(step.upto):
                return filled.body()


def _begin(bus: Bus, view: View, start: StartPosition, limit: int, allowance: Allowance) -> _Page:
    filled = _Page(bus, view, view.encoding(), start.after, limit, allowance)
    if start.truncated and (text := view.notice("history_truncated", "earlier events are gone")):
        filled.events.append(orjson.loads(text))
    return filled
