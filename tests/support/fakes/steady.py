"""Runs whose source frames a test writes steadily in place of a connector.

```python
async with steady(bus, 20) as runs:
    ...  # kill, pause or move the normalizers
```

At the end of the block, each run is completed and checked: the sequence numbers are 1 to n, every
word comes once and in its place, and the run has one end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson

from penstock.bus import Bus, RawWriter, Stored, messages, streams, subjects
from penstock.bus.read import direct
from penstock.bus.shards import group_of
from penstock.bus.shards import new_run_id as make_run_id
from penstock.bus.state.leases import owner_of
from penstock.bus.write import fence
from penstock.events import TERMINAL
from support.drive.bus import new_run_id
from support.drive.waiting import eventually
from support.fakes.raw import agno


@dataclass
class SteadyRun:
    """One run. Each upstream frame is split in two messages, so that a lost message is noticed."""

    bus: Bus
    pause_s: float
    run_id: str = field(default_factory=new_run_id)
    said: list[str] = field(default_factory=list)
    ends: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self) -> None:
        """Write frames until `ends` is set; then write the run's end."""
        writer = RawWriter(self.bus, self.run_id, "upstream", f"pod/{self.run_id}")
        opened = {"agent": "a", "protocol": "agno", "session_id": self.run_id, "user_id": "u"}
        await writer.write("open", orjson.dumps(opened), leg=1)

        async def say(frame: bytes) -> None:
            middle = len(frame) // 2
            await writer.write("bytes", frame[:middle], leg=1)
            await writer.write("bytes", frame[middle:], leg=1)

        await say(agno("RunStarted"))
        while not self.ends.is_set():
            word = f"{len(self.said)} of {self.run_id[-6:]}"
            await say(agno("RunContent", content=word))
            self.said.append(word)
            await asyncio.sleep(self.pause_s)
        await say(agno("RunContentCompleted"))
        await say(agno("RunCompleted", content="".join(self.said)))
        await writer.write("end", b'{"outcome":"eof"}', leg=1)

    async def events(self) -> list[Stored]:
        """Return the run's published events."""
        stream, pattern = streams.events_for(self.run_id), subjects.events_of_run(self.run_id)
        return [stored async for stored in direct.replay(self.bus, stream, pattern)]

    async def check(self, timeout_s: float) -> None:
        """Wait for the run's end; check that no event is missing, repeated or out of order."""

        async def ended() -> bool:
            stream, pattern = streams.events_for(self.run_id), subjects.events_of_run(self.run_id)
            last = await fence.tail(self.bus, stream, pattern)
            return last is not None and last.headers["ce-type"] in TERMINAL

        await eventually(ended, timeout_s, f"the end of {self.run_id}")
        events = await self.events()
        bodies = [orjson.loads(event.payload) for event in events]
        numbers = [int(event.headers[messages.SEQUENCE]) for event in events]
        assert numbers == list(range(1, len(events) + 1)), self.run_id
        assert [body["sequence"] for body in bodies] == numbers
        said = [body["data"]["content"] for body in bodies if body["event"]["action"] == "stream"]
        assert said == self.said, self.run_id
        ends = [
            event.headers["ce-type"] for event in events if event.headers["ce-type"] in TERMINAL
        ]
        assert ends == ["lifecycle.completed"], self.run_id


@asynccontextmanager
async def steady(
    bus: Bus, count: int, pause_s: float = 0.1, timeout_s: float = 60, shards: int = 1
) -> AsyncIterator[list[SteadyRun]]:
    """Run `count` runs, distributed over the shards; check them at the end of the block."""
    ids = [make_run_id(number % shards, time.time()) for number in range(count)]
    runs = [SteadyRun(bus, pause_s, run_id) for run_id in ids]
    writing = asyncio.gather(*(run.write() for run in runs))
    try:
        yield runs
    except BaseException:
        writing.cancel()
        raise
    for run in runs:
        run.ends.set()
    await writing
    for run in runs:
        await run.check(timeout_s)


async def holders(bus: Bus, shard: int = 0) -> dict[int, str]:
    """Return the normalizer of each partition of a shard, according to the leases."""
    entries = await bus.bucket("leases").entries(f"{group_of(shard)}.part.*")
    return {int(entry.key.rpartition(".")[2]): owner_of(entry) for entry in entries}


async def moved_on(bus: Bus, runs: list[SteadyRun], since: float, timeout_s: float) -> float:
    """Wait until each run has an event from a frame after this call; return the seconds.

    The seconds are counted from `since`, which is a monotonic time.
    """
    before = {run.run_id: await _written(bus, run) for run in runs}
    for run in runs:

        async def has(run: SteadyRun = run) -> bool:
            stream, pattern = streams.events_for(run.run_id), subjects.events_of_run(run.run_id)
            last = await fence.tail(bus, stream, pattern)
            return last is not None and (
                int(last.headers[messages.RAW_POSITION]) > before[run.run_id]
            )

        await eventually(has, timeout_s, f"the next event of {run.run_id}")
    return time.monotonic() - since


async def _written(bus: Bus, run: SteadyRun) -> int:
    last = await fence.tail(bus, streams.raw_for(run.run_id), subjects.raw_of_run(run.run_id))
    return last.sequence if last is not None else 0
