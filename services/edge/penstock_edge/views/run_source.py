"""What a hub reads: a run's canonical events, or its source frames until the run is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

from penstock.bus import Bus, Follow, Followed, Stored, subjects
from penstock.bus.read.follow import events, raw
from penstock.bus.streams import RAW
from penstock.bus.write.fence import tail
from penstock.events.catalogue import TERMINAL
from penstock_edge.views.items import type_of

UPSTREAM = "upstream"

Deliver = Callable[[list[Stored]], None]


class Source(Protocol):
    """Delivers messages in order, each once, until it is stopped."""

    async def start(self) -> int:
        """Begin to deliver; returns the stream sequence from which on. Raises BusError."""
        ...

    def patterns(self) -> Collection[str]:
        """The stored subjects of what it delivers; once it has started, their past too."""
        ...

    async def keep(self, stored: Stored) -> bool:
        """Whether a message of the past, under these patterns, is one that it would deliver."""
        ...

    async def stop(self) -> None:
        """Deliver nothing more."""
        ...


class EventsOfRun:
    """A run's canonical events."""

    def __init__(self, bus: Bus, followed: Followed, start: int, deliver: Deliver) -> None:
        self._start = start
        self._patterns = (followed.pattern,)
        self._follow = Follow(bus, followed, start, deliver)

    async def start(self) -> int:
        """Begin to deliver. Raises BusError when it cannot."""
        await self._follow.start()
        return self._start

    def patterns(self) -> Collection[str]:
        """The run."""
        return self._patterns

    async def keep(self, stored: Stored) -> bool:
        """All of it."""
        return True

    async def stop(self) -> None:
        """Deliver nothing more."""
        await self._follow.stop()


class FramesUntilEnd:
    """A run's source frames, and after the last of them the run's terminal event.

    RAW does not know when a run is over: a leg that ends may be a pause. So the lifecycle is
    followed too; once it is terminal, the frames that stand in RAW by then are the last.
    """

    def __init__(
        self, bus: Bus, run_id: str, raw_start: int, events_start: int, deliver: Deliver
    ) -> None:
        self._bus = bus
        self._run_id = run_id
        self._deliver = deliver
        self._start = raw_start
        self._at = raw_start - 1
        self._terminal: Stored | None = None
        self._frames = Follow(bus, raw(run_id, UPSTREAM), raw_start, self._on_frames)
        self._events = Follow(bus, events(run_id), events_start, self._on_events)
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Begin to deliver. Raises BusError when it cannot."""
        await self._frames.start()
        await self._events.start()
        return self._start

    def patterns(self) -> Collection[str]:
        """The run's source frames."""
        return (subjects.raw_stored(self._run_id, UPSTREAM),)

    async def keep(self, stored: Stored) -> bool:
        """All of it."""
        return True

    async def stop(self) -> None:
        """Deliver nothing more."""
        await self._frames.stop()
        await self._events.stop()
        if self._ending:
            self._ending.cancel()
            self._ending = None  # what ended it holds its frame, which holds this

    def _on_frames(self, batch: list[Stored]) -> None:
        self._at = batch[-1].sequence
        self._deliver(batch)
        self._finish()

    def _on_events(self, batch: list[Stored]) -> None:
        ends = [stored for stored in batch if type_of(stored) in TERMINAL]
        if ends and self._ending is None:
            self._ending = asyncio.create_task(self._find_end(ends[0]))

    async def _find_end(self, event: Stored) -> None:
        last = await tail(self._bus, RAW, subjects.raw_stored(self._run_id, UPSTREAM))
        # one past the frames, so that sequences rise to the end
        end = max(last.sequence if last else 0, self._at) + 1
        self._terminal = replace(event, sequence=end)
        self._finish()

    def _finish(self) -> None:
        terminal = self._terminal
        if terminal is not None and self._at >= terminal.sequence - 1:
            self._terminal = None
            self._deliver([terminal])
