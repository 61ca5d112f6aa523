"""Clients that have all events are written to as one group; each client gets each event once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from fuzz.cases import examples
from penstock_edge.settings import EdgeSettings
from penstock_edge.stream import flushes
from penstock_edge.stream import hub as hub_module
from penstock_edge.stream.open_streams import ReconnectReason
from penstock_edge.stream.phases import End
from support.drive.waiting import eventually
from support.fakes.connections import Connection, World


@pytest.fixture(autouse=True)
def no_joining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flush each hub at once, and pause each fan-out after two writes."""
    monkeypatch.setattr(flushes, "JOIN_S", 0.0)
    monkeypatch.setattr(hub_module, "SLICE", 2)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds, 30)


async def in_sync(world: World, count: int) -> list[Connection]:
    """Return so many clients that are in sync after the first event."""
    connections = [await world.join() for _ in range(count)]
    world.say("first")
    await until(lambda: all(each.is_in_sync for each in connections))
    return connections


async def all_there(world: World, connections: list[Connection]) -> None:
    expected = world.frames()
    await until(lambda: all(each.frames() == expected for each in connections))


async def test_a_live_event_costs_one_write_for_each_client_and_no_task(world: World) -> None:
    connections = await in_sync(world, 5)
    before = [each.writes for each in connections]
    tasks = asyncio.all_tasks()
    world.say("a", "b")
    for _ in range(5):
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == tasks
    assert [each.writes for each in connections] == [each + 1 for each in before]
    await all_there(world, connections)
    assert all(each.is_in_sync for each in connections)


