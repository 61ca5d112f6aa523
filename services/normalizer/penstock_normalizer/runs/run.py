"""Folds one run's frames in order, and publishes the run's events in order.

A frame is done when its events are in EVENTS. Two normalizers may fold the same frame: the
partition's new holder, and a normalizer that has lost the partition and has not noticed the loss
yet. Both normalizers make the same events, and the fence of EVENTS accepts each event once.

Most frames are pieces of the agent server's response, and their events only need to be published.
One turn of the event loop folds the frames of all runs that have arrived together. Each
acknowledgement then causes the next step. A task for each run would take three more turns of the
event loop for each frame, and 2 KiB for each open run. Only work that needs more than one answer of
the bus is done by a task (`Run._work`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from penstock import telemetry
from penstock.bus import RETRY_S, BusError, MessageTooLarge, Stored
from penstock.bus.errors import ContentErased
from penstock.bus.messages import raw_frame
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.backlog import Backlog
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.ending import Ending
from penstock_normalizer.runs.feeder import Feeder
from penstock_normalizer.runs.rebuild import Rebuild
from penstock_normalizer.runs.run_output import BATCH_FROM, ReadyEvents, RunOutput

log = logging.getLogger(__name__)

# A step of a run's work; returns the number of frames in the backlog that the step has done.
Step = Callable[[], Awaitable[int]]

# The greatest size in bytes of a frame that is folded without a task. All events of a frame are in
# memory at the same time, and together they can be a hundred times as large as the frame.
QUICK_FRAME_BYTES = 16 * 1024
# the seconds before a blocked run is tried again, and the greatest delay in seconds
BLOCKED_S, MAX_BLOCKED_S = 1.0, 30.0


class RunPhase(Enum):
    """The state of the work on a run."""

    IDLE = auto()  # no frame waits
    READY = auto()  # frames wait for the next turn of the event loop
    PUBLISHING = auto()  # an event is sent and not acknowledged, and there is no task
    WORKING = auto()  # a task does the work
    CLOSED = auto()  # this process no longer works on the run


class Blocked:
    """The failures of a run that something other than the bus blocks, for example a corrupt record.

    If the frame that failed were skipped, the run's events would have a gap. So the run is tried
    again, with growing delays, for `patience_s` seconds. A metric counts blocked runs.
    """

    __slots__ = ("_failures", "_until")

    def __init__(self, patience_s: float) -> None:
        self._until = time.monotonic() + patience_s
        self._failures = 0
        telemetry.RUNS_STANDING.inc()

    def count_failure(self) -> float:
        """Count a failure; return the seconds until the next try, or 0 after the time limit."""
        remaining_s = self._until - time.monotonic()
        delay_s = min(BLOCKED_S * 2.0 ** min(self._failures, 10), MAX_BLOCKED_S, remaining_s)
        self._failures += 1
        return max(0.0, delay_s)

    @property
    def is_first_failure(self) -> bool:
        return self._failures == 1


@dataclass(slots=True)
class Publishing:
    """The events of frames that were folded without a task, while they are sent one by one."""

    ready: ReadyEvents
    count: int  # the number of the folded frames
    at: int = 0  # the index of the event that is sent


class Run:
    """Works on one run; `push` takes the run's frames, in the order of RAW. `on_idle` is called
    when no more frames wait."""

    __slots__ = (
        "_blocked",
        "_context",
        "_feeder",
        "_fold",
        "_on_idle",
        "_publishing",
        "_task",
        "backlog",
        "output",
        "phase",
        "run_id",
    )

    def __init__(self, context: RunContext, run_id: str, on_idle: Callable[[Run], None]) -> None:
        self._context = context
        self._on_idle = on_idle
        self._fold: RunFold | None = None  # None if the fold must be rebuilt before the next frame
        self._blocked: Blocked | None = None
        self._publishing: Publishing | None = None  # only while PUBLISHING
        self._task: asyncio.Task[None] | None = None  # only while WORKING
        self.run_id = run_id
        self.output = RunOutput(context, run_id)
        self._feeder = Feeder(context, self.output)
        self.backlog = Backlog(context.bus, run_id, context.budget)
        self.phase = RunPhase.IDLE

    @property
    def has_ended(self) -> bool:
        return self._fold is not None and self._fold.ended is not None

    def push(self, stored: Stored) -> None:
        """Add the next frame; the work begins in the next turn of the event loop."""
        self.backlog.push(stored)
        if self.phase is RunPhase.IDLE:
            self.phase = RunPhase.READY
            self._context.loop.call_soon(self._turn)

    def close(self) -> asyncio.Task[None] | None:
        """Stop the work; return the task if it has not ended yet. An acknowledgement that comes
        later is ignored, so its frames count as not done."""
        self.phase = RunPhase.CLOSED
        self._unblock()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def _remove_done(self, count: int) -> None:
        self.backlog.done(count)
        self._unblock()

    def _unblock(self) -> None:
        if self._blocked is not None:
            self._blocked = None
            telemetry.RUNS_STANDING.dec()

    def _count_failure(self) -> float:
        """Count the run as blocked; return the seconds until the next try, 0 after the limit."""
        if self._blocked is None:
            self._blocked = Blocked(self._context.max_blocked_s)
        return self._blocked.count_failure()

    # The steps without a task, which never wait

    def _turn(self) -> None:
        if self.phase is RunPhase.READY:
            try:
                self._fold_waiting()
            except Exception as error:
                self._fail(error)

    def _fold_waiting(self) -> None:
        if len(self.backlog) >= BATCH_FROM:
            self._work()  # many frames wait: a task publishes their events in batches
            return
        ready = ReadyEvents()
        count, is_simple = self._fold_at_once(ready)
        if not count:
            self._work()
        elif not is_simple:
            self._work(partial(self._complete, ready, count))
        elif len(ready.events) >= BATCH_FROM:
            self._work(partial(self._publish_rest, Publishing(ready, count), None))
        elif ready.events:
            self.phase = RunPhase.PUBLISHING
            self._publishing = Publishing(ready, count)
            self._publish(self._publishing)
        else:
            self._remove_done(count)
            self._continue()

    def _fold_at_once(self, ready: ReadyEvents) -> tuple[int, bool]:
        """Fold frames that need no read from the bus, until there are `BATCH_FROM` events or more.

        Returns the number of folded frames, and whether their events only need to be published. If
        the second value is False, the caller calls `_complete` with the number and the events.
        `_advance` folds all frames that need a task: the frames of a run that has not begun,
        control frames, large frames, frames with published events, frames of a run with a checker,
        and frames that the fold cannot accept.
        """
        fold, backlog, count = self._fold, self.backlog, 0
        if fold is None or not self.output.first or fold.asks:
            return 0, True
        while len(ready.events) < BATCH_FROM and (stored := backlog.after(count)) is not None:
            if len(stored.payload) > QUICK_FRAME_BYTES or stored is backlog.remnant:
                break
            try:
                frame = raw_frame(stored)
            except (KeyError, ValueError):
                break
            if frame.kind != "bytes" or not self._feeder.follows(stored, fold):
                break
            if frame.sequence <= self.output.raw_position:
                break  # at least some of the frame's events were published before
            count += 1
            if not self._feeder.feed_at_once(fold, frame, stored, ready):
                return count, False
        return count, True

    def _publish(self, publishing: Publishing) -> None:
        fold = self._fold
        assert fold is not None
        events = publishing.ready.events
        # The outcome of the last event is needed when the run's next frame comes, which is after it
        # on the same connection.
        is_patient = publishing.at + 1 == len(events) and publishing.count == len(self.backlog)
        event = events[publishing.at]
        if not self.output.post(fold, event, self._settled, is_patient=is_patient):
            self._publish_in_task(publishing, None)

    def _settled(self, outcome: int | BusError) -> None:
        """Handle the answer to the event that was sent, and send the next event."""
        publishing = self._publishing
        if self.phase is not RunPhase.PUBLISHING or publishing is None:
            return
        try:
            if isinstance(outcome, int):
                self._acknowledged(publishing, outcome)
            else:
                self._publish_in_task(publishing, outcome)
        except Exception as error:
            self._fail(error)

    def _acknowledged(self, publishing: Publishing, sequence: int) -> None:
        fold, ready, at = self._fold, publishing.ready, publishing.at
        assert fold is not None
        self.output.published(fold, ready.events[at : at + 1], sequence)
        publishing.at = at + 1
        if publishing.at < len(ready.events):
            self._publish(publishing)
            return
        self._publishing = None
        self.output.observe(ready)
        self._remove_done(publishing.count)
        self._continue()

    def _publish_in_task(self, publishing: Publishing, error: BusError | None) -> None:
        self._publishing = None
        self._work(partial(self._publish_rest, publishing, error))

    def _continue(self) -> None:
        """Continue with the frames that have arrived meanwhile; if there are none, become idle."""
        if self.phase is RunPhase.CLOSED:
            return
        if self.backlog:
            self.phase = RunPhase.READY
            self._turn()
        else:
            self.phase = RunPhase.IDLE
            self._on_idle(self)

    def _work(self, first_step: Step | None = None) -> None:
        """Start a task that works until no frame waits; `first_step` completes a step without a
        task."""
        self.phase = RunPhase.WORKING
        name = f"run {self.run_id}"
        self._task = self._context.loop.create_task(self._work_in_task(first_step), name=name)

    def _fail(self, error: Exception) -> None:
        """Start a task that logs an unexpected error and folds the run again. If the error ended
        here, the run would accept frames without publishing events, and no log would show it."""
        self._publishing = None
        self._work(partial(_raise, error))

    # The steps of the task

    async def _work_in_task(self, step: Step | None) -> None:
        """Fold frames and publish events until no frame waits, or until cancelled.

        Each failure is logged, and the run is folded again. If a failure ended the task, the run
        would accept frames without publishing events, and no log would show it.
        """
        while True:
            try:
                await self._work_off(step or self._advance)
                break
            except Exception:
                step = self._fold = None
                delay_s = self._count_failure() or MAX_BLOCKED_S
                log.exception(
                    "run %s: unexpected failure; it is tried again in %.0f s",
                    self.run_id,
                    delay_s,
                )
                await asyncio.sleep(delay_s)
        self._task = None
        self._continue()

    async def _work_off(self, step: Step) -> None:
        while self.backlog:
            first = await self.backlog.first()
            try:
                count = await step()
            except Exception as error:
                self._fold = None
                if isinstance(error, BusError) and not isinstance(error, MessageTooLarge):
                    log.warning("run %s: it is folded again: %s", self.run_id, error)
                    await asyncio.sleep(RETRY_S)
                else:
                    await self._wait_or_end(first, error)
            else:
                self._remove_done(count)
            step = self._advance

    async def _wait_or_end(self, stored: Stored, error: Exception) -> None:
        """Wait before a blocked run is tried again; end the run if the time limit has passed."""
        delay_s = self._count_failure()
        is_first = self._blocked is not None and self._blocked.is_first_failure
        log.log(
            logging.ERROR if is_first else logging.WARNING,
            "run %s: it is blocked at RAW %d, and tried again in %.0f s: %r",
            self.run_id,
            stored.sequence,
            delay_s,
            error,
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
            self._fold = self._context.new_fold(self.run_id)
            self._fold.broken_off = True
            try:
                await Ending(self._context, self.output).fail(self._fold, stored, text)
                return
            except BusError as error:
                if isinstance(error, MessageTooLarge):
                    log.exception("run %s: its end cannot be written", self.run_id)
                    return
                log.warning("run %s: its end is not written yet: %s", self.run_id, error)
                await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("run %s: its end cannot be written", self.run_id)
                return

    async def _advance(self) -> int:
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
                if not isinstance(error, ContentErased):
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

    def _rebuild(self) -> Rebuild:
        # made when it is needed, so that an open run does not keep it in memory
        return Rebuild(self._context, self.output, self._feeder)

    async def _complete(self, ready: ReadyEvents, count: int) -> int:
        """Complete the last of `count` folded frames, and publish the events of all these
        frames."""
        assert self._fold is not None
        stored = self.backlog.after(count - 1)
        assert stored is not None
        await self._feeder.complete(self._fold, stored, ready)
        await self.output.publish(self._fold, ready)
        return count

    async def _publish_rest(self, publishing: Publishing, error: BusError | None) -> int:
        """Publish the events that are left; `error` is the failure of an earlier attempt, or
        None."""
        assert self._fold is not None
        await self.output.append(self._fold, publishing.ready.events[publishing.at :], error)
        self.output.observe(publishing.ready)
        return publishing.count


async def _raise(error: Exception) -> int:
    raise error
