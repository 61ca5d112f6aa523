"""The normalizer as a service: holds a fair share of the partitions, and works on each of them."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import ClassVar

from penstock import telemetry
from penstock.bus import BusError, FairShare, Loss, Msg
from penstock.bus.admin import migrate
from penstock.bus.admin.advisories import ADVISORIES, handler_of_advisories
from penstock.bus.admin.replay import replay_number
from penstock.bus.budget import Budget
from penstock.bus.records.runs import ENDED
from penstock.bus.shards import each_shard, group_of
from penstock.bus.state import deadletters
from penstock.bus.subjects import PARTITIONS, replay_letter
from penstock.service import Context, Service
from penstock.settings import Settings
from penstock.settings.keep import parse_keep
from penstock_normalizer.costs.ledger import CONSUMER, Ledger
from penstock_normalizer.erasing import eraser, restored
from penstock_normalizer.erasing.early import EarlyErasures
from penstock_normalizer.erasing.losses import AfterLosses
from penstock_normalizer.partitions.partition import Partition
from penstock_normalizer.prices.prices import Prices
from penstock_normalizer.recovery.abandoned_runs import end_abandoned_run
from penstock_normalizer.settings import NormalizerSettings

log = logging.getLogger(__name__)

COUNT_S = 15.0  # seconds between two counts of the dead letters, and measurements of the lag
# seconds in which losses are collected, because one failure of NATS causes a loss for each stream
COLLECT_LOSSES_S = 0.1


class NormalizerService(Service):
    """Folds source frames into canonical events; no other service writes to EVENTS."""

    name: ClassVar[str] = "normalizer"
    settings_type: ClassVar[type[Settings]] = NormalizerSettings
    repairs_streams: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, NormalizerSettings)
        self._settings = context.settings
        self._budget = Budget(self._settings.max_held_bytes)
        self._prices = Prices(self._settings.prices)
        self._loss = asyncio.Event()
        self._partitions: dict[tuple[int, int], Partition] = {}  # by shard and number
        self._shares: dict[int, FairShare] = {}  # by shard

    @property
    def partitions(self) -> frozenset[int]:
        return self._held_of(0)

    def _held_of(self, shard: int) -> frozenset[int]:
        share = self._shares.get(shard)
        return share.held if share is not None else frozenset()

    async def start(self) -> None:
        telemetry.count_runs_from_zero(sorted(ENDED))
        self.bus.continuity.on_loss(self._on_loss)
        self.spawn("losses", self._begin_anew)
        self.spawn("shards", self._take_part_in_all)
        end = partial(end_abandoned_run, self.bus)
        self.consume(ADVISORIES, handler_of_advisories(self.bus, self.store_dead_letter, end))
        self.consume(CONSUMER, Ledger(self.bus).add)
        self.consume(eraser.CONSUMER, eraser.Eraser(self.bus).handle)
        self.spawn("restored erasures", partial(restored.go_on, self.bus))
        self.spawn("erasures after losses", AfterLosses(self.bus, lambda: 0 in self.partitions).run)
        if (keep := parse_keep(self._settings.keep)).early:
            early = EarlyErasures(self.bus, keep, lambda: 0 in self.partitions)
            self.spawn("early erasures", early.run)
        await self.answer(replay_letter("*"), self._replay)
        self.repeat("dead letters", COUNT_S, self._count_dead_letters)
        self.repeat("lag", COUNT_S, self._measure_lag)
        self.spawn("prices", self._prices.follow)
        await asyncio.sleep(0)

    def _on_loss(self, loss: Loss) -> None:
        for partition in self._partitions.values():
            partition.halt()
        self._loss.set()

    async def _begin_anew(self) -> None:
        """Begin the work on every partition again after NATS has lost data. The state of a
        partition in memory may count events that are lost."""
        while True:
            await self._loss.wait()
            await asyncio.sleep(COLLECT_LOSSES_S)
            self._loss.clear()
            for shard, number in tuple(self._partitions):
                name = _name(shard, number)
                if self.has_spawned(name):
                    await self.cancel(name)
                    # another normalizer may hold the partition now
                    if number in self._held_of(shard):
                        self._work_on(shard, number)

    async def _take_part_in_all(self) -> None:
        async for shard in each_shard(self.bus):
            if shard not in self._shares:  # false if this loop failed, and was restarted
                self._shares[shard] = self._share_of(shard)
                self.spawn(f"share {shard}", partial(self._take_part, shard))

    def _share_of(self, shard: int) -> FairShare:
        return FairShare(
            self.bus,
            group_of(shard),
            self.context.pod,
            range(PARTITIONS),
            start=partial(self._begin, shard),
            stop=partial(self._end, shard),
            ttl_s=self._settings.partition_ttl_s,
            renew_s=self._settings.partition_renew_s,
            beside=self._shares.get(0),
        )

    async def _take_part(self, shard: int) -> None:
        count = await migrate.partitions(self.bus, shard)
        await migrate.at_least(self.bus, count, shard)
        await self._shares[shard].run()

    async def _count_dead_letters(self) -> None:
        telemetry.DEADLETTERS_KEPT.set(await deadletters.count(self.bus))

    async def _replay(self, msg: Msg) -> None:
        """Replay a dead letter that an edge asks for. If the bus fails, no answer is sent, and the
        caller asks again: a repeated replay changes nothing."""
        number = msg.subject.partition(".")[2]
        try:
            reply = await replay_number(self.bus, int(number))
            await self.bus.client.publish(msg.reply, reply.dump())
        except (BusError, ValueError) as error:
            log.warning("dead letter %s is not replayed: %s", number, error)

    async def _measure_lag(self) -> None:
        """Set the lag of each shard, measured on the partitions that this normalizer holds. Raises
        BusError. The metric then keeps its value; `penstock_nats_connected` shows that NATS does
        not answer."""
        lags = dict.fromkeys(self._shares, 0)
        for (shard, _), partition in tuple(self._partitions.items()):
            lags[shard] = max(lags[shard], await partition.lag())
        for shard, lag in lags.items():
            telemetry.NORMALIZER_LAG.labels(shard).set(lag)

    async def _begin(self, shard: int, number: int) -> None:
        self._work_on(shard, number)
        telemetry.PARTITIONS.inc()
        telemetry.LEASE_CHANGES.labels("taken").inc()

    def _work_on(self, shard: int, number: int) -> None:
        partition = Partition(
            self.bus,
            number,
            self._settings,
            self._budget,
            self.give_up,
            shard=shard,
            cost_of=self._prices.cost_of,
        )
        self._partitions[shard, number] = partition
        self.spawn(_name(shard, number), partition.work)

    async def _end(self, shard: int, number: int) -> None:
        self._partitions.pop((shard, number), None)
        try:
            await self.cancel(_name(shard, number))
        finally:
            telemetry.PARTITIONS.dec()
            telemetry.LEASE_CHANGES.labels("given_up").inc()


def _name(shard: int, number: int) -> str:
    return f"partition {number} of shard {shard}" if shard else f"partition {number}"
