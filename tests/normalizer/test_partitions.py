"""Several normalizers, one after another or at the same time, publish each event once."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest
from prometheus_client import REGISTRY

from penstock.bus import (
    RawWriter,
    Stored,
    messages,
    streams,
    subjects,
)
from penstock.bus.budget import Budget
from penstock.bus.read import direct
from penstock.bus.records.legs import PauseRecord
from penstock_normalizer.partitions.partition import Partition
from penstock_normalizer.settings import NormalizerSettings
from support.drive.bus import make_streams
from support.drive.normalizing import (
    FAST,
    Run,
    bus_to,
    check_order,
    normalizer,
    passed,
    raises,
)
from support.drive.waiting import eventually
from support.fakes.raw import agno, agno_pause
from support.real.forked import Forked
from support.real.nats import NatsServer


def lease_changes(change: str) -> float:
    return REGISTRY.get_sample_value("penstock_lease_changes_total", {"change": change}) or 0.0


async def test_a_normalizer_continues_where_the_last_one_stopped(nats_server: NatsServer) -> None:
    before = {change: lease_changes(change) for change in ("taken", "given_up")}
    async with bus_to(nats_server.url) as bus:
        run = Run(bus)
        async with normalizer(nats_server.url):
            await run.open()
            await run.bytes(agno("RunStarted") + agno("RunContent", content="one"))
            await run.until("llm.stream")
        await run.bytes(agno("RunContent", content="two"))
        async with normalizer(nats_server.url):
            await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
            events = await run.until("lifecycle.completed")
    check_order(events, ["one", "two"])
    changes = {change: lease_changes(change) - before[change] for change in before}
    assert changes == dict.fromkeys(before, 2 * subjects.PARTITIONS)


async def test_a_cancel_before_the_start_is_known_to_the_next_normalizer(
    fresh_nats: NatsServer,
) -> None:
    # A blocked run of another test would hold back the checkpoint of its partition.
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        async with normalizer(fresh_nats.url):
            edge = RawWriter(bus, run.run_id, "edge", f"edge/{run.run_id}")
            cancelled = {"type": "lifecycle.cancelled", "data": {"reason": "user_stop"}}
            position = await edge.write("event", orjson.dumps(cancelled), leg=1)
            partition = subjects.partition_of(run.run_id)
            await eventually(lambda: passed(bus, partition, position - 1), what="the checkpoint")
        async with normalizer(fresh_nats.url):
            await run.whole("x")
            events = await run.until("lifecycle.cancelled")
    assert [event.headers["ce-type"] for event in events] == [
        "lifecycle.started",
        "lifecycle.cancelled",
    ]


async def test_two_normalizers_share_the_partitions_and_lose_and_repeat_nothing(
    fresh_nats: NatsServer,
) -> None:
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(bus_to(fresh_nats.url))
        one = await stack.enter_async_context(normalizer(fresh_nats.url))
        two = await stack.enter_async_context(normalizer(fresh_nats.url))

        async def shared() -> bool:
            return len(one.partitions) == len(two.partitions) == 8

        runs = [Run(bus) for _ in range(20)]
        # the runs continue while the partitions move
        writing = asyncio.gather(*(run.whole(*map(str, range(30))) for run in runs))
        await eventually(shared)
        await writing
        assert not one.partitions & two.partitions
        for run in runs:
            check_order(await run.until("lifecycle.completed"), [*map(str, range(30))])


async def test_two_owners_of_one_partition_publish_each_event_once(
    fresh_nats: NatsServer,
) -> None:
    """Two normalizers both believe that they own the partition; only the fence prevents doubles."""

    async def give_up(stored: Stored, error: Exception) -> None:
        raise AssertionError(error)

    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(bus_to(fresh_nats.url))
        tasks = []
        for _ in range(2):
            own = await stack.enter_async_context(bus_to(fresh_nats.url))
            settings = NormalizerSettings(nats_url=fresh_nats.url, **FAST)
            budget = Budget(settings.max_held_bytes)
            tasks += [
                asyncio.create_task(Partition(own, number, settings, budget, give_up).work())
                for number in range(subjects.PARTITIONS)
            ]
        runs = [Run(bus) for _ in range(20)]
        await asyncio.gather(*(run.whole(*map(str, range(30))) for run in runs))
        for run in runs:
            check_order(await run.until("lifecycle.completed"), [*map(str, range(30))])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("missed", ["an event", "half an event"])
async def test_a_run_that_was_elsewhere_for_a_while_continues_with_all_of_its_frames(
    fresh_nats: NatsServer, missed: str
) -> None:
    """The number of partitions was changed and changed back: one owner misses a frame between.

    The missed frame holds an event or half an event. For half an event nothing is published, so no
    fence conflict tells the owner that a frame is missing.
    """

    async def give_up(stored: Stored, error: Exception) -> None:
        raise AssertionError(error)

    async with bus_to(fresh_nats.url) as bus:
        await make_streams(fresh_nats.url)
        settings = NormalizerSettings(nats_url=fresh_nats.url, **FAST)
        here, elsewhere = (
            Partition(bus, number, settings, Budget(settings.max_held_bytes), give_up)
            for number in range(2)
        )
        run = Run(bus)
        first, second, third = (agno("RunContent", content=text) for text in "abc")
        at = len(second) if missed == "an event" else len(second) // 2
        await run.open()
        await run.bytes(agno("RunStarted") + first)
        await run.bytes(second[:at])
        await run.bytes(second[at:] + third)
        await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="abc"))
        await run.end()
        pattern = subjects.raw_stored(run.run_id, "upstream")
        frames = [
            stored async for stored in direct.replay(bus, streams.raw_for(run.run_id), pattern)
        ]

        async def hand_out(partition: Partition, given: list[Stored]) -> None:
            for stored in given:
                await partition._hand_out(stored)

            async def is_done() -> bool:
                return not partition.runs.is_busy

            await eventually(is_done)

        await hand_out(here, frames[:2])
        await hand_out(elsewhere, frames[:3])
        await hand_out(here, frames[3:])
        check_order(await run.until("lifecycle.completed"), ["a", "b", "c"])
        for partition in (here, elsewhere):
            await partition._close()


async def test_runs_survive_kill_9_of_their_normalizer(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text("agents: []\n")
    environment = {
        **os.environ,
        "PENSTOCK_CONFIG": str(config),
        "PENSTOCK_NATS_URL": fresh_nats.url,
        "PENSTOCK_PROBE_PORT": "0",
        **{f"PENSTOCK_{name.upper()}": str(value) for name, value in FAST.items()},
    }

    def start() -> Forked:
        return Forked(["-m", "penstock_normalizer"], environment, tmp_path / "normalizer.log")

    async with bus_to(fresh_nats.url) as bus:
        process = start()
        runs = [Run(bus) for _ in range(10)]
        for run in runs:
            await run.open()
            await run.bytes(agno("RunStarted"))
        try:
            for round_ in range(3):
                for run in runs:
                    await run.bytes(agno("RunContent", content=f"{round_}"))
                # the process is killed in the middle of these frames
                await runs[0].until("llm.stream")
                process.kill()
                await process.ended()
                process = start()
            for run in runs:
                await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
            for run in runs:
                check_order(await run.until("lifecycle.completed", 30), ["0", "1", "2"])
        finally:
            process.kill()
            await process.ended()


async def test_runs_survive_kill_9_of_the_broker(fresh_nats: NatsServer) -> None:
    async with bus_to(fresh_nats.url) as bus, normalizer(fresh_nats.url):
        runs = [Run(bus) for _ in range(5)]
        writing = asyncio.gather(*(run.whole(*map(str, range(100))) for run in runs))
        await runs[0].until("llm.stream")
        await asyncio.to_thread(fresh_nats.kill)
        await asyncio.to_thread(fresh_nats.start)
        await writing
        for run in runs:
            check_order(await run.until("lifecycle.completed", 30), [*map(str, range(100))])


async def test_a_zombie_does_not_put_back_a_pause_or_a_checkpoint(
    fresh_nats: NatsServer,
) -> None:
    """Two normalizers fold the same partition; the second one is stopped after its first frames."""
    async with bus_to(fresh_nats.url) as bus, bus_to(fresh_nats.url) as theirs:
        run = Run(bus)
        settings = NormalizerSettings(nats_url=fresh_nats.url, **FAST)
        number = subjects.partition_of(run.run_id)
        zombie = Partition(theirs, number, settings, Budget(2**20), raises)
        held: list[Stored] = []

        def hold(stored: Stored) -> bool:
            held.append(stored)
            return True

        take, zombie._take = zombie._take, hold  # type: ignore[method-assign]  # the zombie hangs
        task = asyncio.create_task(zombie.work())
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno_pause())
            await run.end()
            asked = await run.until("approval.requested")
            approval_id = orjson.loads(asked[-1].payload)["data"]["approval_id"]

            async def all_held() -> bool:
                return len(held) == 3

            await eventually(all_held)
            stale = held.copy()
            run.leg = 2
            await run.open(
                approval_id=approval_id, items=[{"item_id": "t1", "decision": "approve"}]
            )
            await run.bytes(agno("RunContinued") + agno_pause("t2"))
            await run.end()

            async def second() -> PauseRecord | None:
                entry = await bus.bucket("pauses").get(run.run_id)
                record = PauseRecord.model_validate_json(entry.value) if entry else None
                return record if record is not None and record.leg == 2 else None

            kept = await eventually(second)
            checkpoint = await eventually(lambda: passed(bus, number, stale[-1].sequence))
            for stored in stale:
                take(stored)

            async def woke() -> bool:
                return not zombie.runs.is_busy

            await eventually(woke)
            await zombie._checkpoint.write(zombie._done_up_to)
            assert await second() == kept
            assert await passed(bus, number, checkpoint - 1)
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("frames", [1, 2], ids=["the end", "the end and the frame before"])
async def test_a_normalizer_that_reads_the_end_of_a_run_again_publishes_what_follows(
    fresh_nats: NatsServer, frames: int
) -> None:
    """A normalizer that is killed has published the end, and its checkpoint is before that."""
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        async with normalizer(fresh_nats.url):
            await run.whole("one", "two")
            ended = await run.until("lifecycle.completed")
        end = int(ended[-1].headers[messages.RAW_POSITION])
        made = [each for each in ended if int(each.headers[messages.RAW_POSITION]) == end]
        assert len(made) > 1, "the frame of the end makes several events"
        key = f"normalizer.{subjects.partition_of(run.run_id)}"
        await bus.bucket("checkpoints").put(key, str(end - frames).encode())
        rules = RawWriter(bus, run.run_id, "automations", "pod/1")
        for number in range(4):
            data = {"automation": f"rule {number}", "result": "delivered"}
            event = orjson.dumps({"type": "automation.completed", "data": data})
            await rules.write("event", event, leg=1)

        async def published() -> list[Stored] | None:
            found = await run.events()
            return found if len(found) >= len(ended) + 4 else None

        async with normalizer(fresh_nats.url):
            events = await eventually(published, what="the four events that follow the end")
    assert events is not None
    check_order(events, ["one", "two"])
    said = [orjson.loads(event.payload)["data"]["automation"] for event in events[len(ended) :]]
    assert said == [f"rule {number}" for number in range(4)]


async def test_the_lag_of_a_partition_is_the_distance_to_its_newest_frame(
    fresh_nats: NatsServer,
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        await make_streams(fresh_nats.url)
        run = Run(bus)
        number = subjects.partition_of(run.run_id)
        settings = NormalizerSettings(nats_url=fresh_nats.url, **FAST)
        partition = Partition(bus, number, settings, Budget(2**20), raises)
        assert await partition.lag() == 0
        await run.open()
        await run.bytes(agno("RunStarted"))
        await run.bytes(agno("RunContent", content="a"))
        assert await partition.lag() == 3

        pattern = subjects.raw_stored(run.run_id, "upstream")
        async for stored in direct.replay(bus, streams.raw_for(run.run_id), pattern):
            await partition._hand_out(stored)

        async def is_level() -> bool:
            return await partition.lag() == 0

        await eventually(is_level)
        await partition._close()
