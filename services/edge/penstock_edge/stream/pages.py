"""Events as JSON pages, for those who do not stream.

A page reads the past in batches, within an allowance. Where that is spent before the page is full,
the page has what was found by then, and `next` says where the reading stands: a client that goes on
with it comes to the end, however little of the past is for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock.bus import Bus, Stored
from penstock.bus.read.direct import read
from penstock.web.read_turns import Turn
from penstock_edge.sources.allowance import Allowance
from penstock_edge.sources.encode import encode
from penstock_edge.sources.history import BATCH, MAX_READ_BYTES, Past
from penstock_edge.sources.locate import Place
from penstock_edge.views.cursor import LAST_FRAME, Cursor
from penstock_edge.views.dialects import View
from penstock_edge.views.items import Encoding
from penstock_edge.views.run_source import Source

MAX_PAGE = 1000


@dataclass(slots=True)
class _Page:
    """A page while it is filled. `cursor`: up to where the client has everything."""

    bus: Bus
    view: View
    encoding: Encoding
    cursor: Cursor | None
    limit: int
    allowance: Allowance
    events: list[Any] = field(default_factory=list)
    ended: bool = False  # the run's end is in it
    advanced: bool = False  # the cursor is beyond the one that the client has sent

    async def add(self, batch: Sequence[Stored]) -> bool:
        """Tell what is in these messages; False once the page is full or the run has ended."""
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
        """All up to this message was read; False where the page has to end with it.

        A view that depends on all that came before is read from its start: up to the client's own
        place that is no progress, and the page does not end there.
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


def _begin(bus: Bus, view: View, place: Place, limit: int, allowance: Allowance) -> _Page:
    page = _Page(bus, view, view.encoding(), place.after, limit, allowance)
    if place.truncated and (told := view.notice("history_truncated", "earlier events are gone")):
        page.events.append(orjson.loads(told))
    return page


async def page(
    bus: Bus, view: View, place: Place, limit: int, allowance: Allowance, turn: Turn
) -> dict[str, Any]:
    """`{events, next}` of a run's view in the form of a page: up to `limit` frames' bodies.

    `next` is null once the run's end is in the page. Of a run that goes on, it is where the page
    stands, so that asking again with it gives what is new.
    """
    filled = _begin(bus, view, place, limit, allowance)
    start = place.start
    while True:
        async with turn():
            found, pending = await read(
                bus, view.followed.stream, view.followed.pattern, start, BATCH, MAX_READ_BYTES
            )
            goes_on = await filled.add(found)
        if not (goes_on and found and pending):
            return filled.body()
        start = found[-1].sequence + 1


async def page_of_many(
    bus: Bus,
    view: View,
    source: Source,
    place: Place,
    end: int,
    limit: int,
    allowance: Allowance,
    turn: Turn,
) -> dict[str, Any]:
    """`{events, next}` of a view in the form of a page, up to the stream sequence `end`.

    The source need not be started. `next` is where the page stands: asking again gives what is new.
    """
    past = Past(bus, view.followed.stream, source.patterns, place.start, source.keep)
    filled = _begin(bus, view, place, limit, allowance)
    while True:
        async with turn():
            step = await past.step(end)
            if step.is_last or not await filled.add(step.given):
                return filled.body()
            allowance.take(step.read - len(step.given), 0)
            if not filled.reach(step.upto):
                return filled.body()
