"""What runs use counts in the accounts of their budgets, once, and is settled at their end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import uuid_utils
from prometheus_client import REGISTRY
from typer.testing import CliRunner

from penstock import sse
from penstock.budgets.account import account_key
from penstock.budgets.accounts import Accounts
from penstock.budgets.admission import Admission, CurrentBudgets
from penstock.budgets.document import RunFacts, from_value
from penstock.budgets.model import Budget
from penstock.bus import Bucket, Bus, Entry, Message, messages
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord, Decided, Decider, DecideRequest
from penstock.bus.records.budgets import AccountRun, BudgetAccount, RunSpending
from penstock.bus.records.runs import CancelCommand, RunRecord
from penstock.bus.streams import AUDIT, COMMANDS, raw_for
from penstock.bus.subjects import audit, command, event_input, raw_stored
from penstock.settings import Config
from penstock.web.problems import Problem
from penstock_approvals.budgets.actions import BudgetActions
from penstock_approvals.budgets.ledger import BudgetLedger
from penstock_approvals.budgets.listing import BEGIN, AccountList
from penstock_approvals.budgets.reached import reached
from penstock_approvals.budgets.spending import Charge, add_events
from penstock_approvals.service import ApprovalsService
from penstock_cli.main import app
from penstock_connector.service import ConnectorService
from penstock_normalizer.service import NormalizerService
from support.drive.bus import connected
from support.drive.normalizing import Run
from support.drive.pipeline import PIPELINE, Pipeline, pipeline, types
from support.drive.secured import SLOW, Secured, bearer, secured
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, agents, misbehaving, plays, stalls
from support.fakes.raw import agno, agno_text
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


def tool(number: int, again: str = "") -> bytes:
    """Call a tool; `again` says that it is another call with the same arguments."""
    made = {"tool_call_id": f"c{number}{again}", "tool_name": "search", "tool_args": {"q": number}}
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

        async def is_noted() -> bool:
            spending = await bus.bucket("budgets").load(f"run.{names[0]}", RunSpending)
            return spending is not None and spending.settled

        await eventually(is_noted, what="the run's record, which is written after the account")
        # what is delivered again changes nothing
        ledger = BudgetLedger(bus, admission.budgets, BudgetActions(bus, "test"))
        events = [event for run in runs for event in await run.events()]
        await asyncio.gather(*(ledger.on_event(event) for event in reversed(events)))
        assert await account_of(bus) == account
        [budget] = admission.budgets.current.document.budgets
        facts = RunFacts("", agent="a", user="ada", session_id="s")
        key = account_key(budget, facts, bus.clock.now())
        assert await Accounts(bus).read(key) == account


PER_RUN: dict[str, Any] = {
    "version": 1,
    "budgets": [
        {
            "id": "careful",
            "per": "run",
            "limit": {"model_calls": 4},
            "at": [{"share": 0.5, "do": "warn"}, {"share": 1.0, "do": "stop"}],
        }
    ],
}
ASKS: dict[str, Any] = {
    **PER_RUN["budgets"][0],
    "at": [{"share": 1.0, "do": "ask"}],
    "ask": {"deciders": {"roles": ["leads"]}, "raise": ["2 model_calls", "9 model_calls"]},
}


async def cancel_of(bus: Bus, run: Run) -> CancelCommand:
    """Wait for the command that cancels the run; return it, and do what a connector does."""
    subject = command("connector", "cancel", run.run_id)
    stored = await eventually(lambda: bus.tail(COMMANDS, subject), what="the cancel")
    cancel = CancelCommand.model_validate_json(stored.payload)
    claimed = {"calls": True, "cancelled": cancel.facts}
    await run.writer.write("claim", orjson.dumps(claimed), leg=run.leg)
    await run.bytes(agno("RunCancelled"))
    await run.end()
    return cancel


async def test_a_run_is_warned_and_then_stopped(fresh_nats: NatsServer) -> None:
    async with pipeline(fresh_nats.url, Config(), SERVICES) as penstock:
        bus, admission = penstock.bus, Admission(penstock.bus)
        await admission.budgets.apply(PER_RUN, "root")
        run, other = [await admitted(bus, admission) for _ in range(2)]
        for each in (run, other):
            await each.open(user_id="ada")
            await each.bytes(agno("RunStarted") + call())
        await run.bytes(call())
        events = await penstock.events_until(run.run_id, "system.warning")
        assert (
            events[-1].data["message"] == "50% of the budget careful is used: 4 model_calls per run"
        )
        assert events[-1].data["code"] == "budget"
        await run.bytes(call() + call())
        await cancel_of(bus, run)
        cancelled = (await penstock.ended(run.run_id))[-1]
        assert cancelled.type == "lifecycle.cancelled"
        assert (cancelled.data["reason"], cancelled.data["by"]) == ("budget", "policy")
        assert cancelled.data["confirmed"] is True
        assert cancelled.data["budget"] == {
            "budget": "careful",
            "per": "run",
            "dimension": "model_calls",
            "used": 4,
            "limit": 4,
            "share": 1.0,
        }
        await other.bytes(agno("RunCompleted", content="x"))
        await other.end()
        ended = types(await penstock.ended(other.run_id))
        assert ended[-1] == "lifecycle.completed", "another run has a budget of its own"
        assert "system.warning" not in ended


async def asked(penstock: Pipeline, document: dict[str, Any]) -> tuple[Run, ApprovalRecord]:
    """Return a run that asks for more of its budget."""
    bus, admission = penstock.bus, Admission(penstock.bus)
    await admission.budgets.apply({"version": 1, "budgets": [document]}, "root")
    run = await admitted(bus, admission)
    await run.open(user_id="ada")
    await run.bytes(agno("RunStarted") + call() * 4)
    await cancel_of(bus, run)
    *_, paused = await penstock.events_until(run.run_id, "lifecycle.paused")
    return run, await penstock.approval(paused.data["approval_id"])


def vote(record: ApprovalRecord, decision: str, value: str | None = None) -> DecideRequest:
    who = Decider(name="grace", roles=["leads"], scopes=["decide"])
    item = {"item_id": "budget", "decision": decision, "value": value}
    return DecideRequest(decider=who, digest=record.digest, items=[Decided.model_validate(item)])


async def test_people_raise_the_limit_and_the_run_goes_on_until_it_asks_again(
    fresh_nats: NatsServer,
) -> None:
    async with pipeline(fresh_nats.url, Config(), SERVICES) as penstock:
        bus = penstock.bus
        run, record = await asked(penstock, ASKS)
        [item] = record.items
        assert item["kind"] == "budget"
        assert item["args"]["budget"] == "careful"
        assert "4 model_calls of 4 model_calls are used" in item["description"]
        assert item["input_schema"]["enum"] == ["2 model_calls", "9 model_calls"]
        requester = vote(record, "approve").model_copy(
            update={"decider": Decider(name="ada", scopes=["decide"])}
        )
        assert (await penstock.ask(record.approval_id, requester)).status == 403
        wrong = await penstock.ask(record.approval_id, vote(record, "approve", "1000 tokens"))
        assert wrong.status == 422, "only what is offered"
        taken = await penstock.ask(record.approval_id, vote(record, "approve", "2 model_calls"))
        assert taken.status == 200, taken.detail
        subject = command("connector", "continue", run.run_id)
        await eventually(lambda: bus.tail(COMMANDS, subject), what="the continue")
        # what a connector does: another request to the agent server
        run.leg = 2
        facts = {"agent": "a", "approval_id": record.approval_id, "items": []}
        await run.writer.write("open", orjson.dumps(facts), leg=2)
        await run.bytes(agno("RunStarted") + call())
        await penstock.events_until(run.run_id, lambda each: each.leg == 2 and "usage" in each.type)
        account = await account_of(bus)
        assert [each.value for each in account.raises.values()] == [2]
        await bus.api("STREAM.PURGE.COMMANDS", None)
        await run.bytes(call())
        again = await cancel_of(bus, run)
        assert again.ask is not None
        audited = direct.replay(bus, AUDIT, audit(run.run_id))
        entries = [orjson.loads(each.payload) async for each in audited]
        by = {
            each["event"]: each.get("by")
            for each in entries
            if each["approval_id"] == record.approval_id
        }
        assert by["requested"] == "ada"
        assert by["decided"] == "grace"
        assert (again.budget or {})["limit"] == 6
        events = await penstock.events_until(
            run.run_id, lambda each: each.leg == 2 and each.type == "lifecycle.paused"
        )
    assert types(events).count("lifecycle.resumed") == 1
    assert "lifecycle.cancelled" not in types(events)
    assert events[-1].data["approval_id"] != record.approval_id


async def test_a_rejection_ends_the_run_with_the_budget(fresh_nats: NatsServer) -> None:
    async with pipeline(fresh_nats.url, Config(), SERVICES) as penstock:
        run, record = await asked(penstock, ASKS)
        assert (await penstock.ask(record.approval_id, vote(record, "reject"))).status == 200
        async with pipeline(fresh_nats.url, Config(), (ConnectorService,)):
            cancelled = (await penstock.ended(run.run_id))[-1]
    assert cancelled.type == "lifecycle.cancelled"
    assert (cancelled.data["reason"], cancelled.data["by"]) == ("budget", "grace")
    assert cancelled.data["budget"]["used"] == 4


async def test_a_deadline_that_passes_is_told_as_a_deadline(fresh_nats: NatsServer) -> None:
    document = {**ASKS, "ask": {**ASKS["ask"], "deadline": "3s"}}
    async with pipeline(fresh_nats.url, Config(), SERVICES) as penstock:
        run, _ = await asked(penstock, document)
        async with pipeline(fresh_nats.url, Config(), (ConnectorService,)):
            events = await penstock.ended(run.run_id)
    assert types(events)[-2:] == ["approval.expired", "lifecycle.cancelled"]
    assert events[-1].data["reason"] == "approval_expired"
    assert events[-1].data["budget"]["budget"] == "careful"


INPUT: dict[str, dict[str, Any]] = {
    "agno": {"dependencies": {"k": "v"}, "session_state": {"n": 1}},
    "adk": {"labels": {"k": "v"}, "stateDelta": {"n": 1}},
}


def adk_call(number: int) -> bytes:
    counts = {"promptTokenCount": 5, "candidatesTokenCount": 1, "totalTokenCount": 6}
    content = {"role": "model", "parts": [{"text": "x"}]}
    named = {"id": f"e{number}", "invocationId": "i", "author": "a", "modelVersion": "m"}
    return sse.encode(orjson.dumps({**named, "content": content, "usageMetadata": counts}))


async def test_the_next_leg_passes_the_starts_input_again_but_no_state_of_the_session(
    fresh_nats: NatsServer,
) -> None:
    async def until_cancelled(answer: Answer) -> None:
        await answer.head()
        await answer.send(agno("RunStarted") + call() * 4)

        async def cancelled() -> bool:
            return any(each.path.endswith("/cancel") for each in upstream.requests)

        await eventually(cancelled, what="the cancel at the agent server")
        await answer.send(agno("RunCancelled"))
        await answer.end()

    async def plays_both(answer: Answer) -> None:
        is_agno = answer.request.path.endswith("/runs")
        if len([each for each in upstream.calls if each.path == answer.request.path]) > 1:
            await plays(agno_text("done") if is_agno else adk_call(9))(answer)
        elif is_agno:
            await until_cancelled(answer)
        else:
            await plays(b"".join(map(adk_call, range(4))), stalls)(answer)

    async with misbehaving() as upstream:
        upstream.script(plays_both)
        accepts = ["dependencies", "session_state", "labels", "stateDelta"]
        config = agents(upstream, accepts=accepts)
        async with pipeline(fresh_nats.url, config, PIPELINE) as penstock:
            budgets = Admission(penstock.bus).budgets
            await budgets.apply({"version": 1, "budgets": [ASKS]}, "root")
            for agent, given in INPUT.items():
                more: dict[str, Any] = {"input": given, "budgets": ["careful"]}
                run_id = await penstock.start_run(agent, "do it", **more)
                *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
                record = await penstock.approval(paused.data["approval_id"])
                taken = await penstock.ask(record.approval_id, vote(record, "approve"))
                assert taken.status == 200, taken.detail
                assert (await penstock.ended(run_id))[-1].type == "lifecycle.completed"
    forms = [each.form for each in upstream.calls if each.path.endswith("/runs")]
    first, second = [{name: form.get(name) for name in INPUT["agno"]} for form in forms]
    assert first["session_state"] == '{"n":1}'
    assert second == {"dependencies": first["dependencies"], "session_state": None}
    assert forms[1]["message"].endswith("do it")
    bodies = [orjson.loads(each.body) for each in upstream.calls if each.path.endswith("/run_sse")]
    sent = [{name: body.get(name) for name in INPUT["adk"]} for body in bodies]
    assert sent == [INPUT["adk"], {"labels": {"k": "v"}, "stateDelta": None}]


async def test_a_run_that_is_silent_is_stopped_when_its_time_is_over(
    fresh_nats: NatsServer,
) -> None:
    document = {**PER_RUN["budgets"][0], "limit": {"time": "2s"}}
    async with pipeline(fresh_nats.url, Config(), SERVICES) as penstock:
        bus, admission = penstock.bus, Admission(penstock.bus)
        await admission.budgets.apply({"version": 1, "budgets": [document]}, "root")
        run = await admitted(bus, admission)
        await run.open(user_id="ada")
        await run.bytes(agno("RunStarted"))
        began = time.monotonic()
        cancel = await cancel_of(bus, run)
        assert time.monotonic() - began > 1.5
        assert (cancel.budget or {})["dimension"] == "time"


async def test_a_run_that_repeats_itself_is_stopped(fresh_nats: NatsServer) -> None:
    document = {**PER_RUN["budgets"][0], "limit": {"same_call": 3}}
    async with pipeline(fresh_nats.url, Config(), SERVICES) as penstock:
        bus, admission = penstock.bus, Admission(penstock.bus)
        await admission.budgets.apply({"version": 1, "budgets": [document]}, "root")
        run = await admitted(bus, admission)
        await run.open(user_id="ada")
        await run.bytes(agno("RunStarted") + tool(1) + tool(2) + tool(1, "again"))
        await penstock.events_until(run.run_id, "system.warning")
        assert await bus.tail(COMMANDS, command("connector", "cancel", run.run_id)) is None
        await run.bytes(tool(1, "once more"))
        stopped = (await cancel_of(bus, run)).budget or {}
    assert (stopped["dimension"], stopped["used"], stopped["limit"]) == ("same_call", 3, 3)


async def test_what_the_steps_of_a_workflow_use_stops_the_workflow(
    fresh_nats: NatsServer,
) -> None:
    async with pipeline(fresh_nats.url, Config(), SERVICES) as penstock:
        bus, admission = penstock.bus, Admission(penstock.bus)
        await admission.budgets.apply(PER_RUN, "root")
        workflow = str(uuid_utils.uuid7())
        now, runs = messages.now(), bus.bucket("runs")
        common: dict[str, Any] = {
            **{"session_id": "s", "user_id": "ada"},
            **{"created_at": now, "updated_at": now},
        }
        around = RunRecord(
            run_id=workflow, agent="flow", target="workflows", budgets=["careful"], **common
        )
        await runs.create(workflow, around.dump())
        for _ in range(2):
            step = Run(bus)
            record = RunRecord(run_id=step.run_id, agent="b", ancestors=[workflow], **common)
            await runs.create(step.run_id, record.dump())
            await step.open(user_id="ada")
            await step.bytes(agno("RunStarted") + call() * 2)
        subject = command("workflows", "cancel", workflow)
        stored = await eventually(lambda: bus.tail(COMMANDS, subject), what="the cancel")
        cancel = CancelCommand.model_validate_json(stored.payload)
        assert (cancel.budget or {})["used"] == 4
        assert await bus.tail(COMMANDS, command("connector", "cancel", step.run_id)) is None
        frames = await bus.tail(raw_for(workflow), raw_stored(workflow, "approvals"))
        assert frames is None, "only the service `workflows` writes frames of the run"


async def test_a_workflow_itself_uses_no_time(fresh_nats: NatsServer) -> None:
    document = {**PER_RUN["budgets"][0], "limit": {"time": "1h"}}
    async with pipeline(fresh_nats.url, Config(), (ApprovalsService,)) as penstock:
        bus = penstock.bus
        await Admission(bus).budgets.apply({"version": 1, "budgets": [document]}, "root")
        command = await penstock.register("flow", target="workflows", budgets=["careful"])
        run_id = command.run_id
        for number, type_ in enumerate(("lifecycle.started", "lifecycle.completed"), 1):
            at = f"2026-11-27T10:0{number}:00.000Z"
            body = orjson.dumps(event(number, type_, at))
            headers = {messages.SEQUENCE: f"{number}", "ce-type": type_}
            subject = event_input(type_, run_id)
            await bus.publisher.publish(Message(subject, body, headers))

        async def settled() -> RunSpending | None:
            found = await bus.bucket("budgets").load(f"run.{run_id}", RunSpending)
            return found if found is not None and found.settled else None

        spending = await eventually(settled, what="the end of the run")
    assert list(spending.accounts.values()) == [{"time": 0}]


async def test_all_runs_of_a_user_are_stopped_together(fresh_nats: NatsServer) -> None:
    document = {**PER_RUN["budgets"][0], "per": "user"}
    async with pipeline(fresh_nats.url, Config(), SERVICES) as penstock:
        bus, admission = penstock.bus, Admission(penstock.bus)
        await admission.budgets.apply({"version": 1, "budgets": [document]}, "root")
        first, second = [await admitted(bus, admission) for _ in range(2)]
        for each in (first, second):
            await each.open(user_id="ada")
        await first.bytes(agno("RunStarted") + call() * 4)
        for each in (first, second):
            await cancel_of(bus, each)
            cancelled = (await penstock.ended(each.run_id))[-1]
            assert cancelled.data["reason"] == "budget"
        with pytest.raises(Problem, match="nothing left"):
            await admitted(bus, admission)


def event(sequence: int, type_: str, at: str, **data: Any) -> dict[str, Any]:
    category, _, action = type_.partition(".")
    named = {"category": category, "action": action}
    return {"sequence": sequence, "timestamp": at, "event": named, "data": data, "leg": 1}


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


def test_an_agent_that_repeats_itself_is_found() -> None:
    budget = limited(limit={"same_call": 3})
    facts = RunFacts("r", agent="a", user="u", session_id="s")
    at, same = "2026-11-27T10:00:00.000Z", {"tool": "t", "args": {"b": 1, "a": [2]}}
    events = [event(n, "llm.tool_call", at, **same) for n in (1, 3)]
    events.insert(1, event(2, "llm.tool_call", at, tool="t", args={"b": 2, "a": [2]}))
    key = account_key(budget, facts, datetime.fromisoformat(at))
    account = BudgetAccount(budget="b", per="run", subject="r")

    def found(spending: RunSpending) -> list[tuple[str, int]]:
        steps = reached(budget, key, account, spending, is_own=True)
        return [(each.dimension, each.used) for each in steps]

    spending = add_events(RunSpending(run_id="r"), events, 3, [Charge(budget, facts)])
    assert found(spending) == []
    third = event(4, "llm.tool_call", at, tool="t", args={"a": [2], "b": 1})
    spending = add_events(spending, [third], 4, [Charge(budget, facts)])
    assert found(spending) == [("same_call", 3)]


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
    assert account == {"cost": 3, "model_calls": 3, "without_cost": 2}


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


def account(subject: str, **fields: Any) -> BudgetAccount:
    common = {"budget": "careful", "per": "run", "user": "ada", "subject": subject}
    return BudgetAccount.model_validate(common | fields)


async def test_a_sweep_and_a_list_read_no_account_that_nobody_may_use(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()
    many = Bucket.many

    async def counted(bucket: Bucket, keys: Sequence[str]) -> dict[str, Entry]:
        read.extend(keys)
        return await many(bucket, keys)

    async with connected(fresh_nats.url) as bus:
        budgets, bucket, now = CurrentBudgets(bus), bus.bucket("budgets"), bus.clock.stamp()
        day = {**DOCUMENT["budgets"][0], "limit": {"tokens": 10}, "reserve": "1 tokens"}
        await budgets.apply({**PER_RUN, "budgets": [*PER_RUN["budgets"], day]}, "root")
        runs = {"open": AccountRun(at=now)}
        of_window = {"budget": "day", "per": "user", "used": {"tokens": 7}}
        accounts = [
            *(account(f"ended{number}", used={"model_calls": 4}) for number in range(200)),
            account("over", **of_window, ends_at="2026-01-01T00:00:00Z"),
            account("open", runs=runs),
            account("later", **of_window, ends_at="2999-01-01T00:00:00Z"),
            *(account("shared", per="session", user=user) for user in ("ada", "bob")),
        ]
        writes = (
            bucket.put(f"account.{number}", each.dump()) for number, each in enumerate(accounts)
        )
        await asyncio.gather(*writes)
        monkeypatch.setattr(Bucket, "many", counted)
        monkeypatch.setattr(Bucket, "entries", None)
        ledger = BudgetLedger(bus, budgets, BudgetActions(bus, "test"))
        await ledger.sweep()
        assert read == ["account.201"], "the only one with an open run"
        share = REGISTRY.get_sample_value("penstock_budget_used_share", {"budget": "day"})
        assert share == 0.7, "of the window that is not over"
        of_ada = [each.subject async for _, each in ledger.list.after({"ada"}, {}, BEGIN)]
        assert of_ada == ["open", "shared", "later"]
        assert len(read) == 1 + 3
        found = [(place, each.user) async for place, each in ledger.list.after(None, {}, BEGIN)]
        first = next(each for each in found if each[0].subject == "shared")
        after = [each.user async for _, each in ledger.list.after(None, {}, first[0])]
        assert {first[1], after[0]} == {"ada", "bob"}, "two sessions of one id are two accounts"


async def test_an_account_of_nonsense_keeps_no_other_out_of_the_list(
    fresh_nats: NatsServer,
) -> None:
    """A server reports up to 2**51 tokens for each call, and its run makes any number of calls."""
    async with connected(fresh_nats.url) as bus:
        runs = {"run": AccountRun(at=bus.clock.stamp())}
        for number, used in enumerate((2**53, 2**64, 1)):
            made = account(f"{number}", used={"tokens": used}, runs=runs)
            await bus.bucket("budgets").put(f"account.{number}", made.dump())
        found = [each async for _, each in AccountList(bus).after({"ada"}, {}, BEGIN)]
    assert [each.used["tokens"] for each in found] == [2**53, 2**64, 1]


async def test_a_start_over_http_is_refused_and_each_user_sees_what_is_left(
    fresh_nats: NatsServer,
) -> None:
    document = {**DOCUMENT, "budgets": [{**DOCUMENT["budgets"][0], "reserve": "1.00 EUR"}]}
    body = {"agent": "helper", "message": SLOW}
    async with secured(fresh_nats.url) as made:
        penstock: Secured = made
        root = bearer("root", scope="administer read")
        await penstock.http.put("/v1/budgets", headers=root, json=document)

        async def refused() -> httpx.Response | None:
            answer = await penstock.http.post("/v1/runs", headers=bearer("ada"), json=body)
            return answer if answer.status_code == 429 else None

        answer = await eventually(refused, what="a refusal, after at most one start")
        other = await penstock.http.post("/v1/runs", headers=bearer("bob"), json=body)
        assert other.is_success, "another user has a budget of its own"

        async def accounts(who: dict[str, str], **query: Any) -> dict[str, Any]:
            answer = await penstock.http.get("/v1/budgets/accounts", headers=who, params=query)
            assert answer.status_code == 200, answer.text
            shown: dict[str, Any] = answer.json()
            return shown

        [own] = (await accounts(bearer("ada")))["accounts"]
        assert (await accounts(bearer("carol")))["accounts"] == []
        first = await accounts(root, limit=1, share=1)
        second = await accounts(root, limit=1, share=1, after=first["next"])
        assert (await accounts(root, budget="night"))["accounts"] == []
        command = ["budget", "accounts", "--url", penstock.url]
        env = {"PENSTOCK_TOKEN": bearer("ada")["authorization"].removeprefix("Bearer ")}
        told = await asyncio.to_thread(CliRunner().invoke, app, command, env=env)
    line = " ".join(told.output.splitlines()[-1].split())
    assert line.startswith("day user ada 0.00 EUR, 0 tokens, 0 tool_calls 1.00 EUR 0.00 EUR, ")
    found = [each["accounts"][0]["subject"] for each in (first, second)]
    assert (found, second["next"]) == (["ada", "bob"], None)
    assert (own["budget"], own["user"], own["open_runs"], own["share"]) == ("day", "ada", 1, 1.0)
    assert own["rooms"][0] == {
        **{"dimension": "cost", "limit": 1_000_000},
        **{"used": 0, "reserved": 1_000_000, "left": 0},
    }
    problem = answer.json()
    assert own["window_ends_at"] == problem["window_ends_at"]
    assert problem["type"] == "urn:penstock:problem:budget"
    assert (problem["budget"], problem["per"]) == ("day", "user")
    assert problem["window_ends_at"] in problem["detail"]
    assert int(answer.headers["retry-after"]) <= 86_400
