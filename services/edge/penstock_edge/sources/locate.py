"""Finds the position from which a client reads, and checks the client's cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime

from penstock.bus import Bus, Stored, streams, subjects
from penstock.bus.messages import FIRST, SEQUENCE, raw_frame
from penstock.bus.read.direct import read
from penstock.bus.records.erasures import Erasure
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.events.catalogue import TERMINAL
from penstock.web.problems import Problem
from penstock_edge.sources.history import newest_sequence_of, tail
from penstock_edge.views.cursor import LAST_FRAME, Cursor
from penstock_edge.views.erased import ERASED, erased_messages, erased_text
from penstock_edge.views.items import type_of
from penstock_edge.views.view import ReadFrom, View

MAX_DEPTH = 16  # the greatest depth of nested workflows; the workflows service allows less
LAG_S = 0.1  # seconds before a replica that lags behind is asked again
# The number of seconds, after a loss is found, within which the normalizer publishes the lost
# events again if it can. During this time a client gets 503 and should try again.
RECOVERY_S = 20.0


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The position from which a client reads. All numbers are stream sequences."""

    start: int  # a sequence in RAW for a view of source frames, and in EVENTS for any other view
    # A sequence of EVENTS. A view of source frames reads RAW from `start` on, and looks for the
    # run's terminal event in EVENTS from `events_start` on.
    events_start: int
    after: Cursor | None = None  # frames up to and including this cursor are not written
    truncated: bool = False  # whether some messages have expired before the client got them
    ended: bool = False  # whether the run has ended, or the session is idle
    # The sequence of the newest message that was stored when the request came, or 0 if there was
    # none. The live marker is written after this message, or at once if `start` is after this
    # message. If the value is None, the stream gets no live marker.
    live_after: int | None = None
    # All that clients get of a run whose content was erased; EVENTS is then not read.
    erased: tuple[Stored, ...] = ()


async def start_of_new_run(bus: Bus, shard: int, *, frames: bool = False) -> StartPosition:
    """Return a position before all messages of the run, or leg, that is about to start: with
    `frames` in RAW, for a view of source frames."""
    if not frames:
        events_end = await _end(bus, streams.events_of(shard))
        return StartPosition(events_end, events_end)
    raw_end, events_end = await asyncio.gather(
        _end(bus, streams.raw_of(shard)), _end(bus, streams.events_of(shard))
    )
    return StartPosition(raw_end, events_end)


async def with_live_marker(
    bus: Bus, stream: str, patterns: Collection[str], start: StartPosition
) -> StartPosition:
    return replace(start, live_after=await tail(bus, stream, list(patterns)))


async def with_marker(bus: Bus, view: View, place: StartPosition) -> StartPosition:
    """Do the same for the stream of one run."""
    if view.reads_tree:
        return replace(place, live_after=await newest_sequence_of(bus, view, place.start))
    return await with_live_marker(bus, view.followed.stream, [view.followed.pattern], place)


async def start_from_now(bus: Bus, shard: int = 0) -> StartPosition:
    return _start_from(await _end(bus, streams.events_of(shard)))


async def start_after(
    bus: Bus,
    after: Cursor,
    keep: Callable[[Stored], Awaitable[bool]] | None = None,
    shard: int = 0,
) -> StartPosition:
    """Return where a client of many runs continues after its cursor. A cursor of a message that
    `keep` refuses is 400, and one of a message that NATS has lost, or does not have yet, is 410."""
    stream = streams.events_of(shard)
    state = (await bus.api(f"STREAM.INFO.{stream}"))["state"]
    first, last = int(state["first_seq"]), int(state["last_seq"])
    if after.sequence < first:
        return StartPosition(first, first, after, truncated=after.sequence < first - 1)
    if after.sequence > last or bus.continuity.covers(stream, after.sequence):
        raise _lost(after)
    if keep is not None:
        found = await bus.at(stream, after.sequence)
        # The content of the message's run may have been erased.
        if found is not None and not await keep(found):
            raise Problem(400, f"the cursor {after} is not of this stream")
    return StartPosition(after.sequence, after.sequence, after)


async def start_since(bus: Bus, since: datetime, shard: int = 0) -> StartPosition:
    stream = streams.events_of(shard)
    found = await bus.since(stream, since)
    if found is None:
        return await start_from_now(bus, shard)
    state = (await bus.api(f"STREAM.INFO.{stream}"))["state"]
    # `found` may be the oldest message of a stream whose beginning has expired. Some of the expired
    # messages may then have been stored at `since` or later.
    truncated = 1 < found.sequence <= state["first_seq"]
    return replace(_start_from(found.sequence), truncated=truncated)


