"""Events as JSON pages, for those who do not stream."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.bus import Bus, Stored
from penstock.bus.direct import read
from penstock.bus.objects import unwrap
from penstock.events.catalogue import TERMINAL
from penstock_edge.cursor import Cursor
from penstock_edge.encode import encode
from penstock_edge.items import notice, type_of
from penstock_edge.locate import Place
from penstock_edge.past import BATCH, Past
from penstock_edge.sources import Source
from penstock_edge.views import ENCODERS, View

MAX_PAGE = 1000


async def page(
    bus: Bus, view: View, place: Place, limit: int, types: frozenset[str] | None = None
) -> dict[str, Any]:
    """`{events, next}`: up to `limit` frames' bodies, and the cursor to ask for more with.

    `next` is null once the run's end is in the page. Of a run that goes on, it is where the page
    stands, so that asking again with it gives what is new.
    """
    encoder = ENCODERS[view.dialect]()
    events: list[Any] = []
    if place.truncated:
        told = notice(encoder, view.run_id, "history_truncated", "earlier events are not kept")
        events.append(orjson.loads(told.data))
    cursor = place.after
    start = place.start
    while True:
        found, pending = await read(bus, view.followed.stream, view.followed.pattern, start, limit)
        for stored in found:
            for index, frame in enumerate(encoder.feed(await _event(bus, stored))):
                here = Cursor(stored.sequence, index)
                if cursor is not None and here <= cursor:
                    continue
                if types is not None and frame.event not in types:
                    continue
                if len(events) >= limit:
                    return {"events": events, "next": str(cursor)}
                events.append(orjson.loads(frame.data))
                cursor = here
            if type_of(stored) in TERMINAL:
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
    if place.truncated:
        told = view.notice("history_truncated", "earlier events are not kept")
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


async def _event(bus: Bus, stored: Stored) -> dict[str, Any]:
    event: dict[str, Any] = orjson.loads(await unwrap(bus, stored.payload))
    return event
