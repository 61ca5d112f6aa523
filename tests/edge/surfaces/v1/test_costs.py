"""/v1/costs adds up what runs used and cost, of the runs that the caller may see."""

from __future__ import annotations

import csv
import io
from typing import Any

import orjson
import pytest
import uuid_utils

from penstock.bus import Bus
from penstock.bus.records.costs import CostRecord, CostRow
from penstock_edge.sources import cost_list
from support.drive.bus import connected, new_run_id
from support.drive.clients import Client, MakeEdge
from support.drive.secured import bearer, secured
from support.real.nats import NatsServer

Row = dict[str, Any]


def row(model: str = "m", day: str = "2026-11-26", micros: int | None = 10, n: int = 1) -> CostRow:
    """Return a row of `n` calls, each of 100 tokens read and 10 written."""
    counts = {"calls": n, "input_tokens": 100 * n, "output_tokens": 10 * n}
    if micros is None:
        return CostRow(day=day, model=model, **counts, without_price=n)
    return CostRow(day=day, model=model, **counts, micros=micros, currency="EUR")


async def put(bus: Bus, user: str, *rows: CostRow, run_id: str = "", **fields: Any) -> str:
    """Store a run's record of costs, as the normalizer does; return the run's id."""
    run_id = run_id or new_run_id()
    facts = {"agent": "assistant", "session_id": "s", **fields}
    record = CostRecord(run_id=run_id, user_id=user, rows=list(rows), **facts)
    await bus.bucket("costs").put(run_id, record.dump())
    return run_id


def user() -> str:
    return f"user-{uuid_utils.uuid7()}"