def _start_from(sequence: int) -> StartPosition:
    # The hub may deliver messages before this sequence, for other clients. Because of the cursor
    # `after`, the edge does not write such messages to this client.
    after = Cursor(sequence - 1, LAST_FRAME) if sequence > 1 else None
    return StartPosition(sequence, sequence, after)


async def record_of(bus: Bus, run_id: str) -> RunRecord:
    known_as = run_id.lower()  # a UUID in capital letters is the same id
    if subjects.is_run_id(known_as):
        record = await bus.bucket("runs").load(known_as, RunRecord)
        if record is not None:
            return record
    raise Problem(404, f"there is no run {run_id[:64]}")


async def is_descendant(bus: Bus, run_id: str, root: str) -> bool:
    return root in [record.run_id for record in await ancestors_of(bus, run_id)][1:]


async def ancestors_of(bus: Bus, run_id: str) -> list[RunRecord]:
    """Return the records of a run, its parent, and so on, the outermost last."""
    found: list[RunRecord] = []
    next_: str | None = run_id
    while next_ is not None and len(found) <= MAX_DEPTH:
        record = await bus.bucket("runs").load(next_, RunRecord)
        if record is None:
            break
        found.append(record)
        next_ = record.parent_run_id if record.workflow_depth else None
    return found


async def lifecycle_of(bus: Bus, run_id: str) -> Stored | None:
    """Return the newest one, which is the terminal event if the run has ended."""
    return await bus.tail(streams.events_for(run_id), subjects.event("lifecycle.*", run_id))


async def locate(
    bus: Bus,
    view: View,
    after: Cursor | None,
    record: RunRecord | None = None,
    first: int | None = None,
) -> StartPosition:
    """Return the position from which a client reads a run. `record` is the run's record if the
    caller has just read it. A cursor of another stream is 400; if all events of the run have
    expired, or NATS has lost the cursor's event, the Problem is 410. After an erasure, a view of
    source frames is 410, and any cursor is taken.

    Without a cursor, the client reads from the event with the sequence `first` on, or from the next
    event if this one is not stored yet. If `first` is 0 or less, so many of the last events come
    first."""
    run_id = view.run_id
    if record is None:
        record = await record_of(bus, run_id)
    if record.erasure is not None:
        return await _erased(bus, view, record, record.erasure, after)
    lifecycle = await lifecycle_of(bus, run_id)
    if lifecycle is None:
        position = await _not_begun(bus, view, record)
    else:
        position = await _begun(bus, view, lifecycle)
    if after is None:
        if first is None or lifecycle is None:
            return position
        return await _from_event(bus, view, position, lifecycle, first)
    # NATS keeps the run's record for longer than the run's events. So the record has the sequence
    # of the first event even after this event has expired.
    begun = record.first_event or position.events_start
    truncated = await _check(bus, view, begun, after)
    start = position.start if view.reads_from is ReadFrom.START or truncated else after.sequence
    if position.ended and lifecycle is not None and not view.reads_frames:
        # The cursor may belong to an event after the terminal event. The reading must include the
        # terminal event even then, because only this event ends the stream.
        start = min(start, lifecycle.sequence)
    return replace(position, start=start, after=after, truncated=truncated)


async def _from_event(
    bus: Bus, view: View, whole: StartPosition, lifecycle: Stored, first: int
) -> StartPosition:
    newest: Stored | None = lifecycle  # the terminal event is the last one for clients
    if not whole.ended:
        newest = await bus.tail(view.followed.stream, view.followed.pattern)
    if newest is None:  # all events have expired meanwhile
        return whole
    last = int(newest.headers[SEQUENCE])
    wanted = min(first if first > 0 else last + 1 + first, last + 1)
    # Each event before the wanted one takes a place in the stream, and so does each one after it.
    # Between these bounds are only messages of other runs: often there are none.
    low = max(whole.start, whole.events_start + wanted - 1)
    high = newest.sequence - (last - wanted)
    while low < high:
        middle = (low + high) // 2
        found = await _first_from(bus, view, middle)
        if found and int(found[0].headers[SEQUENCE]) < wanted:
            low = found[0].sequence + 1
        else:
            high = middle
    if low <= whole.start:
        return whole
    # Only the terminal event ends the stream, so the reading includes it.
    start = min(low, lifecycle.sequence) if whole.ended else low
    return replace(whole, start=start, after=Cursor(low - 1, LAST_FRAME), truncated=False)


