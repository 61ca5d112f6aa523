"""Measure what the normalizer alone costs for each source frame: saturated, and at a steady rate.

The frames of an Agno agent's runs are written to RAW as the connector writes them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import orjson
import uuid_utils

from bench.peers.penstock import broker, services
from bench.session import Session
from penstock.bus import Bus, BusSettings, RawWriter, streams
from support.drive.waiting import eventually
from support.fakes.raw import agno
from support.real.cpu import cpu_s
from support.real.processes import pid_of

NAME: Final = "normalizer"
LEAD: Final = "us_per_frame"
COMPARED: Final = ()
PLOT: Final = {"us_per_frame": "µs per frame"}
TABLE: Final = PLOT | {"frames_per_s": "frames/s"}
ABOUT: Final = {
    "saturated": "20,000 frames wait at its start",
    "500": "200 runs, 500 frames/s in all",
    "1000": "the same, 1,000 frames/s",
    "2000": "the same, 2,000 frames/s",
}
RUNS: Final = 200
FRAMES: Final = 100  # frames of each run
PACED_S: Final = 5.0
# name: frames a second of all runs together; None: all frames are stored before the start
WORKLOADS: Final = {"saturated": None, "500": 500, "1000": 1000, "2000": 2000}


class Load:
    """Runs that stream text, one frame in each message."""

    def __init__(self, bus: Bus) -> None:
        self._writers = [
            RawWriter(bus, str(uuid_utils.uuid7()), "upstream", f"bench/{n}") for n in range(RUNS)
        ]

    async def open(self) -> None:
        opened = orjson.dumps({"agent": "a", "protocol": "agno", "session_id": "s", "user_id": "u"})
        await asyncio.gather(*(w.write("open", opened, leg=1) for w in self._writers))
        first = agno("RunStarted")
        await asyncio.gather(*(w.write("bytes", first, leg=1) for w in self._writers))

    async def burst(self) -> None:
        async def run(writer: RawWriter) -> None:
            for number in range(FRAMES):
                await self._frame(writer, number)

        await asyncio.gather(*map(run, self._writers))

    async def paced(self, rate: int) -> int:
        """Write frames at this rate for PACED_S; return their number."""
        loop = asyncio.get_running_loop()
        begun, sent, tasks = loop.time(), 0, set()
        while (elapsed := loop.time() - begun) < PACED_S:
            while sent < elapsed * rate:
                task = asyncio.create_task(self._frame(self._writers[sent % RUNS], sent))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                sent += 1
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        return sent

    async def _frame(self, writer: RawWriter, number: int) -> None:
        content = f"word {number} of a sentence of about the usual length "
        await writer.write("bytes", agno("RunContent", content=content, pad="x" * 120), leg=1)


async def _stored(bus: Bus) -> int:
    answer = await bus.api(f"STREAM.INFO.{streams.EVENTS}")
    return int(answer["state"]["messages"])


async def run(session: Session) -> None:
    """Measure the selected workloads."""
    for _ in range(session.options.rounds):
        for name, rate in WORKLOADS.items():
            for system, python in session.codes().items() if session.wants(name) else ():
                folder = session.new_folder(system)
                async with broker(folder) as nats:
                    bus = await Bus.connect(BusSettings(url=nats.url))
                    load = Load(bus)
                    await load.open()
                    if rate is None:
                        await load.burst()
                    async with services(nats, folder, ["normalizer"], python) as penstock:
                        pid = pid_of(penstock.of("normalizer")[0].process)
                        figures = await _measured(bus, load, pid, rate)
                    await bus.close()
                session.add(NAME, name, system, **figures)


async def _measured(bus: Bus, load: Load, pid: int, rate: int | None) -> dict[str, float]:
    # The normalizer publishes an event for each frame, and `lifecycle.started` for each run.
    opened = RUNS * 2

    async def has(events: int) -> None:
        async def there() -> bool:
            return await _stored(bus) >= events

        await eventually(there, 120, f"{events} events")

    await has(1 if rate is None else opened)
    at, before, begun = await _stored(bus), cpu_s(pid), time.monotonic()
    wanted = opened + (RUNS * FRAMES if rate is None else await load.paced(rate))
    await has(wanted - RUNS)
    frames = await _stored(bus) - at
    wall_s, spent_s = time.monotonic() - begun, cpu_s(pid) - before
    return {"us_per_frame": spent_s * 1e6 / frames, "frames_per_s": frames / wall_s}