async def costs(edge: Client, **query: Any) -> dict[str, Any]:
    answer = await edge.get("/v1/costs", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def by_name(body: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the tokens read and the cost of each name."""
    return {
        each[body["by"]]: (each["input_tokens"], each["cost_micros"].get("EUR", 0))
        for each in body["costs"]
    }


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("agent", {"assistant": (300, 20), "helper": (200, 5)}),
        ("model", {"m": (400, 20), "x": (100, 5)}),
        ("day", {"2026-10-31": (100, 10), "2026-11-26": (400, 15)}),
        ("session", {"s": (300, 20), "s2": (200, 5)}),
    ],
)
async def test_sums_are_grouped_by_name(
    edge: Client, bus: Bus, by: str, expected: dict[str, tuple[int, int]]
) -> None:
    mine = user()
    await put(bus, mine, row(), row(day="2026-10-31"), row(micros=None))
    await put(bus, mine, row("x", micros=5), row(micros=None), agent="helper", session_id="s2")
    body = await costs(edge, by=by, user=mine)
    assert by_name(body) == expected
    assert body["total"]["input_tokens"] == 500
    assert body["total"]["cost_micros"] == {"EUR": 25}
    assert body["total"]["without_price"] == 2


async def test_a_run_that_goes_on_is_not_added_twice(edge: Client, bus: Bus) -> None:
    mine = user()
    run_id = await put(bus, mine, row())
    assert (await costs(edge, user=mine))["total"]["calls"] == 1
    await put(bus, mine, row(n=3, micros=30), row("x"), run_id=run_id)
    total = (await costs(edge, user=mine))["total"]
    assert (total["calls"], total["cost_micros"]) == (4, {"EUR": 40})


async def test_sums_of_some_days_models_and_currencies(edge: Client, bus: Bus) -> None:
    mine = user()
    dollars = row("x", day="2026-11-02").model_copy(update={"currency": "USD"})
    await put(bus, mine, row(day="2026-11-01"), dollars, row(day="2026-11-03"))
    some = await costs(edge, user=mine, since="2026-11-02", until="2026-11-03")
    assert some["total"]["cost_micros"] == {"USD": 10}
    assert (await costs(edge, user=mine, model="x"))["total"]["cost_micros"] == {"USD": 10}
    whole = (await costs(edge, user=mine))["total"]["cost_micros"]
    assert whole == {"EUR": 20, "USD": 10}


async def test_sums_of_the_runs_that_have_begun_since_a_time(edge: Client, bus: Bus) -> None:
    mine, earlier = user(), "01990000-0000-7000-8000-000000000001"  # of September 2025
    await put(bus, mine, row(n=5), run_id=earlier)
    await put(bus, mine, row())
    since = "2026-01-01T00:00:00Z"
    assert (await costs(edge, user=mine, runs_since=since))["total"]["calls"] == 1
    assert (await costs(edge, user=mine, runs_since="2025-01-01T00:00:00Z"))["total"]["calls"] == 6
    wrong = await edge.get("/v1/costs", params={"runs_since": "2026-01-01"})
    assert (wrong.status_code, "runs_since: must be a time" in wrong.text) == (422, True)


async def test_pages_have_each_name_once(edge: Client, bus: Bus) -> None:
    mine = user()
    await put(bus, mine, *(row(f"m{n}") for n in range(5)))
    found: list[str] = []
    query = {"by": "model", "user": mine, "limit": 2}
    while True:
        body = await costs(edge, **query)
        found += [each["model"] for each in body["costs"]]
        assert body["total"]["calls"] == 5
        if body["next"] is None:
            break
        query["after"] = body["next"]
    assert found == [f"m{n}" for n in range(5)]


async def test_csv_has_a_line_for_each_name(edge: Client, bus: Bus) -> None:
    mine = user()
    await put(bus, mine, row("m,1"), row("x", micros=None))
    answer = await edge.get(
        "/v1/costs", params={"by": "model", "user": mine}, headers={"accept": "text/csv"}
    )
    assert answer.headers["content-type"].startswith("text/csv")
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(each["model"], each["input_tokens"], each["cost_micros_EUR"]) for each in lines] == [
        ("m,1", "100", "10"),
        ("x", "100", "0"),
    ]


@pytest.mark.parametrize(
    "query", ["by=colour", "since=yesterday", "until=2026-13-01", "limit=0", "format=xml"]
)
async def test_a_wrong_request_is_refused_and_names_its_parameter(edge: Client, query: str) -> None:
    answer = await edge.get(f"/v1/costs?{query}")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(query.partition("=")[0])


async def test_an_edge_that_starts_later_has_the_same_sums(
    edge: Client, bus: Bus, make_edge: MakeEdge
) -> None:
    mine = user()
    for _ in range(3):
        await put(bus, mine, row(), row("x", micros=None))
    before = await costs(edge, by="model", user=mine)
    assert await costs(await make_edge(), by="model", user=mine) == before


async def test_slices_of_the_index_add_up(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_list, "SLICE", 2)
    mine = user()
    for n in range(7):
        await put(bus, mine, row(f"m{n}"))
    assert (await costs(edge, user=mine))["total"]["calls"] == 7


async def test_a_value_that_is_no_record_is_left_out(edge: Client, bus: Bus) -> None:
    mine = user()
    await put(bus, mine, row())
    await bus.bucket("costs").put(new_run_id(), b"{")
    await bus.bucket("costs").put("no-run-id", orjson.dumps({}))
    assert (await costs(edge, user=mine))["total"]["calls"] == 1


async def put_run(bus: Bus, user_id: str, **fields: Any) -> str:
    run_id = new_run_id()
    at = "2026-11-26T10:00:00.000Z"
    facts = {"agent": "assistant", "session_id": "s", "status": "completed"}
    times = {"created_at": at, "updated_at": at}
    record = {"run_id": run_id, "user_id": user_id, **facts, **times, **fields}
    await bus.bucket("runs").put(run_id, orjson.dumps(record))
    return run_id


async def test_a_run_shows_its_own_costs_and_those_with_the_runs_that_it_led_to(
    edge: Client, bus: Bus
) -> None:
    """The outer workflow's run has no costs of its own, and neither has the inner one's."""
    outer = await put_run(bus, "anonymous", target="workflows")
    inner = await put_run(bus, "anonymous", target="workflows", parent_run_id=outer)
    child = await put_run(bus, "anonymous", parent_run_id=inner)
    await put(bus, "anonymous", row(), run_id=child)
    beside = await put_run(bus, "anonymous")
    await put(bus, "anonymous", row(n=2, micros=20), run_id=beside)

    shown = {
        run_id: (await edge.get(f"/v1/runs/{run_id}")).json()
        for run_id in (outer, inner, child, beside)
    }
    assert "usage" not in shown[outer]
    for run_id in (outer, inner):
        assert shown[run_id]["usage_with_children"]["cost_micros"] == {"EUR": 10}
    assert shown[child]["usage"]["input_tokens"] == 100
    assert shown[beside]["usage"]["cost_micros"] == {"EUR": 20}
    assert "usage_with_children" not in shown[beside]
    listed = (await edge.get("/v1/runs", params={"parent_run_id": inner})).json()["runs"]
    assert [each["usage"]["calls"] for each in listed] == [1]


async def test_a_user_sees_its_own_costs_and_an_administrator_all(fresh_nats: NatsServer) -> None:
    async with secured(fresh_nats.url) as penstock, connected(fresh_nats.url) as bus:
        await put(bus, "alice", row())
        await put(bus, "bob", row(n=2, micros=20))

        async def users(headers: dict[str, str], query: str = "") -> dict[str, tuple[int, int]]:
            answer = await penstock.http.get(f"/v1/costs?by=user{query}", headers=headers)
            return by_name(answer.json())

        assert await users(bearer("alice")) == {"alice": (100, 10)}
        assert await users(bearer("alice"), "&user=bob") == {}
        everything = {"alice": (100, 10), "bob": (200, 20)}
        assert await users(bearer("root", scope="read administer")) == everything
