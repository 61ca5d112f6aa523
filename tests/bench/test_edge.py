"""What the edge costs: CPU per delivered event, of its process alone.

W1: one run with many clients. W2: many runs with one client each. The clients are bare sockets in
the test's own process, and count frames only.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.bus import Bus, BusSettings
from support.drive.figures import report
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun
from support.real.cpu import cpu_s
from support.real.nats import NatsServer
from support.real.ports import free_port

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

SECONDS = 4


@dataclass
class Edge:
    pid: int
    port: int


@asynccontextmanager
async def edge(url: str, folder: Path, **settings: Any) -> AsyncIterator[Edge]:
    """A process of its own; `settings` as `PENSTOCK_<NAME>`."""
    config, log = folder / "penstock.yaml", folder / "edge.log"
    config.write_text("agents: []\n")
    port, probe_port = free_port(), free_port()
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock_edge"),
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "PENSTOCK_CONFIG": str(config),
                "PENSTOCK_NATS_URL": url,
                "PENSTOCK_PORT": str(port),
                "PENSTOCK_PROBE_PORT": str(probe_port),
                "PENSTOCK_DRAIN_S": "0",
                **{f"PENSTOCK_{name.upper()}": str(value) for name, value in settings.items()},
            },
        )
    try:
        async with httpx.AsyncClient() as http:

            async def ready() -> bool:
                try:
                    answer = await http.get(f"http://127.0.0.1:{probe_port}/readyz")
                except httpx.HTTPError:
                    return False
                return answer.is_success

            await eventually(ready, 20, "the edge is ready")
        yield Edge(process.pid, port)
    finally:
        process.terminate()
        await process.wait()


class Reader(asyncio.Protocol):
    """A connection that counts the frames it gets."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.frames = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        path = f"/v1/runs/{self._run_id}/events"
        transport.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self.frames += data.count(b"\nevent: ")


async def readers(port: int, runs: list[PretendRun], clients: int) -> list[Reader]:
    loop = asyncio.get_running_loop()
    made: list[Reader] = []
    for number in range(clients):
        run = runs[number % len(runs)]
        _, reader = await loop.create_connection(partial(Reader, run.run_id), "127.0.0.1", port)
        made.append(reader)

    async def all_begun() -> bool:
        return all(reader.frames for reader in made)

    await eventually(all_begun, 60)
    return made


@pytest.mark.parametrize(
    ("name", "runs", "clients", "rate"),
    [("W1", 1, 500, 20), ("W2", 500, 500, 2), ("W2", 500, 500, 6)],
)
async def test_cpu_per_delivered_event(
    fresh_nats: NatsServer, tmp_path: Path, name: str, runs: int, clients: int, rate: int
) -> None:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    playing = [PretendRun(bus) for _ in range(runs)]
    for run in playing:
        await run.record()
        await run.started()
    async with edge(fresh_nats.url, tmp_path) as served:
        reading = await readers(served.port, playing, clients)
        seen = sum(reader.frames for reader in reading)
        before = cpu_s(served.pid)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(SECONDS * rate):
            await asyncio.sleep(max(0.0, begun + number / rate - loop.time()))
            async with asyncio.TaskGroup() as tasks:
                for run in playing:
                    tasks.create_task(run.text("a piece of text as long as most are " * 2))
        wall = loop.time() - begun

        async def all_there() -> bool:
            return all(reader.frames > SECONDS * rate for reader in reading)

        await eventually(all_there, 60)
        cpu = cpu_s(served.pid) - before
        delivered = sum(reader.frames for reader in reading) - seen
    await bus.close()
    report(
        f"edge, {name}: {runs} runs, {clients} clients, {rate} events/s a run",
        delivered_per_s=delivered / wall,
        cpu_us_per_delivered_event=cpu / delivered * 1e6,
    )
