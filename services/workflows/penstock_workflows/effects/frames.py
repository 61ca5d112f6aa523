"""Writes the source frames of workflows' runs to RAW, each once and in order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import orjson

from penstock.bus import (
    Bus,
    BusUnavailable,
    FenceConflict,
    HistoryLost,
    RawWriter,
    streams,
    subjects,
)
from penstock.bus.write import fence
from penstock.dialects.workflow import WRITER
from penstock_workflows.journal.memory import NOWHERE, Place, RunInMemory
from penstock_workflows.journal.messages import RECORD

LEG: Final = 1  # a workflow's run has one leg


class Frames:
    """Writes frames. The header `Penstock-Record` of a frame has its record and its part.

    So the last frame of a run in RAW shows how far the journal is projected, and any process can
    continue there.
    """

    def __init__(self, bus: Bus, pod: str) -> None:
        self._bus = bus
        self._pod = pod
        self._writers = 0

    async def write(self, run: RunInMemory) -> None:
        """Write all frames of the run that RAW does not have. Waits while RAW takes no frames.

        Raises:
            BusError: the server refuses a frame.
        """
        while run.frames:
            try:
                if run.writer is None:
                    await self._make_writer(run)
                while run.frames:
                    frame = run.frames[0]
                    if frame.position <= run.place:
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
                    run.place = frame.position
                    run.frames.popleft()
            except HistoryLost as error:
                run.is_stale = True  # the lost frames are made again from the whole journal
                raise BusUnavailable(f"{error}; they are written again") from error
            except FenceConflict:
                run.writer = None  # another process has written frames of this run: look which
            except BaseException:
                run.writer = None  # it is unknown whether the frame was written
                raise

    def begin(self, run: RunInMemory) -> None:
        """Take it that RAW has no frame of this new run.

        If RAW has frames nevertheless, the fence refuses the first one, and `write` looks which.
        """
        run.writer = self._writer(run.run_id, 0)

    async def find_place(self, run: RunInMemory) -> Place:
        """Find the place of the run's last frame in RAW, after which `write` continues.

        Raises:
            BusError: the server refuses the request.
        """
        stream, pattern = streams.raw_for(run.run_id), subjects.raw_stored(run.run_id, WRITER)
        last = await fence.tail(self._bus, stream, pattern)
        if last is None:
            return NOWHERE
        record, _, part = last.headers.get(RECORD, "0/0").partition("/")
        run.writer, run.place = self._writer(run.run_id, last.sequence), (int(record), int(part))
        return run.place

    async def _make_writer(self, run: RunInMemory) -> None:
        """Make the writer of the frames that are not written yet, and drop those that are."""
        if await self.find_place(run) != NOWHERE:
            return
        # RAW has no frame of the run. A run may wait for longer than RAW keeps frames. So frames
        # that are older than RAW's oldest message were written, and have aged out.
        kept_from_ms = await self._kept_from_ms(run.run_id)
        while run.frames and run.frames[0].at < kept_from_ms:
            run.frames.popleft()
        self.begin(run)

    async def _kept_from_ms(self, run_id: str) -> float:
        """Return from when RAW has all messages, in milliseconds since 1970; 0 if it lost none."""
        answer = await self._bus.api(f"STREAM.INFO.{streams.raw_for(run_id)}")
        state = answer["state"]
        if state["first_seq"] <= 1:
            return 0.0
        since = state["first_ts"] if state["messages"] else state["last_ts"]
        return datetime.fromisoformat(since).timestamp() * 1000

    def _writer(self, run_id: str, last: int) -> RawWriter:
        self._writers += 1
        return RawWriter(self._bus, run_id, WRITER, f"{self._pod}/{self._writers}", last)


def _stamp(at_ms: int) -> str:
    seconds, ms = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"
