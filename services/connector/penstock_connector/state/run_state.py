"""Reads what RAW and a run's record say, and ends runs whose leg this connector does not hold."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final, Literal, cast

import orjson

from penstock.bus import Bus, FenceConflict, RawWriter, Stored, messages
from penstock.bus.read.direct import replay
from penstock.bus.records import ENDED, CancelCommand, RunRecord
from penstock.bus.streams import COMMANDS, raw_for
from penstock.bus.subjects import command, raw_stored
from penstock.bus.write.fence import tail

log = logging.getLogger(__name__)

WRITER = "upstream"
LAG_S = 0.05
FrameKind = Literal["open", "claim", "bytes", "end", "lost", "event"]
LastKind = Literal["end", "lost", "event"]  # a frame after which no leg is open
CLOSED: Final[frozenset[FrameKind]] = frozenset({"end", "lost", "event"})


class Runs:
    """Reads runs, and ends them with fenced writes. All methods raise BusError."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._bus = bus
        self._pod = pod
        self._connections = 0

    def writer(self, run_id: str, last: Stored | None = None) -> RawWriter:
        """A writer whose first frame follows `last`.

        If another frame follows `last` already, the fence refuses the write.
        """
        self._connections += 1
        connection = f"{self._pod}/{self._connections}"
        return RawWriter(self._bus, run_id, WRITER, connection, last.sequence if last else 0)

    async def end(self, run_id: str, last: Stored, kind: LastKind, facts: dict[str, Any]) -> None:
        """End the run with a frame after `last`, unless another connector writes first."""
        try:
            await self.writer(run_id, last).write(kind, orjson.dumps(facts), leg=leg_of(last))
        except FenceConflict:
            log.info("run %s: another connector ended it first", run_id)

    async def tail(self, run_id: str) -> Stored | None:
        """The last source frame of the upstream's writer."""
        return await tail(self._bus, raw_for(run_id), raw_stored(run_id, WRITER))

    async def frames(self, run_id: str, after: int, last: Stored) -> AsyncIterator[Stored]:
        """The source frames of the upstream's writer after that sequence of RAW, up to `last`.

        The server finds a run's frames by their subject, so no clock decides where to begin.
        """
        read_to = after
        stream, pattern = raw_for(run_id), raw_stored(run_id, WRITER)
        while read_to < last.sequence:
            before = read_to
            async for stored in replay(self._bus, stream, pattern, read_to + 1):
                if stored.sequence <= last.sequence:
                    read_to = stored.sequence
                    yield stored
            if read_to == before:
                await asyncio.sleep(LAG_S)  # a replica that lags has answered

    async def stored_at(self, run_id: str, sequence: int) -> str:
        """When the server stored that frame of the run, RFC 3339; empty when it has aged."""
        stored = await self._bus.at(raw_for(run_id), sequence)
        return stored.stored_at if stored is not None else ""

    async def record(self, run_id: str) -> RunRecord | None:
        """The run's record in KV `runs`; None if there is none."""
        entry = await self._bus.bucket("runs").get(run_id)
        if entry is None or entry.value is None:
            return None
        return RunRecord.model_validate_json(entry.value)

    async def has_ended(self, run_id: str) -> bool:
        """Whether the run's record says that the run has ended."""
        record = await self.record(run_id)
        return record is not None and record.status in ENDED

    async def cancel_that_forbids_continuing(self, run_id: str) -> CancelCommand | None:
        """The cancel that forbids continuing the run's open leg; None if there is none.

        A cancel stays in COMMANDS until the leg has ended. A run may also have ended before its
        leg: the edge cancels a run by a frame of its own when no connector does so in time.
        """
        stored = await self._bus.tail(COMMANDS, command("connector", "cancel", run_id))
        if stored is not None:
            return CancelCommand.model_validate_json(stored.payload)
        if await self.has_ended(run_id):
            return CancelCommand(run_id=run_id, by="penstock", reason="the run had ended")
        return None

    async def cancel_between_legs(self, run_id: str, facts: dict[str, str]) -> None:
        """Cancel a run whose last leg has ended. `facts`: `by` and `reason` of the event."""
        if await self.has_ended(run_id):
            return
        last = await self.tail(run_id)
        if last is not None and kind_of(last) in CLOSED:
            cancelled = ending("lifecycle.cancelled", **facts, confirmed=True)
            await self.end(run_id, last, "event", cancelled)


def ending(type_: str, **data: Any) -> dict[str, Any]:
    """The payload of an `event` frame: a terminal event that no upstream has sent."""
    return {"type": type_, "data": data}


def leg_of(stored: Stored) -> int:
    """The leg of a source frame."""
    return int(stored.headers[messages.LEG])


def kind_of(stored: Stored) -> FrameKind:
    """The kind of a source frame; for a part, the kind of the whole frame."""
    kind = stored.headers.get(messages.WHOLE) or stored.headers[messages.KIND]
    return cast(FrameKind, kind)  # only connectors write under this subject


def is_over(last: Stored, leg: int) -> bool:
    """Whether that leg has ended, by the last source frame of its run."""
    return leg_of(last) > leg or (leg_of(last) == leg and kind_of(last) in CLOSED)


def holder_of(stored: Stored) -> str:
    """The connector that wrote a source frame."""
    return stored.headers[messages.CONNECTION].partition("/")[0]
