"""A partition at work: read in order, hand out by run, write down how far everything is done."""

from __future__ import annotations

import asyncio
import logging
import time

from penstock.bus import Bus, BusError, Stored, streams, subjects
from penstock.bus.budget import Budget
from penstock.bus.pull import Reader
from penstock_normalizer import aged
from penstock_normalizer.decoders import DECODERS
from penstock_normalizer.index import RunIndex
from penstock_normalizer.pauses import Pauses
from penstock_normalizer.runs import GiveUp, Run
from penstock_normalizer.settings import NormalizerSettings

log = logging.getLogger(__name__)

ENDED_IDLE_S = 10.0  # what follows a run's end follows soon
LOOK_S = 30.0  # how often a quiet partition's checkpoint is brought up to the others'


class Partition:
    """One partition of RAW, for as long as we hold its lease."""

    def __init__(
        self,
        bus: Bus,
        number: int,
        settings: NormalizerSettings,
        budget: Budget,
        give_up: GiveUp,
    ) -> None:
        self._bus = bus
        self._give_up = give_up
        self._number = number
        self._settings = settings
        self._budget = budget
        self._index = RunIndex(bus)
        self._pauses = Pauses(bus, settings.events_max_age_s)
        self._checkpoints = bus.bucket("checkpoints")
        self._key = f"normalizer.{number}"
        self._written = 0
        self._revision = 0  # of the checkpoint
        self._looked_at = time.monotonic()
        self._seen = 0  # the last frame that was handed out
        self._runs: dict[str, tuple[Run, asyncio.Task[None]]] = {}

    async def work(self) -> None:
        """Go on from the last checkpoint until cancelled; then write down where we are."""
        await self._resume()
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
            if self._bus.ready:
                await self._write_checkpoint()
            for run, _ in self._runs.values():
                run.backlog.drop()
            self._runs.clear()

    async def _resume(self) -> None:
        while True:
            try:
                await self._read_checkpoint()
                await aged.end_the_lost(self._bus, self._number, self._written)
                break
            except BusError as error:
                log.warning("partition %d: cannot begin yet: %s", self._number, error)
                await asyncio.sleep(self._settings.checkpoint_s)
        self._seen = self._written

    async def _read_checkpoint(self) -> None:
        entry = await self._checkpoints.get(self._key)
        if entry is not None:
            self._written, self._revision = int(entry.value), entry.revision

    async def _take(self, stored: Stored) -> None:
        self._seen = stored.sequence
        run_id = subjects.run_id_of(stored.subject)
        known = self._runs.get(run_id)
        if known is None:
            run = Run(
                self._bus,
                run_id,
                DECODERS,
                self._settings.max_frame_bytes,
                self._index,
                self._pauses,
                self._budget,
                self._give_up,
                self._settings.max_standing_s,
            )
            task = asyncio.create_task(run.work(), name=f"run {run_id}")
            task.add_done_callback(_say_why)
            known = self._runs[run_id] = (run, task)
        known[0].backlog.push(stored)

    @property
    def _floor(self) -> int:
        """The last frame before which none is left to be done."""
        return min(
            (run.backlog.floor for run, _ in self._runs.values() if run.backlog), default=self._seen
        )

    async def _keep_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self._settings.checkpoint_s)
            if time.monotonic() > self._looked_at + LOOK_S:
                await self._pass_over_others()
            await self._write_checkpoint()
            self._forget_idle_runs()

    async def _pass_over_others(self) -> None:
        """What is in RAW by now and not in this partition is no gap in it, should it age out."""
        self._looked_at = time.monotonic()
        try:
            last = (await self._bus.api(f"STREAM.INFO.{streams.RAW}"))["state"]["last_seq"]
            ours = await self._bus.tail(streams.RAW, subjects.raw_of_partition(self._number))
        except BusError as error:
            log.debug("partition %d: %s", self._number, error)
            return
        if ours is None or ours.sequence <= self._seen:
            self._seen = max(self._seen, last)

    async def _write_checkpoint(self) -> None:
        floor = self._floor
        if floor <= self._written:
            return
        try:
            value = str(floor).encode()
            revision = await self._checkpoints.update(self._key, value, self._revision)
            if revision is None:
                # somebody else works on it, too: it never goes back
                await self._read_checkpoint()
            else:
                self._written, self._revision = floor, revision
        except BusError as error:
            log.warning("partition %d: checkpoint not written: %s", self._number, error)

    def _forget_idle_runs(self) -> None:
        now, idle_s = time.monotonic(), self._settings.run_idle_s
        for run_id, (run, task) in tuple(self._runs.items()):
            patience_s = min(idle_s, ENDED_IDLE_S) if run.has_ended else idle_s
            if not run.backlog and run.idle_since < now - patience_s:
                task.cancel()
                del self._runs[run_id]


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("%s stopped", task.get_name(), exc_info=task.exception())
