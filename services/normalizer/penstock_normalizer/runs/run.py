"""Fold one run's frames, in order, and publish the run's events, in order.

A frame is done when its events are in EVENTS. Two normalizers may fold the same frame: the
partition's new holder, and the former one, as long as it does not know that it has lost the
partition. Both produce the same events, and the fence of EVENTS accepts each event once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from penstock.bus import Bus, BusError, MessageTooLarge, Stored
from penstock.bus.budget import Budget
from penstock.bus.messages import raw_frame
from penstock.bus.write import fence
from penstock_normalizer.fold.run_fold import DecoderFor, RunFold
from penstock_normalizer.runs.backlog import Backlog
from penstock_normalizer.runs.blocked import MAX_RETRY_S, BlockedRun
from penstock_normalizer.runs.ending import Ending
from penstock_normalizer.runs.feeder import Feeder, GiveUp
from penstock_normalizer.runs.pauses import Pauses
from penstock_normalizer.runs.ready_events import ReadyEvents
from penstock_normalizer.runs.rebuild import Rebuild
from penstock_normalizer.runs.run_index import RunIndex
from penstock_normalizer.runs.run_output import RunOutput

log = logging.getLogger(__name__)


class Run:
    """One run. `backlog` takes the run's frames; `work` folds them and publishes the events."""

    def __init__(
        self,
        bus: Bus,
        run_id: str,
        decoders: DecoderFor,
        max_frame_bytes: int,
        index: RunIndex,
        pauses: Pauses,
        budget: Budget,
        give_up: GiveUp,
        max_standing_s: float,
    ) -> None:
        self._run_id = run_id
        self._give_up = give_up
        self._new_fold = partial(RunFold, run_id, decoders, max_frame_bytes)
        self._output = RunOutput(bus, run_id, index, pauses)
        self._feeder = Feeder(run_id, self._output, give_up)
        self._ending = Ending(bus, run_id, self._output, index)
        self._rebuild = Rebuild(
            bus,
            run_id,
            self._new_fold,
            self._output,
            self._feeder,
            self._ending,
            index,
            pauses,
        )
        self._blocked = BlockedRun(max_standing_s)
        self._fold: RunFold | None = None  # None: rebuild it before the next frame
        self.backlog = Backlog(bus, run_id, budget)
        self.idle_since = time.monotonic()

    @property
    def has_ended(self) -> bool:
        """Whether the terminal event was made, so that only an epilogue can follow."""
        return self._fold is not None and self._fold.ended is not None

    async def work(self) -> None:
        """Fold and publish until cancelled. Only a cancellation ends this method.

        Each failure is logged, and the run is folded again. If a failure ended the task, the run
        would still take frames but publish nothing, and no log would say so.
        """
        try:
            while True:
                try:
                    await self._work()
                except Exception:
                    self._fold = None
                    delay_s = self._blocked.failed() or MAX_RETRY_S
                    log.exception(
                        "run %s: unexpected failure; it is tried again in %.0f s",
                        *(self._run_id, delay_s),
                    )
                    await asyncio.sleep(delay_s)
        finally:
            self._blocked.unblocked()

    async def _work(self) -> None:
        while True:
            if not self.backlog:
                self.idle_since = time.monotonic()
            first = await self.backlog.first()
            try:
                count = await self._advance()
            except Exception as error:
                self._fold = None
                if isinstance(error, BusError) and not isinstance(error, MessageTooLarge):
                    log.warning("run %s: it is folded again: %s", self._run_id, error)
                    await asyncio.sleep(fence.RETRY_S)
                else:
                    await self._wait_or_end(first, error)
                continue
            self.backlog.done(count)
            self._blocked.unblocked()

    async def _wait_or_end(self, stored: Stored, error: Exception) -> None:
        """Wait before a blocked run is tried again; end the run if the time limit has passed."""
        delay_s = self._blocked.failed()
        is_first = self._blocked.is_first_failure
        log.log(
            logging.ERROR if is_first else logging.WARNING,
            "run %s: it is blocked at RAW %d, and tried again in %.0f s: %r",
            *(self._run_id, stored.sequence, delay_s, error),
            exc_info=error if is_first else None,
        )
        if delay_s:
            await asyncio.sleep(delay_s)
            return
        await self._give_up(stored, error)
        text = f"the run cannot go on: {type(error).__name__}, see the dead letters"
        await self._end_blocked(stored, text)

    async def _end_blocked(self, stored: Stored, text: str) -> None:
        """Write the end of a blocked run if possible, and ignore all further frames of the run."""
        while True:
            self._fold = self._new_fold()
            self._fold.broken_off = True
            try:
                await self._ending.fail(self._fold, stored, text)
                return
            except BusError as error:
                if isinstance(error, MessageTooLarge):
                    log.exception("run %s: its end cannot be written", self._run_id)
                    return
                log.warning("run %s: its end is not written yet: %s", self._run_id, error)
                await asyncio.sleep(fence.RETRY_S)
            except Exception:
                log.exception("run %s: its end cannot be written", self._run_id)
                return

    async def _advance(self) -> int:
        """Fold a batch of waiting frames and publish their events; return the number of frames."""
        ready, count = ReadyEvents(), 0
        while (
            not ready.is_full
            and not ready.ends_in_request
            and (stored := self.backlog.after(count)) is not None
        ):
            if self._fold is not None and not self._feeder.follows(stored, self._fold):
                # The run's frames were in another partition for a while, so this fold lacks some
                # frames.
                await self._output.publish(self._fold, ready)
                self._fold = None
            count += 1
            try:
                frame = raw_frame(stored)
            except (KeyError, ValueError) as error:
                await self._give_up(stored, error)
                self._feeder.skip(stored)
                continue
            if stored is self.backlog.remnant:
                self._fold = await self._rebuild.after_deletion(frame)
            if self._fold is None:
                self._fold = await self._rebuild.before(frame)
            await self._feeder.feed(self._fold, frame, stored, ready)
        if self._fold is not None:
            await self._output.publish(self._fold, ready)
        return count
