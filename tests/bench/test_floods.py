"""Measure what floods cost: time, CPU and memory of each process before, at the peak, and after.

Every service is a process of its own, on one broker; the upstream and the readers are not counted.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from bench.peers.whole import upstream
from penstock.bus import Bus, BusSettings, Msg, streams, subjects
from support.real.cpu import cpu_s
from support.real.deployment import SERVICES, Deployment, deployment, frames
from support.real.nats import NatsServer
from support.real.processes import forget_peak, peak_rss_bytes, pid_of, rss_bytes

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
MIB = 1024 * 1024
WAIT_S = 200
ENDS = (b"\nevent: lifecycle.completed", b"\nevent: lifecycle.failed")
# the limit of a service that the flood does not reach; such a service takes about 70 MiB
REST_MIB = 110


@dataclass(frozen=True)
class Ceilings:
    """The most resident memory in MiB: at least 1.5 times the peaks in the README."""

    connector: int = REST_MIB
    normalizer: int = REST_MIB
    approvals: int = REST_MIB
    edge: int = REST_MIB
    nats: int = REST_MIB


LONG_RUN = Ceilings(connector=130, normalizer=190, edge=165, nats=500)
FRAME_OF_60_MIB = Ceilings(connector=310, normalizer=480, edge=700, nats=350)
FRAME_OVER_THE_LIMIT = Ceilings(connector=235, normalizer=305, edge=200, nats=380)
SMALL_PIECES = Ceilings(connector=125, edge=120)
STARTS = Ceilings(connector=145, normalizer=270, edge=120, nats=250)


@dataclass
class Watched:
    """The processes of a deployment and of its broker."""

    penstock: Deployment
    nats: NatsServer
    figures: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def pids(self) -> dict[str, int]:
        found = {service: pid_of(self.penstock.of(service)[0].process) for service in SERVICES}
        return {**found, "nats": self.nats.pid}

    @contextmanager
    def measured(self, what: str, events: int, ceilings: Ceilings) -> Iterator[None]:
        """Print what each process used in the body; fail if a process exceeded its ceiling."""
        before = {name: (cpu_s(pid), rss_bytes(pid)) for name, pid in self.pids.items()}
        for pid in self.pids.values():
            forget_peak(pid)
        begun = time.monotonic()
        yield
        wall_s = time.monotonic() - begun
        print(f"\n{what}: {wall_s:.1f} s, {events / wall_s:,.0f} events/s")
        print(f"  {'':10}  CPU s  CPU µs/event  RSS before    peak   after (MiB)")
        too_much = {}
        for name, pid in self.pids.items():
            cpu, rss = cpu_s(pid) - before[name][0], before[name][1]
            now, peak = rss_bytes(pid), peak_rss_bytes(pid)
            print(
                f"  {name:10} {cpu:6.1f} {cpu / events * 1e6:13.1f}"
                f" {rss / MIB:11.0f} {peak / MIB:7.0f} {now / MIB:7.0f}"
            )
            if peak > getattr(ceilings, name) * MIB:
                too_much[name] = f"{peak / MIB:.0f} MiB"
        assert not too_much, f"{what}: {too_much} is over {ceilings}"


@asynccontextmanager
async def flooded(
    nats: NatsServer, folder: Path, *agents: str, **settings: Any
) -> AsyncIterator[Watched]:
    """Run a deployment that has finished one run, so that all code is loaded."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(upstream(folder))
        penstock = await stack.enter_async_context(
            deployment(
                nats.url,
                folder,
                [{"id": id, "protocol": "agno", "url": url} for id in ("burst-10", *agents)],
                log_level="warning",
                **settings,
            )
        )
        await penstock.all(await penstock.run("burst-10", "warm up"))
        yield Watched(penstock, nats)


