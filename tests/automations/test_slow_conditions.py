"""Slow conditions of one user delay no other user, and are paused."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from penstock.expressions import MAX_STEPS
from penstock.turns import TenantUser
from penstock_automations.matching import evaluations as evaluations_module
from penstock_automations.matching import lanes
from penstock_automations.matching.evaluations import (
    MAX_SLOW,
    SHARE_STEPS,
    SLOW_STEPS,
    Evaluations,
)
from penstock_automations.matching.lanes import Lanes
from penstock_automations.rules.records import CompiledRule, Owner, RuleRecord, compile_rule
from support.drive.automations import (
    Automations,
    automations,
    rule,
    rule_with,
    user,
    without_service,
)
from support.drive.waiting import eventually
from support.fakes.receiver import SECRET
from support.real.automating import automations_process
from support.real.nats import NatsServer
from support.real.ports import free_port

SLOW = "event.data.args.l.all(a, event.data.args.l.all(b, a == b))"
LIST = [0] * 400  # over 160,000 comparisons, each of several steps
TOKEN = "a-token-that-nobody-guesses"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
QUICK = 'event.data.tool == "quick"'


class Store:
    """Notes which rules are paused."""

    def __init__(self) -> None:
        self.paused: list[str] = []

    async def pause(self, rule_id: str, reason: str, by: str) -> bool:
        assert str(SLOW_STEPS) in reason
        assert by == "penstock"
        self.paused.append(rule_id)
        return True


def compiled(id: str, owner: str, where: str = SLOW, revision: int = 1) -> CompiledRule:
    stored = rule(id, "https://hook.example/x", "llm.tool_call", where=where)
    record = RuleRecord(
        rule=stored, uid="1", owner=Owner(user_id=owner), created_at="", updated_at=""
    )
    return compile_rule(record, revision)


def event(count: int) -> dict[str, Any]:
    return {"data": {"tool": "quick", "args": {"l": [0] * count}}}


async def test_a_condition_with_too_many_steps_fails_and_its_rule_is_paused_also_if_rewritten() -> (
    None
):
    store = Store()
    evaluations = Evaluations(store)  # type: ignore[arg-type]
    for revision in range(MAX_SLOW):
        assert store.paused == []
        match = await evaluations.matched(compiled("slow", "alice", revision=revision), event(400))
        assert match is not None
        assert match.failure is not None
        assert f"more than {MAX_STEPS} steps" in match.failure
    assert store.paused == ["slow"]


async def test_a_long_condition_runs_off_the_event_loop_and_gives_its_result() -> None:
    evaluations = Evaluations(Store())  # type: ignore[arg-type]
    match = await evaluations.matched(compiled("long", "alice"), event(60))
    assert match is not None
    assert match.failure is None


async def test_a_user_whose_share_is_used_up_takes_no_time_and_another_user_has_his_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No second passes, so that the share is not refilled on a slow machine.
    monkeypatch.setattr(evaluations_module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    evaluations = Evaluations(Store())  # type: ignore[arg-type]
    for number in range(SHARE_STEPS // MAX_STEPS + 3):
        last = await evaluations.matched(compiled(f"r{number}", "alice"), event(400))
    started = time.process_time()
    for number in range(100):
        last = await evaluations.matched(compiled(f"s{number}", "alice"), event(400))
    assert time.process_time() - started < 3
    assert last is not None
    assert "have used up their share" in str(last.failure)
    quick = await evaluations.matched(compiled("quick", "alice", QUICK), event(400))
    assert quick is not None
    assert quick.failure is None, "a short condition needs no share"
    other = await evaluations.matched(compiled("long", "bob"), event(60))
    assert other is not None
    assert other.failure is None


async def test_a_lane_handles_one_users_events_in_order_until_it_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "MAX_WAITING", 3)
    handled: list[str] = []
    free = asyncio.Event()

    async def handle(each: str) -> None:
        if each.startswith("alice"):
            await free.wait()
        handled.append(each)

    made: Lanes[str] = Lanes(handle)
    for number in range(3):
        assert not made.is_full(TenantUser("", "alice"))
        made.add(TenantUser("", "alice"), f"alice{number}")
    assert made.is_full(TenantUser("", "alice"))
    assert not made.is_full(TenantUser("", "bob"))
    made.add(TenantUser("", "bob"), "bob")
    await asyncio.sleep(0)
    assert handled == ["bob"]
    assert made.is_busy(TenantUser("", "alice"))
    free.set()
    await eventually(lambda: _idle(made), what="the lane is empty")
    assert handled == ["bob", "alice0", "alice1", "alice2"]


async def test_all_lanes_together_get_half_of_the_event_loops_time() -> None:
    turns: Counter[str] = Counter()
    used_s = 0.0

    async def handle(owner: str) -> None:
        nonlocal used_s
        for _ in range(20):
            async with made.turn(""):
                begun = time.perf_counter()
                while time.perf_counter() - begun < 2 * lanes.TURN_S:
                    pass
                used_s += time.perf_counter() - begun
                turns[owner] += 1

    made: Lanes[str] = Lanes(handle)
    begun = time.perf_counter()
    for owner in ("alice", "bob", "carol"):
        made.add(TenantUser("", owner), owner)
    while max(turns.values(), default=0) < 20:
        await asyncio.sleep(0)
    assert used_s < 0.6 * (time.perf_counter() - begun)
    assert min(turns.values()) > 15, "the owners take turns"
    await made.stop()


async def _idle(made: Lanes[str]) -> bool:
    return not made.is_busy(TenantUser("", "alice"))


async def _slow_event(made: Automations, number: int) -> None:
    run = await made.run("alice")
    await run.open()
    await run.tool(number, "slow", l=LIST)


async def test_many_slow_conditions_of_one_user_do_not_delay_another_users_webhooks(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        url = made.receiver.url("/alice")
        for number in range(20):
            await made.apply(rule(f"slow-{number}", url, "llm.tool_call", where=SLOW), "alice")
        await made.apply(
            rule("bob", made.receiver.url("/bob"), "llm.tool_call", where=QUICK), "bob"
        )
        await asyncio.gather(*(_slow_event(made, number) for number in range(20)))
        late_s = []
        run = await made.run("bob")
        await run.open()
        for number in range(20):
            begun = time.monotonic()
            await run.tool(number, "quick")
            await made.receiver.count(number + 1, "/bob")
            late_s.append(time.monotonic() - begun)
        assert max(late_s) < 1, late_s

        async def paused() -> bool:
            return any(each.record.paused for each in await made.store.all())

        await eventually(paused, what="a slow rule is paused")


async def test_slow_conditions_of_hooks_do_not_delay_another_users_hook(
    nats_server: NatsServer,
) -> None:
    """Requests of 10 kB to one user's hooks have blocked the process for 40 s."""
    port = free_port()
    where = "event.data.all(a, event.data.all(b, a == b))"
    async with without_service(nats_server.url) as made:
        action = {"webhook": {"url": made.receiver.url(), "secrets": [SECRET]}}
        for number in range(16):
            hooked = rule_with(f"slow-{number}", action, hook={"tokens": [TOKEN]}, where=where)
            await made.store.apply(hooked, user("alice"))
        await made.store.apply(rule_with("bob", action, hook={"tokens": [TOKEN]}), user("bob"))
        async with automations_process(nats_server.url, port=port), httpx.AsyncClient() as http:

            async def call(id: str, body: list[int]) -> float:
                begun = time.monotonic()
                url = f"http://127.0.0.1:{port}/v1/hooks/{id}"
                answer = await http.post(url, headers=HEADERS, json=body, timeout=60)
                assert answer.status_code in (202, 503)  # 503: the rule is paused meanwhile
                return time.monotonic() - begun

            attack = [
                asyncio.create_task(call(f"slow-{number % 16}", [0] * 5000)) for number in range(48)
            ]
            late_s = []
            while not all(each.done() for each in attack):
                late_s.append(await call("bob", [0]))
            await asyncio.gather(*attack)
        # The goal is 1 s, which a machine without other load keeps.
        assert max(late_s) < 5, late_s
