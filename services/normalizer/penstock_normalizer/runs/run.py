"""Folds one run's frames in order, and publishes the run's events in order.

A frame is done when its events are in EVENTS. Two normalizers may fold the same frame: the
partition's new holder, and a normalizer that has lost the partition and has not noticed the loss
yet. Both normalizers make the same events, and the fence of EVENTS accepts each event once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.bus import RETRY_S, BusError, MessageTooLarge, Stored
from penstock.bus.messages import raw_frame
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.backlog import Backlog
from penstock_normalizer.runs.blocked import MAX_RETRY_S, BlockedRun
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.ending import Ending
from penstock_normalizer.runs.feeder import Feeder
from penstock_normalizer.runs.ready_events import ReadyEvents
from penstock_normalizer.runs.rebuild import Rebuild
from penstock_normalizer.runs.run_output import RunOutput

log = logging.getLogger(__name__)

# A step of a run's work; returns the number of frames in the backlog that the step has done.
Step = Callable[[], Awaitable[int]]

# The greatest size in bytes of a frame that is folded without a task. All events of a frame are in
# memory at the same time, and together they can be a hundred times as large as the frame.
QUICK_FRAME_BYTES = 16 * 1024


class Run:
    """Works on one run: `backlog` takes frames; `work` folds the frames and publishes the
    events."""

    __slots__ = ("_blocked", "_context", "_feeder", "_fold", "_run_id", "backlog", "output")

    def __init__(self, context: RunContext, run_id: str) -> None:
        self._context = context
        self._run_id = run_id
        self.output = RunOutput(context.bus, run_id, context.index, context.pauses)
        self._feeder = Feeder(run_id, self.output, context.give_up)
        self._blocked = BlockedRun(context.max_blocked_s)
        self._fold: RunFold | None = None  # None if the fold must be rebuilt before the next frame
        self.backlog = Backlog(context.bus, run_id, context.budget)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._run_id

    @property
    def has_ended(self) -> bool:
        """Whether the terminal event was made, so that only an epilogue can follow."""
        return self._fold is not None and self._fold.ended is not None

    def close(self) -> None:
        """Stop counting the run as blocked, because this process no longer works on the run."""
        self._blocked.unblocked()

    async def work(self, first_step: Step | None = None) -> None:
        """Fold frames and publish events until no frame waits, or until cancelled.

        `first_step` completes a step that began without a task. Each failure is logged, and the run
        is folded again. If a failure ended the task, the run would accept frames without publishing
        events, and no log would show it.
        """
        while True:
            try:
                await self._work(first_step or self._advance)
                return
            except Exception:
                first_step = None
                self._fold = None
                delay_s = self._blocked.failed() or MAX_RETRY_S
                log.exception(
                    "run %s: unexpected failure; it is tried again in %.0f s",
                    *(self._run_id, delay_s),
                )
                await asyncio.sleep(delay_s)

    async def _work(self, step: Step) -> None:
        while self.backlog:
            first = await self.backlog.first()
            try:
                count = await step()
            except Exception as error:
                self._fold = None
                if isinstance(error, BusError) and not isinstance(error, MessageTooLarge):
                    log.warning("run %s: it is folded again: %s", self._run_id, error)
                    await asyncio.sleep(RETRY_S)
                else:
                    await self._wait_or_end(first, error)
            else:
                self.done(count)
            step = self._advance

    def done(self, count: int) -> None:
        """Remove the first `count` frames, whose events are published."""
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
        await self._context.give_up(stored, error)
        text = f"the run cannot go on: {type(error).__name__}, see the dead letters"
        await self._end_blocked(stored, text)

    async def _end_blocked(self, stored: Stored, text: str) -> None:
        """Write the end of a blocked run if possible, and ignore all further frames of the run."""
        while True:
            self._fold = self._new_fold()
            self._fold.broken_off = True
            try:
                await self._ending().fail(self._fold, stored, text)
                return
            except BusError as error:
                if isinstance(error, MessageTooLarge):
                    log.exception("run %s: its end cannot be written", self._run_id)
                    return
                log.warning("run %s: its end is not written yet: %s", self._run_id, error)
                await asyncio.sleep(RETRY_S)
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
                # Another partition has read frames of the run for a while, so this fold does not
                # have these frames.
                await self.output.publish(self._fold, ready)
                self._fold = None
            count += 1
            try:
                frame = raw_frame(stored)
            except (KeyError, ValueError) as error:
                await self._context.give_up(stored, error)
                self._feeder.skip(stored)
                continue
            if stored is self.backlog.remnant:
                self._fold = await self._rebuild().after_deletion(frame)
            if self._fold is None:
                self._fold = await self._rebuild().before(frame)
            await self._feeder.feed(self._fold, frame, stored, ready)
        if self._fold is not None:
            await self.output.publish(self._fold, ready)
        return count

    def _new_fold(self) -> RunFold:
        return RunFold(self._run_id, self._context.decoders, self._context.max_frame_bytes)

    # `Ending` and `Rebuild` have no state. So they are made when needed, and an open run does not
    # keep them in memory.

    def _ending(self) -> Ending:
        return Ending(self._context.bus, self._run_id, self.output, self._context.index)

    def _rebuild(self) -> Rebuild:
        return Rebuild(
            self._context.bus,
            self._run_id,
            self._new_fold,
            self.output,
            self._feeder,
            self._ending(),
            self._context.index,
            self._context.pauses,
        )

    # The steps without a task, which never wait

    def fold_at_once(self, ready: ReadyEvents, limit: int) -> tuple[int, bool]:
        """Fold frames that need no read from the bus, until there are `limit` events or more.

        Returns the number of folded frames, and whether their events only need to be published. If
        the second value is False, the caller calls `complete` with the number and the events.
        `work` folds all frames that need a task: the frames of a run that has not begun, control
        frames, large frames, frames with published events, and frames that the fold cannot accept.
        """
        fold, backlog, count = self._fold, self.backlog, 0
        if fold is None or not self.output.events.first:
            return 0, True
        while len(ready.events) < limit and (stored := backlog.after(count)) is not None:
            if len(stored.payload) > QUICK_FRAME_BYTES or stored is backlog.remnant:
                break
            try:
                frame = raw_frame(stored)
            except (KeyError, ValueError):
                break
            if frame.kind != "bytes" or not self._feeder.follows(stored, fold):
                break
            if frame.sequence <= self.output.events.raw_position:
                break  # at least some of the frame's events were published before
            count += 1
            if not self._feeder.feed_at_once(fold, frame, stored, ready):
                return count, False
        return count, True

    def post(self, ready: ReadyEvents, at: int, settled: Callable[[int | BusError], None]) -> bool:
        """Publish one of the ready events without waiting; see `RunEvents.post`."""
        assert self._fold is not None
        return self.output.events.post(self._fold, ready.events[at], settled)

    def posted(self, ready: ReadyEvents, at: int, sequence: int) -> None:
        """Record that one of the ready events is stored, with this stream sequence."""
        assert self._fold is not None
        self.output.events.published(self._fold, ready.events[at : at + 1], sequence)

    async def complete(self, ready: ReadyEvents, count: int) -> int:
        """Complete the last of `count` folded frames, and publish the events of all these frames.

        Returns `count`. Raises the exceptions of `RunOutput.publish`.
        """
        assert self._fold is not None
        stored = self.backlog.after(count - 1)
        assert stored is not None
        await self._feeder.complete(self._fold, stored, ready)
        await self.output.publish(self._fold, ready)
        return count

    async def publish_rest(
        self, ready: ReadyEvents, at: int, count: int, error: BusError | None
    ) -> int:
        """Publish the events from the index `at` on; `error` is the failure of an earlier attempt,
        or None.

        Returns `count`, the number of the events' frames. Raises StaleFold and MessageTooLarge.
        """
        assert self._fold is not None
        await self.output.events.append(self._fold, ready.events[at:], error)
        self.output.observe(ready)
        return count
