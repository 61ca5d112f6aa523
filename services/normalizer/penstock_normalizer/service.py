"""Run the normalizer: hold a fair share of the partitions, and work on each held partition."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import ClassVar

from penstock import telemetry
from penstock.bus import BusError, FairShare, Loss
from penstock.bus.admin import repartition
from penstock.bus.admin.advisories import exhausted
from penstock.bus.budget import Budget
from penstock.bus.state import deadletters
from penstock.bus.subjects import PARTITIONS
from penstock.service import Context, Service
from penstock.settings import Settings
from penstock_normalizer.partitions.partition import Partition
from penstock_normalizer.recovery.abandoned_commands import end_abandoned_run
from penstock_normalizer.settings import NormalizerSettings

log = logging.getLogger(__name__)

COUNT_S = 15.0  # how often the dead letters are counted
COLLECT_LOSSES_S = 0.1  # one failure of NATS is found as several losses, one for each stream


class NormalizerService(Service):
    """Folds source frames into canonical events. No other service writes to EVENTS."""

    name: ClassVar[str] = "normalizer"
    settings_type: ClassVar[type[Settings]] = NormalizerSettings
    repairs_streams: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, NormalizerSettings)
        self._settings = context.settings
        self._budget = Budget(self._settings.max_held_bytes)
        self._loss = asyncio.Event()
        self._partitions: dict[int, Partition] = {}
        self._share = FairShare(
            self.bus,
            self.name,
            context.pod,
            range(PARTITIONS),
            start=self._begin,
            stop=self._end,
            ttl_s=self._settings.partition_ttl_s,
            renew_s=self._settings.partition_renew_s,
        )

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that this normalizer works on now."""
        return self._share.held

    async def start(self) -> None:
        """Join the normalizers; the first partitions come within `partition_renew_s`."""
        self.bus.continuity.on_loss(self._on_loss)
        self.spawn("losses", self._begin_anew)
        self.spawn("share", self._take_part)
        advisories = exhausted(
            self.bus,
            "normalizer-advisories",
            self.bury,
            partial(end_abandoned_run, self.bus),
            self.give_up,
        )
        self.spawn("advisories", advisories.run)
        self.spawn("dead letters", self._count_dead_letters)
        await asyncio.sleep(0)

    def _on_loss(self, loss: Loss) -> None:
        for partition in self._partitions.values():
            partition.halt()
        self._loss.set()

    async def _begin_anew(self) -> None:
        """Begin every partition again after NATS has lost data.

        The state of a partition may describe events that are gone.
        """
        while True:
            await self._loss.wait()
            await asyncio.sleep(COLLECT_LOSSES_S)
            self._loss.clear()
            for number in self._share.held:
                name = f"partition {number}"
                if self.spawned(name):
                    await self.cancel(name)
                    if number in self._share.held:  # another normalizer may hold it now
                        self._work_on(number)

    async def _take_part(self) -> None:
        await repartition.at_least(self.bus, await repartition.partitions(self.bus))
        await self._share.run()

    async def _count_dead_letters(self) -> None:
        while True:
            try:
                telemetry.DEADLETTERS_KEPT.set(await deadletters.kept(self.bus))
            except BusError as error:
                log.debug("the dead letters are not counted now: %s", error)
            await asyncio.sleep(COUNT_S)

    async def _begin(self, number: int) -> None:
        self._work_on(number)
        telemetry.PARTITIONS.inc()

    def _work_on(self, number: int) -> None:
        partition = Partition(self.bus, number, self._settings, self._budget, self.give_up)
        self._partitions[number] = partition
        self.spawn(f"partition {number}", partition.work)

    async def _end(self, number: int) -> None:
        self._partitions.pop(number, None)
        try:
            await self.cancel(f"partition {number}")
        finally:
            telemetry.PARTITIONS.dec()
