"""Reads runs from RAW and KV, and ends runs whose leg this connector does not hold."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final, Literal, cast

import orjson

from penstock.bus import Bus, FenceConflict, RawWriter, Stored, messages
from penstock.bus.read.direct import replay
from penstock.bus.records.runs import ENDED, CancelCommand, RunRecord
from penstock.bus.streams import COMMANDS, raw_for
from penstock.bus.subjects import command, raw_stored
from penstock.bus.write.fence import tail

log = logging.getLogger(__name__)

WRITER = "upstream"
LAG_S = 0.05
FrameKind = Literal["open", "claim", "bytes", "end", "lost", "event"]
LastKind = Literal["end", "lost", "event"]  # the kinds of frames after which no leg is open
CLOSED: Final[frozenset[FrameKind]] = frozenset({"end", "lost", "event"})


class Runs:
    """Reads runs, and ends them with fenced writes."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._bus = bus
        self._pod = pod
        self._connections = 0

    def writer(self, run_id: str, last: Stored | None = None) -> RawWriter:
        """Return a writer whose first frame must directly follow `last`; else the fence refuses
        it."""
        self._connections += 1
        connection = f"{self._pod}/{self._connections}"
        return RawWriter(self._bus, run_id, WRITER, connection, last.sequence if last else 0)

    async def end(self, run_id: str, last: Stored, kind: LastKind, facts: dict[str, Any]) -> None:
        """End the run with a frame after `last`; do nothing if another connector writes first."""
        try:
            await self.writer(run_id, last).write(kind, orjson.dumps(facts), leg=leg_of(last))
        except FenceConflict:
            log.info("run %s: another connector ended it first", run_id)

    async def tail(self, run_id: str) -> Stored | None:
        return await tail(self._bus, raw_for(run_id), raw_stored(run_id, WRITER))

    async def frames(self, run_id: str, after: int, last: Stored) -> AsyncIterator[Stored]:
        """Yield the source frames of connectors after RAW's sequence `after`, up to `last`."""
        read_to = after
        stream, pattern = raw_for(run_id), raw_stored(run_id, WRITER)
        while read_to < last.sequence:
            before = read_to
            async for stored in replay(self._bus, stream, pattern, read_to + 1):
                if stored.sequence <= last.sequence:
                    read_to = stored.sequence
                    yield stored
            if read_to == before:
                await asyncio.sleep(LAG_S)  # a replica that lags behind has answered

    async def stored_at(self, run_id: str, sequence: int) -> str:
        """Return when NATS stored this frame of the run, RFC 3339; empty if it has expired."""
        stored = await self._bus.at(raw_for(run_id), sequence)
        return stored.stored_at if stored is not None else ""

    async def record(self, run_id: str) -> RunRecord | None:
        return await self._bus.bucket("runs").load(run_id, RunRecord)

    async def has_ended(self, run_id: str) -> bool:
        record = await self.record(run_id)
        return record is not None and record.status in ENDED

    async def cancel_that_forbids_continuing(self, run_id: str) -> CancelCommand | None:
        """Return the cancel that forbids continuing the run's open leg; None if there is none.

        A cancel stays in COMMANDS until the leg has ended. A run may also have ended although its
        leg is open: if no connector cancels a run in time, the edge ends it with its own frame.
        """
        stored = await self._bus.tail(COMMANDS, command("connector", "cancel", run_id))
        if stored is not None:
            return CancelCommand.model_validate_json(stored.payload)
        if await self.has_ended(run_id):
            return CancelCommand(run_id=run_id, by="penstock", reason="the run had ended")
        return None

    async def cancel_between_legs(self, run_id: str, facts: dict[str, Any]) -> None:
        """Cancel a run whose last leg has ended; `facts` has `by` and `reason` of the event."""
        if await self.has_ended(run_id):
            return
        last = await self.tail(run_id)
        if last is not None and kind_of(last) in CLOSED:
            cancelled = end_event("lifecycle.cancelled", **facts, confirmed=True)
            await self.end(run_id, last, "event", cancelled)


def end_event(type_: str, **data: Any) -> dict[str, Any]:
    return {"type": type_, "data": data}


def leg_of(stored: Stored) -> int:
    return int(stored.headers[messages.LEG])


def kind_of(stored: Stored) -> FrameKind:
    """Return a source frame's kind; for a part of a frame, the kind of the whole frame."""
    kind = stored.headers.get(messages.WHOLE) or stored.headers[messages.KIND]
    return cast(FrameKind, kind)  # only connectors write under this subject


def is_over(last: Stored, leg: int) -> bool:
    """Return whether the leg has ended; `last` is the last source frame of its run."""
    return leg_of(last) > leg or (leg_of(last) == leg and kind_of(last) in CLOSED)


def holder_of(stored: Stored) -> str:
    return stored.headers[messages.CONNECTION].partition("/")[0]
