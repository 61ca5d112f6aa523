"""Budgets hold while every service is killed: starts take exactly the room, sums equal events."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from penstock.budgets.admission import Admission, CurrentBudgets
from penstock.budgets.document import RunFacts
from penstock.bus import Bus, RawWriter, streams
from penstock.bus.read import direct
from penstock.bus.records.budgets import BudgetAccount
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.subjects import run_id_of
from penstock.events import TERMINAL
from penstock_approvals.budgets.actions import BudgetActions
from penstock_approvals.budgets.ledger import BudgetLedger
from support.drive.bus import connected
from support.drive.figures import report
from support.drive.normalizing import Run
from support.drive.waiting import eventually
from support.drive.workflows import define, definition
from support.fakes.misbehaving import Answer, Request, misbehaving
from support.fakes.raw import agno
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.real.shifted_nats import CannotBuild, ShiftedServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
STARTS, ROOM, CALLS = 1000, 100, 6
BUDGET = {
    "id": "day",
    "per": "user",
    "window": "day",
    "limit": {"cost": "50 EUR", "tokens": 10**9},
    "reserve": "0.50 EUR",
    "at": [{"share": 1.0, "do": "refuse"}],
}
AGENTS: list[dict[str, Any]] = [
    {"id": "a", "protocol": "agno", "url": "http://127.0.0.1:9", "agent": "demo"}
]
PRICES = "currency: EUR\nprices: [{model: m, per_million: {input: 2, output: 10}}]\n"


async def start(penstock: Deployment, number: int, room: asyncio.Semaphore) -> str | None:
    """Start a run, and repeat the start until it is answered; return its id, None if refused."""
    async with room:
        return await answered(penstock, number)


async def answered(penstock: Deployment, number: int, agent: str = "a") -> str | None:
    headers = {"idempotency-key": f"k{number}"}
    for attempt in itertools.count():
        try:
            answer = await penstock.http.post(
                f"{penstock.edge(number + attempt)}/v1/runs",
                json={"agent": agent, "message": "Hello"},
                headers=headers,
            )
        except httpx.HTTPError:
            await asyncio.sleep(0.2)
            continue
        if answer.status_code == 429:
            assert answer.json()["budget"] == "day", answer.text
            return None
        if answer.status_code < 500:
            return str(answer.json()["run_id"])
        await asyncio.sleep(0.2)
    return None


async def kill_each(penstock: Deployment, service: str) -> None:
    """Kill each process of the service once, and start another in its place."""
    for instance in penstock.of(service):
        await asyncio.sleep(0.3)
        await penstock.kill(instance)
        await penstock.start(service)


async def spend(bus: Bus, run_id: str, number: int) -> None:
    """Write the frames of a run, as a connector does."""
    run = Run(bus)
    run.run_id = run_id
    run.writer = RawWriter(bus, run_id, "upstream", f"pod/{number}")
    await run.open(user_id="anonymous", agent="a")
    await run.bytes(agno("RunStarted"))
    for _ in range(CALLS):
        counts = {"input_tokens": 1000 + number, "output_tokens": 100}
        await run.bytes(agno("ModelRequestCompleted", model="m", model_provider="P", **counts))
        await asyncio.sleep(0.5)
    await run.bytes(agno("RunCompleted", content="x"))
    await run.end()


async def account_of(bus: Bus) -> BudgetAccount:
    [entry] = await bus.bucket("budgets").entries("account.*")
    return BudgetAccount.model_validate_json(entry.value)


async def test_a_budget_holds_while_every_service_is_killed(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    counts = {"edge": 3, "approvals": 2, "normalizer": 2, "connector": 0}
    settings = {"prices": prices, "partition_ttl_s": 2, "partition_renew_s": 0.3}
    async with (
        deployment(fresh_nats.url, tmp_path / "p", AGENTS, counts, **settings) as penstock,
        connected(fresh_nats.url) as bus,
    ):
        budgets = CurrentBudgets(bus)
        await budgets.apply({"version": 1, "budgets": [BUDGET]}, "root")
        await asyncio.sleep(1)
        room = asyncio.Semaphore(90)  # more connections than that, httpx does not open
        starts = (start(penstock, number, room) for number in range(STARTS))
        _, *found = await asyncio.gather(kill_each(penstock, "edge"), *starts)
        runs = sorted({each for each in found if each is not None})
        records = await bus.bucket("runs").entries()
        started = [RunRecord.model_validate_json(each.value) for each in records]
        print("started", len(runs), len(started), flush=True)
        assert len(runs) == len(started) == ROOM, "exactly the room, whichever edge died"
        await asyncio.gather(
            kill_each(penstock, "approvals"),
            kill_each(penstock, "normalizer"),
            *(spend(bus, run_id, number) for number, run_id in enumerate(runs)),
        )

        async def settled() -> bool:
            return not (await account_of(bus)).runs

        await eventually(settled, 120, "the end of all runs: nothing stays set aside")
        account, spent = await account_of(bus), Counter[str]()
        for run_id in runs:
            run = Run(bus)
            run.run_id = run_id
            for event in await run.events():
                if event.headers["ce-type"] == "llm.usage":
                    data = orjson.loads(event.payload)["data"]
                    spent["cost"] += data["cost"]["micros"]
                    spent["tokens"] += data["input_tokens"] + data["output_tokens"]
        assert account.used == dict(spent)
        assert spent["tokens"] == sum(CALLS * (1100 + n) for n in range(ROOM))


# 160 runs and the 40 runs of the steps of 20 workflows spend for ever, until budgets stop them:
# some while services are killed, others when each service has been killed.
RUNS = {"early": 80, "late": 80, "flow": 20}
CALLS_OF = {"early": 4, "late": 12, "flow": 12}
EVERY_S = 2.0
SPENDERS = {"normalizer": 2, "connector": 2, "approvals": 2, "workflows": 2, "edge": 2}
FLOW = """
name: flow
steps:
  left: {run: {agent: inner, message: '"go"'}}
  right: {run: {agent: inner, message: '"go"'}}
