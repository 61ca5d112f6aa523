"""The limits of an endpoint, and that one endpoint does not slow the others."""

from __future__ import annotations

import asyncio

import pytest

from penstock_automations.actions.webhook import breaker, endpoints
from penstock_automations.actions.webhook.breaker import Rate
from penstock_automations.actions.webhook.endpoints import MAX_AHEAD, MAX_UNKNOWN, Endpoint
from support.drive.automations import automations, rule
from support.fakes.receiver import OK, answers, hangs, receiver
from support.real.nats import NatsServer


async def used(endpoint: Endpoint, seconds: float, times: int = 60) -> None:
    """Let turns take so long by a clock that does not wait."""
    for _ in range(times):
        async with endpoint.turn():
            endpoints.time.advance(seconds)  # type: ignore[attr-defined]


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(endpoints, "time", made)
    return made


async def test_a_slow_endpoint_has_little_room_and_a_fast_one_much(clock: Clock) -> None:
    fast, slow, limited = Endpoint(), Endpoint(), Endpoint()
    for each in (fast, slow, limited):
        each.concurrency = 4
        assert each.room == 4 + MAX_UNKNOWN
    limited.rate = Rate(2)
    await used(fast, 0.005)
    await used(slow, 8)
    await used(limited, 0.005)
    assert fast.room == 4 + MAX_AHEAD
    assert slow.room == 4 + 2
    assert limited.room == 4 + 10


async def test_deliveries_without_room_come_back_one_after_another(clock: Clock) -> None:
    endpoint = Endpoint()
    endpoint.concurrency = 2
    await used(endpoint, 1)
    waits = [endpoint.book(clock.now) for _ in range(10)]
    assert waits == pytest.approx([1.5 + n * 0.5 for n in range(10)], rel=0.01)
    clock.advance(60)
    assert endpoint.book(clock.now) == pytest.approx(1.5, rel=0.01), "those before have had theirs"


async def test_turns_are_given_in_order_and_a_cancelled_wait_loses_none() -> None:
    endpoint = Endpoint()
    endpoint.concurrency = 2
    order: list[int] = []
    most = now = 0

    async def take(number: int) -> None:
        nonlocal most, now
        async with endpoint.turn():
            now += 1
            most = max(most, now)
            order.append(number)
            await asyncio.sleep(0.001)
            now -= 1

    tasks = [asyncio.create_task(take(number)) for number in range(30)]
    await asyncio.sleep(0)
    for task in tasks[5:30:5]:
        task.cancel()
    await asyncio.wait(tasks)
    assert most == 2
    assert order == [number for number in range(30) if number < 5 or number % 5]
    async with asyncio.timeout(1), endpoint.turn(), endpoint.turn():
        pass


async def test_a_dead_endpoint_does_not_hold_up_the_deliveries_to_another(
    nats_server: NatsServer,
) -> None:
    """The dead one gets no request after its first failures, though many wait for it."""
    async with automations(nats_server.url) as made, receiver() as other:
        made.receiver.usual["/dead"] = hangs()
        webhook = {"timeout_s": 1}
        dead = rule("dead", made.receiver.url("/dead"), "llm.tool_call", webhook=webhook)
        await made.apply(dead)
        await made.apply(rule("good", other.url(), "llm.tool_call"))
        run = await made.run()
        await run.open()
        for number in range(60):
            await run.tool(number)
        await other.count(60, timeout_s=40)
        # Five failures open the breaker; at most three other requests are under way then.
        assert len(made.receiver.requests) <= breaker.FAILURES + 3


async def test_an_open_breaker_uses_no_attempts_and_all_is_delivered_when_the_endpoint_is_back(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker.Breaker.__init__, "__defaults__", (1.0,))
    async with automations(nats_server.url) as made:
        made.receiver.usual["/hook"] = answers(503)
        await made.apply(rule("hook", made.receiver.url(), "llm.tool_call"))
        run = await made.run()
        await run.open()
        for number in range(20):
            await run.tool(number)
        await made.receiver.count(breaker.FAILURES)
        await asyncio.sleep(2)  # probes fail meanwhile, and the other deliveries wait
        made.receiver.usual["/hook"] = OK
        outcomes = await made.outcomes(run.run_id, 20, 60)
        assert {each.type for each in outcomes} == {"automation.completed"}
        attempts = sum(each.data["attempts"] for each in outcomes)
        assert attempts == len(made.receiver.requests)
        assert attempts <= 20 + breaker.FAILURES + 3 + 3, "a failure is a request, no wait"
