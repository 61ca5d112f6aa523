"""A quiet edge flushes at once; a busy edge joins the frames of fast runs for a limited time."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from prometheus_client import REGISTRY

from penstock_edge.stream import flushes
from penstock_edge.stream.flushes import JOIN_S, SLICE, Flushes
from support.drive.waiting import eventually
from support.fakes.busyness import busy
from support.fakes.connections import World


class Counted:
    """A hub that counts its flushes and may be flushed again after `join_s`."""

    def __init__(self, to: Flushes, writes: int = 1) -> None:
        self.flush_at = 0.0
        self.flushed_at: list[float] = []
        self._to, self._writes = to, writes

    def flush(self) -> int:
        now = self._to.time()
        self.flushed_at.append(now)
        self.flush_at = now + self._to.join_s
        return self._writes


@pytest.fixture
async def to() -> Flushes:
    """Return the flushes of a process that is busy all the time."""
    return Flushes(lambda: None, busy(1.0))


async def test_a_hub_that_was_not_flushed_lately_is_flushed_in_this_turn(to: Flushes) -> None:
    hubs = [Counted(to) for _ in range(3)]
    for hub in hubs:
        to.add(hub)
    await asyncio.sleep(0)
    assert [len(hub.flushed_at) for hub in hubs] == [1, 1, 1]


def test_a_time_that_has_nearly_come_is_no_error_with_uvloop() -> None:
    """For a delay under half a millisecond, uvloop returns a handle that does not know its time."""

    async def add() -> tuple[list[float], list[float]]:
        to = Flushes(lambda: None)
        near, next_ = Counted(to), Counted(to)
        for hub in (near, next_):
            hub.flush_at = to.time() + 0.0004
            to.add(hub)
        async with asyncio.timeout(30):
            while not (near.flushed_at and next_.flushed_at):
                await asyncio.sleep(0)
        return near.flushed_at, next_.flushed_at

    assert [len(times) for times in uvloop.run(add())] == [1, 1]


async def test_the_next_flush_waits_until_the_time_is_over(to: Flushes) -> None:
    hub, other = Counted(to), Counted(to)
    to.add(hub)
    await asyncio.sleep(0)
    to.add(hub)
    to.add(other)  # the other hub does not wait for the first one
    await asyncio.sleep(0)
    assert (len(hub.flushed_at), len(other.flushed_at)) == (1, 1)

    async def again() -> bool:
        return len(hub.flushed_at) == 2

    await eventually(again)
    assert hub.flushed_at[1] - hub.flushed_at[0] >= JOIN_S - 2 * flushes.EARLY_S


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
async def test_the_time_grows_with_the_share_in_which_the_process_is_busy(share: float) -> None:
    to = Flushes(lambda: None, busy(share))
    to.add(Counted(to))
    await asyncio.sleep(0)
    assert to.join_s == pytest.approx(share**2 * JOIN_S)


async def test_other_callbacks_run_after_a_slice_of_writes(to: Flushes) -> None:
    order: list[str] = []
    hubs = [Counted(to, SLICE), Counted(to)]
    for hub in hubs:
        to.add(hub)
    asyncio.get_running_loop().call_soon(lambda: order.append(str(len(hubs[1].flushed_at))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == ["0"]
    assert len(hubs[1].flushed_at) == 1


async def test_delivered_events_are_counted_soon_and_at_the_end() -> None:
    def count() -> float:
        labels = {"dialect": "canonical"}
        return REGISTRY.get_sample_value("penstock_delivered_total", labels) or 0.0

    before, world = count(), World()
    connections = [await world.join() for _ in range(3)]
    world.say("first")

    async def all_in_sync() -> bool:
        return all(each.is_in_sync for each in connections)

    await eventually(all_in_sync)
    world.say("a")
    world.say("b")

    async def all_there() -> bool:
        return all(len(each.frames()) == 3 for each in connections)

    await eventually(all_there)
    await world.close()
    assert count() == before + 9
