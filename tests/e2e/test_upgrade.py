"""Upgrades while runs stream: other partitions, other versions, a week's wait. No run is wrong."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from penstock.bus import Bus, migrate
from penstock.bus.subjects import partition_of
from support.bus import connected
from support.deployment import deployment
from support.nats import NatsServer
from support.steady import holders, moved_on, steady
from support.waiting import eventually

FAST = {"partition_ttl_s": 2.0, "partition_renew_s": 0.5, "checkpoint_s": 0.1}


async def penstock(*arguments: str, nats: NatsServer) -> asyncio.subprocess.Process:
    """The command line."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock_cli", *arguments, "--nats", nats.url),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def repartitioned(count: int, nats: NatsServer) -> str:
    """`penstock streams migrate --partitions <count>`, to its end; what it said."""
    process = await penstock("streams", "migrate", "--partitions", str(count), nats=nats)
    said, _ = await process.communicate()
    assert process.returncode == 0, said
    return said.decode()


async def held(bus: Bus, count: int) -> None:
    """Until so many partitions are worked on, and no other."""

    async def are() -> bool:
        return set(await holders(bus)) == set(range(count))

    await eventually(are, 10, f"{count} partitions are held")


async def test_the_number_of_partitions_changes_under_forty_runs_and_kill_9(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with (
        connected(fresh_nats.url) as bus,
        deployment(fresh_nats.url, tmp_path, [], {"normalizer": 2}, **FAST) as fleet,
        steady(bus, 40) as runs,
    ):
        await held(bus, 16)
        # somewhere on its way, or before it
        half_done = await penstock("streams", "migrate", "--partitions", "24", nats=fresh_nats)
        await asyncio.sleep(random.uniform(0.5, 2.5))
        half_done.kill()
        await half_done.communicate()
        await fleet.kill(fleet.of("normalizer")[0])
        starting = asyncio.create_task(fleet.start("normalizer"))
        said = await repartitioned(24, fresh_nats)
        await starting
        assert "→ 24" in said
        assert await migrate.partitions(bus) == 24
        moved = [
            run for run in runs if partition_of(run.run_id, 16) != partition_of(run.run_id, 24)
        ]
        assert len(moved) > 10
        await moved_on(bus, runs, 0, 10)
        await held(bus, 24)
        # back again, to where folds of these very runs may still be in memory
        assert "→ 16" in await repartitioned(16, fresh_nats)
        await moved_on(bus, runs, 0, 10)
        await held(bus, 16)
