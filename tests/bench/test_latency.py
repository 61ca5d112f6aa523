"""What Penstock adds to a stream's latency, against a plain httpx proxy in the same run."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import quantiles

import httpx
import pytest

from penstock.sse import Parser
from support.drive.figures import report
from support.real import servers
from support.real.cpu import cpu_s
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.real.ports import free_port

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
FRAMES, RATE = 60, 10.0  # of each run


@asynccontextmanager
async def script(name: str, folder: Path, *arguments: object) -> AsyncIterator[servers.Process]:
    process = servers.start(
        name,
        [sys.executable, str(HERE / name), *map(str, arguments)],
        log=folder / f"{name}.log",
        owner_pid=os.getpid(),
    )
    servers.await_log(process, "ready", 20)
    try:
        yield process
    finally:
        await asyncio.to_thread(process.stop)


async def read(answer: httpx.Response) -> list[float]:
    """Milliseconds from each frame's sending to its receipt."""
    parser, latencies = Parser(), []
    async for chunk in answer.aiter_bytes():
        now = time.time_ns()
        for frame in parser.feed(chunk):
            if frame.event in ("RunContent", "llm.stream"):
                sent = frame.data.split(b'"content":')[1].lstrip(b' "')[:19]
                latencies.append((now - int(sent)) / 1e6)
    return latencies


async def measure(clients: int, url: str, body: dict[str, str]) -> list[float]:
    headers = {"accept": "text/event-stream"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:

        async def one(number: int) -> list[float]:
            await asyncio.sleep(number / clients / RATE)  # spread over a frame's distance
            async with http.stream("POST", url, json=body, headers=headers) as answer:
                assert answer.status_code == 200, await answer.aread()
                return await read(answer)

        found = await asyncio.gather(*map(one, range(clients)))
    # the first frames of each hold the start of the run
    latencies = [latency for run in found for latency in run[5:]]
    assert len(latencies) == clients * (FRAMES - 5)
    return latencies


def p50_p99(latencies: list[float]) -> tuple[float, float]:
    cuts = quantiles(latencies, n=100)
    return cuts[49], cuts[98]


def cpu_of(penstock: Deployment, service: str) -> float:
    (instance,) = penstock.of(service)
    children = Path(f"/proc/{instance.process.popen.pid}/task").glob("*/children")
    return sum(cpu_s(int(pid)) for path in children for pid in path.read_text().split())


@pytest.mark.parametrize("clients", [10, 50, 100])
async def test_added_latency(fresh_nats: NatsServer, tmp_path: Path, clients: int) -> None:
    async with AsyncExitStack() as stack:
        port, proxy = free_port(), free_port()
        upstream = f"http://127.0.0.1:{port}"
        await stack.enter_async_context(script("streamer.py", tmp_path, port, FRAMES, RATE))
        await stack.enter_async_context(
            script("plain_proxy.py", tmp_path, proxy, f"{upstream}/agents/bench/runs")
        )
        agents = [{"id": "bench", "protocol": "agno", "url": upstream}]
        penstock = await stack.enter_async_context(
            deployment(fresh_nats.url, tmp_path, agents, log_level="warning")
        )
        body = {"agent": "bench", "message": "go"}
        peer = p50_p99(await measure(clients, f"http://127.0.0.1:{proxy}/", body))
        services = ("connector", "normalizer", "edge")
        before = {service: cpu_of(penstock, service) for service in services}
        ours = p50_p99(await measure(clients, f"{penstock.edge()}/v1/runs", body))
        frames = clients * (FRAMES + 3)
        cpu = {
            f"{service}_cpu_us_per_frame": (cpu_of(penstock, service) - before[service])
            / frames
            * 1e6
            for service in services
        }
    report(
        f"latency, {clients} runs of {RATE:g} frames/s",
        frames_per_s=clients * RATE,
        proxy_p50_ms=peer[0],
        proxy_p99_ms=peer[1],
        penstock_p50_ms=ours[0],
        penstock_p99_ms=ours[1],
        added_p50_ms=ours[0] - peer[0],
        added_p99_ms=ours[1] - peer[1],
        **cpu,
    )
