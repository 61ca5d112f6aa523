"""Shards are added while runs stream and normalizers are killed; each run stays in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from pathlib import Path

import orjson
import pytest

from penstock.bus import Bus, BusError
from penstock.bus.admin.ensure import shards_of
from penstock.bus.admin.migrate import reshard
from penstock.bus.shards import Shards, new_run_id
from penstock.bus.streams import Retention
from penstock.bus.subjects import shard_of
from penstock_edge.service import EdgeService
from support.drive.bus import connected
from support.drive.clients import Stream
from support.drive.pipeline import PIPELINE, pipeline
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.misbehaving import agents, misbehaving, plays
from support.fakes.raw import agno_approved, agno_pause, agno_text
from support.fakes.steady import holders, moved_on, steady
from support.real import nats
from support.real.deployment import deployment
from support.real.forked import finished
from support.real.nats import NatsServer
from support.real.up import FORKED

FAST = {"partition_ttl_s": 2.0, "partition_renew_s": 0.5, "checkpoint_s": 0.1}


async def penstock(*arguments: str, server: NatsServer) -> asyncio.subprocess.Process:
    """Start `penstock` with these arguments as a process."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock_cli", *arguments, "--nats", server.url),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def held(bus: Bus, shards: int) -> None:
    """Wait until all 16 partitions of each of these shards are held."""

    async def are() -> bool:
        found = [await holders(bus, shard) for shard in range(shards)]
        return all(set(each) == set(range(16)) for each in found)

    await eventually(are, 30, "all partitions are held")


@pytest.mark.timeout(180)
async def test_shards_are_added_under_runs_and_kill_9_and_all_runs_are_right(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """The test takes more than 10 s, since it starts two processes and kills one under load."""
    async with (
        connected(fresh_nats.url) as bus,
        deployment(fresh_nats.url, tmp_path, [], {"normalizer": 2}, **FAST) as fleet,
        steady(bus, 10, 0.2, timeout_s=60) as old,
    ):
        await held(bus, 1)
        adding = asyncio.create_task(reshard(bus, 3, settle_s=0))
        await fleet.kill(fleet.of("normalizer")[0])
        assert await adding == Shards(3, 3)
        async with steady(bus, 12, 0.2, timeout_s=60, shards=3) as new:
            await held(bus, 3)
            await moved_on(bus, [*old, *new], 0, 60)
            assert {shard_of(run.run_id) for run in new} == {0, 1, 2}


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_the_command_may_be_killed_at_any_time_and_is_completed_by_the_next(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """The command waits 12 s until all edges know the shards, so each kill comes earlier."""
    async with (
        connected(fresh_nats.url) as bus,
        deployment(fresh_nats.url, tmp_path, [], {"normalizer": 1}, **FAST),
        steady(bus, 10, 0.4, timeout_s=60),
    ):
        await held(bus, 1)
        for _ in range(3):
            half_done = await penstock("streams", "migrate", "--shards", "3", server=fresh_nats)
            await asyncio.sleep(random.uniform(0.5, 5))
            with contextlib.suppress(ProcessLookupError):
                half_done.kill()
            await half_done.communicate()
            assert (await shards_of(bus)).used == 1
        done = await penstock("streams", "migrate", "--shards", "3", server=fresh_nats)
        out, _ = await done.communicate()
        assert "shards: 1 → 3" in out.decode()
        assert await shards_of(bus) == Shards(3, 3)
        await held(bus, 3)
        async with steady(bus, 9, 0.1, shards=3):
            pass


@pytest.mark.parametrize("shards", in_short([1, 2, 4], [2]))
async def test_runs_of_every_shard_are_approved_and_read_to_their_end(
    fresh_nats: NatsServer, shards: int
) -> None:
    """The runs go through all four services: edge, connector, normalizer and approvals."""
    async with connected(fresh_nats.url, retention=Retention(shards=shards)):
        pass
    async with (
        misbehaving() as upstream,
        pipeline(fresh_nats.url, agents(upstream), (*PIPELINE, EdgeService)) as penstock_,
    ):
        found: set[int] = set()
        while len(found) < shards:
            upstream.script(plays(agno_text("Hello", " you")))
            body = {"agent": "agno", "message": "Hello"}
            client = penstock_.http
            async with Stream(client, "POST", "/v1/runs", json=body, headers=SSE) as stream:
                frames = await stream.rest()
            assert frames[-1].event == "lifecycle.completed"
            found.add(shard_of(stream.run_id))
            path = f"/v1/runs/{stream.run_id}/events"
            for cut, frame in enumerate(frames[:-1], 1):
                after = {"Last-Event-ID": frame.id or ""}
                async with Stream(client, "GET", path, headers=after) as rest:
                    assert await rest.rest() == frames[cut:]
            async with Stream(client, "GET", path, params={"dialect": "raw"}) as raw:
                assert b"RunCompleted" in (await raw.rest())[-1].data
        assert found == set(range(shards))
        for shard in range(shards):
            upstream.script(plays(agno_pause()), plays(agno_approved()))
            run_id = await penstock_.start_run("agno", run_id=new_run_id(shard, time.time()))
            *_, paused = await penstock_.events_until(run_id, "lifecycle.paused")
            await penstock_.decide(paused.data["approval_id"], "approve")
            assert (await penstock_.ended(run_id))[-1].type == "lifecycle.completed"


SSE = {"accept": "text/event-stream"}


async def test_shards_that_the_nats_users_may_not_use_get_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "SHARDS", 1)
    server = NatsServer(tmp_path / "nats", violations=True)
    server.start()
    try:
        async with (
            connected(server.url) as bus,
            deployment(server.url, tmp_path, [], {"normalizer": 1}, **FAST),
        ):
            await held(bus, 1)
            with pytest.raises(BusError, match=r"lack the permissions\?.*--shards 2"):
                await reshard(bus, 2, timeout_s=2, settle_s=0)
            assert (await shards_of(bus)).used == 1
    finally:
        server.remove()


async def test_the_command_shows_the_shards_and_makes_more(fresh_nats: NatsServer) -> None:
    async with connected(fresh_nats.url) as bus:
        await reshard(bus, 2, settle_s=0)
        await reshard(bus, 1, settle_s=0)
    command = [*FORKED, "streams", "show", "--json", "--nats", fresh_nats.url]
    shown = await asyncio.to_thread(finished, command, {})
    rows = {row["stream"]: row for row in map(orjson.loads, shown.stdout.splitlines())}
    assert (rows["EVENTS"]["new_runs"], rows["EVENTS_1"]["new_runs"]) == (True, False)
    assert rows["RAW_1"]["partitions"] == rows["RAW"]["partitions"] == 16
