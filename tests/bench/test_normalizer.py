"""What the normalizer costs: CPU per source frame at saturation, and at a paced rate.

The peer in the same run is the floor that the broker sets: the same messages read by our own pull
loop and published with a fence, without any decoding.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
import uuid_utils

from penstock.bus import Bus, BusSettings, Message, RawWriter, Reader, Stored, streams, subjects
from penstock.bus.write.fence import append
from support.drive.figures import report
from support.drive.waiting import eventually
from support.fakes.raw import agno
from support.real.cpu import cpu_s
from support.real.nats import NatsServer

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

RUNS = 200
FRAMES = 100


@asynccontextmanager
async def normalizer(url: str, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    config = folder / "penstock.yaml"
    config.write_text("agents: []\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "penstock_normalizer",
        env={
            **os.environ,
            "PENSTOCK_CONFIG": str(config),
            "PENSTOCK_NATS_URL": url,
            "PENSTOCK_PROBE_PORT": "0",
            "PENSTOCK_LOG_LEVEL": "warning",
        },
    )
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


class Load:
    """Runs of an Agno agent that streams text, one frame a message."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.writers = [
            RawWriter(bus, str(uuid_utils.uuid7()), "upstream", f"bench/{n}") for n in range(RUNS)
        ]

    async def open(self) -> None:
        opened = orjson.dumps({"agent": "a", "protocol": "agno", "session_id": "s", "user_id": "u"})
        await asyncio.gather(*(w.write("open", opened, leg=1) for w in self.writers))
        first = agno("RunStarted")
        await asyncio.gather(*(w.write("bytes", first, leg=1) for w in self.writers))

    async def frame(self, writer: RawWriter, number: int) -> None:
        content = f"word {number} of a sentence of about the usual length "
        await writer.write("bytes", agno("RunContent", content=content, pad="x" * 120), leg=1)

    async def burst(self) -> None:
        async def run(writer: RawWriter) -> None:
            for number in range(FRAMES):
                await self.frame(writer, number)

        await asyncio.gather(*map(run, self.writers))

    async def paced(self, rate: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        begun, sent, tasks = loop.time(), 0, set()
        while (elapsed := loop.time() - begun) < seconds:
            while sent < elapsed * rate:
                writer = self.writers[sent % RUNS]
                task = asyncio.create_task(self.frame(writer, sent))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                sent += 1
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)


async def stored(bus: Bus, stream: str) -> int:
    answer = await bus.api(f"STREAM.INFO.{stream}")
    return int(answer["state"]["messages"])


async def test_cpu_per_frame_at_saturation(fresh_nats: NatsServer, tmp_path: Path) -> None:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    load = Load(bus)
    await load.open()
    await load.burst()
    frames = RUNS * (FRAMES + 2)
    async with normalizer(fresh_nats.url, tmp_path) as process:
        await eventually(lambda: stored(bus, streams.EVENTS), 30)
        before, begun = cpu_s(process.pid), time.monotonic()
        at = await stored(bus, streams.EVENTS)
        wanted = RUNS * (FRAMES + 3)

        async def done() -> bool:
            return await stored(bus, streams.EVENTS) >= wanted

        await eventually(done, 120)
        wall, cpu = time.monotonic() - begun, cpu_s(process.pid) - before
    done_frames = frames * (wanted - at) / wanted
    floor = await floor_us(bus, frames)
    await bus.close()
    report(
        "normalizer, saturated",
        frames_per_s=done_frames / wall,
        cpu_us_per_frame=cpu / done_frames * 1e6,
        floor_cpu_us_per_frame=floor,
        ratio_to_floor=cpu / done_frames * 1e6 / floor,
    )


@pytest.mark.parametrize("rate", [500, 1000, 2000])
async def test_cpu_per_frame_paced(fresh_nats: NatsServer, tmp_path: Path, rate: int) -> None:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    async with normalizer(fresh_nats.url, tmp_path) as process:
        load = Load(bus)
        await load.open()

        async def opened() -> bool:
            return await stored(bus, streams.EVENTS) >= RUNS * 2

        await eventually(opened, 30)
        raw = await stored(bus, streams.RAW)
        before = cpu_s(process.pid)
        await load.paced(rate, 8)
        cpu = cpu_s(process.pid) - before
        frames = await stored(bus, streams.RAW) - raw
    await bus.close()
    report(
        f"normalizer, {rate} frames/s",
        frames_per_s=frames / 8,
        cpu_us_per_frame=cpu / frames * 1e6,
    )


async def floor_us(bus: Bus, frames: int) -> float:
    """CPU of reading as many messages and publishing each with a fence, in this process."""
    last: dict[str, int] = {}
    tasks: dict[str, asyncio.Task[None]] = {}
    queues: dict[str, asyncio.Queue[bytes]] = {}
    seen = 0
    done = asyncio.Event()

    async def work(run_id: str) -> None:
        nonlocal seen
        while True:
            payload = await queues[run_id].get()
            message = Message(subjects.event("custom.event", run_id), payload, {"n": "1"})
            last[run_id] = await append(
                bus, subjects.events_of_run(run_id), [message], last.get(run_id, 0)
            )
            seen += 1
            if seen >= frames:
                done.set()

    async def take(stored: Stored) -> None:
        run_id = subjects.run_id_of(stored.subject)
        if run_id not in tasks:
            tail = await bus.tail(streams.EVENTS, subjects.events_of_run(run_id))
            last[run_id] = tail.sequence if tail else 0
            queues[run_id] = asyncio.Queue()
            tasks[run_id] = asyncio.create_task(work(run_id))
        queues[run_id].put_nowait(stored.payload)

    before = cpu_s(os.getpid())
    reader = asyncio.create_task(Reader(bus, streams.RAW, "rawp.>", 1, take).run())
    await asyncio.wait_for(done.wait(), 120)
    cpu = cpu_s(os.getpid()) - before
    for task in [reader, *tasks.values()]:
        task.cancel()
    await asyncio.wait([reader, *tasks.values()])
    return cpu / frames * 1e6
