"""Histories of many runs are read in one pass where this is cheaper, with the same result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.bus import Bus, BusUnavailable, Follow, Stored, streams, subjects
from penstock.bus.read import direct, run_histories
from penstock.bus.read.follow import events
from penstock.bus.read.run_histories import Histories, histories
from support.drive.bus import connected, event, new_run_id
from support.drive.waiting import eventually
from support.real.nats import NatsServer

RUNS, EVENTS = 60, 12


@pytest.fixture(autouse=True)
def a_pass_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the thresholds, so that a few runs are enough to cause a pass over the stream."""
    monkeypatch.setattr(run_histories, "AT_ONCE", 2)
    monkeypatch.setattr(run_histories, "IN_A_PASS_US", 1.0)


async def interleaved(bus: Bus, runs: Sequence[str], begin: int, end: int) -> None:
    for number in range(begin, end + 1):
        await asyncio.gather(*(bus.publisher.publish(event(run, number)) for run in runs))


class Reads:
    """Count the reads of single runs and the requests of passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alone = 0
        self.passes: list[int] = []
        read, raw = direct.read, direct.read_raw

        async def count_alone(*arguments: Any) -> Any:
            self.alone += 1
            return await read(*arguments)

        async def count_pass(*arguments: Any) -> Any:
            self.passes.append(arguments[3])
            return await raw(*arguments)

        monkeypatch.setattr("penstock.bus.read.follow.read", count_alone)
        monkeypatch.setattr(run_histories, "read_raw", count_pass)


class Followers:
    """Run one follower for each run."""

    def __init__(self, bus: Bus, runs: Sequence[str]) -> None:
        self.got: dict[str, list[int]] = {run: [] for run in runs}
        self.follows = [Follow(bus, events(run), 1, self._deliver) for run in runs]

    def _deliver(self, batch: list[Stored]) -> None:
        for stored in batch:
            self.got[stored.subject.rpartition(".")[2]].append(int(stored.payload))

    async def __aenter__(self) -> Followers:
        await asyncio.gather(*(follow.start() for follow in self.follows))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(follow.stop() for follow in self.follows))

    async def until(self, last: int) -> None:
        async def all_there() -> bool:
            return all(len(numbers) >= last for numbers in self.got.values())

        await eventually(all_there, 30, f"{last} events of each run")
        assert all(numbers == [*range(1, last + 1)] for numbers in self.got.values())


async def test_many_that_begin_together_get_each_event_once_and_in_order(
    own_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [new_run_id() for _ in range(RUNS)]
    await interleaved(own_bus, runs, 1, EVENTS)
    reads = Reads(monkeypatch)
    async with Followers(own_bus, runs) as followers:
        publishing = asyncio.create_task(interleaved(own_bus, runs, EVENTS + 1, 2 * EVENTS))
        await followers.until(2 * EVENTS)
        await publishing
    assert reads.passes
    assert reads.alone < RUNS


async def test_a_subscriber_that_begins_soon_afterwards_reads_only_new_events(
    own_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [new_run_id() for _ in range(RUNS)]
    await interleaved(own_bus, runs, 1, EVENTS)
    reads = Reads(monkeypatch)
    async with Followers(own_bus, runs) as first:
        await first.until(EVENTS)
        end = histories(own_bus, streams.EVENTS)._kept.end
        assert end > RUNS * (EVENTS - 1)
        reads.passes.clear()
        async with Followers(own_bus, runs) as second:
            await second.until(EVENTS)
        assert all(start >= end for start in reads.passes)


async def test_a_run_by_itself_is_read_alone(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    await interleaved(bus, [run_id], 1, 3)
    reads = Reads(monkeypatch)
    async with Followers(bus, [run_id]) as followers:
        await followers.until(3)
    assert (reads.alone, reads.passes) == (1, [])


async def test_what_does_not_fit_into_memory_is_read_alone(
    own_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_histories, "MAX_KEPT_BYTES", 20_000)
    runs = [new_run_id() for _ in range(RUNS)]
    await interleaved(own_bus, runs, 1, EVENTS)
    reads = Reads(monkeypatch)
    async with Followers(own_bus, runs) as followers:
        await followers.until(EVENTS)
    assert reads.passes
    assert reads.alone >= RUNS
    assert histories(own_bus, streams.EVENTS)._kept._bytes <= 20_000


async def test_what_is_kept_is_forgotten_soon_and_at_a_reconnect(
    own_bus: Bus, fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [new_run_id() for _ in range(RUNS)]
    await interleaved(own_bus, runs, 1, EVENTS)
    read = histories(own_bus, streams.EVENTS)

    async def forgotten() -> bool:
        return not read._kept._bytes

    monkeypatch.setattr(run_histories, "KEPT_S", 60.0)
    async with Followers(own_bus, runs) as followers:
        await followers.until(EVENTS)
        assert read._kept._bytes
        await asyncio.to_thread(fresh_nats.restart)
        await eventually(forgotten, 30)
    monkeypatch.setattr(run_histories, "KEPT_S", 0.05)
    async with Followers(own_bus, runs) as followers:
        await followers.until(EVENTS)
        await eventually(forgotten, 30)


async def test_a_reconnect_in_the_middle_of_a_pass_loses_nothing(
    own_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [new_run_id() for _ in range(RUNS)]
    await interleaved(own_bus, runs, 1, EVENTS)
    monkeypatch.setattr(run_histories, "PASS_BATCH", 100)
    read, raw = histories(own_bus, streams.EVENTS), direct.read_raw
    requests = 0

    async def reconnects(*arguments: Any) -> Any:
        nonlocal requests
        requests += 1
        found = await raw(*arguments)
        if requests == 3:
            read.forget()
        return found

    monkeypatch.setattr(run_histories, "read_raw", reconnects)
    async with Followers(own_bus, runs) as followers:
        await followers.until(EVENTS)
    assert requests > 3


async def test_a_pass_that_fails_is_an_error_for_each_and_is_tried_again(
    own_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [new_run_id() for _ in range(RUNS)]
    await interleaved(own_bus, runs, 1, EVENTS)
    raw, fails = direct.read_raw, [True]

    async def away(*arguments: Any) -> Any:
        if fails and fails.pop():
            raise BusUnavailable("as the test wants")
        return await raw(*arguments)

    monkeypatch.setattr(run_histories, "read_raw", away)
    async with Followers(own_bus, runs) as followers:
        await followers.until(EVENTS)
    assert not fails


async def test_a_caller_that_gives_up_does_not_block_the_others(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(nats_server.url) as bus:
        read, begun, go_on = Histories(bus, streams.EVENTS), asyncio.Event(), asyncio.Event()

        async def alone() -> tuple[list[Stored], int]:
            begun.set()
            await go_on.wait()
            return [], 0

        waiting = [
            asyncio.create_task(read.read(subjects.raw_stored("r", "w"), 1, 9, alone))
            for _ in range(6)
        ]
        await begun.wait()
        for task in waiting[:5]:
            task.cancel()
        go_on.set()
        assert await waiting[5] == ([], 0)
        assert len(read._waiting) == 0
        await asyncio.gather(*read._reading)
        assert read._slots._value == run_histories.AT_ONCE
