"""Where the messages of a run stand in the streams, and whether a cursor fits them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime

from penstock.bus import Bus, Stored, subjects
from penstock.bus.messages import FIRST, SEQUENCE, raw_frame
from penstock.bus.read.direct import read
from penstock.bus.records import ENDED, RunRecord
from penstock.bus.streams import EVENTS, RAW
from penstock.events.catalogue import TERMINAL
from penstock.web.problems import Problem
from penstock_edge.sources.history import tail
from penstock_edge.views.cursor import LAST_FRAME, Cursor
from penstock_edge.views.dialects import View
from penstock_edge.views.items import type_of

LAG_S = 0.1
MADE_AGAIN_S = 20.0  # events that were lost are made again in this time, where that is possible


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client begins to read. `start` and `events_start` are stream sequences."""

    start: int
    events_start: int  # where the run's end is looked for, when `start` is RAW's
    after: Cursor | None = None
    truncated: bool = False  # something that the client does not have is gone
    ended: bool = False
    live_after: int | None = None  # the last message of the replay, where its end is to be told


async def place_of_new(bus: Bus, over_raw: bool) -> Place:
    """The place of a run, or leg, that is about to start: everything of it comes after this."""
    if not over_raw:
        events_end = await _end(bus, EVENTS)
        return Place(events_end, events_end)
    raw_end, events_end = await asyncio.gather(_end(bus, RAW), _end(bus, EVENTS))
    return Place(raw_end, events_end)


async def marked(bus: Bus, stream: str, patterns: Collection[str], place: Place) -> Place:
    """The place, and where its replay ends: with the last of what stands there now."""
    return replace(place, live_after=await tail(bus, stream, list(patterns)))


async def place_of_now(bus: Bus) -> Place:
    """The place in EVENTS of what will be stored from now on."""
    return _place_from(await _end(bus, EVENTS))


async def place_after(
    bus: Bus, after: Cursor, ours: Callable[[Stored], Awaitable[bool]] | None = None
) -> Place:
    """The place in EVENTS from which a client of many runs goes on.

    Raises Problem 410 for a cursor of what NATS has lost, or beyond the end of the stream, and 400
    for one of a message that is not `ours`.
    """
    state = (await bus.api(f"STREAM.INFO.{EVENTS}"))["state"]
    first, last = int(state["first_seq"]), int(state["last_seq"])
    if after.sequence < first:
        return Place(first, first, after, truncated=after.sequence < first - 1)
    if after.sequence > last or bus.continuity.covers(EVENTS, after.sequence):
        raise _lost(after)
    if ours is not None:
        found = await bus.at(EVENTS, after.sequence)
        if found is None or not await ours(found):
            raise Problem(400, f"the cursor {after} is not of this stream")
    return Place(after.sequence, after.sequence, after)


async def place_since(bus: Bus, since: datetime) -> Place:
    """The place of the first message of EVENTS that was stored at that time or later."""
    found = await bus.since(EVENTS, since)
    if found is None:
        return await place_of_now(bus)
    state = (await bus.api(f"STREAM.INFO.{EVENTS}"))["state"]
    # the oldest of a stream that has lost its beginning: perhaps there was more
    truncated = 1 < found.sequence <= state["first_seq"]
    return replace(_place_from(found.sequence), truncated=truncated)


def _place_from(sequence: int) -> Place:
    # with a cursor: what is on its way to the ring may be older
    after = Cursor(sequence - 1, LAST_FRAME) if sequence > 1 else None
    return Place(sequence, sequence, after)


async def record_of(bus: Bus, run_id: str) -> RunRecord:
    """What KV says of the run. Raises Problem 404 when there is none."""
    known_as = run_id.lower()  # a UUID is the same in capitals
    entry = await bus.bucket("runs").get(known_as) if subjects.is_run_id(known_as) else None
    if entry is None or entry.value is None:
        raise Problem(404, f"there is no run {run_id[:64]}")
    return RunRecord.model_validate_json(entry.value)


async def lifecycle_of(bus: Bus, run_id: str) -> Stored | None:
    """The run's last lifecycle event: nothing of the kind follows the terminal one."""
    return await bus.tail(EVENTS, subjects.event("lifecycle.*", run_id))


