"""The server's time is learned from its answers; steps of this machine's clock do not move it."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus import Bus, BusUnavailable
from penstock.bus.connection.clock import DRIFT, FIRST_ASKED, KEPT, Clock, Estimate, Exchange
from support.drive.bus import connected
from support.fakes.clocks import server_steps
from support.real.nats import NatsServer

BEGIN_S = 1_800_000_000.0  # the server's time when the monotonic clock of these tests is 0


class World:
    """Simulate a server, a machine and the delay of messages in both directions, all in seconds."""

    def __init__(self) -> None:
        self.monotonic_s = 0.0
        self.local_ahead_s = 0.0
        self.server_ahead_s = 0.0
        self.there_s = 0.001
        self.back_s = 0.001
        self.away = False
        self.asked = 0
        self.clock = Clock(
            self.ask, limit_s=30.0, monotonic=lambda: self.monotonic_s, wall=self.local_s
        )

    def local_s(self) -> float:
        return BEGIN_S + self.monotonic_s + self.local_ahead_s

    async def ask(self) -> str:
        self.asked += 1
        if self.away:
            raise BusUnavailable("nobody answers")
        self.monotonic_s += self.there_s
        server_s = BEGIN_S + self.monotonic_s + self.server_ahead_s
        self.monotonic_s += self.back_s
        return datetime.fromtimestamp(server_s, UTC).isoformat()

    async def later(self, seconds: float) -> None:
        """Move the monotonic clock forward, then ask the server for its time once more."""
        self.monotonic_s += seconds
        await self.clock.refresh()


@pytest.fixture
def world() -> World:
    return World()


# the estimate


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(0, 60)), min_size=1, max_size=30
    ),
    st.floats(-DRIFT / 2, DRIFT / 2),
)
def test_the_error_of_the_estimate_stays_within_its_bound(
    exchanges: list[tuple[float, float, float]], drift: float
) -> None:
    estimate = Estimate()
    now_s = 0.0
    for there_s, back_s, pause_s in exchanges:
        asked_at_s = now_s + pause_s
        now_s = asked_at_s + there_s + back_s
        server_s = 1000 + (asked_at_s + there_s) * (1 + drift)
        estimate.add(Exchange(asked_at_s, now_s, server_s))
        truth_s = 1000 + now_s * drift
        assert abs(estimate.base_s - truth_s) <= estimate.error_s + 10 * DRIFT


def test_a_slow_answer_changes_nothing() -> None:
    estimate = Estimate()
    assert estimate.add(Exchange(0, 0.002, 1000.001)) == 0
    # The answer takes nine seconds to come back.
    assert estimate.add(Exchange(5, 14, 1005.001)) == 0
    assert estimate.base_s == pytest.approx(1000, abs=0.001)
    assert estimate.error_s < 0.02


def test_an_old_answer_counts_less_than_a_new_one() -> None:
    estimate = Estimate()
    for number in range(KEPT + 1):
        # the server's clock gains 0.5 ms a second
        at_s = number * 5.0
        estimate.add(Exchange(at_s, at_s + 0.002, 1000.001 + at_s * 1.0005))
    assert estimate.base_s == pytest.approx(1000 + KEPT * 5 * 0.0005, abs=0.006)


@pytest.mark.parametrize("jump_s", [-75.0, -2.0, 2.0, 75.0])
def test_a_server_whose_clock_is_set_is_believed_at_once(jump_s: float) -> None:
    estimate = Estimate()
    for at_s in (0.0, 5.0, 10.0):
        assert estimate.add(Exchange(at_s, at_s + 0.01, 1000.005 + at_s)) == 0
    assert estimate.add(Exchange(15, 15.5, 1015.25 + jump_s)) == pytest.approx(jump_s, abs=0.3)
    assert estimate.base_s == pytest.approx(1000 + jump_s, abs=0.3)


# the clock


async def test_until_the_server_has_answered_the_own_clock_counts(world: World) -> None:
    world.local_ahead_s, world.away = 75.0, True
    await world.clock.begin()
    assert world.asked == 1
    assert world.clock.time() == world.local_s()
    assert world.clock.offset_s == 0
    assert world.clock.not_ready == []


@pytest.mark.parametrize("ahead_s", [-75.0, -20.0, 0.0, 20.0, 75.0])
async def test_the_servers_time_is_known_whatever_the_own_clock_says(
    world: World, ahead_s: float
) -> None:
    world.local_ahead_s = ahead_s
    await world.clock.begin()
    assert world.asked == FIRST_ASKED
    assert world.clock.time() == pytest.approx(BEGIN_S + world.monotonic_s, abs=0.002)
    assert world.clock.offset_s == pytest.approx(ahead_s, abs=0.002)
    stamp = world.clock.stamp()
    assert stamp.endswith("Z")
    assert world.clock.age_s(stamp) == pytest.approx(0, abs=0.001)
    assert world.clock.now() - datetime.fromisoformat(stamp) < timedelta(milliseconds=1)


async def test_a_step_of_the_own_clock_does_not_move_the_servers_time(world: World) -> None:
    await world.clock.begin()
    before_s = world.clock.time()
    world.local_ahead_s = -3600.0
    assert world.clock.time() == before_s
    assert world.clock.offset_s == pytest.approx(-3600, abs=0.01)
    await world.later(5)
    assert world.clock.has_been_steady_for(60)


async def test_a_step_of_the_servers_clock_is_seen_at_the_next_look(world: World) -> None:
    world.monotonic_s = 1000
    await world.clock.begin()
    world.server_ahead_s = 75.0
    await world.later(1)
    assert world.clock.time() == pytest.approx(BEGIN_S + world.monotonic_s + 75, abs=0.002)
    assert not world.clock.has_been_steady_for(15)
    world.monotonic_s += 16
    assert world.clock.has_been_steady_for(15)


async def test_concurrent_refreshes_share_one_answer(world: World) -> None:
    world.monotonic_s = 5
    gate = asyncio.Event()

    async def slow() -> str:
        await gate.wait()
        return await world.ask()

    clock = Clock(slow, monotonic=lambda: world.monotonic_s, wall=world.local_s)
    first = asyncio.create_task(clock.refresh())
    await asyncio.sleep(0)
    world.monotonic_s += 1
    # These callers ask after the first question was sent, so they need a new answer: the server's
    # clock may have been set in between.
    others = [asyncio.create_task(clock.refresh()) for _ in range(9)]
    await asyncio.sleep(0)
    world.monotonic_s += 1
    gate.set()
    await asyncio.gather(first, *others)
    assert world.asked == 2


async def test_a_clock_that_is_far_off_is_no_longer_ready_and_says_what_to_do(
    world: World,
) -> None:
    world.local_ahead_s = 29
    await world.clock.begin()
    assert world.clock.not_ready == []
    world.local_ahead_s = 75
    (reason,) = world.clock.not_ready
    assert "75.0 s ahead of NATS's" in reason
    assert "30 s of PENSTOCK_CLOCK_LIMIT_S" in reason
    assert "NTP" in reason
    world.local_ahead_s = -75
    (reason,) = world.clock.not_ready
    assert "75.0 s behind NATS's" in reason
    world.local_ahead_s = 0
    assert world.clock.not_ready == []


async def test_the_log_tells_of_each_change_once(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.bus.connection.clock.ASK_S", 0)
    caplog.set_level(logging.INFO, logger="penstock.bus.connection.clock")
    await world.clock.begin()
    running = asyncio.create_task(world.clock.run())

    async def said(ahead_s: float) -> list[str]:
        caplog.clear()
        world.local_ahead_s = ahead_s
        asked = world.asked
        while world.asked < asked + 20:
            await asyncio.sleep(0)
        return [record.getMessage() for record in caplog.records]

    assert await said(0) == []
    (beyond,) = await said(40)
    assert "40.0 s ahead" in beyond
    (further,) = await said(50)
    assert "50.0 s ahead" in further
    (over,) = await said(1)
    assert "agree again" in over
    assert await said(2) == []
    running.cancel()
    await asyncio.wait([running])


# over a real server


async def test_the_servers_time_is_learned_when_a_service_connects(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server.url) as bus:
        assert abs(bus.clock.offset_s) < 1
        assert bus.clock.error_s < 1
        assert bus.not_ready == []


async def test_a_bus_whose_clock_is_far_off_is_not_ready(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(nats_server.url, clock_limit_s=60) as bus:
        wall = bus.clock._wall
        monkeypatch.setattr(bus.clock, "_wall", lambda: wall() - 50)
        assert bus.not_ready == []
        monkeypatch.setattr(bus.clock, "_wall", lambda: wall() - 75)
        (reason,) = bus.not_ready
        assert "75.0 s behind NATS's" in reason
        assert bus.is_ready  # work that has begun continues


async def test_a_server_whose_clock_was_set_back_expires_no_key(bus: Bus, run_id: str) -> None:
    leases = bus.bucket("leases")
    assert await leases.create(run_id, b"alive", 60)
    server_steps(bus.clock, -600)
    assert await leases.get(run_id) is not None
    server_steps(bus.clock, -600)
    assert [entry.value for entry in await leases.entries(run_id)] == [b"alive"]
