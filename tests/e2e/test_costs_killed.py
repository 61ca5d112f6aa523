"""Sums of costs equal the sum over the events after kills of every service (`make faults`)."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus import streams
from penstock.bus.read import direct
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, misbehaving
from support.fakes.raw import agno
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

RUNS, STEPS, STEP_S = 200, 6, 1.0
SERVICES = {"normalizer": 2, "connector": 2, "edge": 2, "approvals": 1, "automations": 1}
QUICK: dict[str, Any] = {"pod_ttl_s": 4, "pod_renew_s": 0.5, "reap_s": 0.5, "watch_s": 1}
PRICES = """
currency: EUR
prices:
  - {model: known, per_million: {input: 2, output: 10}}
  - {tool: search, per_call: 0.01}
"""
ENDED = {"completed", "failed", "cancelled"}
Sums = dict[str, Counter[str]]


async def spends(answer: Answer) -> None:
    """Call a model with a price, one without, and a tool, again and again."""
    await answer.head()
    await answer.send(agno("RunStarted"))
    for step in range(STEPS):
        for model in ("known", "unknown"):
            counts = {"input_tokens": 100 + step, "output_tokens": 10}
            await answer.send(agno("ModelRequestCompleted", model=model, **counts))
        call = {"tool_call_id": f"t{step}", "tool_name": "search", "tool_args": {}}
        await answer.send(agno("ToolCallStarted", tool=call))
        await answer.send(agno("ToolCallCompleted", tool={**call, "result": "x"}))
        await asyncio.sleep(STEP_S)
    await answer.send(agno("RunCompleted", content="done"))
    await answer.end()


async def start(penstock: Deployment, number: int) -> str:
    """Start a run at one of the edges, and again until one has answered; return its id."""
    body = {"agent": "agent", "message": "spend", "session_id": f"s-{number}"}
    headers = {"idempotency-key": f"{uuid.uuid4()}"}

    async def tried() -> str | None:
        try:
            url = f"{penstock.edge(number)}/v1/runs"
            answer = await penstock.http.post(url, json=body, headers=headers)
        except httpx.TransportError:
            return None
        return str(answer.json()["run_id"]) if answer.is_success else None

    return await eventually(tried, 120, "the start of a run")


async def sum_of_events(nats_url: str) -> Sums:
    """Return the sums of each session, over the published events."""
    sums: Sums = {}
    async with connected(nats_url) as bus:
        for type_ in ("llm.usage", "llm.tool_result"):
            async for each in direct.replay(bus, streams.EVENTS, f"{type_}.*"):
                event = orjson.loads(each.payload)
                data, found = event["data"], sums.setdefault(event["session_id"], Counter())
                cost = data.get("cost")
                found["micros"] += cost["micros"] if cost else 0
                found["without_price"] += type_ == "llm.usage" and cost is None
                found["input_tokens"] += data.get("input_tokens", 0)
                found["tool_calls"] += type_ == "llm.tool_result" and cost is not None
    return sums


async def sum_of_costs(penstock: Deployment) -> Sums:
    """Return the sums of each session, as /v1/costs has them."""
    query = {"by": "session", "limit": "1000"}
    answer = await penstock.http.get(f"{penstock.edge()}/v1/costs", params=query)
    names = ("without_price", "input_tokens", "tool_calls")
    return {
        each["session"]: Counter(
            {"micros": each["cost_micros"].get("EUR", 0), **{name: each[name] for name in names}}
        )
        for each in answer.json()["costs"]
    }


async def test_sums_equal_events_while_every_service_is_killed_and_200_runs_spend(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    settings = {**QUICK, "prices": prices, "max_legs": RUNS}
    async with misbehaving() as upstream:
        upstream.script(spends)
        agents = [{"id": "agent", "protocol": "agno", "url": upstream.url, "timeout_s": 120}]
        async with deployment(
            fresh_nats.url, tmp_path / "penstock", agents, SERVICES, **settings
        ) as penstock:
            starting = asyncio.gather(*(start(penstock, number) for number in range(RUNS)))
            await upstream.called(RUNS // 10)
            for service in SERVICES:
                await penstock.kill(penstock.of(service)[0])
                await penstock.start(service)
            runs = await starting

            async def ended() -> bool:
                url = f"{penstock.edge()}/v1/runs"
                found = []
                for status in ENDED:
                    answer = await penstock.http.get(url, params={"status": status, "limit": "200"})
                    found += [each["run_id"] for each in answer.json()["runs"]]
                return set(runs) <= set(found)

            await eventually(ended, 300, "the end of all runs")
            events = await sum_of_events(fresh_nats.url)
            assert sum(events.values(), Counter())["tool_calls"] > RUNS

            async def equal() -> bool:
                return await sum_of_costs(penstock) == events

            await eventually(equal, 60, "sums that equal the events")
            # a restart of all that adds up changes nothing
            for service in ("normalizer", "edge"):
                for instance in penstock.of(service):
                    await penstock.kill(instance)
                    await penstock.start(service)
            await eventually(equal, 60, "the same sums")
