"""What it takes to go on after a pause: kept in KV, for its events may have aged by then."""

from __future__ import annotations

import asyncio
import logging

from penstock.bus import Bus, BusError, MessageTooLarge, ObjectGone
from penstock.bus.records import PauseRecord
from penstock.bus.write import fence, objects
from penstock_normalizer.fold.run_fold import RunFold

log = logging.getLogger(__name__)


class Pauses:
    """The pauses of runs, one each; every call waits for the bus as needed.

    The pause of a run that has ended is kept for `kept_s` more, for commands and events that are
    delivered again.
    """

    def __init__(self, bus: Bus, kept_s: float) -> None:
        self._bus = bus
        self._bucket = bus.bucket("pauses")
        self._kept_s = kept_s

    async def restore(self, fold: RunFold) -> None:
        """Bring a new fold to where the run paused, if it did. Raises BusError, ObjectGone."""
        entry = await self._bucket.get(fold.run_id)
        if entry is not None:
            record = await objects.unwrap(self._bus, entry.value)
            fold.restore(PauseRecord.model_validate_json(record).fold)

    async def keep(self, fold: RunFold) -> None:
        """Before anybody hears of the request: what it takes to go on, however long it waits."""
        assert fold.approval_id is not None
        record = PauseRecord(
            run_id=fold.run_id,
            approval_id=fold.approval_id,
            leg=fold.leg,
            protocol=fold.facts["protocol"],
            fold=fold.snapshot(),
            resume=fold.resume or {},
        )
        name, pause = f"{fold.approval_id}.pause", record.dump()
        while True:
            try:
                kept = await objects.wrap(self._bus, name, pause)
                if await self._put(fold.run_id, fold.sequence, kept):
                    return
            except MessageTooLarge:
                raise  # nor will it be smaller the next time
            except BusError as error:
                log.warning("run %s: its pause is not kept yet: %s", fold.run_id, error)
                await asyncio.sleep(fence.RETRY_S)

    async def _put(self, run_id: str, sequence: int, kept: bytes) -> bool:
        """Keep it, but not over a later one: a zombie comes late."""
        entry = await self._bucket.get(run_id)
        if entry is not None:
            try:
                standing = await objects.unwrap(self._bus, entry.value)
            except ObjectGone:
                log.warning("run %s: its earlier pause is lost, and replaced", run_id)
            else:
                # the same one is there, too: the run may have ended meanwhile, and let go of it
                if PauseRecord.model_validate_json(standing).fold["sequence"] >= sequence:
                    return True
        revision = entry.revision if entry is not None else 0
        return await self._bucket.update(run_id, kept, revision) is not None

    async def let_go(self, run_id: str) -> None:
        """The run ends: what is kept of its pause, if it had one, goes by itself."""
        while True:
            try:
                entry = await self._bucket.get(run_id)
                if entry is None or await self._bucket.update(
                    run_id, entry.value, entry.revision, self._kept_s
                ):
                    return
            except BusError as error:
                log.warning("run %s: its pause cannot be let go yet: %s", run_id, error)
                await asyncio.sleep(fence.RETRY_S)
