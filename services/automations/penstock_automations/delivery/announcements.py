"""Writes the events of a delivery to its run (its timeline): each event once, as a source frame.

Two processes may carry out the same job one after another, or at the same time. So a process first
reads the frames that this service has written about the event. These frames are in RAW after the
event's own source frame. The fence refuses the write if another process has written a frame since
the read. A process keeps in memory the frames that it has read or written, so most writes need no
read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from penstock.bus import Bus, FenceConflict, HistoryLost, RawWriter
from penstock.bus.read import direct
from penstock.bus.streams import raw_for
from penstock.bus.subjects import raw_stored
from penstock.bus.write.fence import tail
from penstock_automations.jobs.job import Job

WRITER: Final = "automations"
# The name of the header by which `_read_frames` finds an event that was written before.
DELIVERY: Final = "Penstock-Delivery"
_LOCKS = 64
LAGS_S = 0.05
MAX_KEYS = 100_000  # the greatest number of frames in memory; each takes 100 bytes


@dataclass(frozen=True, slots=True)
class Timeline:
    """The run and the leg to which a delivery's events are written.

    A delivery of an event is announced on the event's run, and `raw` is the sequence in RAW of the
    event's own source frame. A delivery of a trigger is announced on the run that the delivery has
    started.
    """

    run_id: str
    raw: int = 0
    leg: int = 1


@dataclass(slots=True)
class _Frames:
    """This service's frames of a run after the position `after` in RAW, up to the frame `last`.

    `keys` has, for each of these frames, the delivery and the kind of the event. If the fence
    accepts a write after `last`, no other process has written a frame since.
    """

    after: int
    last: int = 0
    keys: set[str] = field(default_factory=set)


class Announcements:
    """Writes the source events of one process of the automations service."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._bus = bus
        self._pod = pod
        self._number = itertools.count(1)
        self._known: OrderedDict[str, _Frames] = OrderedDict()  # by run id
        self._keys = 0  # the number of keys in all of `_known`
        # Deliveries of one run take turns. If they wrote at the same time, the fence would refuse
        # many of the writes.
        self._turns = [asyncio.Lock() for _ in range(_LOCKS)]

    async def write_once(
        self,
        timeline: Timeline,
        job: Job,
        *,
        what: Literal["triggered", "failing", "outcome"],
        type_: str,
        data: Mapping[str, Any],
    ) -> bool:
        """Write a source event unless the delivery has written this kind of event before. Returns
        whether this call wrote the event. Raises BusError; repeat the call."""
        key = f"{job.delivery_id} {job.replay} {what}"
        payload = orjson.dumps({"type": type_, "data": data})
        async with self._turns[hash(timeline.run_id) % _LOCKS]:
            # Forget the known frames before the write. If the write is cancelled, it is unknown
            # which frame is the last one.
            known = self._take(timeline.run_id)
            while True:
                if known is None or timeline.raw < known.after:
                    known = await self._read_frames(timeline)
                if key in known.keys:
                    self._keep(timeline.run_id, known)
                    return False
                connection = f"{self._pod}/{next(self._number)}"
                writer = RawWriter(self._bus, timeline.run_id, WRITER, connection, known.last)
                try:
                    known.last = await writer.write(
                        "event", payload, leg=timeline.leg, headers={DELIVERY: key}
                    )
                except FenceConflict:
                    known = await self._caught_up(timeline.run_id, known)
                    continue
                except HistoryLost:
                    known = None
                    continue
                known.keys.add(key)
                self._keep(timeline.run_id, known)
                return True

    def _take(self, run_id: str) -> _Frames | None:
        frames = self._known.pop(run_id, None)
        self._keys -= len(frames.keys) if frames is not None else 0
        return frames

    def _keep(self, run_id: str, frames: _Frames) -> None:
        self._known[run_id] = frames
        self._keys += len(frames.keys)
        while self._keys > MAX_KEYS and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._keys -= len(oldest.keys)

    async def _caught_up(self, run_id: str, known: _Frames) -> _Frames | None:
        """Return the known frames, with the frames that other processes have written since.

        Only the later frames are read. If each write read all frames of the run, a write would take
        longer the more frames the run has. Returns None if the last known frame has expired or was
        lost, so that all frames must be read.
        """
        stream, pattern = raw_for(run_id), raw_stored(run_id, WRITER)
        if known.last == 0:
            return None
        found = [each async for each in direct.replay(self._bus, stream, pattern, known.last)]
        if not found or found[0].sequence != known.last:
            return None
        if len(found) == 1:
            # The answer came from a replica that lags behind.
            await asyncio.sleep(LAGS_S)
        known.keys.update(each.headers.get(DELIVERY, "") for each in found)
        known.last = found[-1].sequence
        return known

    async def _read_frames(self, timeline: Timeline) -> _Frames:
        stream, pattern = raw_for(timeline.run_id), raw_stored(timeline.run_id, WRITER)
        while True:
            last = await tail(self._bus, stream, pattern)
            if last is None or last.sequence <= timeline.raw:
                return _Frames(timeline.raw, last.sequence if last else 0)
            found = _Frames(timeline.raw)
            async for stored in direct.replay(self._bus, stream, pattern, timeline.raw + 1):
                found.keys.add(stored.headers.get(DELIVERY, ""))
                found.last = stored.sequence
            if found.last >= last.sequence:
                return found
            # The answer came from a replica that lags behind and does not have the last frame yet.
            await asyncio.sleep(LAGS_S)
