"""Ends a run that cannot be continued, because frames are missing or the run stays blocked."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

import orjson

from penstock import telemetry
from penstock.bus import Bus, FenceConflict, RawWriter, Stored, streams, subjects
from penstock.bus.messages import RawFrame, raw_frame
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.write import fence
from penstock.events import TERMINAL
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.run_output import ReadyEvents, RunOutput

log = logging.getLogger(__name__)

WRITER = "normalizer"  # the writer of source frames that end a run
HISTORY_LOST = "source frames of this run were deleted by age or size before they were read"
# The fields of a run's record that are used if the run's `open` frame is missing.
_FACTS = {
    *("agent", "session_id", "user_id", "tenant", "message"),
    *("parent_run_id", "step_id", "workflow_depth"),
}


class Ending:
    """Ends one run that cannot be continued."""

    def __init__(self, context: RunContext, output: RunOutput) -> None:
        self._context = context
        self._output = output
        self._run_id = output.run_id

    async def break_off(self, fold: RunFold, frame: RawFrame) -> None:
        """Fail a run whose earlier frames are gone; change nothing if the run has ended."""
        record = await self._context.index.record(self._run_id)
        if record is not None and record.status in ENDED and not await self._lacks_end():
            fold.ended = f"lifecycle.{record.status}"
        fold.raw_first = self._output.raw_first
        failure = {"code": "history_lost", "error": HISTORY_LOST}
        if frame.writer == WRITER and frame.payload:
            failure |= orjson.loads(frame.payload)["data"]
        ready = ReadyEvents()
        for event in fold.break_off(frame, _facts(record), **failure):
            ready.add(event, frame.sequence)
        if ready.events and failure["code"] == "history_lost":
            log.error(
                "run %s: frames before RAW %d have aged out or are lost; the run is ended",
                self._run_id,
                frame.sequence,
            )
            telemetry.HISTORY_LOST.inc()
        await self._output.publish(fold, ready, overrule_record=True)

    async def _lacks_end(self) -> bool:
        """Return whether EVENTS has events of the run, but no terminal event."""
        pattern = subjects.event("lifecycle.*", self._run_id)
        lifecycle = await fence.tail(self._context.bus, streams.events_for(self._run_id), pattern)
        return lifecycle is not None and lifecycle.headers["ce-type"] not in TERMINAL

    async def fail(self, fold: RunFold, stored: Stored, text: str) -> None:
        """Fail a blocked run at this frame with code `internal`; do nothing if the run has
        ended."""
        published = self._output
        await published.read_tail()
        if published.last_type in TERMINAL:
            fold.ended = published.last_type
            return
        try:
            record = await self._context.index.record(self._run_id)
        except ValueError:
            record = None
        fold.sequence = max(published.sequence, record.sequence if record is not None else 0)
        fold.raw_first = published.raw_first
        ready = ReadyEvents()
        for event in fold.break_off(raw_frame(stored), _facts(record), "internal", text):
            ready.add(event, max(stored.sequence, published.raw_position))
        try:
            await self._output.publish(fold, ready)
        except ValueError:
            # The record cannot be parsed. The terminal event is published all the same, for clients
            # that follow the run.
            missing = [each for each in ready.events if each[0].sequence > published.sequence]
            await published.append(fold, missing)


def _facts(record: RunRecord | None) -> dict[str, Any]:
    return (
        record.model_dump(include=_FACTS, exclude_none=True)
        if record is not None
        else {"agent": ""}
    )


async def write_failed(bus: Bus, record: RunRecord, data: dict[str, str]) -> None:
    """Write a source frame with a run's `lifecycle.failed` to RAW; only one of several writers
    does. `data` has the fields of the event, at least `code`."""
    writer = RawWriter(bus, record.run_id, WRITER, f"{WRITER}/{uuid4()}")
    event = {"type": "lifecycle.failed", "data": data}
    try:
        await writer.write("event", orjson.dumps(event), leg=max(record.legs, 1))
    except FenceConflict:
        log.debug("run %s: another normalizer has written its end", record.run_id)
