"""The record of a run's costs is the sum of its events, whatever happens on the way."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import REGISTRY

from penstock import telemetry
from penstock.bus import Bus, Stored
from penstock.bus.records.costs import CostRecord
from penstock_edge.sources.cost_list import CostList
from penstock_normalizer.costs.ledger import Ledger
from penstock_normalizer.costs.sums import MAX_ROWS, add_model_calls
from support.drive.normalizing import FAST, Run, bus_to, normalizer
from support.drive.waiting import eventually
from support.fakes.raw import agno
from support.real.forked import Forked
from support.real.nats import NatsServer

PRICES = "currency: EUR\nprices: [{model: known*, per_million: {input: 2, output: 10}}]\n"
SUMMED = ("input_tokens", "output_tokens", "micros", "without_price")


def call(model: str = "known", read: int = 1000, written: int = 100) -> bytes:
    counts = {"input_tokens": read, "output_tokens": written}
    return agno("ModelRequestCompleted", model=model, model_provider="P", **counts)


async def usage_of(run: Run) -> list[Stored]:
    return [each for each in await run.events() if each.headers["ce-type"] == "llm.usage"]


def sum_of_events(events: list[Stored]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for each in events:
        data = orjson.loads(each.payload)["data"]
        cost = data["cost"]
        sums["input_tokens"] += data["input_tokens"]
        sums["output_tokens"] += data["output_tokens"]
        sums["micros"] += cost["micros"] if cost else 0
        sums["without_price"] += cost is None
    return sums


def sum_of_record(record: CostRecord) -> Counter[str]:
    return Counter({name: sum(getattr(row, name) for row in record.rows) for name in SUMMED})


async def costs_of(bus: Bus, run: Run) -> CostRecord | None:
    entry = await bus.bucket("costs").get(run.run_id)
    return CostRecord.model_validate_json(entry.value) if entry is not None else None


async def whole_costs_of(bus: Bus, run: Run) -> CostRecord:
    """Wait until the record has the run's last `llm.usage`, and return the record."""
    last = (await usage_of(run))[-1].sequence

    async def found() -> CostRecord | None:
        record = await costs_of(bus, run)
        return record if record is not None and record.last >= last else None

    return await eventually(found, 30, f"the costs of {run.run_id}")


def metrics() -> list[float]:
    """Return what the process has counted: costs, unknown prices, and calls with their tokens."""
    known = {"gen_ai_token_type": "input", "gen_ai_response_model": "known"}
    cost = {"agent": telemetry.OTHER, "model": "known", "currency": "EUR"}
    found = [
        REGISTRY.get_sample_value("penstock_cost_total", cost),
        REGISTRY.get_sample_value("penstock_cost_unknown_total", {"model": "unknown"}),
        REGISTRY.get_sample_value("gen_ai_client_token_usage_count", known),
        REGISTRY.get_sample_value("gen_ai_client_token_usage_sum", known),
    ]
    return [each or 0.0 for each in found]


async def test_a_record_is_the_sum_of_the_events(nats_server: NatsServer, tmp_path: Path) -> None:
    prices, before = tmp_path / "prices.yaml", metrics()
    prices.write_text(PRICES)
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url, prices=prices):
        run = Run(bus)
        await run.open(user_id="ada", agent="research")
        await run.bytes(agno("RunStarted") + call() + call("known-2") + call("unknown"))
        await run.bytes(agno("RunCompleted", content="x"))
        await run.end()
        await run.until("lifecycle.completed")
        record = await whole_costs_of(bus, run)
        events = await usage_of(run)
    assert (record.user_id, record.agent, record.session_id) == ("ada", "research", "s")
    assert sum_of_record(record) == sum_of_events(events)
    rows = {(row.model, row.currency): (row.micros, row.without_price) for row in record.rows}
    assert rows == {
        ("known", "EUR"): (3000, 0),
        ("known-2", "EUR"): (3000, 0),
        ("unknown", None): (0, 1),
    }
    counted = [after - first for after, first in zip(metrics(), before, strict=True)]
    assert counted == pytest.approx([0.003, 1, 1, 1000])


def tool_call(number: int, tool: str) -> bytes:
    call = {"tool_call_id": f"t{number}", "tool_name": tool, "tool_args": {}}
    return agno("ToolCallStarted", tool=call) + agno(
        "ToolCallCompleted", tool={**call, "result": "x"}
    )


async def test_calls_of_tools_with_a_price_are_costs_of_their_tenant_too(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\nprices: [{tool: search, tenant: acme, per_call: 0.01}]\n")
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url, prices=prices):
        run = Run(bus)
        await run.open(user_id="ada", tenant="acme")
        calls = [tool_call(number, "search") for number in range(3)]
        await run.bytes(agno("RunStarted") + b"".join(calls) + tool_call(3, "free") + call())
        await run.bytes(agno("RunCompleted", content="x"))
        await run.end()
        events = await run.until("lifecycle.completed")
        results = [each for each in events if each.headers["ce-type"] == "llm.tool_result"]
        data = [orjson.loads(each.payload)["data"] for each in results]
        assert [each.get("cost", {}).get("micros") for each in data] == [10_000] * 3 + [None]

        async def whole() -> CostRecord | None:
            found = await costs_of(bus, run)
            return found if found is not None and len(found.rows) == 2 else None

        record = await eventually(whole, 30, "the costs of the run")
        assert record.tenant == "acme"
        tools = {row.tool: (row.tool_calls, row.micros) for row in record.rows}
        assert tools == {"search": (3, 30_000), "": (0, 0)}
        ledgers = [Ledger(bus, gather_s=0) for _ in range(2)]
        await asyncio.gather(*(each.add(one) for each in ledgers for one in [*results, *results]))
        assert await costs_of(bus, run) == record
        by_tool = await CostList(bus).grouped("tool", None, {"tenant": "acme"}, None, None)
    assert by_tool["search"].micros == {"EUR": 30_000}
    assert by_tool["search"].counts["tool_calls"] == 3
    assert by_tool[""].counts["calls"] == 1


