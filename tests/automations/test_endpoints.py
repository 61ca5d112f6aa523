"""The limits of an endpoint, and that one endpoint does not slow the others."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from penstock.bus import streams
from penstock.runs.calls import CallJob
from penstock.turns import TenantUser
from penstock_automations.actions.webhook import breaker, endpoints
from penstock_automations.actions.webhook.breaker import Rate
from penstock_automations.actions.webhook.endpoints import (
    MAX_AHEAD,
    MAX_UNKNOWN,
    Endpoint,
    Endpoints,
)
from penstock_automations.rules.calls import rule_of_call
from support.drive.automations import Automations, automations, rule, user, without_service
from support.drive.waiting import eventually
from support.fakes.receiver import OK, answers, hangs, receiver
from support.real.automating import automations_process
from support.real.nats import NatsServer


def endpoint_of() -> Endpoint:
    """Return the endpoint of a rule."""
    return Endpoint("rule", TenantUser("", "u1"), "http://receiver.example:80")


async def used(endpoint: Endpoint, seconds: float, times: int = 60) -> None:
    """Advance the clock by the length of each turn, without waiting."""
    for _ in range(times):
        async with endpoint.request_capacity():
            endpoints.time.advance(seconds)  # type: ignore[attr-defined]


class Clock:
    """A clock that moves only by calls of `advance`."""

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


def test_calls_of_users_with_one_name_in_two_tenants_share_no_endpoint() -> None:
    known = Endpoints(64)
    call = CallJob(run_id="r", step_id="s", call_id="c", url="https://x.example")

    def of(tenant: str) -> Endpoint:
        made = rule_of_call(call, {}, TenantUser(tenant, "ada"))
        assert made.record.rule.action.webhook is not None
        return known.of(made, made.record.rule.action.webhook)

    assert of("a") is of("a")
    assert of("a").breaker is not of("b").breaker


async def test_a_slow_endpoint_has_little_room_and_a_fast_one_much(clock: Clock) -> None:
    fast, slow, limited = endpoint_of(), endpoint_of(), endpoint_of()
    for each in (fast, slow, limited):
        each.concurrency = 4
        assert each.max_deliveries == 4 + MAX_UNKNOWN
    limited.rate = Rate(2)
    await used(fast, 0.005)
    await used(slow, 8)
    await used(limited, 0.005)
    assert fast.max_deliveries == 4 + MAX_AHEAD
    assert slow.max_deliveries == 4 + 2
    assert limited.max_deliveries == 4 + 10


async def test_deliveries_without_room_come_back_one_after_another(clock: Clock) -> None:
    endpoint = endpoint_of()
    endpoint.concurrency = 2
    await used(endpoint, 1)
    waits = [endpoint.reserve_wait_s(clock.now) for _ in range(10)]
    assert waits == pytest.approx([1.5 + n * 0.5 for n in range(10)], rel=0.01)
    clock.advance(60)
    assert endpoint.reserve_wait_s(clock.now) == pytest.approx(1.5, rel=0.01), (
        "those before have had theirs"
    )


async def test_turns_are_given_in_order_and_a_cancelled_wait_loses_none() -> None:
    endpoint = endpoint_of()
    endpoint.concurrency = 2
    order: list[int] = []
    most = now = 0

    async def take(number: int) -> None:
        nonlocal most, now
        async with endpoint.request_capacity():
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
    async with asyncio.timeout(1), endpoint.request_capacity(), endpoint.request_capacity():
        pass


async def test_a_dead_endpoint_does_not_hold_up_the_deliveries_to_another(
    nats_server: NatsServer,
) -> None:
    """The dead endpoint gets no request after its first failures, though many deliveries wait."""
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


async def _is_empty(made: Automations) -> bool:
    info = await made.bus.api(f"STREAM.INFO.{streams.DELIVERIES}")
    return bool(info["state"]["messages"] == 0)


@pytest.mark.chaos  # an open breaker waits for 30 s
@pytest.mark.timeout(180)
async def test_kills_while_a_breaker_is_open_lose_no_delivery_and_use_few_attempts(
    fresh_nats: NatsServer,
) -> None:
    """A restarted process knows no breaker, so it makes five failing requests again."""
    async with without_service(fresh_nats.url) as made, receiver() as other:
        made.receiver.usual["/hook"] = answers(503)
        limited = {"rate_per_s": 20, "concurrency": 2}
        for each in (
            rule("hook", made.receiver.url(), "llm.tool_call"),
            rule("slow", other.url(), "llm.tool_call", webhook=limited),
        ):
            await made.store.apply(each, user("u1"))
        run = await made.run()
        kills = 3
        for number in range(kills):
            async with automations_process(fresh_nats.url, retry_delays_s=[1] * 20):
                if number == 0:
                    await run.open()
                    for call in range(40):
                        await run.tool(call)
                await made.receiver.count((number + 1) * breaker.FAILURES, timeout_s=60)
                await eventually(partial(_is_empty, made), 60, "that all wait for their time")
                # The context's end is a SIGKILL.
        made.receiver.usual["/hook"] = OK
        async with automations_process(fresh_nats.url, retry_delays_s=[1] * 20):
            outcomes = await made.outcomes(run.run_id, 80, 120)
        ids = [each.data["delivery_id"] for each in outcomes]
        assert len(set(ids)) == 80
        assert {each.type for each in outcomes} == {"automation.completed"}
        # Besides the failures, a kill may repeat the requests that were under way.
        most = 40 + kills * (breaker.FAILURES + 2 * 4)
        assert len(made.receiver.requests) <= most
        at = sorted(each.at for each in other.requests)
        # 20 in the first second, and then 20 per second, for each of four processes.
        assert len([each for each in at if each < at[0] + 0.9]) <= 2 * 20 + 2
