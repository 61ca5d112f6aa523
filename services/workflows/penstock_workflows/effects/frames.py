"""Writes the source frames of workflows' runs to RAW, each once and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import orjson

from penstock.bus import (
    Bus,
    BusUnavailable,
    FenceConflict,
    HistoryLost,
    ObjectGone,
    RawWriter,
    Stored,
    streams,
    subjects,
)
from penstock.bus.write import fence, objects
from penstock.dialects.workflow import WRITER
from penstock_workflows.engine.effects import Frame
from penstock_workflows.engine.records import JsonObject
from penstock_workflows.journal.journal import RECORD
from penstock_workflows.journal.memory import BEFORE_FIRST_FRAME, FramePosition, RunInMemory

LEG: Final = 1  # the number of the only leg of a workflow's run


class Frames:
    """Writes source frames to RAW.

    The header `Penstock-Record` of a frame has the number of the journal record from which the
    frame was made, and the number of the frame among the frames of this record. So the last frame
    of a run in RAW shows which records have their frames in RAW, and any process can continue after
    these records.
    """

    def __init__(self, bus: Bus, pod: str) -> None:
        self._bus = bus
        self._pod = pod
        self._writers = 0

    async def write(self, run: RunInMemory) -> None:
        """Write all frames of the run that RAW does not have. Wait while RAW accepts no frames."""
        while run.frames:
            try:
                if run.writer is None:
                    await self._make_writer(run)
                while run.frames:
                    frame = run.frames[0]
                    if frame.position <= run.last_frame_position:
                        run.frames.popleft()
                        continue
                    assert run.writer is not None
                    await run.writer.write(
                        frame.kind,
                        orjson.dumps(frame.payload),
                        leg=LEG,
                        received=_stamp(frame.at),
                        headers={RECORD: f"{frame.record}/{frame.part}"},
                    )
                    run.last_frame_position = frame.position
                    run.frames.popleft()
            except HistoryLost as error:
                run.is_stale = True  # the lost frames are made again from the whole journal
                raise BusUnavailable(f"{error}; the lost frames are written again") from error
            except FenceConflict:
                # another process has written frames of this run; find out which frames
                run.writer = None
            except BaseException:
                run.writer = None  # it is unknown whether the frame was written
                raise

    def begin(self, run: RunInMemory) -> None:
        """Assume that RAW has no frame of this new run. Otherwise the fence refuses the first
        write, and `write` finds out which frames RAW has."""
        run.writer = self._writer(run.run_id, 0)

    async def find_last_frame(self, run: RunInMemory) -> FramePosition:
        """Find the position of the run's last frame in RAW, after which `write` continues."""
        stream, pattern = streams.raw_for(run.run_id), subjects.raw_stored(run.run_id, WRITER)
        last = await fence.tail(self._bus, stream, pattern)
        if last is None:
            return BEFORE_FIRST_FRAME
        record, _, part = last.headers.get(RECORD, "0/0").partition("/")
        run.writer = self._writer(run.run_id, last.sequence)
        run.last_frame_position = int(record), int(part)
        return run.last_frame_position

    async def _make_writer(self, run: RunInMemory) -> None:
        if await self.find_last_frame(run) != BEFORE_FIRST_FRAME:
            return
        # RAW has no frame of the run. The run may have waited for longer than RAW keeps frames. Or
        # a process ended before it wrote the frames. EVENTS shows which frames were written.
        written = await self._written(run)
        while run.frames and written(run.frames[0]):
            run.frames.popleft()
        self.begin(run)

    async def _written(self, run: RunInMemory) -> Callable[[Frame], bool]:
        """Return a function that tells whether a frame was written to RAW and deleted there
        since."""
        events, raw = streams.events_for(run.run_id), streams.raw_for(run.run_id)
        last = await fence.tail(self._bus, events, subjects.events_of_run(run.run_id))
        event = await self._event_of(last) if last is not None else None
        if event is not None:
            position, stamp = _written_up_to(run.frames, event)
            return lambda frame: frame.position <= position or _stamp(frame.at) < stamp
        # EVENTS has no event of the run that can be read. So a frame counts as written if it is
        # older than all messages in RAW and in EVENTS: both streams may have deleted what an
        # earlier process wrote.
        kept_from_ms = min(await self._kept_from_ms(raw), await self._kept_from_ms(events))
        return lambda frame: frame.at < kept_from_ms

    async def _event_of(self, stored: Stored) -> JsonObject | None:
        try:
            event: JsonObject = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        except ObjectGone:
            return None
        return event

    async def _kept_from_ms(self, stream: str) -> float:
        """Return the time (ms since 1970) after which a stream has lost no message; 0: it lost
        none."""
        state = (await self._bus.api(f"STREAM.INFO.{stream}"))["state"]
        if state["first_seq"] <= 1:
            return 0.0
        since = state["first_ts"] if state["messages"] else state["last_ts"]
        return datetime.fromisoformat(since).timestamp() * 1000

    def _writer(self, run_id: str, last: int) -> RawWriter:
        self._writers += 1
        return RawWriter(self._bus, run_id, WRITER, f"{self._pod}/{self._writers}", last)


def _written_up_to(frames: Iterable[Frame], event: JsonObject) -> tuple[FramePosition, str]:
    """Return the position of the last frame that is known to be written, and the time of `event`.

    `event` is the run's last event. It has the time of its frame, but several frames may have this
    time. If it was made from none of them, another service has made it, and all of these frames
    were written before it.
    """
    stamp, name = event["timestamp"], event.get("event") or {}
    same = [frame for frame in frames if _stamp(frame.at) == stamp]
    type_ = f"{name.get('category')}.{name.get('action')}"
    made = [
        frame
        for frame in same
        if frame.payload.get("type", "lifecycle.started") == type_
        # In a nested workflow, the frame may have no step, while its event names the parent's step.
        and frame.payload.get("step_id") in (None, event.get("step_id"))
    ]
    found = (made or same)[-1:]
    return (found[0].position if found else BEFORE_FIRST_FRAME), stamp


def _stamp(at_ms: int) -> str:
    seconds, ms = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"
