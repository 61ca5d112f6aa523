"""A follower delivers each event once, while live messages are lost, repeated or out of order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from fuzz.cases import examples
from penstock.bus import Bus, Follow, Incoming, Stored
from penstock.bus.read import direct
from penstock.bus.read import follow as following
from support.drive.bus import event, new_run_id
from support.drive.sync_bus import World
from support.drive.waiting import eventually
from support.real.nats import NatsServer

PROBE_S = 0.05


class Line:
    """Pass live messages to a follower. `treat` says what happens to each of the next messages."""

    def __init__(self, follow: Follow) -> None:
        self._take = follow._on_live
        self.treat: list[str] = []
        self.held: list[Incoming] = []

    def __call__(self, msg: Incoming) -> None:
        how = self.treat.pop(0) if self.treat else "deliver"
        if how == "hold":
            self.held.append(msg)
        elif how != "drop":
            self._take(msg)
        if how == "repeat":
            self._take(msg)

    async def release(self, order: int) -> None:
        held, self.held = self.held, []
        random.Random(order).shuffle(held)
        for msg in held:
            self._take(msg)


class Following(RuleBasedStateMachine):
    """The model: of the `published` events, the follower gets each event from `first` on once."""

    world: World
    lag = 0  # the number of latest messages that direct gets omit, as a replica that lags would

    @initialize(past=st.integers(0, 5), start=st.integers(1, 6))
    def begin(self, past: int, start: int) -> None:
        self.run_id = new_run_id()
        self.published = 0
        self.sequences = [0]
        self.delivered: list[int] = []
        type(self).lag = 0
        self.publish(past)
        self.first = min(start, past + 1)
        at = self.sequences[self.first] if self.first <= past else self.sequences[-1] + 1
        self.follow = Follow(
            self.world.bus, following.events(self.run_id), at, self._deliver, PROBE_S
        )
        self.world.runner.run(self.follow.start())
        assert self.follow._listener is not None
        self.line = Line(self.follow)
        self.follow._listener.deliver = self.line

    def _deliver(self, batch: list[Stored]) -> None:
        self.delivered += [int(stored.payload) for stored in batch]

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        async def publish() -> None:
            for _ in range(count):
                self.published += 1
                message = event(self.run_id, self.published)
                self.sequences.append(await self.world.bus.publisher.publish(message))

        self.world.runner.run(publish())

    @rule(count=st.integers(2, 5))
    def publish_a_batch(self, count: int) -> None:
        numbers = range(self.published + 1, self.published + count + 1)
        batch = [event(self.run_id, number) for number in numbers]
        last = self.world.runner.run(self.world.bus.publisher.publish_batch(batch))
        self.sequences += range(last - count + 1, last + 1)
        self.published += count

    @rule(
        treat=st.lists(
            st.sampled_from(["drop", "repeat", "hold", "deliver"]), min_size=1, max_size=6
        )
    )
    def the_line_goes_wrong(self, treat: list[str]) -> None:
        self.line.treat += treat

    @rule(order=st.integers(0, 9))
    def what_was_delayed_arrives(self, order: int) -> None:
        self.world.runner.run(self.line.release(order))

    @rule(lag=st.integers(0, 3))
    def a_replica_falls_behind(self, lag: int) -> None:
        type(self).lag = lag

    @rule()
    def reconnect(self) -> None:
        self.world.runner.run(self.world.bus.client.force_reconnect())

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.06]))
    def time_passes(self, seconds: float) -> None:
        self.world.runner.run(asyncio.sleep(seconds))

    @invariant()
    def what_was_delivered_is_a_beginning(self) -> None:
        if hasattr(self, "run_id"):
            first = getattr(self, "first", 1)
            assert self.delivered == [*range(first, first + len(self.delivered))]

    def teardown(self) -> None:
        if not hasattr(self, "follow"):
            return
        type(self).lag = 0
        self.line.treat.clear()
        self.world.runner.run(self._end())

    async def _end(self) -> None:
        async def all_of_it() -> bool:
            return len(self.delivered) >= self.published - self.first + 1

        await eventually(all_of_it, 30, f"{self.published} from {self.first} on")
        await self.line.release(0)  # these messages come late, and the follower knows them already
        await self.follow.stop()
        assert self.delivered == [*range(self.first, self.published + 1)]


@pytest.fixture
def world(nats_server: NatsServer) -> Iterator[World]:
    world = World(nats_server)
    yield world
    world.close()


@pytest.mark.timeout(300)  # Hypothesis needs time to shrink a failure
@examples(10)
def test_each_event_is_delivered_once_and_in_order_whatever_the_line_does(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    machine = type("Follower", (Following,), {"world": world})

    async def read(*args: Any, **options: Any) -> tuple[list[Stored], int]:
        found, pending = await direct.read(*args, **options)
        if machine.lag and not pending:  # type: ignore[attr-defined]
            found = found[: -machine.lag]  # type: ignore[attr-defined]
        return found, pending

    async def last(bus: Bus, stream: str, pattern: str) -> Stored | None:
        found, _ = await read(bus, stream, pattern)
        return found[-1] if found else None

    monkeypatch.setattr(following, "read", read)
    monkeypatch.setattr(following, "last", last)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count, stateful_step_count=15)
    )