async def test_events_that_come_twice_and_in_any_order_are_added_once(
    nats_server: NatsServer,
) -> None:
    async with bus_to(nats_server.url) as bus:
        run = Run(bus)
        async with normalizer(nats_server.url):
            await run.open()
            await run.bytes(agno("RunStarted") + b"".join(call(read=n) for n in range(1, 9)))
            await run.until("llm.usage")
            await whole_costs_of(bus, run)
        events = await usage_of(run)
        whole = await costs_of(bus, run)
        await bus.bucket("costs").delete(run.run_id)
        ledgers = [Ledger(bus, gather_s=0.01) for _ in range(3)]
        disorder = [*reversed(events), *events, *events[3:5]]
        await asyncio.gather(
            *(ledgers[n % 3].add(each) for n, each in enumerate(disorder)),
        )
        assert await costs_of(bus, run) == whole
    assert whole is not None
    assert sum_of_record(whole)["input_tokens"] == sum(range(1, 9))


def test_an_event_that_was_published_again_after_a_loss_is_added_once() -> None:
    data = {"input_tokens": 3, "reported": "call", "estimated": False, "cost": None}
    event = {"sequence": 5, "timestamp": "2026-11-26T10:00:00.000Z", "data": data}
    record = CostRecord(run_id="r", agent="a", user_id="u", session_id="s")
    once = add_model_calls(record, [event], last=70)
    again = add_model_calls(once, [event], last=90)
    assert again.rows == once.rows
    assert again.last == 90


def test_a_record_does_not_grow_with_the_names_that_a_server_makes_up() -> None:
    record = CostRecord(run_id="r", agent="a", user_id="u", session_id="s")
    events: list[dict[str, Any]] = [
        {
            "sequence": n,
            "timestamp": "2026-11-26T10:00:00.000Z",
            "data": {"model": f"m{n}", "input_tokens": 1, "reported": "call", "estimated": False},
        }
        for n in range(1, 2 * MAX_ROWS)
    ]
    added = add_model_calls(record, events, last=1)
    assert len(added.rows) == MAX_ROWS + 1
    assert sum(row.input_tokens for row in added.rows) == 2 * MAX_ROWS - 1


async def test_sums_equal_events_while_normalizers_are_killed_and_prices_change(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    config, prices = tmp_path / "penstock.yaml", tmp_path / "prices.yaml"
    config.write_text("agents: []\n")
    prices.write_text(PRICES)
    environment = {
        **os.environ,
        "PENSTOCK_CONFIG": str(config),
        "PENSTOCK_NATS_URL": fresh_nats.url,
        "PENSTOCK_PROBE_PORT": "0",
        "PENSTOCK_PRICES": str(prices),
        **{f"PENSTOCK_{name.upper()}": str(value) for name, value in FAST.items()},
    }

    def start() -> Forked:
        return Forked(["-m", "penstock_normalizer"], environment, tmp_path / "normalizer.log")

    async with bus_to(fresh_nats.url) as bus:
        processes = [start(), start()]
        runs = [Run(bus) for _ in range(20)]
        try:
            for run in runs:
                await run.open()
                await run.bytes(agno("RunStarted"))
            for round_ in range(4):
                for run in runs:
                    await run.bytes(call("known" if round_ % 2 else "unknown") + call())
                await runs[0].until("llm.usage")
                # each is killed once or more, in the middle of these events
                processes[round_ % 2].kill()
                await processes[round_ % 2].ended()
                prices.write_text(PRICES.replace("input: 2", f"input: {round_ + 3}"))
                processes[round_ % 2] = start()
            for run in runs:
                await run.bytes(agno("RunCompleted", content="x"))
                await run.end()
            total: Counter[str] = Counter()
            for run in runs:
                await run.until("lifecycle.completed", 60)
                record, events = await whole_costs_of(bus, run), await usage_of(run)
                assert len(events) == 8
                assert sum_of_record(record) == sum_of_events(events)
                total += sum_of_events(events)
            # what an edge answers to `GET /v1/costs?by=user`
            [sums] = (await CostList(bus).grouped("user", None, {}, None, None)).values()
            assert sums.micros == {"EUR": total["micros"]}
            assert {name: sums.counts[name] for name in SUMMED if name != "micros"} == {
                name: total[name] for name in SUMMED if name != "micros"
            }
        finally:
            for process in processes:
                process.kill()
                await process.ended()
