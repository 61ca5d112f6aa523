"""However many starts come at once, a budget admits as many as it has room for."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest

from penstock.budgets.account import account_key, committed, put
from penstock.budgets.accounts import Accounts
from penstock.budgets.admission import PROBLEM_TYPE, CurrentBudgets
from penstock.budgets.document import RunFacts
from penstock.bus import Bus
from penstock.bus.records.budgets import BudgetAccount
from penstock.bus.records.runs import RunRecord
from penstock.bus.state.kv import Bucket
from penstock.runs.settings import StartSettings
from penstock.runs.start import Origin, Start, Starter
from penstock.settings import AgnoAgent, Config
from penstock.web.auth.identity import RunUser
from penstock.web.problems import Problem
from penstock_approvals.budgets.actions import BudgetActions
from penstock_approvals.budgets.ledger import BudgetLedger
from support.drive.bus import connected
from support.real.nats import NatsServer

AGENT = AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9", agent="demo")
ADA = RunUser("ada", (), (), "")


def document(**fields: Any) -> dict[str, Any]:
    common = {
        "id": "day",
        "per": "user",
        "window": "day",
        "limit": {"cost": "50 EUR"},
        "reserve": "0.50 EUR",
        "at": [{"share": 1.0, "do": "refuse"}],
    }
    return {"version": 1, "budgets": [{**common, **fields}]}


def starter(bus: Bus) -> Starter:
    unlimited = StartSettings(max_open_runs_per_user=0, max_queued_runs_per_user=0)
    return Starter(bus, Config(agents=[AGENT]), unlimited)


async def account_of(bus: Bus, user: str = "ada") -> BudgetAccount:
    budgets = CurrentBudgets(bus)
    await budgets.load()
    [budget] = budgets.current.document.budgets
    facts = RunFacts("", agent=AGENT.id, user=user, session_id="")
    account = await Accounts(bus).read(account_key(budget, facts, bus.clock.now()))
    assert account is not None
    return account


async def test_a_thousand_starts_at_once_over_three_processes_take_exactly_the_room(
    fresh_nats: NatsServer,
) -> None:
    async with AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(connected(fresh_nats.url)) for _ in range(3)]
        await CurrentBudgets(buses[0]).apply(document(), "root")
        starters = [starter(bus) for bus in buses]
        outcomes: Counter[str] = Counter()
        refusals: list[Problem] = []

        async def start(number: int) -> None:
            user = RunUser("bob", (), (), "") if number % 100 == 0 else ADA
            try:
                started = await starters[number % 3].start(
                    Start(AGENT, "Hello", None, user, key=f"k{number}", request=b"x")
                )
                assert started.record.budgets == ["day"]
                outcomes[user.user_id] += 1
            except Problem as problem:
                outcomes["refused"] += 1
                refusals.append(problem)

        await asyncio.gather(*(start(number) for number in range(1000)))
        assert outcomes == {"ada": 100, "bob": 10, "refused": 890}
        account = await account_of(buses[0])
        assert committed(account) == {"cost": 50_000_000}
        [ends_at] = {problem.more["window_ends_at"] for problem in refusals}
        assert ends_at.endswith("T00:00:00Z")
        assert {(each.status, each.more["type"]) for each in refusals} == {(429, PROBLEM_TYPE)}
        assert all(0 < int(each.headers["retry-after"]) <= 86_400 for each in refusals)


async def test_a_start_that_was_interrupted_is_repeated_in_the_room_that_it_has(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(fresh_nats.url) as bus:
        await CurrentBudgets(bus).apply(document(limit={"cost": "0.50 EUR"}), "root")
        asked = Start(AGENT, "Hello", None, ADA, key="one", request=b"x")
        dying = starter(bus)

        with monkeypatch.context() as patched:
            patched.setattr("penstock.bus.state.kv.Bucket.update", _dies_for_runs())
            with pytest.raises(ConnectionError):
                await dying.start(asked)
        with pytest.raises(Problem, match="nothing left"):
            await starter(bus).start(Start(AGENT, "Hello", None, ADA, key="two", request=b"x"))
        first = await starter(bus).start(asked)
        again = await starter(bus).start(asked)
        assert (first.new, again.new) == (True, False)
        assert first.record.run_id == again.record.run_id
        assert list((await account_of(bus)).runs) == [first.record.run_id]


def _dies_for_runs() -> Any:
    update = Bucket.update

    async def update_or_die(self: Bucket, key: str, *rest: Any, **more: Any) -> int | None:
        if self._name == "runs":
            raise ConnectionError("the process was killed")
        return await update(self, key, *rest, **more)

    return update_or_die


async def test_a_run_that_one_budget_refuses_is_in_no_account(fresh_nats: NatsServer) -> None:
    async with connected(fresh_nats.url) as bus:
        wide = document(id="wide")["budgets"]
        narrow = document(id="narrow", limit={"cost": "0.50 EUR"})["budgets"]
        await CurrentBudgets(bus).apply({"version": 1, "budgets": [*wide, *narrow]}, "root")
        await starter(bus).start(Start(AGENT, "one", None, ADA))
        with pytest.raises(Problem, match="narrow"):
            await starter(bus).start(Start(AGENT, "two", None, ADA))
        accounts = [
            BudgetAccount.model_validate_json(entry.value)
            for entry in await bus.bucket("budgets").entries("account.*")
        ]
        assert {each.budget: len(each.runs) for each in accounts} == {"wide": 1, "narrow": 1}


async def test_the_steps_of_a_workflow_are_entered_and_never_refused(
    fresh_nats: NatsServer,
) -> None:
    async with connected(fresh_nats.url) as bus:
        await CurrentBudgets(bus).apply(document(limit={"cost": "0.50 EUR"}), "root")
        root = (await starter(bus).start(Start(AGENT, "one", None, ADA))).record.run_id
        origin = Origin(root, step_id="s", root_run_id=root, ancestors=(root,))
        run_id = await starter(bus).new_run_id("ada", "s")
        step = await starter(bus).start(Start(AGENT, "two", "s", ADA, run_id=run_id, origin=origin))
        assert step.record.ancestors == [root]
        account = await account_of(bus)
        assert account.runs[run_id].reserved == {}
        assert account.runs[root].reserved == {"cost": 500_000}


async def test_nothing_starts_while_the_stored_budgets_have_a_mistake(
    fresh_nats: NatsServer,
) -> None:
    async with connected(fresh_nats.url) as bus:
        wrong = {"policy": {"version": 1, "budgets": [{"id": "x"}]}, "by": "a", "at": "b"}
        await bus.bucket("policies").put("budgets", orjson.dumps(wrong))
        with pytest.raises(Problem, match="the budgets have a mistake") as refused:
            await starter(bus).start(Start(AGENT, "one", None, ADA))
        assert refused.value.status == 503


async def test_entries_of_runs_without_a_record_and_of_ended_runs_are_removed(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(fresh_nats.url) as bus:
        budgets = CurrentBudgets(bus)
        await budgets.apply(document(), "root")
        started = (await starter(bus).start(Start(AGENT, "one", None, ADA))).record.run_id
        ended = (await starter(bus).start(Start(AGENT, "two", None, ADA))).record.run_id
        lost = (await starter(bus).start(Start(AGENT, "three", None, ADA))).record.run_id
        await bus.bucket("runs").delete(lost)

        def end(record: RunRecord) -> None:
            record.status = "failed"

        await bus.bucket("runs").change(ended, RunRecord, end)
        [entry] = await bus.bucket("budgets").entries("account.*")
        at, used = bus.clock.stamp(), {"cost": 7}

        def spend(account: BudgetAccount) -> None:
            put(account, "restored", at, used)

        await bus.bucket("budgets").change(entry.key, BudgetAccount, spend)
        ledger = BudgetLedger(bus, budgets, BudgetActions(bus, "test"))
        await ledger.sweep()
        known = {started, ended, lost, "restored"}
        assert set((await account_of(bus)).runs) == known, "they may be under way"
        monkeypatch.setattr(type(bus.clock), "age_s", lambda self, at: 1000.0)
        await ledger.sweep()
        account = await account_of(bus)
        assert set(account.runs) == {started}
        assert account.used == used, "what a run without a record has used is not forgotten"