async def test_events_are_joined_from_the_end_of_a_long_fan_out_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a fan-out to many clients would use up the time in which events are joined."""
    await in_sync(world, 5)
    hub = world.connections[0].client.hub
    clock = count(1_000_000)
    monkeypatch.setattr(hub._flushes, "time", lambda: float(next(clock)))
    world.say("a")
    await until(lambda: hub.ring.end == 2 and not hub.in_sync.unwritten)
    assert hub.in_sync.wrote_at >= 1_000_000
    assert hub.flush_at > hub.in_sync.wrote_at


@pytest.mark.parametrize("clients", [1, 3])
async def test_a_paused_client_leaves_the_group_and_returns_when_it_has_read(
    world: World, clients: int
) -> None:
    slow, *others = await in_sync(world, clients)
    slow.is_full = True
    world.say("a")
    await all_there(world, [slow, *others])
    assert not slow.is_in_sync
    world.say("b")
    world.say("c")
    await all_there(world, others)
    assert len(slow.frames()) == 2
    slow.drain()
    await all_there(world, [slow])
    await until(lambda: slow.is_in_sync)


async def test_a_client_that_pauses_and_resumes_without_news_is_in_step_again(
    world: World,
) -> None:
    slow, *_ = await in_sync(world, 3)
    slow.is_full = True
    world.say("a")
    await until(lambda: slow.flow.write_paused)
    slow.drain()
    await until(lambda: slow.is_in_sync)


async def test_an_exception_in_one_write_ends_one_stream_only(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    connections = await in_sync(world, 7)
    broken, others = connections[3], [*connections[:3], *connections[4:]]
    broken.is_broken = True
    world.say("a")
    world.say("b")
    await all_there(world, others)
    assert all(each.is_in_sync for each in others)
    assert broken.client.end is End.LEFT
    assert len(world.hubs.streams) == 6
    assert "a write has failed" in caplog.text


async def test_an_exception_in_the_write_to_the_only_client_ends_its_stream(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    [broken] = await in_sync(world, 1)
    broken.is_broken = True
    world.say("a")
    await until(lambda: broken.client.end is End.LEFT)
    assert not world.hubs.streams
    assert "a write has failed" in caplog.text
    assert "the hub fails" not in caplog.text


async def test_a_client_that_leaves_during_a_fan_out_does_not_stop_it(world: World) -> None:
    connections = await in_sync(world, 9)
    world.say("a")
    written: list[Connection] = []
    async with asyncio.timeout(30):
        # A busy process begins the fan-out later, so the test looks after each turn of the loop.
        while not written:
            await asyncio.sleep(0)
            written = [each for each in connections if len(each.frames()) == 2]
    assert len(written) < 9
    waiting = next(each for each in connections if len(each.frames()) == 1)
    written[0].lose()
    waiting.lose()
    staying = [each for each in connections if each not in (written[0], waiting)]
    await all_there(world, staying)
    assert len(waiting.frames()) == 1


async def test_a_notice_during_a_fan_out_comes_between_two_events(world: World) -> None:
    connections = await in_sync(world, 9)
    world.say("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for each in connections:
        each.client.warn("told", "something")
    world.say("b")
    await all_there(world, connections)
    assert all(each.body.count(b": told\n\n") == 1 for each in connections)
    await until(lambda: all(each.is_in_sync for each in connections))


async def test_the_end_of_the_run_ends_each_response(world: World) -> None:
    connections = await in_sync(world, 5)
    world.say("a")
    world.say("done", type="lifecycle.completed")
    await until(lambda: all(each.is_complete for each in connections))
    await all_there(world, connections)
    assert {each.client.end for each in connections} == {End.COMPLETE}
    assert not world.hubs.streams
    await until(lambda: world.sources[0].is_stopped)
    # The connection stays open for the next request.
    assert not any(each.is_closed for each in connections)


@pytest.mark.parametrize("reason", ReconnectReason)
async def test_a_client_in_sync_is_asked_to_reconnect(
    world: World, reason: ReconnectReason
) -> None:
    moved, *others = await in_sync(world, 3)
    moved.client.ask_to_reconnect(reason)
    await until(lambda: moved.is_complete)
    assert b"retry: " in moved.body
    assert moved.is_closed  # so that the next request may reach another edge
    world.say("a")
    await all_there(world, others)


async def test_a_client_in_sync_whose_credential_expires_gets_no_more_events(world: World) -> None:
    expired, *others = await in_sync(world, 3)
    expired.client.expire()
    world.say("a")
    await all_there(world, others)
    await until(lambda: expired.is_complete)
    assert len(expired.frames()) == 1


async def test_a_stream_with_a_last_event_ends_after_it(world: World) -> None:
    ending, *others = await in_sync(world, 3)
    ending.client.end_after(3)
    world.say("a", "b")
    await until(lambda: ending.is_complete)
    world.say("c")
    await all_there(world, others)
    assert ending.frames()[-1].id == "3-0"


async def test_what_the_client_holds_is_given_back_once_when_it_leaves(world: World) -> None:
    (connection,) = await in_sync(world, 1)
    released: list[str] = []
    connection.client.when_left(lambda: released.append("place"))
    connection.lose()
    connection.client.leave()
    assert released == ["place"]


async def test_an_event_that_needs_the_bus_keeps_its_place_in_the_order(world: World) -> None:
    connections = await in_sync(world, 3)
    world.say("a", "waits", "b", "empty", "waits", "c")
    world.say("d")
    await all_there(world, connections)


async def test_a_keep_alive_does_not_take_a_client_out_of_sync(world: World) -> None:
    connections = await in_sync(world, 3)
    now = asyncio.get_running_loop().time()
    for each in connections:
        each.client.maintain(now + 1, 15, world.settings)
        assert b"keep-alive" not in each.body
        each.client.maintain(now + 40, 15, world.settings)
        assert each.body.endswith(b": keep-alive\n\n")
        assert each.is_in_sync


async def test_a_client_whose_keep_alive_cannot_be_written_ends_alone(world: World) -> None:
    broken, other = await in_sync(world, 2)
    broken.is_broken = True
    broken.client.maintain(asyncio.get_running_loop().time() + 40, 15, world.settings)
    await until(lambda: broken.client.end is End.LEFT)
    world.say("a")
    await all_there(world, [other])


async def test_a_client_that_takes_nothing_is_dropped_and_the_group_continues(world: World) -> None:
    slow, other = await in_sync(world, 2)
    slow.is_full = True
    world.say("a")
    await until(lambda: slow.flow.write_paused)
    world.say("b")
    await all_there(world, [other])
    late = asyncio.get_running_loop().time() + EdgeSettings().write_timeout_s + 1
    slow.client.maintain(late, 5, world.settings)
    assert slow.client.end is End.SLOW
    slow.drain()
    await until(lambda: slow.is_complete)
    assert b": dropped: " in slow.body
    assert len(slow.frames()) == 2


async def test_closing_the_edge_completes_each_response(world: World) -> None:
    connections = await in_sync(world, 3)
    await world.hubs.close()
    await until(lambda: all(each.is_complete for each in connections))


class Coming(RuleBasedStateMachine):
    """A state machine of what may happen to the clients of one hub, in any order.

    Each step runs only a few turns of the event loop, so the next step may come within a flush.
    """

    runner: asyncio.Runner
    connections = Bundle("connections")

    @initialize()
    def begin(self) -> None:
        async def make() -> World:
            return World(EdgeSettings(ring_bytes=10**9))

        self.world = self.runner.run(make())
        self.lost: set[Connection] = set()

    def _do(self, act: Callable[[], Any], turns: int) -> None:
        async def acting() -> None:
            act()
            for _ in range(turns):
                await asyncio.sleep(0)

        self.runner.run(acting())

    @rule(target=connections)
    def join(self) -> Connection:
        return self.runner.run(self.world.join())

    @rule(
        texts=st.lists(st.sampled_from(["a", "b", "empty", "waits"]), min_size=1, max_size=3),
        turns=st.integers(0, 4),
    )
    def say(self, texts: list[str], turns: int) -> None:
        if self.world.sources:
            self._do(lambda: self.world.say(*texts), turns)

    @rule(connection=connections, turns=st.integers(0, 3))
    def fill(self, connection: Connection, turns: int) -> None:
        self._do(lambda: setattr(connection, "is_full", True), turns)

    @rule(connection=connections, turns=st.integers(0, 3))
    def drain(self, connection: Connection, turns: int) -> None:
        self._do(connection.drain, turns)

    @rule(connection=connections, turns=st.integers(0, 3))
    def warn(self, connection: Connection, turns: int) -> None:
        self._do(lambda: connection.client.warn("told", "something"), turns)

    @rule(connection=connections, turns=st.integers(0, 3))
    def keep_alive(self, connection: Connection, turns: int) -> None:
        def maintain() -> None:
            now = asyncio.get_running_loop().time()
            # `maintain` would drop a client whose connection is full.
            if not connection.flow.write_paused:
                connection.client.maintain(now + 30, 15, self.world.settings)

        self._do(maintain, turns)

    @rule(connection=connections, turns=st.integers(0, 3), how=st.booleans())
    def lose(self, connection: Connection, turns: int, how: bool) -> None:
        self.lost.add(connection)
        self._do(connection.lose if how else lambda: setattr(connection, "is_broken", True), turns)

    def teardown(self) -> None:
        if hasattr(self, "world") and self.world.sources:
            self.runner.run(self._end())

    async def _end(self) -> None:
        world = self.world
        world.say("done", type="lifecycle.completed")
        for each in world.connections:
            each.drain()
        expected = world.frames()
        staying = [each for each in world.connections if each not in self.lost]
        await until(lambda: all(each.is_complete for each in staying))
        for each in staying:
            assert each.frames() == expected
        for each in self.lost:
            assert each.frames() == expected[: len(each.frames())]
        await until(lambda: not world.hubs.streams)
        await world.close()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.timeout(300)  # Hypothesis shrinks a failing example before it reports it
@examples(60)
def test_each_client_gets_each_event_once_whatever_happens_to_the_others(
    runner: asyncio.Runner, count: int
) -> None:
    machine = type("Clients", (Coming,), {"runner": runner})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count, stateful_step_count=40)
    )
