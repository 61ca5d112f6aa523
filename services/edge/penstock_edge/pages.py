"""Events as JSON pages, for those who do not stream."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.bus import Bus
from penstock.bus.direct import read
from penstock_edge.cursor import Cursor
from penstock_edge.encode import encode
from penstock_edge.locate import Place
from penstock_edge.past import BATCH, Past
from penstock_edge.sources import Source
from penstock_edge.views import View

MAX_PAGE = 1000


async def page(bus: Bus, view: View, place: Place, limit: int) -> dict[str, Any]:
    """`{events, next}` of a run's view in the form of a page: up to `limit` frames' bodies.

    `next` is null once the run's end is in the page. Of a run that goes on, it is where the page
    stands, so that asking again with it gives what is new.
    """
    encoding = view.encoding()
    events: list[Any] = []
    if place.truncated and (told := view.notice("history_truncated", "earlier events are gone")):
        events.append(orjson.loads(told))
    cursor = place.after
    start = place.start
    while True:
        found, pending = await read(bus, view.followed.stream, view.followed.pattern, start, limit)
        for stored in found:
            item = await encode(bus, view, encoding, stored)
            for index, data in enumerate(item.frames):
                here = Cursor(stored.sequence, index)
                if not data or (cursor is not None and here <= cursor):
                    continue
                if len(events) >= limit:
                    return {"events": events, "next": cursor and str(cursor)}
                events.append(orjson.loads(data))
                cursor = here
            if item.last:
                return {"events": events, "next": None}
        if not found or not pending:
            return {"events": events, "next": cursor and str(cursor)}
        start = found[-1].sequence + 1


async def page_of_many(
    bus: Bus, view: View, source: Source, place: Place, end: int, limit: int
) -> dict[str, Any]:
    """`{events, next}` of a view in the form of a page, up to the stream sequence `end`.

    The source need not be started. `next` is where the page stands: asking again gives what is new.
    """
    past = Past(bus, view.followed.stream, source.patterns, place.start, source.keep)
    encoding = view.encoding()
    events: list[Any] = []
    if place.truncated and (told := view.notice("history_truncated", "earlier events are gone")):
        events.append(orjson.loads(told))
    cursor = place.after
    while found := await past.below(end, min(limit, BATCH)):
        for stored in found:
            item = await encode(bus, view, encoding, stored)
            for index, data in enumerate(item.frames):
                here = Cursor(stored.sequence, index)
                if not data or (cursor is not None and here <= cursor):
                    continue
                if len(events) >= limit:
                    return {"events": events, "next": cursor and str(cursor)}
                events.append(orjson.loads(data))
                cursor = here
    return {"events": events, "next": cursor and str(cursor)}
