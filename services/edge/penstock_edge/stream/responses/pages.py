"""Reads events as JSON pages, for clients that do not stream (decision 0096).

The edge reads the events of a page in batches, within an allowance. If the allowance is spent
before the page is full, the page has the events that were found until then. `next` is the cursor up
to which the edge has read. So a client that continues with `next` reaches the end of the stream,
even if only few of the events that were read are for this client.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from penstock.bus import Bus, Stored
from penstock.web.read_scheduler import Turn
from penstock_edge.sources.encode import encode
from penstock_edge.sources.history import history_of
from penstock_edge.sources.locate import StartPosition
from penstock_edge.sources.read_run import Allowance
from penstock_edge.views.cursor import LAST_FRAME, Cursor
from penstock_edge.views.items import Encoding
from penstock_edge.views.view import Source, View

MAX_PAGE: Final = 1000
NO_END: Final = sys.maxsize


@dataclass(slots=True)
class _Page:
    """A page that is being filled. A client that has this page has all frames up to `cursor`."""

    bus: Bus
    view: View
    encoding: Encoding
    cursor: Cursor | None
    limit: int
    allowance: Allowance
    events: list[Any] = field(default_factory=list)
    ended: bool = False  # whether the run's terminal event is in the page
    advanced: bool = False  # whether `cursor` is beyond the cursor of the request

    async def add(self, batch: Sequence[Stored]) -> bool:
        """Return False if the page must end."""
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
            self.allowance.spend(1, len(stored.payload) + len(item.body))
            if item.last:
                self.ended = True
                return False
            if not self.reach(stored.sequence):
                return False
        return True

    def reach(self, sequence: int) -> bool:
        """Return False if the page must end: if the allowance is spent and `cursor` is beyond the
        request's own cursor.

        A dialect with state is read from the run's start. If the page could end before the
        request's own cursor, the client would get the same `next` again and would never get new
        events.
        """
        if not self.allowance.is_spent:
            return True
        if self.cursor is None or sequence > self.cursor.sequence:
            self.cursor = Cursor(sequence, LAST_FRAME)
            self.advanced = True
        return not self.advanced

    def body(self) -> dict[str, Any]:
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
    """Return `{events, next}`; `events` are the data of up to `limit` frames. `next` is null if the
    page has the run's terminal event, or if there are no events yet.

    The framing of the view must be `PageItems`. `source` selects the messages of a view over many
    runs, and need not be started. Only messages below the stream sequence `end` are read, each
    batch within a `turn`.
    """
    history = history_of(bus, view, source, start.start)
    filled = _begin(bus, view, start, limit, allowance)
    if start.erased:
        await filled.add(start.erased)
        return filled.body()
    while True:
        async with turn():
            step = await history.step(end)
            if step.is_last or not await filled.add(step.kept):
                return filled.body()
            allowance.spend(step.read - len(step.kept), 0)
            if not filled.reach(step.upto):
                return filled.body()


def _begin(bus: Bus, view: View, start: StartPosition, limit: int, allowance: Allowance) -> _Page:
    filled = _Page(bus, view, view.encoding(), start.after, limit, allowance)
    if start.truncated and (text := view.notice("history_truncated", "earlier events are gone")):
        filled.events.append(orjson.loads(text))
    return filled
