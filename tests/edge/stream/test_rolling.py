"""Edges as processes: they are replaced one by one under load, or stopped while they work."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from penstock.bus import Bus, BusSettings
from support.drive.bus import make_streams
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun
from support.real.deployment import Deployment, Instance
from support.real.nats import NatsServer

CLIENTS = 200
RUNS = 20
GRACE_S = 3


@pytest.fixture
async def bus(fresh_nats: NatsServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    yield bus
    await bus.close()


@pytest.fixture
async def penstock(fresh_nats: NatsServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Run no service yet; each service that a test starts has `GRACE_S` to drain."""
    await make_streams(fresh_nats.url)  # an edge's user may not create streams
    config = tmp_path / "penstock.yaml"
    config.write_text("agents: []\n")
    environment = {"PENSTOCK_DRAIN_S": str(GRACE_S)}
    made = Deployment(tmp_path, config, fresh_nats.url, environment)
    yield made
    await made.stop()


@dataclass
class Follower:
    """A client that follows a run over any number of edges, as an EventSource does."""

    path: str
    told: list[int] = field(default_factory=list)
    ended_at: list[float] = field(default_factory=list)  # the ends of all its streams but the last
    asked_to_wait: int = 0
    last_id: str = ""

    async def follow(self, edges: list[int]) -> None:
        """Follow the run to its end; `edges` are the ports at which an edge may listen."""
        while True:
            # A load balancer also picks an edge at random.
            for port in random.sample(edges, len(edges)):
                if (answer := await self._stream(port)) is not None:
                    break
            else:
                await asyncio.sleep(0.1)
                continue
            if b"lifecycle.completed" in answer:
                return
            self.ended_at.append(time.monotonic())
            retries = re.findall(rb"^retry: (\d+)$", answer, re.MULTILINE)
            self.asked_to_wait += len(retries)
            await asyncio.sleep(int(retries[-1]) / 1000 if retries else 0.1)

    async def _stream(self, port: int) -> bytes | None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            return None
        try:
            place = f"Last-Event-ID: {self.last_id}\r\n" if self.last_id else ""
            writer.write(f"GET {self.path} HTTP/1.1\r\nHost: localhost\r\n{place}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                return None
            body = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                piece = (await reader.readexactly(size + 2))[:-2]
                body += piece
                # Each write of the edge ends with a frame, so a piece has whole frames.
                self.told += [int(each) for each in re.findall(rb'"sequence":(\d+)', piece)]
                for id in re.findall(rb"^id: (\S+)$", piece, re.MULTILINE):
                    self.last_id = id.decode()
            return body
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        finally:
            writer.close()


def terminate(instance: Instance) -> None:
    instance.process.popen.terminate()


async def exit_code(instance: Instance) -> int:
    return await asyncio.to_thread(instance.process.popen.wait, 30)


@pytest.mark.chaos
async def test_edges_are_replaced_one_after_another_and_no_client_misses_or_repeats_anything(
    penstock: Deployment, bus: Bus
) -> None:
    edges = [await penstock.start("edge"), await penstock.start("edge")]
    ports = [edge.port for edge in edges]
    runs = [PretendRun(bus) for _ in range(RUNS)]
    for run in runs:
        await run.record()
        await run.started()
    followers = [
        Follower(f"/v1/runs/{runs[number % RUNS].run_id}/events") for number in range(CLIENTS)
    ]
    over = asyncio.Event()

    async def speak(run: PretendRun) -> None:
        while not over.is_set():
            await run.text("a piece of text")
            await asyncio.sleep(0.25)
        await run.completed()

    windows = []
    async with asyncio.TaskGroup() as tasks:
        for follower in followers:
            tasks.create_task(follower.follow(ports))
        for run in runs:
            tasks.create_task(speak(run))

        async def all_begun() -> bool:
            return all(follower.told for follower in followers)

        await eventually(all_begun, 30)
        for edge in edges:
            began = time.monotonic()
            terminate(edge)
            assert await exit_code(edge) == 0
            windows.append((began, time.monotonic()))
            await penstock.start("edge", edge.port)
        over.set()
    for number, follower in enumerate(followers):
        assert follower.told == list(range(1, runs[number % RUNS].sequence + 1))
    # No stream was cut: each client was told how long to wait before it reconnects.
    assert sum(each.asked_to_wait for each in followers) == sum(
        len(each.ended_at) for each in followers
    )
    for began, ended in windows:
        left = [at - began for each in followers for at in each.ended_at if began <= at <= ended]
        assert len(left) > CLIENTS / 5
        assert max(left) - min(left) > GRACE_S / 4
        busiest = max(sum(low <= at < low + 0.1 for at in left) for low in left)
        assert busiest < len(left) / 2


async def test_a_signal_makes_it_not_ready_at_once_and_it_ends_by_itself(
    penstock: Deployment, bus: Bus
) -> None:
    edge = await penstock.start("edge")
    run = PretendRun(bus)
    await run.record()
    await run.started()
    async with penstock.http.stream("GET", f"{edge.url}/v1/runs/{run.run_id}/events") as answer:
        chunks = answer.aiter_bytes()
        await anext(chunks)
        terminate(edge)

        async def not_ready() -> httpx.Response | None:
            shown = await penstock.http.get(f"{edge.probes}/readyz")
            return shown if shown.status_code == 503 else None

        shown = await eventually(not_ready)
        assert shown.json()["ready"] is False
        assert "draining" in shown.json()["services"]["edge"][0]
        assert (await penstock.http.get(f"{edge.probes}/livez")).status_code == 200
        served = await penstock.http.get(f"{edge.url}/v1/runs/{run.run_id}")
        assert served.status_code == 200
        assert served.headers["connection"] == "close"
        refused = await penstock.http.get(f"{edge.url}/v1/runs/{run.run_id}/events")
        assert refused.status_code == 503
        assert refused.headers["connection"] == "close"
        assert "retry-after" in refused.headers
        last = b"".join([chunk async for chunk in chunks])
        assert re.fullmatch(rb"retry: \d+\n\n", last)
    assert await exit_code(edge) == 0


async def test_a_second_signal_ends_the_drain(
    fresh_nats: NatsServer, penstock: Deployment, bus: Bus
) -> None:
    penstock.environment = {"PENSTOCK_DRAIN_S": "600"}
    edge = await penstock.start("edge")
    run = PretendRun(bus)
    await run.record()
    await run.started()
    async with penstock.http.stream("GET", f"{edge.url}/v1/runs/{run.run_id}/events") as answer:
        await anext(answer.aiter_bytes())
        terminate(edge)

        async def draining() -> bool:
            return (await penstock.http.get(f"{edge.probes}/readyz")).status_code == 503

        await eventually(draining)
        assert edge.process.popen.poll() is None
        terminate(edge)
        assert await exit_code(edge) == 0


async def test_nobody_is_waited_for_where_nothing_is_open(penstock: Deployment) -> None:
    penstock.environment = {"PENSTOCK_DRAIN_S": "600"}
    edge = await penstock.start("edge")
    os.kill(edge.process.popen.pid, signal.SIGTERM)
    assert await exit_code(edge) == 0
