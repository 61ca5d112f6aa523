"""Each event of a delivery is on its run's timeline once, whichever processes write it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from penstock.bus import Bus, subjects
from penstock.bus.read import direct
from penstock.bus.streams import raw_for
from penstock.bus.write.fence import tail
from penstock_automations.delivery import announcements
from penstock_automations.delivery.announcements import DELIVERY, Announcements, Timeline
from penstock_automations.jobs.job import EventSource, Job
from support.drive.bus import connected, new_run_id
from support.real.nats import NatsServer


def jobs(run_id: str, count: int) -> list[Job]:
    return [
        Job("rule", 1, "u", "llm.tool_call", EventSource(run_id, n, event=n, raw=0))
        for n in range(1, count + 1)
    ]


COMPLETED: Any = {"what": "outcome", "type_": "automation.completed"}


async def say(made: Announcements, job: Job, raw: int = 0) -> bool:
    assert job.run_id is not None
    data = {"delivery_id": job.key}
    return await made.write_once(Timeline(job.run_id, raw), job, **COMPLETED, data=data)


async def said(bus: Bus, run_id: str) -> Counter[str]:
    pattern = subjects.raw_stored(run_id, "automations")
    found = direct.replay(bus, raw_for(run_id), pattern)
    return Counter([each.headers[DELIVERY] async for each in found])


@pytest.mark.parametrize("seed", range(3))
async def test_processes_that_say_the_same_at_the_same_time_say_it_once(
    nats_server: NatsServer, seed: int
) -> None:
    luck = random.Random(seed)
    async with connected(nats_server.url) as bus:
        run_id = new_run_id()
        made = [Announcements(bus, f"pod-{n}") for n in range(3)]
        todo = [(each, job) for each in made for job in jobs(run_id, 20)]
        luck.shuffle(todo)
        wrote = await asyncio.gather(*(say(each, job) for each, job in todo))
        assert sum(wrote) == 20
        assert set((await said(bus, run_id)).values()) == {1}
        assert len(await said(bus, run_id)) == 20
        assert not any([await say(Announcements(bus, "later"), job) for job in jobs(run_id, 20)])


class Reads:
    """Counts the reads of RAW."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        async def counted(*arguments: Any) -> Any:
            self.count += 1
            return await tail(*arguments)

        monkeypatch.setattr(announcements, "tail", counted)


async def test_a_process_looks_once_for_each_run_that_it_alone_writes_about(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch)
    async with connected(nats_server.url) as bus:
        made, run_id = Announcements(bus, "pod"), new_run_id()
        for job in jobs(run_id, 10):
            assert await say(made, job)
            assert not await say(made, job)
        assert reads.count == 1
        [late] = jobs(run_id, 1)
        assert await Announcements(bus, "other").write_once(
            Timeline(run_id), late.replayed(), **COMPLETED, data={}
        )
        assert not await say(made, late)
        reads.count = 0
        assert not await made.write_once(Timeline(run_id), late.replayed(), **COMPLETED, data={})
        assert reads.count == 0, "its write is refused, and it reads what the other has written"


async def test_two_processes_that_write_about_a_run_in_turn_read_each_frame_once(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    replay = direct.replay

    async def counted(*arguments: Any) -> Any:
        nonlocal read
        async for each in replay(*arguments):
            read += 1
            yield each

    async with connected(nats_server.url) as bus:
        made, run_id = [Announcements(bus, f"pod-{n}") for n in range(2)], new_run_id()
        monkeypatch.setattr(direct, "replay", counted)
        for number, job in enumerate(jobs(run_id, 40)):
            assert await say(made[number % 2], job)
        monkeypatch.undo()
        assert read <= 3 * 40
        assert len(await said(bus, run_id)) == 40


async def test_frames_that_were_lost_behind_the_known_ones_are_written_again(
    fresh_nats: NatsServer,
) -> None:
    async with connected(fresh_nats.url) as bus:
        run_id = new_run_id()
        first, second, third = jobs(run_id, 3)
        made, other = Announcements(bus, "pod"), Announcements(bus, "other")
        assert await say(made, first)
        await bus.api(f"STREAM.PURGE.{raw_for(run_id)}")
        assert await say(other, second)
        assert await say(made, third)
        assert await say(made, first), "its frame is gone"
        assert not await say(made, second)


async def test_what_was_said_before_the_known_frames_is_looked_up(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as bus:
        run_id = new_run_id()
        [early, late] = jobs(run_id, 2)
        assert await say(Announcements(bus, "first"), early)
        last = await bus.tail(raw_for(run_id), subjects.raw_stored(run_id, "automations"))
        assert last is not None
        second = Announcements(bus, "second")
        assert await say(second, late, raw=last.sequence)
        assert not await say(second, early, raw=0)


async def test_only_so_many_frames_are_kept_in_memory(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "MAX_KEYS", 10)
    async with connected(nats_server.url) as bus:
        made, runs = Announcements(bus, "pod"), [new_run_id() for _ in range(8)]
        for run_id in runs:
            for job in jobs(run_id, 4):
                assert await say(made, job)
        assert sum(len(each.keys) for each in made._known.values()) <= 10
        for run_id in runs:
            assert not await say(made, jobs(run_id, 1)[0])


async def test_frames_that_have_expired_do_not_stop_a_later_announcement(
    fresh_nats: NatsServer,
) -> None:
    async with connected(fresh_nats.url) as bus:
        run_id = new_run_id()
        [first, second] = jobs(run_id, 2)
        made = Announcements(bus, "pod")
        assert await say(made, first)
        await bus.api(f"STREAM.PURGE.{raw_for(run_id)}")
        assert await say(made, second)
