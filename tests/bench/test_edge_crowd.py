"""10,000 idle and 1,000 busy streams of one edge process: its memory, its CPU, and the events.

The edge, the clients and the broker are processes of their own; the test's process publishes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.bus import Bus, BusSettings
from support.drive.figures import report
from support.fakes.pretend import PretendRun
from support.real.cpu import cpu_s
from support.real.deployment import Instance, deployment
from support.real.nats import NatsServer
from support.real.processes import pid_of, rss_bytes

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

IDLE = 10_000
BUSY = 1_000
RATE = 2  # events a second of each busy run
IDLE_S = 30
BUSY_S = 20
ANSWER_S = 240
SILENCE_S = 5  # after this silence, no more events are expected


@dataclass
class Crowd:
    """The process of `crowd.py`, which holds the clients."""

    process: asyncio.subprocess.Process

    async def open(self, runs: list[PretendRun]) -> None:
        paths = [f"/v1/runs/{run.run_id}/events" for run in runs]
        answer = await self._ask(json.dumps({"paths": paths}))
        assert answer == {"open": len(runs)}

    async def measure(self) -> dict[str, Any]:
        return await self._ask("measure")

    async def heard(self, events: int) -> dict[str, Any]:
        """Return the figures when this many events have come, or when no more events come."""
        while (await self._ask("show"))["events"] < events:
            before = await self._ask("show")
            await asyncio.sleep(SILENCE_S)
            if (await self._ask("show"))["events"] == before["events"]:
                break
        return await self.measure()

    async def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line.encode() + b"\n")
        answer = await asyncio.wait_for(self.process.stdout.readline(), ANSWER_S)
        told: dict[str, Any] = json.loads(answer)
        return told


@asynccontextmanager
async def edge(url: str, folder: Path) -> AsyncIterator[Instance]:
    async with deployment(url, folder, [], {"edge": 1}) as penstock:
        [instance] = penstock.of("edge")
        yield instance


@asynccontextmanager
async def crowd(port: int) -> AsyncIterator[Crowd]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("crowd.py")),
        str(port),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Crowd(process)
    finally:
        process.kill()
        await process.wait()


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return rss_bytes(pid) / 1024**2


async def begin(bus: Bus, count: int) -> list[PretendRun]:
    """Make runs that have a record and have begun."""
    runs = [PretendRun(bus) for _ in range(count)]
    turns = asyncio.Semaphore(200)

    async def one(run: PretendRun) -> None:
        async with turns:
            await run.record()
            await run.started()

    await asyncio.gather(*(one(run) for run in runs))
    return runs


async def speak(runs: list[PretendRun], number: int) -> int:
    """Publish events of each run at RATE a second; the runs' events are spread evenly."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    words = "a piece of text as long as most are, in the language of the model"

    async def one(at: int, run: PretendRun) -> None:
        for said in range(number):
            due = begun + (said + at / len(runs)) / RATE
            await asyncio.sleep(max(0.0, due - loop.time()))
            await run.text(f"{words} @t={time.time_ns()}")

    await asyncio.gather(*(one(at, run) for at, run in enumerate(runs)))
    return number * len(runs)


async def idle(pid: int, clients: Crowd) -> tuple[float, float]:
    """Return the edge's share of a core, and the keep-alives of each stream in a minute."""
    await clients.measure()
    before, began = cpu_s(pid), time.monotonic()
    await asyncio.sleep(IDLE_S)
    share = (cpu_s(pid) - before) / (time.monotonic() - began)
    seen = await clients.measure()
    assert not seen["closed"]
    return share, seen["comments"] / IDLE * 60 / IDLE_S


# The limits are 1.5 times the figures of the edge's README.
@pytest.mark.parametrize(
    ("runs", "max_kib_per_idle_stream", "max_busy_mib"),
    [(10, 32, 525), (IDLE, 53, 725)],
    ids=["10 runs", "a run each"],
)
async def test_ten_thousand_idle_and_a_thousand_busy_streams(
    fresh_nats: NatsServer,
    tmp_path: Path,
    runs: int,
    max_kib_per_idle_stream: float,
    max_busy_mib: float,
) -> None:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    quiet, busy = await begin(bus, runs), await begin(bus, BUSY)
    async with edge(fresh_nats.url, tmp_path) as served, crowd(served.port) as clients:
        pid = pid_of(served.process)
        empty_mib = rss_mib(pid)
        before, began = cpu_s(pid), time.monotonic()
        broker_before = cpu_s(fresh_nats.pid)
        await clients.open([quiet[number % runs] for number in range(IDLE)])
        opened_s, opening_s = time.monotonic() - began, cpu_s(pid) - before
        broker = cpu_s(fresh_nats.pid) - broker_before
        idle_mib = rss_mib(pid)
        share, comments = await idle(pid, clients)
        await clients.open(busy)
        await clients.measure()
        before = cpu_s(pid)
        said = await speak(busy, BUSY_S * RATE)
        seen = await clients.heard(said)
        cpu = cpu_s(pid) - before
        busy_mib = rss_mib(pid)
    await bus.close()
    kib_per_idle_stream = (idle_mib - empty_mib) * 1024 / IDLE
    report(
        f"edge: {IDLE} idle streams of {runs} runs, {BUSY} busy ones of {RATE} events/s",
        empty_mib=empty_mib,
        kib_per_idle_stream=kib_per_idle_stream,
        idle_mib=idle_mib,
        busy_mib=busy_mib,
        opened_per_s=IDLE / opened_s,
        cpu_us_per_opened_stream=opening_s / IDLE * 1e6,
        broker_us_per_opened_stream=broker / IDLE * 1e6,
        idle_percent_of_a_core=share * 100,
        keep_alives_per_minute=comments,
        cpu_us_per_delivered_event=cpu / seen["events"] * 1e6,
        p50_ms=seen["p50_ms"],
        p99_ms=seen["p99_ms"],
        max_ms=seen["max_ms"],
    )
    assert seen["events"] == said
    assert (seen["gaps"], seen["repeats"], seen["closed"]) == (0, 0, 0)
    assert kib_per_idle_stream <= max_kib_per_idle_stream
    assert busy_mib <= max_busy_mib
