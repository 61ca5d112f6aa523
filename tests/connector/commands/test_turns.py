"""If legs are scarce, users take turns, independent of who came first and with how many starts."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus import Retry
from penstock.turns import Level, TenantUser
from penstock_connector.commands.fair_queue import FairQueue, next_user
from penstock_connector.service import ConnectorService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import pipeline
from support.fakes.misbehaving import Answer, Misbehaving, agents
from support.fakes.raw import agno_text
from support.real.nats import NatsServer

USERS = st.sampled_from("abcdef")
PARTIES = st.builds(TenantUser, st.sampled_from(["", "acme", "umbrella"]), USERS)
LEVELS = PARTIES.flatmap(lambda user: st.sampled_from(user.levels))


# The choice of the next user


@given(
    st.dictionaries(PARTIES, st.integers(1, 100), min_size=1),
    st.dictionaries(LEVELS, st.integers(0, 5)),
    st.dictionaries(LEVELS, st.integers(1, 100)),
)
def test_nobody_is_chosen_over_a_tenant_or_in_it_over_a_user_with_fewer_legs(
    waiting: dict[TenantUser, int], legs: dict[Level, int], served: dict[Level, int]
) -> None:
    chosen = next_user(waiting, legs, served)
    assert chosen is not None
    assert chosen in waiting
    tenant, own = chosen.levels
    assert legs.get(tenant, 0) == min(legs.get(user.levels[0], 0) for user in waiting)
    beside = [user for user in waiting if user.tenant == chosen.tenant]
    assert legs.get(own, 0) == min(legs.get(user, 0) for user in beside)


def test_of_users_with_as_many_legs_the_one_who_was_served_the_longest_ago_is_next() -> None:
    a, b = TenantUser("", "a"), TenantUser("", "b")
    assert next_user({a: 1, b: 2}, {}, {a: 7, b: 3}) == b
    assert next_user({a: 1, b: 2}, {}, {a: 7}) == b
    assert next_user({a: 9, b: 2}, {}, {}) == b
    assert next_user({}, {}, {}) is None


def test_a_tenant_of_many_users_gets_no_more_legs_than_a_tenant_of_one() -> None:
    many = [TenantUser("acme", f"user-{n}") for n in range(9)]
    one = TenantUser("umbrella", "bob")
    legs: Counter[Level] = Counter()
    served: dict[Level, int] = {}
    for number in range(1, 19):
        chosen = next_user(dict.fromkeys([*many, one], number), legs, served)
        assert chosen is not None
        legs.update(chosen.levels)
        served |= dict.fromkeys(chosen.levels, number)
    assert (legs["acme",], legs["umbrella",]) == (9, 9)
    assert {legs[user] for user in many} == {1}


# Turns


class Connector:
    """A stand-in for a connector that holds up to `max_legs` legs until they are ended."""

    def __init__(self, max_legs: int, at_once: int = 64) -> None:
        self.legs: dict[str, str] = {}
        self.begun: list[str] = []
        self.turns = FairQueue(
            lambda: max_legs - len(self.legs), lambda run_id: run_id in self.legs, at_once
        )

    async def start(self, user: str, sequence: int) -> None:
        run_id = f"{user}{sequence}"
        async with self.turns.turn(TenantUser("", user), run_id, sequence):
            await asyncio.sleep(0)
            self.legs[run_id] = user
            self.begun.append(run_id)

    async def end_one(self, run_id: str) -> None:
        """End a leg, and wait until the next one in the queue begins."""
        begun = len(self.begun)
        del self.legs[run_id]
        async with asyncio.timeout(30):
            while len(self.begun) == begun and len(self.turns):
                await asyncio.sleep(0.01)


async def test_a_user_who_comes_last_is_served_with_the_next_leg() -> None:
    connector = Connector(2)
    tasks = [asyncio.create_task(connector.start("a", n)) for n in range(1, 21)]
    await asyncio.sleep(0.01)
    tasks.append(asyncio.create_task(connector.start("b", 100)))
    await asyncio.sleep(0.01)
    assert connector.begun == ["a1", "a2"]
    await connector.end_one("a1")
    assert connector.begun[-1] == "b100"
    await connector.end_one("a2")
    assert connector.begun[-1] == "a3"
    connector.turns.close()
    await asyncio.gather(*tasks, return_exceptions=True)


@given(
    st.lists(st.tuples(USERS, st.integers(1, 8)), min_size=1, max_size=8),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_all_run_each_once_in_its_users_order_and_never_more_than_there_are_legs(
    starts: list[tuple[str, int]], max_legs: int, at_once: int
) -> None:
    async def play() -> None:
        connector = Connector(max_legs, at_once)
        users = [user for user, count in starts for _ in range(count)]
        tasks = [
            asyncio.create_task(connector.start(user, number))
            for number, user in enumerate(users, 1)
        ]
        async with asyncio.timeout(20):
            while len(connector.begun) < len(users):
                await asyncio.sleep(0)
                assert len(connector.legs) <= max_legs
                if connector.legs:
                    del connector.legs[next(iter(connector.legs))]
                    connector.turns._grant()  # a connector does this every 50 ms
        await asyncio.gather(*tasks)
        for user in set(users):
            numbers = [int(run[1:]) for run in connector.begun if run[0] == user]
            assert numbers == sorted(numbers)
        assert Counter(connector.begun).most_common(1)[0][1] == 1
        assert len(connector.turns) == 0

    asyncio.run(play())


async def test_a_caller_cancelled_while_it_waits_takes_no_turn() -> None:
    connector = Connector(1)
    await connector.start("a", 1)
    waiting = asyncio.create_task(connector.start("a", 2))
    behind = asyncio.create_task(connector.start("a", 3))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await connector.end_one("a1")
    await behind
    assert connector.begun == ["a1", "a3"]
    assert len(connector.turns) == 0


async def test_a_connector_that_stops_sends_away_all_that_wait() -> None:
    connector = Connector(1)
    await connector.start("a", 1)
    waiting = [asyncio.create_task(connector.start("a", n)) for n in (2, 3)]
    await asyncio.sleep(0.01)
    connector.turns.close()
    for task in waiting:
        with pytest.raises(Retry):
            await task
    with pytest.raises(Retry):
        await connector.start("b", 4)


# With a real broker and connector


class Holding:
    """An agent server that answers only when the test releases it."""

    def __init__(self) -> None:
        self.let_go = asyncio.Semaphore(0)

    async def __call__(self, answer: Answer) -> None:
        await self.let_go.acquire()
        await answer.whole(agno_text("x"))


@pytest.mark.parametrize("of_one", ["user", "tenant"])
async def test_behind_many_starts_of_one_user_or_tenant_another_waits_for_one_leg_alone(
    fresh_nats: NatsServer, upstream: Misbehaving, of_one: str
) -> None:
    def attacker(number: int) -> dict[str, str]:
        if of_one == "user":
            return {"user_id": "mallory"}
        return {"user_id": f"mallory-{number}", "tenant": "acme"}

    holding = Holding()
    upstream.script(holding)
    services = (NormalizerService, ConnectorService)
    async with pipeline(fresh_nats.url, agents(upstream), services, max_legs=3) as penstock:
        many = [await penstock.start_run("agno", f"{n}", **attacker(n)) for n in range(40)]
        await upstream.called(3)
        late = await penstock.start_run("agno", "late", user_id="alice")
        await waits(penstock.bus, 41)
        holding.let_go.release()
        await upstream.called(4)
        holding.let_go.release()
        holding.let_go.release()
        holding.let_go.release()
        *_, last = await penstock.ended(late, timeout_s=20)
        assert last.type == "lifecycle.completed"
        assert len(upstream.calls) < 12
        for _ in range(40):
            holding.let_go.release()
        for run_id in many:
            *_, last = await penstock.ended(run_id, timeout_s=30)
            assert last.type == "lifecycle.completed"
    assert len(upstream.calls) == 41


async def waits(bus: Any, messages: int) -> None:
    """Wait until the connector has fetched all starts."""
    async with asyncio.timeout(30):
        while True:
            info = await bus.api("CONSUMER.INFO.COMMANDS.connector-start")
            if info["num_pending"] == 0 and info["delivered"]["consumer_seq"] >= messages:
                return
            await asyncio.sleep(0.05)


async def test_starts_that_wait_at_a_full_connector_begin_at_one_that_joins(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    holding = Holding()
    upstream.script(holding)
    services = (NormalizerService, ConnectorService)
    async with pipeline(fresh_nats.url, agents(upstream), services, max_legs=2) as penstock:
        runs = [await penstock.start_run("agno", f"{n}", user_id="mallory") for n in range(10)]
        await waits(penstock.bus, 10)
        await upstream.called(2)
        assert len(upstream.calls) == 2
        async with pipeline(fresh_nats.url, agents(upstream), (ConnectorService,), max_legs=20):
            await upstream.called(10)
            for _ in range(20):
                holding.let_go.release()
            for run_id in runs:
                *_, last = await penstock.ended(run_id, timeout_s=20)
                assert last.type == "lifecycle.completed"
    assert len(upstream.calls) == 10


async def test_what_waits_at_a_connector_that_stops_goes_to_another(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    holding = Holding()
    upstream.script(holding)
    async with pipeline(fresh_nats.url, agents(upstream), (NormalizerService,)) as penstock:
        async with pipeline(fresh_nats.url, agents(upstream), (ConnectorService,), max_legs=1):
            runs = [await penstock.start_run("agno", f"{n}") for n in range(4)]
            await waits(penstock.bus, 4)
            holding.let_go.release()
            await penstock.ended(runs[0], timeout_s=20)
        for _ in range(20):
            holding.let_go.release()
        async with pipeline(fresh_nats.url, agents(upstream), (ConnectorService,), max_legs=5):
            for run_id in runs[2:]:
                *_, last = await penstock.ended(run_id, timeout_s=30)
                assert last.type == "lifecycle.completed"
