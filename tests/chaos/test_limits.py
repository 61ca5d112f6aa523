"""Each service carries the load of the chart's sizes within the memory that the chart gives it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from helm.charts import committed
from support.drive.bus import make_streams
from support.drive.watching import streamer
from support.fakes.misbehaving import Answer, misbehaving
from support.fakes.raw import agno
from support.kube.chart import read
from support.kube.deployments import Controller
from support.kube.limits import MemoryLimits, memory_limits, peak_bytes
from support.kube.pods import Program
from support.real.cpu import cpu_s
from support.real.nats import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

LASTS_S = 30.0
_DATA, _END = b"\ndata: ", b'"action":"completed"'
FRAMES_A_RUN_PER_S = 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one pod of each service carries: its share of what the size is for."""

    streams: int
    frames_per_s: int


# usual: 3,000 streams on two edges. large: 40,000 streams on ten edges, 3,000 frames a second on
# three normalizers.
SIZES = {"small": Load(100, 20), "usual": Load(1500, 300), "large": Load(4000, 1000)}


class Streams:
    """Clients of one edge, which read and count what comes without parsing."""

    def __init__(self) -> None:
        self.open = 0
        self.events = 0
        self.broken: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def follow(self, port: int, run_id: str) -> None:
        """Follow a run until its end."""
        self._tasks.append(asyncio.create_task(self._follow(port, run_id)))

    async def _follow(self, port: int, run_id: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        writer.write(head.encode())
        try:
            status = await reader.readline()
            if b" 200 " not in status:
                self.broken.append(status.decode())
                return
            self.open += 1
            rest = b""
            while data := await reader.read(65536):
                data = rest + data
                self.events += data.count(_DATA)
                if _END in data:
                    return
                rest = data[1 - len(_DATA) :]  # too short for a whole `_DATA`
            self.broken.append(f"{run_id} ended early")
        finally:
            writer.close()

    async def ended(self) -> None:
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def installed(
    name: str, folder: Path, upstream_url: str = ""
) -> AsyncIterator[dict[str, Controller]]:
    """Run one pod of each service with the environment and the memory limits of a size.

    `upstream_url`: of an Agno server; without it, one that sends frames at a steady rate.
    """
    nats = NatsServer(folder / "nats", name=f"nats {name}")
    nats.start()
    made: dict[str, Controller] = {}
    async with AsyncExitStack() as stack:
        stack.callback(nats.remove)
        limits = stack.enter_context(memory_limits())
        if limits is None:
            print("no cgroups: the memory is measured, and not limited")
        await make_streams(nats.url)
        frames = int(LASTS_S * FRAMES_A_RUN_PER_S)
        agent: dict[str, Any] = {"protocol": "agno", "url": upstream_url, "timeout_s": 60}
        if not upstream_url:
            steady = streamer(folder, frames, FRAMES_A_RUN_PER_S)
            agent = await stack.enter_async_context(steady)
        config = folder / "penstock.yaml"
        config.write_text(yaml.safe_dump({"agents": [{"id": "agent", **agent}]}))
        settings = {
            **{"CONFIG": str(config), "NATS_URL": nats.url, "MAX_STREAMS_PER_USER": "0"},
            **{"MAX_OPEN_RUNS_PER_USER": "0", "MAX_QUEUED_RUNS_PER_USER": "0"},
            **{"MAX_CONNECTIONS_PER_USER": "0", "MAX_REQUESTS_PER_S": "0"},
        }
        environment = {f"PENSTOCK_{key}": value for key, value in settings.items()}
        http = await stack.enter_async_context(httpx.AsyncClient())
        for each in read(committed(name)).deployments:
            # One NATS server, and one shard: the pods of this test are the share of one.
            kept = {"PENSTOCK_REPLICAS": "1", "PENSTOCK_SHARDS": "1"}
            made[each.service] = controller = Controller(
                replace(
                    each,
                    replicas=1,
                    template=replace(
                        each.template, environment={**each.template.environment, **kept}
                    ),
                ),
                Program([sys.executable, "-m", f"penstock_{each.service}"], environment, limits),
                folder,
                http,
                None,
            )
            stack.push_async_callback(controller.stop)
        await asyncio.gather(*(each.scale_up() for each in made.values()))
        yield made


@pytest.fixture
def limits() -> Iterator[MemoryLimits]:
    with memory_limits() as made:
        if made is None:
            pytest.skip("this user may not make cgroups")
        yield made


async def test_a_process_that_takes_more_than_its_limit_is_killed(limits: MemoryLimits) -> None:
    command = [sys.executable, "-c", "len(bytearray(b'x') * 2**28)"]
    for limit_bytes, code in ((2**30, 0), (2**26, -signal.SIGKILL)):
        prefix = limits.prefix("greedy", limit_bytes)
        done = await asyncio.create_subprocess_exec(*prefix, *command)
        assert await done.wait() == code


@pytest.mark.parametrize("name", SIZES)
async def test_a_pod_carries_its_share_of_a_size_within_its_memory(
    name: str, tmp_path: Path
) -> None:
    load = SIZES[name]
    runs = round(load.frames_per_s / FRAMES_A_RUN_PER_S)
    async with installed(name, tmp_path) as services:
        pods = {service: each.pods[0] for service, each in services.items()}
        rest = {service: peak_bytes(pod.pids[-1]) for service, pod in pods.items()}
        before = {service: cpu_s(pod.pids[-1]) for service, pod in pods.items()}
        streams = Streams()
        began = asyncio.get_running_loop().time()
        port = pods["edge"].port
        async with httpx.AsyncClient(timeout=60) as http:
            started = asyncio.Semaphore(8)

            async def start(number: int) -> None:
                async with started:
                    body = {"agent": "agent", "message": "go", "session_id": f"s-{number}"}
                    answer = await http.post(f"http://127.0.0.1:{port}/v1/runs", json=body)
                assert answer.status_code == 202, answer.text
                for _ in range(load.streams * number // runs, load.streams * (number + 1) // runs):
                    streams.follow(port, answer.json()["run_id"])

            await asyncio.gather(*(start(number) for number in range(runs)))
            await streams.ended()
        took_s = asyncio.get_running_loop().time() - began
        peak = {service: peak_bytes(pod.pids[-1]) for service, pod in pods.items()}
        cpu = {service: cpu_s(pod.pids[-1]) - before[service] for service, pod in pods.items()}
        wrong = [text for pod in pods.values() for text in pod.wrong]
        limits = {service: each.deployment.template for service, each in services.items()}
    print(f"\n{name}: {streams.open} streams, {runs} runs, {streams.events / took_s:.0f} events/s")
    for service, bytes_ in peak.items():
        limit = limits[service].memory_bytes
        print(
            f"  {service}: {rest[service] >> 20} MiB at rest, {bytes_ >> 20} at most of "
            f"{limit >> 20}; {cpu[service] / took_s:.2f} cores"
        )
    assert wrong == []
    assert streams.broken == []
    assert streams.open == load.streams
    for service, bytes_ in peak.items():
        assert bytes_ < 0.8 * limits[service].memory_bytes, service


LARGE_RUNS = 3
MAX_FRAME_BYTES = 64 * 2**20  # the default of PENSTOCK_MAX_FRAME_BYTES


@pytest.mark.parametrize("name", SIZES)
async def test_the_largest_frames_are_carried_within_the_memory(name: str, tmp_path: Path) -> None:
    """Several runs have a frame of the largest size at once, and each has two clients."""
    size = 0

    async def answers(answer: Answer) -> None:
        await answer.head()
        await answer.send(agno("RunStarted"))
        await answer.send(agno("RunContent", content="x" * size))
        await answer.send(agno("RunCompleted", content="done"))
        await answer.end()

    async with misbehaving() as upstream:
        upstream.script(answers)
        async with installed(name, tmp_path, upstream.url) as services:
            given = services["connector"].deployment.template.environment
            size = int(given.get("PENSTOCK_MAX_FRAME_BYTES", MAX_FRAME_BYTES)) - 2**16
            port = services["edge"].pods[0].port
            streams = Streams()
            async with httpx.AsyncClient(timeout=60) as http:
                for _ in range(LARGE_RUNS):
                    body = {"agent": "agent", "message": "go"}
                    answer = await http.post(f"http://127.0.0.1:{port}/v1/runs", json=body)
                    for _ in range(2):
                        streams.follow(port, answer.json()["run_id"])
            await streams.ended()
            pods = [each.pods[0] for each in services.values()]
            wrong = [text for pod in pods for text in pod.wrong]
            most = {pod.name: peak_bytes(pod.pids[-1]) >> 20 for pod in pods}
            print(f"\n{name}: {LARGE_RUNS} frames of {size >> 20} MiB: {most}")
    assert wrong == []
    assert streams.broken == []
