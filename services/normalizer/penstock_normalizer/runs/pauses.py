"""Stores the state from which a paused run is continued, in KV `pauses`.

A run may wait for longer than its frames and events are kept. So two things are stored before the
approval is requested: the state of the run's fold, and the objects that the agent server needs to
continue.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.bus import RETRY_S, Bus, BusError, MessageTooLarge, ObjectGone
from penstock.bus.connection.retry import with_retries
from penstock.bus.records.legs import PauseRecord
from penstock.bus.write import objects
from penstock.dialects.workflow import PROTOCOL
from penstock_normalizer.fold.run_fold import RunFold

log = logging.getLogger(__name__)

MAX_KNOWN = 10_000  # the greatest number of entries in `Pauses._workflows`


class Pauses:
    """Reads and writes the stored pauses of runs; each run has at most one.

    The pause of an ended run is kept for `kept_s` seconds, because commands and events that are
    delivered again need the pause. The methods that write wait while the bus does not answer; all
    raise ValueError if a stored pause cannot be parsed.
    """

    def __init__(self, bus: Bus, kept_s: float) -> None:
        self._bus = bus
        self._bucket = bus.bucket("pauses")
        self._kept_s = kept_s
        # The stored states of workflows' runs that this process knows, keyed by run id. Each has
        # the revision of the stored record, and the number of the last event before the state was
        # stored.
        self._workflows: dict[str, tuple[int, int]] = {}

    async def restore(self, fold: RunFold) -> None:
        record = await self._bucket.load(fold.run_id, PauseRecord)
        if record is not None:
            fold.restore(record.fold)

    async def store(self, fold: RunFold) -> None:
        assert fold.pending is not None
        name, pause = f"{fold.pending.approval_id}.pause", _record(fold).dump()

        async def store() -> None:
            value = await objects.wrap(self._bus, name, pause, fold.run_id)
            while not await self._put(fold.run_id, fold.sequence, value):
                pass

        await with_retries(store, f"run {fold.run_id}: its pause is not stored yet")

    async def store_workflow(self, fold: RunFold) -> None:
        """Store the state of a workflow's run after its events.

        A workflow may wait at any time, for longer than its frames and events are kept. So each new
        state replaces the stored one.
        """
        run_id, value = fold.run_id, None
        revision, sequence = self._workflows.pop(run_id, (None, 0))
        while sequence < fold.sequence:
            value = value or _record(fold).dump()
            try:
                if revision is not None and (
                    updated := await self._bucket.update(run_id, value, revision)
                ):
                    revision, sequence = updated, fold.sequence
                    break
                entry = await self._bucket.get(run_id)
                revision = entry.revision if entry is not None else 0
                if entry is not None:
                    sequence = PauseRecord.model_validate_json(entry.value).fold["sequence"]
            except MessageTooLarge:
                raise  # a repeated write would be as large
            except BusError as error:
                log.warning("run %s: its state is not stored yet: %s", run_id, error)
                await asyncio.sleep(RETRY_S)
        if revision is not None:
            if len(self._workflows) >= MAX_KNOWN:
                self._workflows.clear()
            self._workflows[run_id] = revision, sequence

    async def _put(self, run_id: str, sequence: int, value: bytes) -> bool:
        """Store the pause, unless the same or a later pause of the run is stored already.

        If this normalizer was slow, another one may have stored a later pause. Returns False if
        another one wrote at the same time; the caller then tries again.
        """
        entry = await self._bucket.get(run_id)
        if entry is not None:
            try:
                earlier = await objects.unwrap(self._bus, entry.value)
            except ObjectGone:
                log.warning("run %s: its earlier pause is lost, and replaced", run_id)
            else:
                # The same pause is not written again, because `expire` may have set its expiry
                # meanwhile.
                if PauseRecord.model_validate_json(earlier).fold["sequence"] >= sequence:
                    return True
        revision = entry.revision if entry is not None else 0
        return await self._bucket.update(run_id, value, revision) is not None

    async def expire(self, run_id: str) -> None:
        """Let the pause of an ended run, if there is one, expire after `kept_s` seconds."""
        self._workflows.pop(run_id, None)

        async def expire() -> None:
            while entry := await self._bucket.get(run_id):
                kept = (run_id, entry.value, entry.revision, self._kept_s)
                if await self._bucket.update(*kept) is not None:
                    return

        await with_retries(expire, f"run {run_id}: its pause does not expire yet")


def _record(fold: RunFold) -> PauseRecord:
    pending = fold.pending
    return PauseRecord(
        run_id=fold.run_id,
        approval_id=pending.approval_id if pending is not None else "",
        leg=fold.leg,
        protocol=fold.facts["protocol"],
        fold=fold.snapshot(),
        resume=pending.resume if pending is not None else {},
    )


async def can_continue_from_state(bus: Bus, run_id: str, *, is_paused: bool) -> bool:
    """Return whether a run can continue from its stored state, without any frame or event. Every
    workflow's run and every paused run can continue in this way."""
    record = await bus.bucket("pauses").load(run_id, PauseRecord)
    return record is not None and (is_paused or record.protocol == PROTOCOL)
