"""Decides when a run is worked on, and publishes the events of ordinary frames without a task.

Most frames are pieces of the agent server's response, and their events only need to be published.
One turn of the event loop folds the frames of all runs that have arrived together. Each
acknowledgement then causes the next step. A task for each run would take three more turns of the
event loop for each frame, and 2 KiB for each open run. Only work that needs more than one answer of
the bus is done by a task (`Run.work`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from penstock.bus import BusError, Stored
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.ready_events import ReadyEvents
from penstock_normalizer.runs.run import Run, Step
from penstock_normalizer.runs.run_events import BATCH_FROM


class RunPhase(Enum):
    """The state of the work on a run."""

    IDLE = auto()  # no frame waits
    READY = auto()  # frames wait for the next turn of the event loop
    PUBLISHING = auto()  # an event is sent and not acknowledged, and there is no task
    WORKING = auto()  # a task does the work
    CLOSED = auto()  # this process no longer works on the run


class ActiveRun:
    """Works on one run; `push` takes the run's frames, in the order of RAW.

    `on_idle` is called when no more frames wait.
    """

    __slots__ = ("_at", "_context", "_count", "_on_idle", "_ready", "_run", "_task", "phase")

    def __init__(
        self, context: RunContext, run_id: str, on_idle: Callable[[ActiveRun], None]
    ) -> None:
        self._context = context
        self._on_idle = on_idle
        self._run = Run(context, run_id)
        self._ready: ReadyEvents | None = None  # while PUBLISHING: the events of the folded frames
        self._at = 0  # while PUBLISHING: the index of the event that is sent
        self._count = 0  # while PUBLISHING: the number of the folded frames
        self._task: asyncio.Task[None] | None = None
        self.phase = RunPhase.IDLE

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @property
    def has_ended(self) -> bool:
        """Whether the terminal event was made, so that only an epilogue can follow."""
        return self._run.has_ended

    @property
    def done_up_to(self) -> int:
        """The position in RAW up to which all of the run's frames are done."""
        return self._run.backlog.done_up_to

    def push(self, stored: Stored) -> None:
        """Add the next frame; the work begins in the next turn of the event loop."""
        self._run.backlog.push(stored)
        if self.phase is RunPhase.IDLE:
            self.phase = RunPhase.READY
            self._context.loop.call_soon(self._turn)

    def close(self) -> asyncio.Task[None] | None:
        """Stop the work; return the task if it has not ended yet.

        An acknowledgement that comes later is ignored, so its frames count as not done.
        """
        self.phase = RunPhase.CLOSED
        self._run.close()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def drop(self) -> None:
        """Free the memory of the waiting frames."""
        self._run.backlog.drop()

    def _turn(self) -> None:
        """Fold the waiting frames, and publish their events."""
        if self.phase is RunPhase.READY:
            try:
                self._fold()
            except Exception as error:
                self._fail(error)

    def _fold(self) -> None:
        if len(self._run.backlog) >= BATCH_FROM:
            self._work()  # many frames wait: a task publishes their events in batches
            return
        ready = ReadyEvents()
        count, is_simple = self._run.fold_at_once(ready, BATCH_FROM)
        if not count:
            self._work()
        elif not is_simple:
            self._work(partial(self._run.complete, ready, count))
        elif len(ready.events) >= BATCH_FROM:
            self._work(partial(self._run.publish_rest, ready, 0, count, None))
        elif ready.events:
            self.phase = RunPhase.PUBLISHING
            self._ready, self._at, self._count = ready, 0, count
            self._publish()
        else:
            self._run.done(count)
            self._rest()

    def _publish(self) -> None:
        assert self._ready is not None
        if not self._run.post(self._ready, self._at, self._settled):
            self._publish_in_task(None)

    def _settled(self, outcome: int | BusError) -> None:
        """Handle the answer to the event that was sent, and send the next event."""
        if self.phase is not RunPhase.PUBLISHING:
            return
        try:
            if isinstance(outcome, int):
                self._acknowledged(outcome)
            else:
                self._publish_in_task(outcome)
        except Exception as error:
            self._fail(error)

    def _acknowledged(self, sequence: int) -> None:
        ready = self._ready
        assert ready is not None
        self._run.posted(ready, self._at, sequence)
        self._at += 1
        if self._at < len(ready.events):
            self._publish()
            return
        self._ready = None
        self._run.output.observe(ready)
        self._run.done(self._count)
        self._rest()

    def _publish_in_task(self, error: BusError | None) -> None:
        ready, self._ready = self._ready, None
        assert ready is not None
        self._work(partial(self._run.publish_rest, ready, self._at, self._count, error))

    def _rest(self) -> None:
        """Continue with the frames that have arrived meanwhile; if there are none, become idle."""
        if self.phase is RunPhase.CLOSED:
            return
        if self._run.backlog:
            self.phase = RunPhase.READY
            self._turn()
        else:
            self.phase = RunPhase.IDLE
            self._on_idle(self)

    def _work(self, first_step: Step | None = None) -> None:
        """Start a task that works until no frame waits."""
        self.phase = RunPhase.WORKING
        name = f"run {self.run_id}"
        self._task = self._context.loop.create_task(self._work_in_task(first_step), name=name)

    def _fail(self, error: Exception) -> None:
        """Start a task that logs an unexpected error and folds the run again.

        If the error ended here, the run would accept frames without publishing events, and no log
        would show it.
        """
        self._ready = None
        self._work(partial(_raise, error))

    async def _work_in_task(self, first_step: Step | None) -> None:
        await self._run.work(first_step)
        self._task = None
        self._rest()


async def _raise(error: Exception) -> int:
    raise error
