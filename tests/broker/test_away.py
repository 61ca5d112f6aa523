"""The broker goes away and comes back: with its data, without them, and with them after all."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx
import pytest
import pytest_asyncio

from penstock.bus import Bus, BusSettings
from support.cutter import Gate
from support.deployment import Deployment, Instance, deployment
from support.misbehaving import Answer, Misbehaving, misbehaving
from support.nats import NatsServer
from support.raw import agno
from support.report import report
from support.waiting import eventually
from support.watching import Watches, streamer, watched

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

RUNS, RATE, FRAMES = 6, 20.0, 120
POD_TTL_S = 4.0
LATER_S = 0.5  # one connector finds back later than the other
FLOOD_FRAMES, FLOOD_FRAME_BYTES = 600, 50_000  # more than sockets hold: 30 MB


@dataclass
class Single:
    """Services over one server: two connectors, of all others one.

    The second connector is behind the gate.
    """

    nats: NatsServer
    gate: Gate
    penstock: Deployment
    flood: Misbehaving

    async def reasons(self, instance: Instance) -> str:
        """What /readyz says: nothing while it is ready."""
        answer = await self.penstock.http.get(f"{instance.probes}/readyz")
        (reasons,) = answer.json()["services"].values()
        assert (answer.status_code == 200) is (not reasons)
        return "; ".join(reasons)

    async def all_ready(self) -> None:
        async def probe() -> bool:
            return not any([await self.reasons(each) for each in self.penstock.instances])

        await eventually(probe, 20, "all services are ready")

    async def none_ready(self, because: str) -> None:
        async def probe() -> bool:
            reasons = [await self.reasons(each) for each in self.penstock.instances]
            return all(because in reason for reason in reasons)

        await eventually(probe, 20, f"no service is ready: {because}")

    def none_has_ended(self) -> None:
        for instance in self.penstock.instances:
            assert instance.process.popen.poll() is None, instance.service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def single(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Single]:
    folder = tmp_path_factory.mktemp("single")
    nats = NatsServer(folder / "nats", name="nats away")
    async with AsyncExitStack() as stack:
        stack.callback(nats.remove)
        nats.start()
        gate = Gate(nats.port)
        await gate.serve()
        stack.push_async_callback(gate.close)
        flood = await stack.enter_async_context(misbehaving())
        short = await stack.enter_async_context(streamer(folder, FRAMES, RATE))
        agents = [
            {"id": "streamer", **short},
            {"id": "flood", "protocol": "agno", "url": flood.url},
        ]
        penstock = await stack.enter_async_context(
            deployment(
                nats.url,
                folder,
                agents,
                count=0,
                pod_ttl_s=POD_TTL_S,
                pod_renew_s=0.5,
                reap_s=0.5,
                keep_alive_s=1,
                max_buffered_bytes=256 * 1024,
            )
        )
        for service in ("normalizer", "approvals", "connector", "edge"):
            await penstock.start(service)
        penstock.nats_url = f"nats://127.0.0.1:{gate.port}"
        await penstock.start("connector")
        penstock.nats_url = nats.url
        yield Single(nats, gate, penstock, flood)


async def started(single: Single) -> Watches:
    watches = await watched(single.penstock, RUNS)
    await watches.under_way()
    return watches


@dataclass
class Listener:
    """A client that notes when the edge says that the stream lives."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    heard: list[float] = field(default_factory=list)

    async def listen(self, penstock: Deployment, run_id: str) -> None:
        url = f"{penstock.edge()}/v1/runs/{run_id}/events"
        async with penstock.http.stream("GET", url) as answer:
            async for line in answer.aiter_lines():
                self.opened.set()
                if line.startswith(":"):
                    self.heard.append(asyncio.get_running_loop().time())