async def locate(bus: Bus, view: View, after: Cursor | None) -> Place:
    """The place in a run, past or present, from which this client goes on.

    Raises Problem 404 for an unknown run, 410 when nothing of it is left and for a cursor of what
    NATS has lost, 400 for one that is not of this run.
    """
    run_id = view.run_id
    record = await record_of(bus, run_id)
    lifecycle = await lifecycle_of(bus, run_id)
    if lifecycle is None:
        place = await _not_begun(bus, view, record)
    else:
        place = await _begun(bus, view, lifecycle)
    if after is None:
        return place
    # what the record says holds even after all of it has aged
    begun = record.first_event or place.events_start
    truncated = await _check(bus, view, begun, after)
    start = place.start if view.stateful or truncated else after.sequence
    if place.ended and lifecycle is not None and not view.over_raw:
        # an epilogue's cursor lies behind the end, which must be read to be seen
        start = min(start, lifecycle.sequence)
    return replace(place, start=start, after=after, truncated=truncated)


async def _begun(bus: Bus, view: View, lifecycle: Stored) -> Place:
    begun = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
    ended = type_of(lifecycle) in TERMINAL
    found = await _first_from(bus, view, 1 if view.over_raw else begun)
    if not found and ended:
        raise _gone(view.run_id)
    return Place(
        start=found[0].sequence if found else await _end(bus, view.followed.stream),
        events_start=lifecycle.sequence if view.over_raw else begun,
        truncated=bool(found) and not _is_first(found[0]),
        ended=ended,
    )


async def _first_from(bus: Bus, view: View, start: int) -> list[Stored]:
    """The first message from there on; a replica that lags is asked again."""
    stream, pattern = view.followed.stream, view.followed.pattern
    while True:
        found, _ = await read(bus, stream, pattern, start, 1)
        last = None if found else await bus.tail(stream, pattern)
        if last is None or last.sequence < start:
            return found
        await asyncio.sleep(LAG_S)


async def _not_begun(bus: Bus, view: View, record: RunRecord) -> Place:
    """No lifecycle event stands: the run is queued, or all of it has aged, or is lost."""
    loss = bus.continuity.covers(EVENTS, record.first_event or 0)
    if record.status in ENDED:
        if loss is not None and bus.clock.age_s(loss.found_at) < MADE_AGAIN_S:
            raise Problem(503, "the server has lost these events, and makes them again; try again")
        raise _gone(record.run_id)
    place = await place_of_new(bus, view.over_raw)
    # it may have begun while we looked
    lifecycle = await lifecycle_of(bus, record.run_id)
    if lifecycle is not None:
        begun = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
        return Place(1 if view.over_raw else begun, begun)
    return Place(
        place.start, place.events_start, truncated=record.first_event is not None and not loss
    )


def _is_first(stored: Stored) -> bool:
    if SEQUENCE in stored.headers:
        return stored.headers[SEQUENCE] == "1"
    frame = raw_frame(stored)
    return frame.kind == "open" and frame.leg == 1


async def _check(bus: Bus, view: View, begun: int, after: Cursor) -> bool:
    """True when what follows the cursor is not all there.

    Raises Problem 400 when it is not ours, 410 when it is of what NATS has lost.
    """
    stream, pattern = view.followed.stream, view.followed.pattern
    found, _ = await read(bus, stream, pattern, after.sequence, 1)
    if found and found[0].sequence == after.sequence:
        return False
    # a replica that lags does not have it yet; who is told 400 does not come back
    stands = await bus.at(stream, after.sequence)
    if stands is not None and subjects.run_id_of(stands.subject) == view.run_id:
        return False
    info = await bus.api(f"STREAM.INFO.{stream}")
    # the run's end stands one behind its last source frame
    beyond = after.sequence > info["state"]["last_seq"] + view.over_raw
    if beyond or bus.continuity.covers(stream, after.sequence):
        raise _lost(after)
    aged = after.sequence < info["state"]["first_seq"]
    if not aged or (not view.over_raw and after.sequence < begun):
        raise Problem(400, f"the cursor {after} is not of this run")
    return True


async def _end(bus: Bus, stream: str) -> int:
    """The stream sequence that the next message gets, or a lower one."""
    info = await bus.api(f"STREAM.INFO.{stream}")
    return int(info["state"]["last_seq"]) + 1


def _lost(after: Cursor) -> Problem:
    return Problem(
        410,
        f"the cursor {after} is of events that are no longer there: the server has lost the end "
        "of its data. Begin again without a cursor (no Last-Event-ID, no `after`)",
    )


def _gone(run_id: str) -> Problem:
    return Problem(410, f"the events of run {run_id} are no longer kept")
