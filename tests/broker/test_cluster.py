"""A cluster of three: whatever happens to one node, runs finish and clients see no gap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from support.drive.figures import report
from support.drive.watching import Watches, streamer, watched
from support.real.deployment import SERVICES, Deployment, deployment
from support.real.nats_cluster import Network, network

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

RUNS, RATE = 8, 20.0
FRAMES = {"short": 80, "long": 500, "longest": 2000, "endless": 8000}
KILLS = 10
BEYOND_THE_ELECTION_S = 1.0  # the goal; one of ten may take longer on a busy machine


@dataclass
class Clustered:
    """Services over a cluster. `AT_FIRST` gives the node to which each service first connects."""

    network: Network
    penstock: Deployment


AT_FIRST = {"normalizer": 0, "approvals": 1, "connector": 1, "edge": 2}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clustered(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clustered]:
    folder = tmp_path_factory.mktemp("cluster")
    async with AsyncExitStack() as stack:
        net = await stack.enter_async_context(network(folder))
        agents = [
            {"id": name, **await stack.enter_async_context(streamer(folder, frames, RATE))}
            for name, frames in FRAMES.items()
        ]
        penstock = await stack.enter_async_context(
            deployment(net.urls[0], folder, agents, count=0, replicas=3)
        )
        for service in SERVICES:
            penstock.nats_url = net.urls[AT_FIRST[service]]
            await penstock.start(service)
        yield Clustered(net, penstock)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def whole_again(clustered: Clustered) -> AsyncIterator[None]:
    yield
    for gate in (*clustered.network.gates, *clustered.network.routes.values()):
        gate.open()
    for server in clustered.network.servers:
        if not server.running:
            await asyncio.to_thread(server.start)
    await clustered.network.whole()


async def started(clustered: Clustered, agent: str) -> Watches:
    """Start runs and watch them; return when they are under way."""
    watches = await watched(clustered.penstock, RUNS, agent)
    await watches.under_way()
    return watches


async def test_the_leader_of_the_source_frames_is_killed(clustered: Clustered) -> None:
    leader = await clustered.network.leader("RAW")
    watches = await started(clustered, "short")
    await asyncio.to_thread(clustered.network.servers[leader].kill)
    report("RAW's leader killed", stall_s=await watches.end(FRAMES["short"]))


@pytest.mark.chaos
@pytest.mark.parametrize("stream", ["EVENTS", "KV_leases", "COMMANDS"])
async def test_another_leader_is_killed(clustered: Clustered, stream: str) -> None:
    leader = await clustered.network.leader(stream)
    watches = await started(clustered, "short")
    await asyncio.to_thread(clustered.network.servers[leader].kill)
    report(f"{stream}'s leader killed", stall_s=await watches.end(FRAMES["short"]))


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["leader of RAW", "another"])
async def test_of_many_kills_each_is_over_a_second_after_the_election(
    clustered: Clustered, which: str
) -> None:
    """NATS itself decides how long the elections take: a follower waits 4 to 9 s for its leader.

    Runs need a leader of RAW and of EVENTS. The elections are over when all streams that the node
    led have another leader.
    """
    net = clustered.network
    watches = await started(clustered, "endless")
    stalls, beyond, own = [], [], []
    for _ in range(KILLS):
        leader = await net.leader("RAW")
        victim = leader if which == "leader of RAW" else (leader + 1) % 3
        async with net.elections(victim) as elected:
            watches.forget_stalls()
            killed_at = time.monotonic()
            await asyncio.to_thread(net.servers[victim].kill)
            led_s = {stream: at - killed_at for stream, at in (await elected()).items()}
            elected_s, needed_s = max(led_s.values()), max(led_s["RAW"], led_s["EVENTS"])
        await watches.go_on()
        stalls.append(watches.stall_s)
        beyond.append(watches.stall_s - elected_s)
        own.append(watches.stall_s - needed_s)
        report(
            f"{which} killed",
            **{"stall_s": stalls[-1], "raw_and_events_s": needed_s, "election_s": elected_s},
        )
        await asyncio.to_thread(net.servers[victim].start)
        await net.whole()
    stalls.sort()
    beyond.sort()
    own.sort()
    report(
        f"{which} killed, {KILLS} times",
        **{"stall_p50_s": stalls[len(stalls) // 2], "stall_max_s": stalls[-1]},
        **{"beyond_p50_s": beyond[len(beyond) // 2], "beyond_max_s": beyond[-1]},
        **{"own_p50_s": own[len(own) // 2], "own_max_s": own[-1]},
    )
    await watches.end(FRAMES["endless"], 400)
    assert beyond[len(beyond) // 2] < BEYOND_THE_ELECTION_S
    assert beyond[-1] < 3 * BEYOND_THE_ELECTION_S


@pytest.mark.chaos
@pytest.mark.parametrize("service", ["connector", "edge"])
async def test_the_node_of_a_service_is_killed(clustered: Clustered, service: str) -> None:
    node = await asyncio.to_thread(clustered.network.node_of, service)
    watches = await started(clustered, "short")
    await asyncio.to_thread(clustered.network.servers[node].kill)
    report(f"node of the {service} killed", stall_s=await watches.end(FRAMES["short"]))


@pytest.mark.chaos
@pytest.mark.parametrize("service", ["connector", "edge", "normalizer"])
@pytest.mark.parametrize("how", ["cut", "silence"])
async def test_a_service_is_cut_off_from_its_node(
    clustered: Clustered, service: str, how: str
) -> None:
    node = await asyncio.to_thread(clustered.network.node_of, service)
    watches = await started(clustered, "long")
    getattr(clustered.network.gates[node], how)()
    await asyncio.sleep(18)  # a client notices the lost connection by its pings, within 15 s
    clustered.network.gates[node].open()
    report(f"{service} and its node: {how}", stall_s=await watches.end(FRAMES["long"]))


@pytest.mark.chaos
@pytest.mark.parametrize("how", ["cut", "silence"])
async def test_a_node_is_cut_off_from_the_other_two(clustered: Clustered, how: str) -> None:
    net = clustered.network
    node = await net.leader("RAW")
    watches = await started(clustered, "long")
    for way in net.ways_to(node):
        getattr(way, how)()
    await asyncio.sleep(12)
    for way in net.ways_to(node):
        way.open()
    report(f"RAW's leader and the other nodes: {how}", stall_s=await watches.end(FRAMES["long"]))


@pytest.mark.chaos
@pytest.mark.parametrize("service", ["connector", "edge", "normalizer"])
async def test_a_service_leaves_a_node_that_is_cut_off(clustered: Clustered, service: str) -> None:
    """The node runs and answers pings, but gets no new messages, until the runs end."""
    node = await asyncio.to_thread(clustered.network.node_of, service)
    watches = await started(clustered, "short")
    for way in clustered.network.ways_to(node):
        way.silence()
    report(f"node of the {service} cut off for good", stall_s=await watches.end(FRAMES["short"]))


@pytest.mark.chaos
@pytest.mark.parametrize("how", ["SIGTERM", "lame duck"])
async def test_a_rolling_restart(clustered: Clustered, how: str) -> None:
    net = clustered.network
    watches = await started(clustered, "longest")
    for server in net.servers:
        await asyncio.to_thread(server.stop if how == "SIGTERM" else server.lame_duck)
        await asyncio.to_thread(server.start)
        await net.whole()
    report(f"rolling restart by {how}", stall_s=await watches.end(FRAMES["longest"], 180))


@pytest.mark.chaos
async def test_a_node_hangs(clustered: Clustered) -> None:
    net = clustered.network
    node = await net.leader("RAW")
    watches = await started(clustered, "long")
    net.servers[node].pause()
    await asyncio.sleep(15)
    net.servers[node].go_on()
    report("RAW's leader stopped for 15 s", stall_s=await watches.end(FRAMES["long"]))
