"""A partition at work: read in order, hand out by run, write down how far everything is done."""

from __future__ import annotations

import asyncio
import logging
import time

from penstock.bus import Bus, BusError, BusUnavailable, Loss, Reader, Stored, streams, subjects
from penstock.bus.budget import Budget
from penstock.bus.state.continuity import NOBODY
from penstock.dialects.decoders import DECODERS
from penstock_normalizer.partitions.checkpoint_history import Past
from penstock_normalizer.recovery import expired, lost_data
from penstock_normalizer.runs.pauses import Pauses
from penstock_normalizer.runs.run import GiveUp, Run
from penstock_normalizer.runs.run_index import RunIndex
from penstock_normalizer.settings import NormalizerSettings

log = logging.getLogger(__name__)

ENDED_IDLE_S = 10.0  # what follows a run's end follows soon
REMEMBER_S = 10.0  # how often a checkpoint is remembered with the end of EVENTS
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
        self._past = Past()
        self._past_revision = 0
        self._remembered_at = 0.0
        self._halted = False
        self._looked_at = time.monotonic()
        self._seen = 0  # the last frame that was handed out
        self._runs: dict[str, tuple[Run, asyncio.Task[None]]] = {}

    async def work(self) -> None:
        """Go on from the last checkpoint until cancelled; then write down where we are."""
        losses = await self._resume()
        reader = Reader(
            self._bus,
            streams.RAW,
            subjects.raw_of_partition(self._number),
            self._written + 1,
            self._take,
        )
        keepers = [asyncio.create_task(self._keep_checkpoints())]
        if losses:
            keepers.append(asyncio.create_task(self._settle(losses)))
        try:
            await reader.run()
        finally:
            tasks = [*keepers, *(task for _, task in self._runs.values())]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self._bus.ready:
                await self._write_checkpoint()
            for run, _ in self._runs.values():
                run.backlog.drop()
            self._runs.clear()

    async def _resume(self) -> list[Loss]:
        """Find out where to begin; returns the losses that are to be dealt with."""
        while True:
            try:
                await self._read_checkpoint()
                losses = await self._go_back()
                await expired.end_the_lost(self._bus, self._number, self._written)
                break
            except BusError as error:
                log.warning("partition %d: cannot begin yet: %s", self._number, error)
                await asyncio.sleep(self._settings.checkpoint_s)
        self._seen = self._written
        return losses

    async def _go_back(self) -> list[Loss]:
        """To where EVENTS still has everything, should it have lost its end since."""
        entry = await self._checkpoints.get(f"{self._key}.past")
        if entry is not None:
            self._past, self._past_revision = Past.parse(entry.value), entry.revision
        elif not self._written:
            # nobody has worked on it before: there is nothing that could be lost
            self._past.settle(self._bus.continuity.all)
        losses = self._past.unsettled(self._bus.continuity.all)
        back = self._past.go_back(losses)
        if back is not None and back < self._written:
            log.warning(
                "partition %d: EVENTS has lost what was made of later frames: RAW is read again "
                "from %d, and not from %d",
                *(self._number, back + 1, self._written + 1),
            )
            value = str(back).encode()
            revision = await self._checkpoints.update(self._key, value, self._revision)
            if revision is None:
                raise BusUnavailable("somebody else works on the partition, too")
            self._written, self._revision = back, revision
        return losses

    async def _settle(self, losses: list[Loss]) -> None:
        """Once everything is read that is there, deal with the runs that have lost something."""
        while True:
            try:
                last = await self._bus.tail(streams.RAW, subjects.raw_of_partition(self._number))
                while last is not None and self._floor < last.sequence:
                    await asyncio.sleep(self._settings.checkpoint_s)
                await lost_data.settle(self._bus, self._number, losses)
                self._past.settle(losses)
                await self._remember()
                return
            except BusError as error:
                log.warning("partition %d: what was lost: once more: %s", self._number, error)
                await asyncio.sleep(self._settings.checkpoint_s)

    async def _remember_now_and_then(self) -> None:
        if time.monotonic() < self._remembered_at + REMEMBER_S:
            return
        if self._past.points and self._past.points[-1][0] >= self._floor:
            return
        try:
            await self._remember()
        except BusError as error:
            log.debug("partition %d: %s", self._number, error)

    async def _remember(self) -> None:
        """Keep this checkpoint, with where EVENTS ends. Raises BusError."""
        self._remembered_at = time.monotonic()
        floor = self._floor  # before it is asked how far the events of all that reach
        state = (await self._bus.api(f"STREAM.INFO.{streams.EVENTS}"))["state"]
        self._past.add(floor, state["last_seq"])
        value, key = self._past.dump(), f"{self._key}.past"
        revision = await self._checkpoints.update(key, value, self._past_revision)
        if revision is None:
            entry = await self._checkpoints.get(key)  # somebody else works on it, too
            if entry is not None:
                self._past, self._past_revision = Past.parse(entry.value), entry.revision
        else:
            self._past_revision = revision

    async def _read_checkpoint(self) -> None:
        entry = await self._checkpoints.get(self._key)
        if entry is not None:
            self._written, self._revision = int(entry.value), entry.revision

    def halt(self) -> None:
        """Publish nothing more: what is remembered may be of events that are gone."""
        self._halted = True
        for _, task in self._runs.values():
            task.cancel()

    async def _take(self, stored: Stored) -> None:
        if self._halted:
            await asyncio.Event().wait()  # until the partition is begun anew
        self._seen = stored.sequence
        run_id = subjects.run_id_of(stored.subject)
        if run_id == NOBODY:
            return  # it only takes up a sequence, and is gone by now
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
            self._bus.continuity.knows(streams.RAW, self._seen)
            await self._write_checkpoint()
            await self._remember_now_and_then()
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