async def _erased(
    bus: Bus, view: View, record: RunRecord, erasure: Erasure, after: Cursor | None
) -> StartPosition:
    subject = subjects.event(ERASED, record.run_id)
    stored = await bus.tail(streams.events_for(record.run_id), subject)
    if stored is None or view.reads_frames:
        raise Problem(410, erased_text(record, erasure))
    messages = erased_messages(record, erasure, view.dialect, stored.sequence)
    start = messages[0].sequence
    return StartPosition(start, start, after, ended=True, erased=tuple(messages))


async def _begun(bus: Bus, view: View, lifecycle: Stored) -> StartPosition:
    begun = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
    ended = type_of(lifecycle) in TERMINAL
    if lifecycle.sequence == begun and not view.reads_frames:
        found = [lifecycle]  # the case for most runs that have not ended
    else:
        found = await _first_from(bus, view, 1 if view.reads_frames else begun)
    if not found and ended:
        raise _gone(view.run_id)
    # A run may wait for longer than its frames are kept: it has begun, so there were some.
    truncated = not _is_first(found[0]) if found else view.reads_frames
    start = found[0].sequence if found else await _end(bus, view.followed.stream)
    if truncated and view.reads_tree:
        # Events of other runs of the tree may come before the root's first stored event. So the
        # tree is read from the root's first event on, even though this event has expired.
        start = begun
    return StartPosition(
        start=start,
        events_start=lifecycle.sequence if view.reads_frames else begun,
        truncated=truncated,
        ended=ended,
    )


async def _first_from(bus: Bus, view: View, start: int) -> list[Stored]:
    """Return the first message from `start` on, if any; ask again while a replica lags behind."""
    stream, pattern = view.followed.stream, view.followed.pattern
    while True:
        found, _ = await read(bus, stream, pattern, start, 1)
        last = None if found else await bus.tail(stream, pattern)
        if last is None or last.sequence < start:
            return found
        await asyncio.sleep(LAG_S)


async def _not_begun(bus: Bus, view: View, record: RunRecord) -> StartPosition:
    # The run is queued, or its events have expired or are lost. If it has ended, the Problem is 503
    # while lost events may still be restored, and else 410.
    loss = bus.continuity.covers(streams.events_for(record.run_id), record.first_event or 0)
    if record.status in ENDED:
        if loss is not None and bus.clock.age_s(loss.found_at) < RECOVERY_S:
            raise Problem(
                503, "the server has lost these events and restores them; try again in some seconds"
            )
        raise _gone(record.run_id)
    if record.first_event is not None and loss is None and not view.reads_frames:
        # The lifecycle events have expired. Later events of a workflow that has waited for long may
        # still be stored.
        return StartPosition(record.first_event, record.first_event, truncated=True)
    position = await start_of_new_run(
        bus, subjects.shard_of(record.run_id), frames=view.reads_frames
    )
    # The run may have begun since `locate` looked for a lifecycle event.
    lifecycle = await lifecycle_of(bus, record.run_id)
    if lifecycle is not None:
        begun = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
        return StartPosition(1 if view.reads_frames else begun, begun)
    # The first frames may be stored before the event that the normalizer makes of them.
    start = 1 if view.reads_frames else position.start
    truncated = record.first_event is not None and not loss
    return StartPosition(start, position.events_start, truncated=truncated)


def _is_first(stored: Stored) -> bool:
    if SEQUENCE in stored.headers:
        return stored.headers[SEQUENCE] == "1"
    frame = raw_frame(stored)
    return frame.kind == "open" and frame.leg == 1


async def _check(bus: Bus, view: View, begun: int, after: Cursor) -> bool:
    """Return whether messages after the cursor have expired."""
    stream, pattern = view.followed.stream, view.followed.pattern
    found, _ = await read(bus, stream, pattern, after.sequence, 1)
    if found and found[0].sequence == after.sequence:
        return False
    # A replica that lags behind may not have the message yet. A client does not repeat a request
    # after 400, so the leader is asked before the edge answers 400.
    stored = await bus.at(stream, after.sequence)
    if stored is not None:
        run_id = subjects.run_id_of(stored.subject)
        if run_id == view.run_id or (
            view.reads_tree and await is_descendant(bus, run_id, view.run_id)
        ):
            return False
    info = await bus.api(f"STREAM.INFO.{stream}")
    # A view of source frames gives the terminal event a sequence that is one more than the sequence
    # of the last source frame.
    beyond = after.sequence > info["state"]["last_seq"] + view.reads_frames
    if beyond or bus.continuity.covers(stream, after.sequence):
        raise _lost(after)
    aged = after.sequence < info["state"]["first_seq"]
    if not aged or (not view.reads_frames and after.sequence < begun):
        raise Problem(400, f"the cursor {after} is not of this run")
    return True


async def _end(bus: Bus, stream: str) -> int:
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
