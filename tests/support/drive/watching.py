"""Clients that watch runs over SSE, and checks that no event is missing or late."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.drive.waiting import eventually
from support.real import servers
from support.real.deployment import Deployment, Event
from support.real.ports import free_port

_STREAMER = Path(__file__).parents[1] / "real" / "streamer.py"


@dataclass
class Watch:
    """One client of one run, from the first event to the last, on one connection."""

    run_id: str
    events: list[Event] = field(default_factory=list)
    stall_s: float = 0.0  # the longest time without an event

    async def follow(self, penstock: Deployment, edge: int) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        async for event in penstock.events(self.run_id, edge=edge):
            now = loop.time()
            self.stall_s, last = max(self.stall_s, now - last), now
            self.events.append(event)

    def check(self, frames: int) -> None:
        """Check that every event came once and in order, and that the run completed."""
        types = [event.type for event in self.events]
        assert [event.sequence for event in self.events] == [*range(1, len(types) + 1)]
        assert types[-1] == "lifecycle.completed", f"{types[-3:]} {self.events[-1].body}"
        # The streamer begins each text with the time at which it sent the text.
        sent = [str(event.data)[:60] for event in self.events if event.type == "llm.stream"]
        assert len(sent) == frames
        assert len(set(sent)) == frames
        assert sent == sorted(sent)


@dataclass
class Watches:
    """All clients of a test."""

    of: list[Watch]
    tasks: list[asyncio.Task[None]]

    async def under_way(self, events: int = 10) -> None:
        """Wait until each client has seen `events` events."""

        async def probe() -> bool:
            self._say_failures()
            return all(len(watch.events) >= events for watch in self.of)

        await eventually(probe, 30, f"{events} events of every run")

    @property
    def stall_s(self) -> float:
        """The longest time that any client had no event, in seconds."""
        return max(watch.stall_s for watch in self.of)

    def forget_stalls(self) -> None:
        """Measure the stalls anew from now on."""
        for watch in self.of:
            watch.stall_s = 0.0

    async def go_on(self, events: int = 20) -> None:
        """Wait until each client has seen `events` more events."""
        until = {watch.run_id: len(watch.events) + events for watch in self.of}

        async def probe() -> bool:
            self._say_failures()
            return all(len(watch.events) >= until[watch.run_id] for watch in self.of)

        await eventually(probe, 60, f"{events} more events of every run")

    async def end(self, frames: int, timeout_s: float = 60) -> float:
        """Wait until all streams have ended, and check each. Return the longest stall, in s."""
        _, left = await asyncio.wait(self.tasks, timeout=timeout_s)
        for task in left:
            task.cancel()
        self._say_failures()
        for watch in self.of:
            seen = [event.sequence for event in watch.events[-3:]]
            assert not left, f"{watch.run_id} has not ended; last seen: {seen}"
        for watch in self.of:
            watch.check(frames)
        return max(watch.stall_s for watch in self.of)

    def _say_failures(self) -> None:
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()


async def watched(penstock: Deployment, runs: int, agent: str = "streamer") -> Watches:
    """Start `runs` runs and watch each; the runs take turns among the edges."""
    edges = len(penstock.of("edge"))
    ids = [await penstock.run(agent, "go", edge=number % edges) for number in range(runs)]
    of = [Watch(run_id) for run_id in ids]
    return Watches(
        of,
        [
            asyncio.create_task(watch.follow(penstock, number % edges))
            for number, watch in enumerate(of)
        ],
    )


@asynccontextmanager
async def streamer(folder: Path, frames: int, rate: float) -> AsyncIterator[dict[str, Any]]:
    """Run an agent server whose runs have `frames` frames, `rate` a second.

    Yields its configuration.
    """
    port = free_port()
    process = servers.start(
        f"streamer {port}",
        [sys.executable, _STREAMER, str(port), str(frames), str(rate)],
        log=folder / f"streamer-{port}.log",
        owner_pid=os.getpid(),
    )
    servers.await_log(process, "ready", 20)
    try:
        yield {
            "protocol": "agno",
            "url": f"http://127.0.0.1:{port}",
            "timeout_s": 600,
        }
    finally:
        await asyncio.to_thread(process.stop)
