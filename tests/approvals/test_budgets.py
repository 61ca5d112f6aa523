"""What runs use counts in the accounts of their budgets, once, and is settled at their end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from penstock.budgets.account import account_key
from penstock.budgets.accounts import Accounts
from penstock.budgets.admission import Admission
from penstock.budgets.document import RunFacts, from_value
from penstock.budgets.model import Budget
from penstock.bus import Bus, messages
from penstock.bus.records import BudgetAccount, RunRecord, RunSpending
from penstock.settings import Config
from penstock_approvals.budgets.ledger import BudgetLedger
from penstock_approvals.budgets.spending import Charge, add_events
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.normalizing import Run
from support.drive.pipeline import pipeline
from support.drive.secured import Secured, bearer, secured
from support.drive.waiting import eventually
from support.fakes.raw import agno
from support.real.nats import NatsServer

SERVICES = (NormalizerService, ApprovalsService, ApprovalsService)
PRICES = "currency: EUR\nprices: [{model: m, per_million: {input: 2, output: 10}}]\n"
DOCUMENT: dict[str, Any] = {
    "version": 1,
    "budgets": [
        {
            "id": "day",
            "per": "user",
            "window": "day",
            "limit": {"cost": "1.00 EUR", "tokens": 1_000_000, "tool_calls": 10},
            "reserve": "0.50 EUR",
            "at": [{"share": 1.0, "do": "refuse"}],
        }
    ],
}
USED = {"cost": 3000, "tokens": 1100, "tool_calls": 1}


def call(read: int = 1000, written: int = 100) -> bytes:
    counts = {"input_tokens": read, "output_tokens": written}
    return agno("ModelRequestCompleted", model="m", model_provider="P", **counts)


def tool(number: int) -> bytes:
    made = {"tool_call_id": f"c{number}", "tool_name": "search", "tool_args": {"q": number}}
    return agno("ToolCallStarted", tool=made) + agno(
        "ToolCallCompleted", tool={**made, "result": "x"}
    )


async def admitted(bus: Bus, admission: Admission) -> Run:
    """Return a run of ada that is in the accounts of its budgets, and has a record."""
    run = Run(bus)
    facts = RunFacts(run.run_id, agent="a", user="ada", session_id="s")
    budgets = await admission.of(facts)
    await admission.enter(budgets, facts, always=False)
    now = messages.now()
    record = RunRecord(
        run_id=run.run_id,
        agent="a",
        session_id="s",
        user_id="ada",
        created_at=now,
        updated_at=now,
        budgets=[each.id for each in budgets],
    )
    await bus.bucket("runs").create(run.run_id, record.dump())
    return run


async def account_of(bus: Bus) -> BudgetAccount:
    [entry] = await bus.bucket("budgets").entries("account.*")
    return BudgetAccount.model_validate_json(entry.value)


async def test_a_run_is_settled_with_what_it_has_used(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    async with pipeline(fresh_nats.url, Config(), SERVICES, prices=prices) as penstock:
        bus, admission = penstock.bus, Admission(penstock.bus)
        await admission.budgets.apply(DOCUMENT, "root")
        runs = [await admitted(bus, admission) for _ in range(2)]
        for run in runs:
            await run.open(user_id="ada")
            await run.bytes(agno("RunStarted") + call() + tool(1))
        names = [run.run_id for run in runs]

        async def counted() -> bool:
            account = await account_of(bus)
            return all(account.runs[name].used == USED for name in names)

        await eventually(counted, what="the account")
        for run in runs:
            await run.bytes(call() + agno("RunCompleted", content="x"))
            await run.end()

        async def settled() -> bool:
            return not (await account_of(bus)).runs

        await eventually(settled, what="the end of the runs")
        account = await account_of(bus)
        assert account.used == {"cost": 12_000, "tokens": 4400, "tool_calls": 2}
        spending = await bus.bucket("budgets").load(f"run.{names[0]}", RunSpending)
        assert spending is not None
        assert spending.settled
        # what is delivered again changes nothing
        ledger = BudgetLedger(bus, admission.budgets)
        events = [event for run in runs for event in await run.events()]
        await asyncio.gather(*(ledger.on_event(event) for event in reversed(events)))
        assert await account_of(bus) == account
        [budget] = admission.budgets.current.document.budgets
        facts = RunFacts("", agent="a", user="ada", session_id="s")
        key = account_key(budget, facts, bus.clock.now())
        assert await Accounts(bus).read(key) == account


def event(sequence: int, type_: str, at: str, **data: Any) -> dict[str, Any]:
    category, _, action = type_.partition(".")
    named = {"category": category, "action": action}
    return {"sequence": sequence, "timestamp": at, "event": named, "data": data}


def limited(**fields: Any) -> Budget:
    common = {"id": "b", "per": "run", "at": [{"share": 1, "do": "stop"}]}
    document = {"version": 1, "budgets": [{**common, **fields}]}
    return from_value(document, "kv").document.budgets[0]


def test_time_is_what_a_run_is_under_way_and_not_what_it_waits_for_people() -> None:
    facts = RunFacts("r", agent="a", user="u", session_id="s")
    charges = [Charge(limited(limit={"time": "20m", "tokens": 9}), facts)]
    events = [
        event(1, "lifecycle.started", "2026-11-27T10:00:00.600Z"),
        event(2, "llm.tool_call", "2026-11-27T10:00:10.100Z", tool="t", args={}),
        event(3, "llm.tool_call", "2026-11-27T10:00:10.700Z", tool="t", args={}),
        event(4, "lifecycle.paused", "2026-11-27T10:01:00.700Z"),
        event(9, "lifecycle.resumed", "2026-11-27T18:00:00.000Z"),
        event(10, "lifecycle.completed", "2026-11-27T18:00:05.000Z"),
    ]
    spending = add_events(RunSpending(run_id="r"), events, 99, charges)
    [account] = spending.accounts.values()
    assert account == {"tokens": 0, "time": 65}
    assert spending.ended
    assert add_events(spending, events, 99, charges) == spending, "a repeat adds nothing"


def test_a_run_counts_in_the_window_of_each_of_its_events() -> None:
    facts = RunFacts("r", agent="a", user="u", session_id="s")
    budget = limited(per="user", window="hour", limit={"tool_calls": 9})
    events = [
        event(1, "llm.tool_call", "2026-11-27T10:59:59.999Z", tool="t", args={}),
        event(2, "llm.tool_call", "2026-11-27T11:00:00.000Z", tool="t", args={}),
        event(3, "llm.tool_call", "2026-11-27T11:00:01.000Z", tool="t", args={}),
    ]
    spending = add_events(RunSpending(run_id="r"), events, 9, [Charge(budget, facts)])
    hours = [datetime(2026, 11, 27, hour, tzinfo=UTC) for hour in (10, 11)]
    keys = [account_key(budget, facts, hour) for hour in hours]
    assert spending.accounts == {keys[0]: {"tool_calls": 1}, keys[1]: {"tool_calls": 2}}


def test_costs_in_another_currency_are_not_added() -> None:
    facts = RunFacts("r", agent="a", user="u", session_id="s")
    used = {"input_tokens": 5, "reported": "call", "estimated": False}
    costs = [{"micros": 7, "currency": "USD"}, {"micros": 3, "currency": "EUR"}, None]
    events = [
        event(n, "llm.usage", "2026-11-27T10:00:00.000Z", **used, cost=cost)
        for n, cost in enumerate(costs, 1)
    ]
    charges = [Charge(limited(limit={"cost": "1 EUR", "model_calls": 5}), facts)]
    [account] = add_events(RunSpending(run_id="r"), events, 9, charges).accounts.values()
    assert account == {"cost": 3, "model_calls": 3}


async def test_administrators_show_and_replace_the_budgets(fresh_nats: NatsServer) -> None:
    root, path = bearer("root", scope="administer"), "/v1/budgets"
    async with secured(fresh_nats.url) as made:
        penstock: Secured = made
        refused = await penstock.http.put(path, headers=bearer("ada"), json=DOCUMENT)
        stored = await penstock.http.put(path, headers=root, json=DOCUMENT)
        again = await penstock.http.put(path, headers=root, json=DOCUMENT)
        wrong = {"version": 2, "budgets": [{"id": "x", "per": "run", "limit": {}, "at": []}]}
        mistaken = await penstock.http.put(path, headers=root, json=wrong)
        shown = await penstock.http.get(path, headers=root)
    statuses = [each.status_code for each in (refused, stored, again, mistaken, shown)]
    assert statuses == [403, 200, 409, 422, 200]
    assert "budgets[0].limit" in mistaken.json()["detail"]
    assert shown.json()["budgets"] == DOCUMENT
    assert (shown.json()["version"], shown.json()["by"]) == (1, "root")


async def test_a_start_over_http_is_refused_with_the_budget_and_the_windows_end(
    fresh_nats: NatsServer,
) -> None:
    document = {**DOCUMENT, "budgets": [{**DOCUMENT["budgets"][0], "reserve": "1.00 EUR"}]}
    body = {"agent": "helper", "message": "Hello"}
    async with secured(fresh_nats.url) as made:
        penstock: Secured = made
        root = bearer("root", scope="administer")
        await penstock.http.put("/v1/budgets", headers=root, json=document)

        async def refused() -> httpx.Response | None:
            answer = await penstock.http.post("/v1/runs", headers=bearer("ada"), json=body)
            return answer if answer.status_code == 429 else None

        answer = await eventually(refused, what="a refusal, after at most one start")
        other = await penstock.http.post("/v1/runs", headers=bearer("bob"), json=body)
    assert other.is_success, "another user has a budget of its own"
    problem = answer.json()
    assert problem["type"] == "urn:penstock:problem:budget"
    assert (problem["budget"], problem["per"]) == ("day", "user")
    assert problem["window_ends_at"] in problem["detail"]
    assert int(answer.headers["retry-after"]) <= 86_400
