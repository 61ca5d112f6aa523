"""Store the state from which a paused run is continued, in KV `pauses`.

A run may wait for longer than its frames and events are kept. So the state of the run's fold and
the objects that the upstream needs to continue are stored before the approval is requested.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.bus import Bus, BusError, MessageTooLarge, ObjectGone
from penstock.bus.records import PauseRecord
from penstock.bus.write import fence, objects
from penstock_normalizer.fold.run_fold import RunFold

log = logging.getLogger(__name__)


class Pauses:
    """The stored pauses of runs, at most one for each run.

    After a run has ended, its pause is kept for `kept_s` seconds, because commands and events that
    are delivered again need the pause.
    """

    def __init__(self, bus: Bus, kept_s: float) -> None:
        self._bus = bus
        self._bucket = bus.bucket("pauses")
        self._kept_s = kept_s

    async def restore(self, fold: RunFold) -> None:
        """Restore the fold's state from the run's stored pause, if there is one.

        Raises BusError, ObjectGone, and ValueError if the pause cannot be parsed.
        """
        entry = await self._bucket.get(fold.run_id)
        if entry is not None:
            record = await objects.unwrap(self._bus, entry.value)
            fold.restore(PauseRecord.model_validate_json(record).fold)

    async def keep(self, fold: RunFold) -> None:
        """Store the run's pause. Waits for the bus as needed.

        Raises MessageTooLarge, and ValueError if an earlier pause cannot be parsed.
        """
        assert fold.pending is not None
        record = PauseRecord(
            run_id=fold.run_id,
            approval_id=fold.pending.approval_id,
            leg=fold.leg,
            protocol=fold.facts["protocol"],
            fold=fold.snapshot(),
            resume=fold.pending.resume,
        )
        name, pause = f"{fold.pending.approval_id}.pause", record.dump()
        while True:
            try:
                kept = await objects.wrap(self._bus, name, pause)
                if await self._put(fold.run_id, fold.sequence, kept):
                    return
            except MessageTooLarge:
                raise  # a repeat would be as large
            except BusError as error:
                log.warning("run %s: its pause is not stored yet: %s", fold.run_id, error)
                await asyncio.sleep(fence.RETRY_S)

    async def _put(self, run_id: str, sequence: int, kept: bytes) -> bool:
        """Store the pause unless the same or a later pause of the run is stored already.

        A later pause may be stored if this normalizer was slow. Returns False if another normalizer
        wrote at the same time; the caller then tries again.
        """
        entry = await self._bucket.get(run_id)
        if entry is not None:
            try:
                earlier = await objects.unwrap(self._bus, entry.value)
            except ObjectGone:
                log.warning("run %s: its earlier pause is lost, and replaced", run_id)
            else:
                # The same pause is not written again, because `expire` may have been called since.
                if PauseRecord.model_validate_json(earlier).fold["sequence"] >= sequence:
                    return True
        revision = entry.revision if entry is not None else 0
        return await self._bucket.update(run_id, kept, revision) is not None

    async def expire(self, run_id: str) -> None:
        """Let the pause of an ended run, if there is one, expire after `kept_s` seconds.

        Raises MessageTooLarge.
        """
        while True:
            try:
                entry = await self._bucket.get(run_id)
                if entry is None or await self._bucket.update(
                    run_id, entry.value, entry.revision, self._kept_s
                ):
                    return
            except MessageTooLarge:
                raise  # a repeat would be as large
            except BusError as error:
                log.warning("run %s: its pause does not expire yet: %s", run_id, error)
                await asyncio.sleep(fence.RETRY_S)