"""
WITHIN_S = 120.0  # the longest time from the call that crosses a limit to the cancel


def limits(id: str, agents: list[str], **fields: Any) -> dict[str, Any]:
    return {"id": id, "match": {"agent": agents}, "at": [{"share": 1.0, "do": "stop"}], **fields}


SPENDING = [
    *(limits(name, [name], per="run", limit={"model_calls": n}) for name, n in CALLS_OF.items()),
    limits("all", ["*"], per="user", limit={"tokens": 10**9}, reserve="5000 tokens"),
]


class Spenders:
    """An agent server whose agents call models for ever; a cancel ends a run."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = {}
        self.cancelled_at: dict[str, float] = {}

    def other(self, request: Request) -> tuple[int, Any]:
        if request.path.endswith("/cancel"):
            self.cancelled_at.setdefault(request.path.split("/")[-2], time.monotonic())
        return 200, {}

    async def spends(self, answer: Answer) -> None:
        run_id = answer.request.form["run_id"]
        calls = self.calls.setdefault(run_id, [])
        await answer.head()
        await answer.send(agno("RunStarted"))
        while run_id not in self.cancelled_at:
            counts = {"input_tokens": 100, "output_tokens": 10}
            calls.append(time.monotonic())
            await answer.send(agno("ModelRequestCompleted", model="m", **counts))
            await asyncio.sleep(EVERY_S)
        await answer.send(agno("RunCancelled"))
        await answer.end()


async def records_of(bus: Bus) -> dict[str, RunRecord]:
    entries = await bus.bucket("runs").entries()
    return {each.key: RunRecord.model_validate_json(each.value) for each in entries}


async def calls_of_runs(bus: Bus) -> Counter[str]:
    """Return the number of published model calls of each run."""
    calls = Counter[str]()
    async for each in direct.replay(bus, streams.EVENTS, "llm.usage.*"):
        calls[orjson.loads(each.payload)["run_id"]] += 1
    return calls


async def runs_with_an_end(bus: Bus) -> set[str]:
    return {
        run_id_of(each.subject)
        for type_ in TERMINAL
        async for each in direct.replay(bus, streams.EVENTS, f"{type_}.*")
    }


async def accounts_of(bus: Bus) -> list[BudgetAccount]:
    entries = await bus.bucket("budgets").entries("account.*")
    return [BudgetAccount.model_validate_json(each.value) for each in entries]


async def sums_of_accounts(bus: Bus) -> dict[str, int]:
    """Return what ended runs have used of each account, by the run or `all`."""
    return {
        "all" if each.budget == "all" else each.subject: used
        for each in await accounts_of(bus)
        if (used := sum(each.used.values()))
    }


