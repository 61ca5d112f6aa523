"""Asks for the erasure of runs whose content is kept for less time than events (PENSTOCK_KEEP).

The records of KV `runs` are read in the order in which they were written, each when it is old
enough. So a pass reads only what has become old since the pass before it. A process that starts
reads all old records once more, and asks for what is not erased yet: no state is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import uuid_utils
from pydantic import ValidationError

from penstock.bus import Bus, BusError, Message, ObjectGone, Stored, subjects
from penstock.bus.messages import STORED_AT
from penstock.bus.read import direct
from penstock.bus.records.erasures import EraseCommand
from penstock.bus.records.runs import RunRecord
from penstock.bus.state.run_trees import TreeRuns
from penstock.settings.keep import Early, Keep

log = logging.getLogger(__name__)

BY: Final = "penstock"  # who erases, in the run's record and in the audit
BATCH: Final = 50
LOOK_S: Final = 30.0  # the most seconds between two passes
DONE_S: Final = 600.0  # the most seconds to wait for the end of an erasure
LOOK_AGAIN_S: Final = 0.2


class EarlyErasures:
    """Asks for erasures, one after another, so that those that people ask for wait for one run."""

    def __init__(self, bus: Bus, keep: Keep, is_mine: Callable[[], bool]) -> None:
        """`is_mine` says whether this process has to ask. If two ask for the same run, it is erased
        once."""
        self._bus = bus
        self._runs = bus.bucket("runs")
        self._keep = keep
        self._is_mine = is_mine
        # For each age in seconds, the sequence in KV `runs` of the next record that may be as old.
        self._next = {each.age_s: 1 for each in keep.early}

    async def run(self) -> None:
        while True:
            if self._is_mine():
                try:
                    for age_s in self._next:
                        await self._pass(age_s)
                except BusError as error:
                    log.warning("runs are erased after their time later: %s", error)
            await asyncio.sleep(min([LOOK_S, *self._next]))

    async def _pass(self, age_s: float) -> None:
        erasure_id = str(uuid_utils.uuid7())
        while self._is_mine():
            found, _ = await direct.read(self._bus, "KV_runs", ">", self._next[age_s], BATCH)
            for stored in found:
                if self._bus.clock.age_s(stored.headers[STORED_AT]) < age_s:
                    return
                record = _parsed(stored)
                if record is not None and record.ancestors:
                    # The run of a step is erased with the outermost workflow's.
                    record = await self._load(record.ancestors[0])
                if record is not None and (early := self._due(record, age_s)) is not None:
                    await self._erase(record, early, erasure_id)
                self._next[age_s] = stored.sequence + 1
            if not found:
                return

    def _due(self, record: RunRecord, age_s: float) -> Early | None:
        """Return why the run's content is to be erased now, if the age is the run's."""
        early = self._keep.early_for(record.agent, record.tenant)
        if early is None or early.age_s != age_s:
            return None
        is_old = self._bus.clock.age_s(record.updated_at) >= age_s
        may_be = record.erasure is None and record.not_erasable is None
        return early if is_old and may_be else None

    async def _erase(self, record: RunRecord, early: Early, erasure_id: str) -> None:
        try:
            runs = [*await self._steps_of(record), record]
        except (ObjectGone, ValidationError) as error:
            # Without its steps, the workflow's run would be erased by half. Others go on.
            log.warning("run %s is not erased: its tree cannot be read: %s", record.run_id, error)
            return
        if refused := [each for each in runs if each.not_erasable and each.erasure is None]:
            log.debug("run %s is not erased yet: %s", record.run_id, refused[0].not_erasable)
            return
        command = EraseCommand(
            erasure_id=erasure_id,
            runs=[each.run_id for each in runs],
            by=BY,
            at=self._bus.clock.stamp(),
            reason=f"retention: {early}",
        )
        subject = subjects.command(subjects.NORMALIZER, "erase", record.run_id)
        await self._bus.publisher.publish(Message(subject, command.dump(), {}))
        if not await self._is_done(record.run_id):
            log.warning("run %s: its erasure after %s takes long", record.run_id, early)

    async def _steps_of(self, record: RunRecord) -> list[RunRecord]:
        if record.target != subjects.WORKFLOWS:
            return []
        key = f"runs.{record.root_run_id or record.run_id}"
        tree = await self._bus.bucket("trees").load(key, TreeRuns)
        below = [await self._load(run_id) for run_id in (tree.runs if tree is not None else ())]
        return [each for each in below if each and record.run_id in (each.ancestors or ())]

    async def _load(self, run_id: str) -> RunRecord | None:
        try:
            return await self._runs.load(run_id, RunRecord)
        except (ObjectGone, ValidationError) as error:
            log.warning("run %s: its record cannot be read: %s", run_id, error)
            return None

    async def _is_done(self, run_id: str) -> bool:
        """Wait until the run is erased, or cannot be erased any more; return False if it takes too
        long."""
        until = asyncio.get_running_loop().time() + DONE_S
        while asyncio.get_running_loop().time() < until:
            record = await self._load(run_id)
            if record is None:
                return True
            if record.erasure is not None and record.erasure.erased_at:
                return True
            if record.erasure is None and record.not_erasable is not None:
                return True  # such as by a hold, so the command is refused
            await asyncio.sleep(LOOK_AGAIN_S)
        return False


def _parsed(stored: Stored) -> RunRecord | None:
    """Return a record; None for a deleted one, and for one that cannot be read."""
    try:
        return RunRecord.model_validate_json(stored.payload)
    except ValidationError:
        return None
