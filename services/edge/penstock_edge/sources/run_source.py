"""Makes the source that a view reads: events or source frames of a run, or events of many runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.bus import Bus, Follow, Followed, Stored, subjects
from penstock.bus.messages import KIND
from penstock.bus.read.follow import events, raw
from penstock.bus.streams import raw_for
from penstock.bus.write.fence import tail
from penstock.events.catalogue import TERMINAL
from penstock_edge.sources.locate import StartPosition
from penstock_edge.views.items import type_of
from penstock_edge.views.view import (
    UPSTREAM,
    Deliver,
    ManyRuns,
    RunEvents,
    RunFrames,
    RunTree,
    Source,
    View,
)

# After the run's terminal event, the source waits at most this number of seconds for the end of the
# leg. A leg may stay open longer in two cases: the edge has ended the run because no connector
# cancelled it in time, or the agent server keeps its connection open after the run.
END_WAIT_S: Final = 5.0
END_CHECK_S: Final = 0.1  # seconds between two checks whether the leg has ended
# the kinds of frames with which a connector closes a leg
_CLOSING: Final = frozenset({"end", "lost", "event"})


def ignore_failure(error: BaseException) -> None:
    """Do nothing. A source has this function as `on_failure` if its delivery cannot fail."""


def source_of(bus: Bus, view: View, start: StartPosition, deliver: Deliver) -> Source:
    if start.erased:
        return ErasedRun(start.erased, deliver)
    match view.reads:
        case RunEvents():
            return EventsOfRun(bus, view.followed, start.start, deliver)
        case RunFrames(run_id):
            return FramesUntilEnd(bus, run_id, start.start, start.events_start, deliver)
        case ManyRuns(open_source):
            return open_source(deliver)
        case RunTree():
            return view.reads.open(start.start, deliver)


class TaskSource(Source):
    """A source with a task. An error that ends the task is a failure of the source: if it were not
    reported, clients would wait for ever for further messages, or for the end of the stream."""

    def __init__(self) -> None:
        self.on_failure = ignore_failure
        self._task: asyncio.Task[None] | None = None

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._on_task_ended)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            # the exception of a failed task refers to this source, and would keep it in memory
            self._task = None

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_failure(error)


class EventsOfRun(Source):
    """Delivers a run's canonical events."""

    def __init__(self, bus: Bus, followed: Followed, start: int, deliver: Deliver) -> None:
        self.on_failure = ignore_failure
        self._start = start
        self._patterns = (followed.pattern,)
        self._follow = Follow(bus, followed, start, deliver)

    async def start(self) -> int:
        await self._follow.start()
        return self._start

    def patterns(self) -> Collection[str]:
        return self._patterns

    async def stop(self) -> None:
        await self._follow.stop()


class ErasedRun(Source):
    """Delivers what clients get of a run whose content was erased."""

    def __init__(self, messages: Sequence[Stored], deliver: Deliver) -> None:
        self.on_failure = ignore_failure
        self._messages = messages
        self._deliver = deliver

    async def start(self) -> int:
        self._deliver([*self._messages])
        return self._messages[0].sequence

    def patterns(self) -> Collection[str]:
        return ()

    async def stop(self) -> None:
        """Do nothing: all was delivered at the start."""


class FramesUntilEnd(TaskSource):
    """Delivers a run's source frames, and after the last frame the run's terminal event.

    RAW does not show whether a run has ended, because a leg may also end with a pause. And an agent
    server may send frames after the frame that ended the run. So the terminal event comes after the
    leg's last frame, which the connector writes, or `END_WAIT_S` after the event was published.
    """

    def __init__(
        self, bus: Bus, run_id: str, raw_start: int, events_start: int, deliver: Deliver
    ) -> None:
        super().__init__()
        self._bus = bus
        self._run_id = run_id
        self._deliver = deliver
        self._start = raw_start
        self._at = raw_start - 1
        self._terminal: Stored | None = None
        self._frames = Follow(bus, raw(run_id, UPSTREAM), raw_start, self._on_frames)
        self._events = Follow(bus, events(run_id), events_start, self._on_events)

    async def start(self) -> int:
        await self._frames.start()
        await self._events.start()
        return self._start

    def patterns(self) -> Collection[str]:
        return (subjects.raw_stored(self._run_id, UPSTREAM),)

    async def stop(self) -> None:
        await self._frames.stop()
        await self._events.stop()
        self.cancel()

    def _on_frames(self, batch: list[Stored]) -> None:
        self._at = batch[-1].sequence
        self._deliver(batch)
        self._finish()

    def _on_events(self, batch: list[Stored]) -> None:
        ends = [stored for stored in batch if type_of(stored) in TERMINAL]
        if ends and self._task is None:
            self.begin(self._find_end(ends[0]))

    async def _find_end(self, event: Stored) -> None:
        last = await self._last_frame()
        # The source's other messages have sequences in RAW, but the terminal event has a sequence
        # in EVENTS. If the terminal event kept this sequence, the cursors of the client's stream
        # might decrease. So the terminal event gets the sequence after the last frame.
        end = max(last.sequence if last else 0, self._at) + 1
        self._terminal = replace(event, sequence=end)
        self._finish()

    async def _last_frame(self) -> Stored | None:
        """Wait for the end of an open leg, but at most `END_WAIT_S`."""
        stream, pattern = raw_for(self._run_id), subjects.raw_stored(self._run_id, UPSTREAM)
        until = asyncio.get_running_loop().time() + END_WAIT_S
        while True:
            last = await tail(self._bus, stream, pattern)
            is_open = last is not None and last.headers.get(KIND) not in _CLOSING
            if not is_open or asyncio.get_running_loop().time() >= until:
                return last
            await asyncio.sleep(END_CHECK_S)

    def _finish(self) -> None:
        terminal = self._terminal
        if terminal is not None and self._at >= terminal.sequence - 1:
            self._terminal = None
            self._deliver([terminal])
