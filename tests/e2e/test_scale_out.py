"""Normalizers and connectors start, stop, are killed and hang while runs stream.

The processes share the work, and each run stays complete and in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.bus import Bus
from penstock.bus.subjects import PARTITIONS, partition_of
from penstock_connector.service import ConnectorService
from support.drive.bus import connected
from support.drive.figures import report
from support.drive.pipeline import pipeline
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, agents, misbehaving, stalls
from support.fakes.steady import SteadyRun, holders, moved_on, steady
from support.real.deployment import Deployment, Instance, deployment
from support.real.nats import NatsServer
from support.real.processes import pid_of

RUNS = 24
PAUSE_S = 0.25
TAKEOVER_S = 5.0
KILLS = 12


@asynccontextmanager
async def normalizers(
    nats: NatsServer, folder: Path, count: int, **settings: float
) -> AsyncIterator[tuple[Deployment, Bus]]:
    """Run so many normalizers, with the leases of a deployment unless `settings` changes them."""
    async with (
        connected(nats.url) as bus,
        deployment(nats.url, folder, [], {"normalizer": count}, **settings) as penstock,
    ):
        yield penstock, bus


def pod_of(instance: Instance) -> str:
    """Return the part of a lease's holder that names this process."""
    return f"-{pid_of(instance.process)}-"


async def shares(bus: Bus, *instances: Instance) -> list[int]:
    """Return how many partitions each of these instances holds."""
    held = await holders(bus)
    return [sum(pod_of(each) in holder for holder in held.values()) for each in instances]


async def shared(bus: Bus, *instances: Instance, within_s: float = 20) -> float:
    """Wait until these instances share all partitions evenly; return the seconds it took."""
    since = time.monotonic()

    async def even() -> bool:
        sizes = await shares(bus, *instances)
        return sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1

    await eventually(even, within_s, "the partitions are shared")
    return time.monotonic() - since


async def lost_with(bus: Bus, instance: Instance, runs: list[SteadyRun]) -> list[SteadyRun]:
    """Return the runs whose partition the instance holds."""
    held = await holders(bus)
    return [run for run in runs if pod_of(instance) in held[partition_of(run.run_id)]]


@pytest.mark.timeout(180)
async def test_a_normalizer_gets_its_share_when_it_comes_and_gives_it_back_when_it_goes(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with normalizers(fresh_nats, tmp_path, 1) as (penstock, bus):
        one = penstock.of("normalizer")[0]
        async with steady(bus, RUNS, PAUSE_S) as runs:
            await shared(bus, one)
            two = await penstock.start("normalizer")
            came_s = await shared(bus, one, two)
            three = await penstock.start("normalizer")
            await shared(bus, one, two, three)
            theirs = await lost_with(bus, two, runs)
            since = time.monotonic()
            two.process.popen.terminate()
            went_s = await shared(bus, one, three)
            assert theirs
            stood_s = await moved_on(bus, theirs, since, 20)
            assert await asyncio.to_thread(two.process.popen.wait) == 0
    report("scale out", came_s=came_s, went_s=went_s, stood_s=stood_s)


@pytest.mark.timeout(180)
async def test_the_partitions_of_a_killed_normalizer_are_taken_over_long_before_its_leases_end(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    settings = {"partition_ttl_s": 60.0, "partition_renew_s": 20.0}
    async with normalizers(fresh_nats, tmp_path, 2, **settings) as (penstock, bus):
        one, two = penstock.of("normalizer")
        async with steady(bus, RUNS, PAUSE_S) as runs:
            await shared(bus, one, two)
            theirs = await lost_with(bus, two, runs)
            since = time.monotonic()
            await penstock.kill(two)
            took_s = await moved_on(bus, theirs, since, 30)
            assert theirs
    report("takeover", took_s=took_s)


@pytest.mark.timeout(180)
async def test_a_zombie_normalizer_does_no_run_harm(fresh_nats: NatsServer, tmp_path: Path) -> None:
    settings = {"partition_ttl_s": 2.0, "partition_renew_s": 0.5}
    async with normalizers(fresh_nats, tmp_path, 2, **settings) as (penstock, bus):
        one, two = penstock.of("normalizer")
        zombie = pid_of(two.process)
        async with steady(bus, RUNS, PAUSE_S):
            await shared(bus, one, two)
            os.kill(zombie, signal.SIGSTOP)
            try:
                await shared(bus, one)
            finally:
                os.kill(zombie, signal.SIGCONT)
            # After SIGCONT, the normalizer may publish events for frames that it read before
            # SIGSTOP, because it still believes that it holds the partitions. `steady` fails if
            # EVENTS has an event twice.
            await shared(bus, one, two)


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_of_many_kills_each_is_taken_over_within_five_seconds(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    took_s = []
    async with (
        normalizers(fresh_nats, tmp_path, 3) as (penstock, bus),
        steady(bus, 40, 0.3, timeout_s=60) as runs,
    ):
        for _ in range(KILLS):
            await shared(bus, *penstock.of("normalizer"), within_s=20)
            victim = penstock.of("normalizer")[0]
            theirs = await lost_with(bus, victim, runs)
            since = time.monotonic()
            await penstock.kill(victim)
            took_s.append(await moved_on(bus, theirs, since, 30))
            await penstock.start("normalizer")
    took_s.sort()
    report("takeovers", p50_s=took_s[len(took_s) // 2], max_s=took_s[-1], kills=KILLS)
    assert took_s[len(took_s) // 2] < TAKEOVER_S / 2
    assert took_s[-1] < TAKEOVER_S


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_normalizers_that_flap_put_no_run_out_of_order(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with (
        normalizers(fresh_nats, tmp_path, 1) as (penstock, bus),
        steady(bus, 40, 0.5, timeout_s=60),
    ):
        for number in range(16):
            flapping = await penstock.start("normalizer")
            if number % 2:
                await penstock.kill(flapping)
            else:
                flapping.process.popen.terminate()
                await asyncio.to_thread(flapping.process.popen.wait)
                penstock.instances.remove(flapping)


async def legs(bus: Bus) -> list[int]:
    """Return the number of legs of each connector that holds any, in ascending order."""
    keys = await bus.bucket("claims").keys("active.>")
    return sorted(Counter(key.split(".")[1] for key in keys).values())


async def held(bus: Bus, count: int) -> list[int]:
    """Return what `legs` returns, once the connectors hold `count` legs in all."""

    async def are() -> list[int] | None:
        found = await legs(bus)
        return found if sum(found) == count else None

    return await eventually(are, 30, f"{count} legs are held")


async def test_connectors_share_the_starts_and_a_full_one_takes_none(
    fresh_nats: NatsServer,
) -> None:
    async def hangs(answer: Answer) -> None:
        await answer.head()
        await stalls(answer)

    async with misbehaving() as upstream:
        upstream.script(hangs)
        three = (ConnectorService,) * 3
        async with pipeline(fresh_nats.url, agents(upstream), three, max_legs=20) as penstock:
            for _ in range(30):
                await penstock.start_run("agno")
            shares = await held(penstock.bus, 30)
            report("starts of three connectors", fewest=shares[0], most=shares[-1])
            assert len(shares) == 3
            assert shares[0] >= 5
            for _ in range(40):
                await penstock.start_run("agno")
            assert await held(penstock.bus, 60) == [20, 20, 20]
