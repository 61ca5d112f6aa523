"""A partition at work: read in order, hand out by run, write down how far everything is done."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from penstock.bus import Bus, BusError, Stored, streams, subjects
from penstock.bus.pull import Reader
from penstock_normalizer.decoders import DECODERS
from penstock_normalizer.index import RunIndex
from penstock_normalizer.runs import GiveUp, Run
from penstock_normalizer.settings import NormalizerSettings

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """Which frames are done; `floor` is the last one before which none is missing."""

    floor: int
    _open: dict[int, None] = field(default_factory=dict)  # in order
    _last: int = 0

    def begin(self, sequence: int) -> None:
        """A frame was read."""
        self._open[sequence] = None
        self._last = sequence

    def done(self, sequence: int) -> None:
        """A frame's events are in EVENTS."""
        del self._open[sequence]
        self.floor = next(iter(self._open)) - 1 if self._open else self._last

    def __len__(self) -> int:
        return len(self._open)


class Partition:
    """One partition of RAW, for as long as we hold its lease."""

    def __init__(
        self, bus: Bus, number: int, settings: NormalizerSettings, give_up: GiveUp
    ) -> None:
        self._bus = bus
        self._give_up = give_up
        self._number = number
        self._settings = settings
        self._index = RunIndex(bus)
        self._checkpoints = bus.bucket("checkpoints")
        self._key = f"normalizer.{number}"
        self._written = 0
        self._progress = Progress(0)
        self._room = asyncio.Event()
        self._runs: dict[str, tuple[Run, asyncio.Task[None]]] = {}

    async def work(self) -> None:
        """Go on from the last checkpoint until cancelled; then write down where we are."""
        self._written = await self._checkpoint()
        self._progress = Progress(self._written)
        reader = Reader(
            self._bus,
            streams.RAW,
            subjects.raw_of_partition(self._number),
            self._written + 1,
            self._take,
        )
        keeper = asyncio.create_task(self._keep_checkpoints())
        try:
            await reader.run()
        finally:
            keeper.cancel()
            tasks = [keeper, *(task for _, task in self._runs.values())]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._runs.clear()
            if self._bus.ready:
                await self._write_checkpoint()

    async def _checkpoint(self) -> int:
        while True:
            try:
                entry = await self._checkpoints.get(self._key)
                return int(entry.value) if entry is not None and entry.value is not None else 0
            except BusError as error:
                log.warning("partition %d: no checkpoint yet: %s", self._number, error)
                await asyncio.sleep(self._settings.checkpoint_s)

    async def _take(self, stored: Stored) -> None:
        while len(self._progress) >= self._settings.max_in_flight:
            self._room.clear()
            await self._room.wait()
        self._progress.begin(stored.sequence)
        run_id = subjects.run_id_of(stored.subject)
        known = self._runs.get(run_id)
        if known is None:
            run = Run(
                self._bus,
                run_id,
                DECODERS,
                self._settings.max_frame_bytes,
                self._index,
                self._done,
                self._give_up,
            )
            task = asyncio.create_task(run.work(), name=f"run {run_id}")
            task.add_done_callback(_say_why)
            known = self._runs[run_id] = (run, task)
        known[0].push(stored)

    def _done(self, sequence: int) -> None:
        self._progress.done(sequence)
        self._room.set()

    async def _keep_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self._settings.checkpoint_s)
            await self._write_checkpoint()
            self._forget_idle_runs()

    async def _write_checkpoint(self) -> None:
        floor = self._progress.floor
        if floor == self._written:
            return
        try:
            await self._checkpoints.put(self._key, str(floor).encode())
            self._written = floor
        except BusError as error:
            log.warning("partition %d: checkpoint not written: %s", self._number, error)

    def _forget_idle_runs(self) -> None:
        before = time.monotonic() - self._settings.run_idle_s
        for run_id, (run, task) in tuple(self._runs.items()):
            if run.idle and run.idle_since < before:
                task.cancel()
                del self._runs[run_id]


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("%s stopped", task.get_name(), exc_info=task.exception())
