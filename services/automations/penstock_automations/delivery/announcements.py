"""Writes what a delivery says on its run's timeline, as source frames, each once.

Two processes may carry out the same job one after another, or at the same time. What was written
about the event is found in RAW after the event's own source frame, and the fence refuses a write
if another frame of this service came between the look and the write.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from penstock.bus import Bus, FenceConflict, RawWriter
from penstock.bus.read import direct
from penstock.bus.streams import raw_for
from penstock.bus.subjects import raw_stored
from penstock.bus.write.fence import tail
from penstock_automations.jobs.job import Job

WRITER: Final = "automations"
# The header by which `_look` finds an event that was written before.
DELIVERY: Final = "Penstock-Delivery"
_LOCKS = 64


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where a delivery is announced: after the position `raw` in RAW of a run, in one of its legs.

    A delivery of an event is announced on the event's run. A delivery of a trigger is announced on
    the run that it has started.
    """

    run_id: str
    raw: int = 0
    leg: int = 1


class Announcements:
    """Writes the source events of one process of the automations service."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._bus = bus
        self._pod = pod
        self._number = itertools.count(1)
        # Deliveries of one run take turns. Otherwise their writes would refuse each other.
        self._turns = [asyncio.Lock() for _ in range(_LOCKS)]

    async def once(
        self,
        timeline: Timeline,
        job: Job,
        what: Literal["triggered", "outcome"],
        type_: str,
        data: Mapping[str, Any],
    ) -> bool:
        """Write a source event unless the delivery has written this kind of event before.

        Returns whether this call wrote it.

        Raises:
            BusError: the bus does not answer; repeat the call.
        """
        key = f"{job.webhook_id} {job.replay} {what}"
        payload = orjson.dumps({"type": type_, "data": data})
        async with self._turns[hash(timeline.run_id) % _LOCKS]:
            while True:
                found, last = await self._look(timeline, key)
                if found:
                    return False
                connection = f"{self._pod}/{next(self._number)}"
                writer = RawWriter(self._bus, timeline.run_id, WRITER, connection, last)
                try:
                    await writer.write("event", payload, leg=timeline.leg, headers={DELIVERY: key})
                    return True
                except FenceConflict:
                    continue  # another process wrote about this run: look again

    async def _look(self, timeline: Timeline, key: str) -> tuple[bool, int]:
        """Return whether the event was written, and the sequence of this writer's last frame."""
        stream, pattern = raw_for(timeline.run_id), raw_stored(timeline.run_id, WRITER)
        while True:
            last = await tail(self._bus, stream, pattern)
            if last is None or last.sequence <= timeline.raw:
                return False, last.sequence if last else 0
            seen = 0
            async for stored in direct.replay(self._bus, stream, pattern, timeline.raw + 1):
                if stored.headers.get(DELIVERY) == key:
                    return True, 0
                seen = stored.sequence
            if seen >= last.sequence:
                return False, seen
            # A replica that lags behind has answered: it lacks the last frame.
            await asyncio.sleep(0.05)
