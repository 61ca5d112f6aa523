"""Budgets hold while every service is killed: starts take exactly the room, sums equal events."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from penstock.budgets.admission import CurrentBudgets
from penstock.bus import Bus, RawWriter
from penstock.bus.records import BudgetAccount, RunRecord
from support.drive.bus import connected
from support.drive.normalizing import Run
from support.drive.waiting import eventually
from support.fakes.raw import agno
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer

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


async def answered(penstock: Deployment, number: int) -> str | None:
    headers = {"idempotency-key": f"k{number}"}
    for attempt in itertools.count():
        try:
            answer = await penstock.http.post(
                f"{penstock.edge(number + attempt)}/v1/runs",
                json={"agent": "a", "message": "Hello"},
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
