"""Ends a run that cannot be continued, because frames are missing or the run stays blocked."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from penstock import telemetry
from penstock.bus import Bus, Stored, streams, subjects
from penstock.bus.messages import RawFrame, raw_frame
from penstock.bus.records import ENDED, RunRecord
from penstock.bus.write import fence
from penstock.events import TERMINAL
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.end_of_run_frame import WRITER
from penstock_normalizer.runs.ready_events import ReadyEvents
from penstock_normalizer.runs.run_index import RunIndex
from penstock_normalizer.runs.run_output import RunOutput

log = logging.getLogger(__name__)

HISTORY_LOST = "source frames of this run were deleted by age or size before they were read"
# The fields of a run's record that are used if the run's `open` frame is missing.
_FACTS = {
    *("agent", "session_id", "user_id", "message"),
    *("parent_run_id", "step_id", "workflow_depth"),
}


class Ending:
    """Ends one run that cannot be continued."""

    def __init__(self, bus: Bus, run_id: str, output: RunOutput, index: RunIndex) -> None:
        self._bus = bus
        self._run_id = run_id
        self._output = output
        self._index = index

    async def break_off(self, fold: RunFold, frame: RawFrame) -> None:
        """Fail a run whose earlier frames are gone; change nothing if the run has ended.

        Raises BusError, ValueError.
        """
        record = await self._index.record(self._run_id)
        if record is not None and record.status in ENDED and not await self._lacks_end():
            fold.ended = f"lifecycle.{record.status}"
        fold.raw_first = self._output.events.raw_first
        why = {"code": "history_lost", "error": HISTORY_LOST}
        if frame.writer == WRITER and frame.payload:
            why |= orjson.loads(frame.payload)["data"]
        ready = ReadyEvents()
        for event in fold.break_off(frame, _facts(record), **why):
            ready.add(event, frame.sequence)
        if ready.events and why["code"] == "history_lost":
            log.error(
                "run %s: frames before RAW %d have aged out or are lost; the run is ended",
                *(self._run_id, frame.sequence),
            )
            telemetry.HISTORY_LOST.inc()
        await self._output.publish(fold, ready, overrule_record=True)

    async def _lacks_end(self) -> bool:
        """Return whether EVENTS has events of the run, but no terminal event."""
        pattern = subjects.event("lifecycle.*", self._run_id)
        lifecycle = await fence.tail(self._bus, streams.events_for(self._run_id), pattern)
        return lifecycle is not None and lifecycle.headers["ce-type"] not in TERMINAL

    async def fail(self, fold: RunFold, stored: Stored, text: str) -> None:
        """Fail a blocked run at this frame with code `internal`; do nothing if the run has ended.

        Raises BusError, MessageTooLarge, KeyError, ValueError.
        """
        published = self._output.events
        await published.read_tail()
        if published.last_type in TERMINAL:
            fold.ended = published.last_type
            return
        try:
            record = await self._index.record(self._run_id)
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
