"""Settles the legs of dead connectors: continues or ends each leg, and deletes its records."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from penstock import telemetry
from penstock.bus import BusError, Retry
from penstock.bus.subjects import session_key
from penstock_connector.legs.registry import LegRegistry
from penstock_connector.state.run_state import CLOSED, holder_of, kind_of, leg_of
from penstock_connector.state.stores import Stores
from penstock_connector.succession.takeover import DIED, Takeover

log = logging.getLogger(__name__)

AT_ONCE: Final = 16  # the most legs that are settled at the same time
FULL_SWEEP_S: Final = 30.0  # seconds between two reads of all leg records


class Reaper:
    """Settles the legs of connectors whose lease has expired, or that do not answer."""

    def __init__(self, stores: Stores, registry: LegRegistry, takeover: Takeover) -> None:
        self._stores = stores
        self._registry = registry
        self._takeover = takeover
        self._side_by_side = asyncio.Semaphore(AT_ONCE)
        self._living: set[str] = set()  # the connectors that were alive at the last check
        self._dead: set[str] = set()  # the dead connectors that still have unsettled legs
        self._silent: set[str] = set()  # the connectors that do not answer
        self._swept_at_s = float("-inf")
        # the runs that have a record of this connector but no leg, at the last check
        self._orphans: set[str] = set()

    def lease_ended(self, pod: str) -> None:
        self._dead.add(pod)

    def mark_silent(self, pod: str) -> None:
        """Record that a connector does not answer: it was killed, or has no connection now."""
        self._silent.add(pod)

    async def reap(self) -> None:
        """Settle the legs of dead connectors once; after a BusError, the next call continues."""
        connectors = self._stores.connectors
        while self._silent:
            pod = self._silent.pop()
            await self._for_each_leg(pod, self._take_over_without_loss)
        await self._find_dead()
        for pod in tuple(self._dead):
            if await connectors.is_alive(pod):
                if connectors.sees_others():
                    self._dead.discard(pod)
            elif not await self._for_each_leg(pod, self._settle):
                self._dead.discard(pod)

    async def _find_dead(self) -> None:
        connectors = self._stores.connectors
        living = await connectors.alive_pods()
        if time.monotonic() - self._swept_at_s > FULL_SWEEP_S:
            recorded = await self._stores.leg_records.find()
            ours = {run_id for pod, run_id in recorded if pod == self._stores.pod}
            await self._settle_orphans(ours)
            away = {pod for pod, _ in recorded} - living
            if connectors.sees_others():
                self._dead |= away
                self._swept_at_s = time.monotonic()
            else:
                connectors.suspect(away)
        if connectors.sees_others():
            self._dead |= self._living - living
            self._living = living

    async def _settle_orphans(self, recorded: set[str]) -> None:
        """Settle legs for which two checks in a row found a record of this connector but no task.
        An exception in this process has left such legs, and no other connector settles them."""
        orphans = {run_id for run_id in recorded if not self._registry.works_on(run_id)}
        for run_id in orphans & self._orphans:
            log.warning("run %s: a record says that its leg is held here, and it is not", run_id)
            telemetry.RUNS_STUCK.labels("not_held_here").inc()
            await self._deal_with(self._stores.pod, run_id, self._settle)
        self._orphans = orphans

    async def _for_each_leg(self, pod: str, action: Callable[[str, str], Awaitable[None]]) -> bool:
        """Do the action for each leg that the connector has recorded; return False without a
        leg."""
        recorded = await self._stores.leg_records.find(pod)
        # Other connectors settle the same legs at the same time. In a random order, they seldom
        # work on the same leg at once.
        random.shuffle(recorded)
        await asyncio.gather(*(self._deal_with(pod, run_id, action) for _, run_id in recorded))
        return bool(recorded)

    async def _deal_with(
        self, pod: str, run_id: str, action: Callable[[str, str], Awaitable[None]]
    ) -> None:
        try:
            async with self._side_by_side:
                with self._registry.exclusively(run_id):
                    await action(pod, run_id)
        except (BusError, Retry) as error:
            log.warning("run %s of the dead connector %s: later: %s", run_id, pod, error)
        except Exception:  # one leg must not prevent the settlement of all other legs
            log.exception("run %s of the dead connector %s cannot be settled", run_id, pod)

    async def _take_over_without_loss(self, pod: str, run_id: str) -> None:
        last = await self._stores.runs.tail(run_id)
        if last is not None and kind_of(last) not in CLOSED and holder_of(last) == pod:
            await self._takeover.take_over(run_id, last, DIED.format(pod), only_without_loss=True)

    async def _settle(self, pod: str, run_id: str) -> None:
        last = await self._stores.runs.tail(run_id)
        if last is not None and kind_of(last) not in CLOSED:
            found = await self._stores.leg_records.read(run_id, pod)
            if found is not None and found.record.leg < leg_of(last):
                # The connector died after the last frame of its leg, before it deleted the leg's
                # place in the queue, and the run's next leg has begun since. If the old place were
                # not deleted here, the old place would stay in the queue as long as the next leg is
                # open.
                await self._clear(pod, run_id)
                return
            if holder_of(last) != pod and await self._takeover.is_held(run_id, last):
                return  # the other connector has taken the leg over, and deletes these records
            log.warning("run %s: its connector %s is dead", run_id, pod)
            if await self._takeover.take_over(run_id, last, DIED.format(holder_of(last))):
                return
            last = await self._stores.runs.tail(run_id)
        if last is None or kind_of(last) in CLOSED:
            # A leg without an `open` is begun by its command, which is delivered again.
            await self._clear(pod, run_id)

    async def _clear(self, pod: str, run_id: str) -> None:
        """Complete the updates of a dead connector, for a leg that has ended or never began.

        The order is the same as at the end of a leg: the queue, the sending, the record. The record
        shows other connectors that updates are missing, so it is deleted last.
        """
        stores = self._stores
        found = await stores.leg_records.read(run_id, pod)
        run = await stores.runs.record(run_id)
        if run is not None:
            key = session_key(run.user_id, run.agent, run.session_id)
            leg = found.record.leg if found is not None else None
            await stores.sessions.leave(key, run_id, pod, leg)
        if found is not None:
            await self._takeover.record_sending(found.record, run_id)
            await stores.leg_records.delete_of(pod, run_id, found.revision)