@pytest.mark.parametrize("away_s", [6, pytest.param(60, marks=pytest.mark.chaos)])
async def test_a_broker_that_is_away_holds_everything_back_and_ends_nothing(
    single: Single, away_s: float
) -> None:
    """Longer than a pod's lease: when it comes back, all connectors look dead to the first one."""
    sent = 0

    async def flood(answer: Answer) -> None:
        nonlocal sent
        await answer.head()
        await answer.send(agno("RunStarted"))
        await gone.wait()
        for number in range(FLOOD_FRAMES):
            text = f"{number:06d}".ljust(FLOOD_FRAME_BYTES, "x")
            await answer.send(agno("RunContent", content=text))
            sent = number + 1
        await answer.send(agno("RunCompleted", content="done"))
        await answer.end()

    gone = asyncio.Event()
    single.flood.script(flood)
    flooded = await single.penstock.run("flood", "go")
    following = asyncio.create_task(single.penstock.all(flooded))
    watches = await started(single)
    await single.flood.called()
    listener = Listener()
    listening = asyncio.create_task(listener.listen(single.penstock, watches.of[0].run_id))
    await listener.opened.wait()

    single.gate.cut()
    await asyncio.to_thread(single.nats.kill)
    gone.set()
    before = asyncio.get_running_loop().time()
    await single.none_ready("is away")
    refused = await single.penstock.http.post(
        f"{single.penstock.edge()}/v1/runs", json={"agent": "streamer", "message": "go"}
    )
    await asyncio.sleep(away_s - (asyncio.get_running_loop().time() - before))
    held_at = sent
    await asyncio.to_thread(single.nats.start)
    after = asyncio.get_running_loop().time()
    await asyncio.sleep(LATER_S)
    single.gate.open()

    stall_s = await watches.end(FRAMES, 60)
    await listening
    events = await following
    assert refused.status_code == 503
    assert "NATS" in refused.json()["detail"]
    assert held_at < FLOOD_FRAMES, "the upstream was read on, though nothing could be stored"
    texts = [str(event.data["content"])[:6] for event in events if event.type == "llm.stream"]
    assert texts == [f"{number:06d}" for number in range(FLOOD_FRAMES)]
    assert events[-1].type == "lifecycle.completed"
    assert len([at for at in listener.heard if before + 1 < at < after]) >= away_s - 3
    single.none_has_ended()
    await single.all_ready()
    report(f"broker away for {away_s} s", stall_s=stall_s, upstream_ahead_mb=held_at * 0.05)


async def streams_at(nats: NatsServer) -> list[str]:
    bus = await Bus.connect(BusSettings(url=nats.url), ensure=False)
    try:
        return list((await bus.api("STREAM.NAMES"))["streams"] or [])
    finally:
        await bus.close()


async def test_lost_data_are_said_and_waited_for(single: Single) -> None:
    watches = await started(single)
    await asyncio.to_thread(single.nats.kill)
    kept = single.nats.store.with_name("kept")
    single.nats.store.rename(kept)
    await asyncio.to_thread(single.nats.start)
    await single.none_ready("NATS has lost the streams ADVISORIES, COMMANDS, ")
    refused = await single.penstock.http.post(
        f"{single.penstock.edge()}/v1/runs", json={"agent": "streamer", "message": "go"}
    )
    assert refused.status_code == 503
    assert await streams_at(single.nats) == []
    await asyncio.to_thread(single.nats.stop)
    shutil.rmtree(single.nats.store)
    kept.rename(single.nats.store)
    await asyncio.to_thread(single.nats.start)
    report("data put back", stall_s=await watches.end(FRAMES))
    single.none_has_ended()
    await single.all_ready()


async def test_whoever_knows_only_lost_data_says_that_it_must_be_restarted(single: Single) -> None:
    await asyncio.to_thread(single.nats.kill)
    single.nats.wipe()
    await asyncio.to_thread(single.nats.start)
    await single.none_ready("NATS has lost")
    old = list(single.penstock.instances)
    for instance in old:
        await single.penstock.kill(instance)
        if instance is old[0]:
            await single.penstock.start(instance.service)
            for other in old[1:]:
                await others_are_told(single, other)
        else:
            await single.penstock.start(instance.service)
    await single.all_ready()
    await (await watched(single.penstock, 2)).end(FRAMES)


async def others_are_told(single: Single, instance: Instance) -> None:
    async def probe() -> bool:
        return "Restart it" in await single.reasons(instance)

    await eventually(probe, 20, f"{instance.service} says that it must be restarted")
    with pytest.raises(httpx.HTTPStatusError):
        (await single.penstock.http.get(f"{instance.probes}/readyz")).raise_for_status()