async def set_aside_an_hour_later(url: str, clock: ShiftedServer) -> list[str]:
    """Interrupt one more start, and set NATS's clock an hour ahead; return the runs for which
    something is set aside after a sweep of the approvals service."""

    async def is_later() -> bool:
        await bus.clock.refresh()
        return bus.clock.offset_s < -3500

    begun = RunFacts("begun", agent="early", user="anonymous", session_id="")
    async with connected(url) as bus:
        admission = Admission(bus)
        await admission.enter(await admission.of(begun), begun, always=False)
        assert "begun" in {run_id for each in await accounts_of(bus) for run_id in each.runs}
        clock.set(3600)
        await eventually(is_later, what="that NATS is an hour later")
        await BudgetLedger(bus, admission.budgets, BudgetActions(bus, "test")).sweep()
        return [run_id for each in await accounts_of(bus) for run_id in each.runs]


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedServer:
    try:
        return ShiftedServer(tmp_path / "nats clock")
    except CannotBuild as error:
        pytest.skip(str(error))


@pytest.fixture
def nats(tmp_path: Path, clock: ShiftedServer) -> Iterator[NatsServer]:
    """Run a server whose clock the test sets."""
    server = NatsServer(tmp_path / "nats", name="shifted nats", program=clock.command)
    server.start()
    yield server
    server.remove()


async def test_sums_equal_events_and_each_run_is_stopped_while_every_service_is_killed(
    nats: NatsServer, clock: ShiftedServer, tmp_path: Path
) -> None:
    spenders = Spenders()
    quick = {"pod_ttl_s": 4, "pod_renew_s": 0.5, "reap_s": 0.5, "watch_s": 1, "max_legs": 200}
    quick |= {"partition_ttl_s": 2, "partition_renew_s": 0.3}
    async with misbehaving() as upstream, connected(nats.url) as bus:
        upstream.script(spenders.spends)
        upstream.other = spenders.other
        agents: list[dict[str, Any]] = [
            *(
                {"id": id, "protocol": "agno", "url": upstream.url}
                for id in ("early", "late", "inner")
            ),
            {"id": "flow", "protocol": "workflow"},
        ]
        budgets = CurrentBudgets(bus)
        await budgets.apply({"version": 1, "budgets": SPENDING}, "root")
        await define(bus, definition(FLOW))
        async with deployment(nats.url, tmp_path / "p", agents, SPENDERS, **quick) as penstock:
            asked = [*Counter(RUNS).elements()]
            starting = asyncio.gather(
                *(answered(penstock, number, agent) for number, agent in enumerate(asked))
            )
            await upstream.called(40)
            for service in SPENDERS:
                await penstock.kill(penstock.of(service)[0])
                await penstock.start(service)
            stopped_during_kills = len(spenders.cancelled_at)
            assert stopped_during_kills < 160, "runs spend while each service is killed"
            assert None not in await starting

            async def ended() -> bool:
                records = await records_of(bus)
                if not all(each.status in ENDED for each in records.values()):
                    return False
                # Records are written before the events.
                return set(records) == await runs_with_an_end(bus)

            await eventually(ended, 300, "the end of all runs")
            records, spent = await records_of(bus), await calls_of_runs(bus)
            of_agent = Counter(each.agent for each in records.values())
            assert of_agent == {**RUNS, "inner": 2 * RUNS["flow"]}
            for run_id, record in records.items():
                for around in record.ancestors or ():
                    spent[around] += spent[run_id]
            wanted = {"all": 110 * sum(spent[r] for r in records if records[r].agent != "flow")}
            wanted |= {r: spent[r] for r in records if records[r].agent != "inner"}

            used = {name: count for name, count in wanted.items() if count}

            async def equal() -> bool:
                return await sums_of_accounts(bus) == used

            with suppress(TimeoutError):
                await eventually(equal, 120)
            assert await sums_of_accounts(bus) == used, "sums that equal the events"
    over = {r: spent[r] - CALLS_OF[records[r].agent] for r in wanted if r != "all"}
    late_s = sorted(
        at - spenders.calls[run_id][CALLS_OF[records[run_id].agent] - 1]
        for run_id, at in spenders.cancelled_at.items()
        if records[run_id].agent != "inner"
    )
    figures = {"p50_s": late_s[len(late_s) // 2], "latest_s": late_s[-1]}
    figures |= {"during_kills": stopped_during_kills, "most_over": max(over.values())}
    report("budgets under kills", **figures)
    stopped = [r for r in over if records[r].status == "cancelled"]
    assert len(stopped) > 40, "the others have lost their connector"
    assert "history_lost" not in {each.code for each in records.values()}, "NATS has lost nothing"
    assert late_s[-1] < WITHIN_S
    assert all(over[r] >= 0 for r in stopped), "none is stopped before its limit"
    alone = [r for r in stopped if records[r].agent != "flow"]
    unknown = [r for r in alone if spent[r] > len(spenders.calls[r])]
    assert unknown == [], "all that is counted has begun before the cancel has arrived"
    assert await set_aside_an_hour_later(nats.url, clock) == []
