"""Works on one partition of RAW: reads the frames in order, and gives each frame to its run."""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum, auto
from functools import partial

from penstock.bus import Bus, BusError, Loss, Reader, Stored, streams, subjects
from penstock.bus.budget import Budget
from penstock.bus.read.work_queue import GiveUp
from penstock.bus.state.continuity import NOBODY
from penstock.busyness import until_tick_s
from penstock.dialects.decoders import DECODERS
from penstock_normalizer.fold.run_fold import CostOf, no_cost
from penstock_normalizer.partitions.checkpoint import Checkpoint
from penstock_normalizer.partitions.open_runs import OpenRuns
from penstock_normalizer.recovery import abandoned_runs, lost_data
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.pauses import Pauses
from penstock_normalizer.runs.run import Run
from penstock_normalizer.runs.run_index import RunIndex
from penstock_normalizer.settings import NormalizerSettings

log = logging.getLogger(__name__)

# Seconds after which a quiet partition's checkpoint is moved to the end of RAW.
IDLE_CHECKPOINT_S = 30.0


class PartitionPhase(Enum):
    """The state of a partition's work."""

    RESUMING = auto()  # the partition finds out where to begin
    READING = auto()  # the partition reads RAW and hands frames to runs
    HALTED = auto()  # NATS has lost data: no event is published until the work begins again
    CLOSED = auto()


class Partition:
    """Works on one partition of RAW while this normalizer holds the partition's lease."""

    def __init__(
        self,
        bus: Bus,
        number: int,
        settings: NormalizerSettings,
        budget: Budget,
        give_up: GiveUp,
        *,
        shard: int = 0,
        cost_of: CostOf = no_cost,
    ) -> None:
        self._bus = bus
        self._shard = shard
        self._number = number
        self._raw = streams.raw_of(shard)
        self._settings = settings
        context = RunContext(
            bus=bus,
            decoders=DECODERS,
            max_frame_bytes=settings.max_frame_bytes,
            index=RunIndex(bus),
            pauses=Pauses(bus, bus.settings.retention.events_max_age_s),
            budget=budget,
            give_up=give_up,
            max_blocked_s=settings.max_blocked_s,
            loop=asyncio.get_running_loop(),
            cost_of=cost_of,
        )
        self._checkpoint = Checkpoint(bus, shard, number)
        self._looked_at = time.monotonic()
        self._seen = 0  # the sequence in RAW of the last frame that was given to a run
        self.runs = OpenRuns(partial(Run, context), settings.run_idle_s)
        self.phase = PartitionPhase.CLOSED

    async def work(self) -> None:
        """Work from the last checkpoint on until cancelled; then write the checkpoint.

        If one of the partition's loops fails, the other loops are ended, and the exception is
        raised. The service then begins the work on the partition again.
        """
        self.phase = PartitionPhase.RESUMING
        losses = await self._resume()
        reader = Reader(
            self._bus,
            self._raw,
            subjects.raw_of_partition(self._number),
            self._checkpoint.position + 1,
            self._hand_out,
            take=self._take,
        )
        if self.phase is PartitionPhase.RESUMING:  # False if the partition was halted meanwhile
            self.phase = PartitionPhase.READING
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._keep_checkpoints())
                if losses:
                    loops.create_task(self._settle(losses))
                await reader.run()
        finally:
            await self._close()

    async def _close(self) -> None:
        self.phase = PartitionPhase.CLOSED
        try:
            if tasks := self.runs.stop():
                await asyncio.wait(tasks)
            if self._bus.is_ready:
                await self._checkpoint.write(self._done_up_to)
        finally:
            # All partitions share the budget. Memory that is not given back here would be missing
            # for the other partitions until the process ends.
            self.runs.clear()

    async def _resume(self) -> list[Loss]:
        """Find the position to begin at; return the losses that were not handled yet."""
        while True:
            try:
                await self._checkpoint.read()
                losses = await self._checkpoint.go_back()
                await abandoned_runs.end_expired_runs(
                    self._bus, self._shard, self._number, self._checkpoint.position
                )
                break
            except BusError as error:
                log.warning("partition %d: it cannot begin yet: %s", self._number, error)
                await asyncio.sleep(self._settings.checkpoint_s)
        self._seen = self._checkpoint.position
        return losses

    async def _settle(self, losses: list[Loss]) -> None:
        """Wait until all frames are done; then repair or end the runs that have lost data."""
        while True:
            try:
                last = await self._bus.tail(self._raw, subjects.raw_of_partition(self._number))
                while last is not None and self._done_up_to < last.sequence:
                    await asyncio.sleep(self._settings.checkpoint_s)
                await lost_data.repair_runs(self._bus, self._shard, self._number, losses)
                await self._checkpoint.record_losses(losses, self._done_up_to)
                return
            except BusError as error:
                log.warning(
                    "partition %d: the repair after a loss is tried again: %s", self._number, error
                )
                await asyncio.sleep(self._settings.checkpoint_s)

    def halt(self) -> None:
        """Stop publishing, because the runs' state in memory may count events that NATS has
        lost."""
        self.phase = PartitionPhase.HALTED
        self.runs.stop()

    async def lag(self) -> int:
        """Return the distance in RAW from the oldest unfinished frame to the newest one. It
        includes the frames of all partitions in between; if all frames are done, it is 0."""
        newest = await self._bus.tail(self._raw, subjects.raw_of_partition(self._number))
        return max(0, newest.sequence - self._done_up_to) if newest is not None else 0

    async def _hand_out(self, stored: Stored) -> None:
        if not self._take(stored):
            # wait until the service begins the work on the partition again
            await asyncio.Event().wait()

    def _take(self, stored: Stored) -> bool:
        """Give a frame to its run; return False if the partition is halted."""
        if self.phase is PartitionPhase.HALTED:
            return False
        self._seen = stored.sequence
        run_id = subjects.run_id_of(stored.subject)
        if run_id != NOBODY:  # otherwise a message that the bus has written after a loss
            self.runs.push(run_id, stored)
        return True

    @property
    def _done_up_to(self) -> int:
        return self.runs.done_up_to(self._seen)

    async def _keep_checkpoints(self) -> None:
        every_s = self._settings.checkpoint_s
        while True:
            # all partitions at the same moment, so that the process wakes once for them
            await asyncio.sleep(until_tick_s(every_s, time.monotonic()))
            if time.monotonic() > self._looked_at + IDLE_CHECKPOINT_S:
                await self._pass_over_other_partitions()
            self._bus.continuity.record_read(self._raw, self._seen)
            await self._checkpoint.write_if_far(self._done_up_to, every_s)
            await self._checkpoint.remember_periodically(self._done_up_to)
            self.runs.forget_idle()

    async def _pass_over_other_partitions(self) -> None:
        """Count the end of RAW as read, if the partition has no further frames before it.

        RAW may delete the frames of other partitions up to this end. If the end did not count as
        read, this partition would then seem to have lost frames.
        """
        self._looked_at = time.monotonic()
        try:
            last = (await self._bus.api(f"STREAM.INFO.{self._raw}"))["state"]["last_seq"]
            ours = await self._bus.tail(self._raw, subjects.raw_of_partition(self._number))
        except BusError as error:
            log.debug("partition %d: the end of RAW is not known: %s", self._number, error)
            return
        if ours is None or ours.sequence <= self._seen:
            self._seen = max(self._seen, last)
