"""Memory, open files and threads stay flat under a steady load of PENSTOCK_SOAK_S (1200) seconds.

20 runs at a time give about 250 frames/s, and every other run waits for an approval. Clients leave
in the middle of a run and resume at their cursor. The broker keeps frames and events for a fifth of
the time, so that its memory for them is steady, too. The plot goes to PENSTOCK_SOAK_PLOT, by
default soak.svg in this folder.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression

import pytest

from bench.peers.whole import upstream
from penstock.bus import Bus, BusSettings
from support.drive.plot import charts
from support.real.cpu import cpu_s
from support.real.deployment import SERVICES, Deployment, deployment
from support.real.nats import NatsServer
from support.real.processes import open_files, pid_of, rss_bytes, threads

SOAK_S = float(os.environ.get("PENSTOCK_SOAK_S", "1200"))
HERE = Path(__file__).parent
PLOT = Path(os.environ.get("PENSTOCK_SOAK_PLOT", str(HERE / "soak.svg")))
pytestmark = [pytest.mark.bench, pytest.mark.timeout(SOAK_S + 300)]

SAMPLE_S = 5.0
RUNS = 20  # concurrent runs
AGENTS = ("paced-100-15", "approval-100-15")
DIALECTS = ("executions", "unified", "agui", "agno")
MIB = 1024 * 1024

# The most growth over the last two thirds, in MiB: the room that the allocator keeps after a busy
# moment. Over 20 minutes it is 4 KiB a run, or 40 bytes an event, which is less than any leak.
GROWTH_MIB = 8.0
# The most growth of the broker: its keys in the buckets stay, about ten for each run, and it keeps
# an index of them in memory.
BROKER_KIB_PER_RUN = 64.0


@dataclass
class Samples:
    """The figures of one process by time, in seconds since the start."""

    rss_mib: list[tuple[float, float]] = field(default_factory=list)
    open_files: list[tuple[float, float]] = field(default_factory=list)
    threads: list[tuple[float, float]] = field(default_factory=list)

    def take(self, at: float, pid: int) -> None:
        self.rss_mib.append((at, rss_bytes(pid) / MIB))
        self.open_files.append((at, open_files(pid)))
        self.threads.append((at, threads(pid)))


def growth(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the growth of the line of best fit over the last two thirds, and their seconds."""
    late = points[len(points) // 3 :]
    span_s = late[-1][0] - late[0][0]
    return linear_regression(*zip(*late, strict=True)).slope * span_s, span_s


@dataclass
class Load:
    """Clients that start, read and decide runs and check what they get."""

    penstock: Deployment
    until: float
    runs: int = 0
    events: int = 0
    returns: int = 0

    async def work(self) -> None:
        """Start one run after another; two clients read each run."""
        await asyncio.sleep(random.uniform(0, 5))
        while time.monotonic() < self.until:
            run_id = await self.penstock.run(random.choice(AGENTS), "soak")
            await asyncio.gather(self.follow(run_id), self.glance(run_id, random.choice(DIALECTS)))
            self.runs += 1

    async def follow(self, run_id: str) -> None:
        """Read a run to its end, with breaks and resumes, and decide its approvals."""
        sequences: list[int] = []
        cursor, last = None, ""
        while not last.startswith("lifecycle.") or last.endswith(("started", "paused", "resumed")):
            left = random.randint(10, 120)
            async for event in self.penstock.events(run_id, after=cursor):
                cursor, last = event.id, event.type or ""
                sequences.append(event.sequence)
                left -= 1
                if last == "approval.requested":
                    answer = await self.penstock.decide(event.data["approval_id"], "approve")
                    assert answer.is_success, answer.text
                elif not left:
                    self.returns += 1
                    break
        assert last == "lifecycle.completed", last
        assert sequences == [*range(1, len(sequences) + 1)]
        self.events += len(sequences)

    async def glance(self, run_id: str, dialect: str) -> None:
        """Read a part of the stream, then leave."""
        left = random.randint(1, 100)
        url = f"{self.penstock.edge()}/v1/runs/{run_id}/events"
        async with self.penstock.http.stream("GET", url, params={"dialect": dialect}) as answer:
            async for _ in answer.aiter_lines():
                left -= 1
                if not left:
                    return


async def sizes(bus: Bus) -> dict[str, tuple[int, float]]:
    """Return the messages and MiB of each stream and bucket that is not empty."""
    found = (await bus.api("STREAM.LIST"))["streams"]
    states = {stream["config"]["name"]: stream["state"] for stream in found}
    return {
        name: (state["messages"], state["bytes"] / MIB)
        for name, state in states.items()
        if state["messages"]
    }


async def test_a_steady_load_takes_no_more_of_anything_with_time(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(upstream(tmp_path))
        agents = [{"id": id, "protocol": "agno", "url": url} for id in AGENTS]
        kept_s = SOAK_S / 5
        penstock = await stack.enter_async_context(
            deployment(
                fresh_nats.url,
                tmp_path,
                agents,
                log_level="warning",
                keep=f"raw={kept_s:.0f}s,events={kept_s:.0f}s",
                run_idle_s=min(60.0, SOAK_S / 10),
            )
        )
        bus = await Bus.connect(BusSettings(url=fresh_nats.url))
        stack.push_async_callback(bus.close)
        pids = {service: pid_of(penstock.of(service)[0].process) for service in SERVICES}
        pids["nats"] = fresh_nats.pid
        cpu = {name: cpu_s(pid) for name, pid in pids.items()}
        samples = {name: Samples() for name in pids}
        stored: dict[str, list[tuple[float, float]]] = {}
        begun = time.monotonic()
        load = Load(penstock, begun + SOAK_S)
        working = asyncio.gather(*(load.work() for _ in range(RUNS)))
        while not working.done():
            await asyncio.wait([working], timeout=SAMPLE_S)
            at = time.monotonic() - begun
            if at < SOAK_S:  # after this, the load has ended
                for name, pid in pids.items():
                    samples[name].take(at, pid)
                for name, (_, mib) in (await sizes(bus)).items():
                    stored.setdefault(name, []).append((at, mib))
        await working
        wall_s = time.monotonic() - begun
        spent = {name: cpu_s(pid) - cpu[name] for name, pid in pids.items()}
        left = await sizes(bus)

    PLOT.write_text(
        charts(
            {
                "resident memory, MiB": lines(samples, lambda each: each.rss_mib),
                "open files": lines(samples, lambda each: each.open_files),
                "threads": lines(samples, lambda each: each.threads),
                "stored by the broker, MiB": stored,
            },
            f"seconds; {load.runs} runs, {load.events} events, {load.returns} returns of clients",
        )
    )
    print(
        f"\n{wall_s:.0f} s: {load.runs} runs, {load.events} events ({load.events / wall_s:.0f}/s), "
        f"{load.returns} clients came back"
    )
    print(f"  {'':10}  CPU µs/event   RSS MiB: first  third    last  growth/h   files  threads")
    for name, each in samples.items():
        rss, span_s = growth(each.rss_mib)
        third = each.rss_mib[len(each.rss_mib) // 3][1]
        print(
            f"  {name:10} {spent[name] / load.events * 1e6:13.0f} {each.rss_mib[0][1]:16.1f}"
            f" {third:6.1f} {each.rss_mib[-1][1]:7.1f} {rss / span_s * 3600:9.1f}"
            f" {each.open_files[-1][1]:7.0f} {each.threads[-1][1]:8.0f}"
        )
    for name, (count, mib) in left.items():
        print(f"  {name:20} {count:8} messages {mib:8.1f} MiB")

    assert load.events > 100 * SOAK_S  # the load was large enough for a result
    for name, each in samples.items():
        rss, span_s = growth(each.rss_mib)
        allowed = GROWTH_MIB
        if name == "nats":
            allowed += load.runs * BROKER_KIB_PER_RUN / 1024
        assert rss < allowed, f"{name}: {rss:.1f} MiB more in {span_s:.0f} s"
        assert growth(each.open_files)[0] < 10, f"{name} keeps files open"
        assert growth(each.threads)[0] < 1, f"{name} makes threads"


def lines(
    samples: dict[str, Samples], of: Callable[[Samples], list[tuple[float, float]]]
) -> dict[str, list[tuple[float, float]]]:
    return {name: of(each) for name, each in samples.items()}