class Reader(asyncio.Protocol):
    """A client that counts the frames of a stream to its end, at a low cost."""

    def __init__(self, path: str, after: str | None) -> None:
        self._path = path
        self._after = after
        self.frames = 0
        self.bytes = 0
        self.tail = b""
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        after = f"Last-Event-ID: {self._after}\r\n" if self._after else ""
        request = f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\n{after}Connection: close\r\n"
        transport.write(f"{request}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self.frames += data.count(b"\nid: ")
        self.bytes += len(data)
        self.tail = (self.tail + data)[-600:]

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()


async def reader(
    penstock: Deployment, run_id: str, dialect: str = "canonical", after: str | None = None
) -> Reader:
    path = f"/v1/runs/{run_id}/events?dialect={dialect}"
    port = penstock.of("edge")[0].port
    _, made = await asyncio.get_running_loop().create_connection(
        partial(Reader, path, after), "127.0.0.1", port
    )
    return made


async def read_all(
    penstock: Deployment, run_id: str, dialect: str = "canonical", after: str | None = None
) -> Reader:
    made = await reader(penstock, run_id, dialect, after)
    async with asyncio.timeout(WAIT_S):
        await made.ended.wait()
    return made


async def latencies(penstock: Deployment, run_id: str) -> list[float]:
    """Return the milliseconds from the sending of each frame to its receipt."""
    found = []
    url = f"{penstock.edge()}/v1/runs/{run_id}/events"
    async with penstock.http.stream("GET", url) as answer:
        async for frame in frames(answer):
            if frame.event == "llm.stream":
                sent = frame.data.split(b'"content":')[1].lstrip(b' "')[:19]
                found.append((time.time_ns() - int(sent)) / 1e6)
    return found


def show(what: str, found: list[list[float]]) -> None:
    # The first frames of each run contain the time of the run's start.
    cuts = quantiles([latency for each in found for latency in each[5:]], n=100)
    print(f"  latency of {what}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms")


async def events_of(nats: NatsServer, run_id: str) -> int:
    """Return the number of the run's events in the stream."""
    bus = await Bus.connect(BusSettings(url=nats.url))
    try:
        found = await bus.api(
            f"STREAM.INFO.{streams.EVENTS}", {"subjects_filter": subjects.events_of_run(run_id)}
        )
        return sum(found["state"]["subjects"].values())
    finally:
        await bus.close()


async def test_a_run_of_100_000_events_and_its_late_readers(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """The upstream offers more than 10,000 frames/s; ten runs of 10 frames/s continue beside it."""
    count = 100_000
    async with flooded(fresh_nats, tmp_path, f"burst-{count}", "paced-100-10") as watched:
        penstock = watched.penstock
        quiet = [await penstock.run("paced-100-10", "quiet") for _ in range(10)]
        show("ten runs alone", await asyncio.gather(*(latencies(penstock, each) for each in quiet)))
        with watched.measured("a run of 100,000 events, read to its end", count, LONG_RUN):
            run_id = await penstock.run(f"burst-{count}", "flood")
            beside = [await penstock.run("paced-100-10", "beside") for _ in range(10)]
            reading = asyncio.create_task(read_all(penstock, run_id))
            found = await asyncio.gather(*(latencies(penstock, each) for each in beside))
            whole = await reading
        assert any(end in whole.tail for end in ENDS), whole.tail
        assert whole.frames == await events_of(fresh_nats, run_id) > count
        show("the ten runs beside it", found)
        with watched.measured("a late reader replays it from its start", count, LONG_RUN):
            assert (await read_all(penstock, run_id)).frames == whole.frames
        with watched.measured("a late reader in the agui dialect, from the start", count, LONG_RUN):
            agui = await read_all(penstock, run_id, dialect="agui")
        half = await reader(penstock, run_id, "agui")
        while half.frames < agui.frames / 2:
            await asyncio.sleep(0.001)
        cursor = half.tail.rpartition(b"\nid: ")[2].split(b"\n")[0].decode()
        with watched.measured(
            "a reader who resumes in its middle in the agui dialect", count, LONG_RUN
        ):
            rest = await read_all(penstock, run_id, dialect="agui", after=cursor)
        assert 0 < rest.frames < agui.frames
        with watched.measured("the last of its readers has been gone for 5 s", count, LONG_RUN):
            await asyncio.sleep(5)


async def test_frames_over_the_payload_limit(fresh_nats: NatsServer, tmp_path: Path) -> None:
    async with flooded(fresh_nats, tmp_path, "large-60", "large-70") as watched:
        penstock = watched.penstock
        with watched.measured("one frame of 60 MiB", 1, FRAME_OF_60_MIB):
            run_id = await penstock.run("large-60", "flood")
            whole = await read_all(penstock, run_id)
        assert ENDS[0] in whole.tail
        assert whole.bytes > 60 * MIB
        with watched.measured("one frame of 70 MiB: over the limit", 1, FRAME_OVER_THE_LIMIT):
            run_id = await penstock.run("large-70", "flood")
            refused = await read_all(penstock, run_id)
        assert ENDS[1] in refused.tail
        assert b'"code":"limit"' in refused.tail


@pytest.mark.parametrize("agent", ["bytes-1000", "comments-200000"])
async def test_many_small_pieces(fresh_nats: NatsServer, tmp_path: Path, agent: str) -> None:
    pieces = {"bytes-1000": 258_000, "comments-200000": 200_000}[agent]
    async with flooded(fresh_nats, tmp_path, agent) as watched:
        with watched.measured(f"{agent}: {pieces} chunks", pieces, SMALL_PIECES):
            run_id = await watched.penstock.run(agent, "flood")
            whole = await read_all(watched.penstock, run_id)
        assert ENDS[0] in whole.tail


async def start_runs(port: int, agent: str, count: int) -> None:
    """Start runs one after another on one connection, at a low cost."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"agent": agent, "message": "flood"}).encode()
    request = (
        b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    for _ in range(count):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 202 " in head, head
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
    writer.close()
    await writer.wait_closed()


async def test_5_000_starts_at_once(fresh_nats: NatsServer, tmp_path: Path) -> None:
    """The starts wait for the broker's disk; no start is lost, and all runs get their turn."""
    count, connections = 5000, 50
    async with flooded(fresh_nats, tmp_path, "paced-5-5", max_legs=500) as watched:
        bus = await Bus.connect(BusSettings(url=fresh_nats.url))
        ended, all_ended = 0, asyncio.Event()

        async def count_one(_: Msg) -> None:
            nonlocal ended
            ended += 1
            if ended == count:
                all_ended.set()

        await bus.subscribe("live.lifecycle.completed.*", count_one)
        port = watched.penstock.of("edge")[0].port
        with watched.measured("5,000 starts, 500 legs at once, each a second long", count, STARTS):
            begun = time.monotonic()
            each = count // connections
            starts = (start_runs(port, "paced-5-5", each) for _ in range(connections))
            await asyncio.gather(*starts)
            waiting = (await bus.api("STREAM.INFO.COMMANDS"))["state"]["messages"]
            print(
                f"  all were accepted after {time.monotonic() - begun:.1f} s: "
                f"{ended} had ended, {waiting} were waiting"
            )
            async with asyncio.timeout(WAIT_S):
                await all_ended.wait()
        await bus.close()
