"""A model call has a cost: from the operator's table, else from public prices, else null."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.dialects.decoders import DECODERS
from penstock.events import typed_data
from penstock.settings import ConfigurationError
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.prices import prices
from penstock_normalizer.prices.prices import Prices
from penstock_normalizer.prices.public import PublicPrices
from penstock_normalizer.prices.table import Call, InvalidPrices, read_table
from support.fakes.raw import RUN_ID, Frames, agno

AT = "2026-11-26T10:00:00.000Z"
TABLE = """
version: "7"
currency: EUR
prices:
  - provider: OpenAI
    model: gpt-5*
    from: 2026-11-01
    per_million: {input: 1.25, output: 10, cached_input: 0.125}
  - {model: gpt-5, per_million: {input: 2, output: 20}}
  - {model: "llama*", agent: research, currency: USD, per_call: 0.005}
"""


def used(model: str = "gpt-5", provider: str | None = "OpenAI", **counts: int) -> dict[str, Any]:
    counts = counts or {"input_tokens": 1000, "output_tokens": 100, "cached_input_tokens": 500}
    return {"model": model, **({"provider": provider} if provider else {}), **counts}


def micros(
    text: str, data: dict[str, Any], agent: str = "assistant", day: str = AT, **more: Any
) -> int | None:
    call = {"agent": agent, "tenant": "", "since": AT, "timestamp": day, **more}
    cost = read_table(text).cost(Call(data, **call))
    return None if cost is None else cost["micros"]


def cost_by(made: Prices, data: dict[str, Any]) -> dict[str, Any] | None:
    return made.cost_of("llm.usage", data, {"agent": "a"}, AT, AT)


def test_the_cost_is_an_integer_of_micro_units_and_names_its_price() -> None:
    cost = read_table(TABLE).cost(Call(used(), "assistant", "", AT, AT))
    # 500 * 1.25 + 500 * 0.125 + 100 * 10, in millionths
    assert cost == {"micros": 1688, "currency": "EUR", "source": "table", "version": "7"}


def test_the_first_row_that_fits_and_is_valid_counts() -> None:
    assert micros(TABLE, used(), day="2026-10-31") == 1000 * 2 + 100 * 20
    assert micros(TABLE, used(provider=None)) == 1000 * 2 + 100 * 20
    assert micros(TABLE, used("llama-4", "Ollama"), "research") == 5000
    assert micros(TABLE, used("llama-4", "Ollama")) is None


def test_a_part_without_a_price_costs_what_the_whole_costs() -> None:
    text = "prices: [{per_million: {input: 1, output: 2, reasoning: 3}}]"
    usage = used(input_tokens=10, output_tokens=20, cache_write_tokens=4, reasoning_tokens=5)
    assert micros(text, usage) == 10 + 15 * 2 + 5 * 3


def test_a_tenant_may_have_its_own_price() -> None:
    text = "prices: [{tenant: acme, per_call: 1}, {tenant: um*, per_call: 2}, {per_call: 3}]"
    found = [micros(text, used(), tenant=tenant) for tenant in ("acme", "umbrella", "", "x")]
    assert found == [1_000_000, 2_000_000, 3_000_000, 3_000_000]


def test_a_model_on_an_own_machine_costs_its_time() -> None:
    text = "prices: [{model: llama*, per_hour: 3.6, per_call: 0.5}]"
    usage = used("llama-4") | {"reported": "call"}
    assert micros(text, usage, day="2026-11-26T10:00:02.500Z") == 500_000 + 2_500
    assert micros(text, usage, since="2026-11-26T11:00:00.000Z") == 500_000, "clocks differ"
    assert micros(text, used("llama-4") | {"reported": "run"}) is None, "not one call alone"


def test_a_tool_has_a_price_for_each_call_that_has_run() -> None:
    text = "prices: [{tool: search_*, per_call: 0.01}, {per_call: 9}]"
    for outcome, expected in {"ok": 10_000, "error": 10_000, "rejected": None}.items():
        result = {"tool": "search_web", "outcome": outcome}
        assert micros(text, result, is_tool=True) == expected
    assert micros(text, {"tool": "other", "outcome": "ok"}, is_tool=True) is None
    assert micros(text, used()) == 9_000_000, "a row of tools is for no model"


def test_tokens_of_which_only_the_sum_is_known_have_no_price() -> None:
    assert micros(TABLE, used(total_tokens=9)) is None


def test_a_call_is_rounded_once() -> None:
    text = "prices: [{per_million: {input: 0.25, output: 0.25}}]"
    assert micros(text, used(input_tokens=1, output_tokens=1)) == 1  # 0.25 + 0.25, and not 0 + 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("prices: [{model: m}]", "line 1: prices.0: needs `per_million`, `per_call` or `per_h"),
        ("prices: [{tool: t}]", "prices.0: a row with `tool` has `per_call`"),
        ("prices: [{tool: t, per_call: 1, model: m}]", "and nothing of a model"),
        ("prices:\n- {per_call: -1}", "line 2: prices.0.per_call: must be a number from 0"),
        ("prices:\n- {per_call: 1.0000001}", "prices.0.per_call: has more than 6 decimal places"),
        ("prices: [{per_call: 1, modle: m}]", "prices.0.modle: there is no such field"),
        ("prices: [{per_call: 1, per_call: 2}]", "per_call: the key is there twice"),
        ("prices: [{per_call: 1, currency: euro}]", "prices.0.currency"),
        ("prices: [", "not YAML"),
        ("", "line 0: the document"),
    ],
)
def test_a_mistake_in_the_table_is_named_with_its_line(text: str, error: str) -> None:
    with pytest.raises(InvalidPrices, match=error.replace("(", r"\(")):
        read_table(text)


def test_a_service_does_not_start_with_a_wrong_table(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    with pytest.raises(ConfigurationError, match="PENSTOCK_PRICES"):
        Prices(path)
    path.write_text("prices: [{}]")
    with pytest.raises(ConfigurationError, match=r"prices\.0"):
        Prices(path)


async def test_a_changed_table_is_in_force_without_a_restart_and_a_wrong_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "CHECK_S", 0.01)
    path = tmp_path / "prices.yaml"
    path.write_text("prices: [{per_call: 1}]")
    made = Prices(path)
    following = asyncio.create_task(made.follow())

    async def costs(amount: int) -> None:
        async with asyncio.timeout(10):
            while (cost_by(made, used()) or {})["micros"] != amount:
                await asyncio.sleep(0.01)

    path.write_text("prices: [{per_call: 2}]")
    await costs(2_000_000)
    path.write_text("prices: [")
    path.unlink()
    path.write_text("prices: [{per_call: 3}]")
    await costs(3_000_000)
    following.cancel()


def test_public_prices_are_those_of_the_package() -> None:
    cost = PublicPrices().cost(used(), AT)
    assert cost is not None
    assert (cost["micros"], cost["currency"]) == (1688, "USD")  # 0.0016875, as the package says
    assert cost["source"] == "genai-prices"
    assert cost["version"]


@pytest.mark.parametrize(
    ("model", "provider"), [("fake-1", None), ("gpt-5", "Ollama"), ("no-such-model", "OpenAI")]
)
def test_a_model_without_a_known_public_price_has_none(model: str, provider: str | None) -> None:
    assert PublicPrices().cost(used(model, provider), AT) is None


def test_the_own_table_goes_before_public_prices(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("prices: [{model: fake-1, per_call: 1}]")
    made = Prices(path)
    own, public = (cost_by(made, used(model)) for model in ("fake-1", "gpt-5"))
    assert own is not None
    assert public is not None
    assert (own["source"], public["source"]) == ("table", "genai-prices")


CALL = {"model": "m", "model_provider": "P", "input_tokens": 3, "output_tokens": 1}


def events_of(body: bytes, cost: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the data of each `llm.usage` of a run with this response."""
    frames = Frames()
    fold = RunFold(RUN_ID, DECODERS, cost_of=lambda *_: cost)
    fed = [frames.open(), frames.bytes(body), frames.end()]
    events = [event for frame in fed for event in fold.feed(frame)]
    return [orjson.loads(event.body)["data"] for event in events if event.type == "llm.usage"]


def test_the_event_has_its_cost_and_null_where_no_price_is_known() -> None:
    cost = {"micros": 5, "currency": "EUR", "source": "table", "version": "7"}
    for expected in (cost, None):
        [data] = events_of(agno("ModelRequestCompleted", **CALL), expected)
        assert data["cost"] == expected
        typed_data("llm.usage", data)


def test_a_cost_that_an_agent_claims_does_not_count() -> None:
    claimed = {"micros": 1, "currency": "EUR", "source": "table", "version": "7"}
    value = {"input_tokens": 3, "reported": "call", "estimated": False, "cost": claimed}
    [data] = events_of(agno("CustomEvent", name="llm.usage", value=value), None)
    assert data["cost"] is None


def test_a_call_lasts_at_most_since_the_call_before_it_or_since_the_legs_begin() -> None:
    asked: list[tuple[str, str, str]] = []

    def cost_of(type_: str, data: Any, facts: Any, since: str, until: str) -> None:
        asked.append((type_, since[17:19], until[17:19]))

    frames = Frames()
    fold = RunFold(RUN_ID, DECODERS, cost_of=cost_of)
    tool = {"tool_call_id": "t1", "tool_name": "search", "tool_args": {}}
    bodies = [
        agno("RunStarted"),
        agno("ModelRequestCompleted", **CALL),
        agno("ToolCallStarted", tool=tool),
        agno("ToolCallCompleted", tool={**tool, "result": "x"}),
        agno("ModelRequestCompleted", **CALL),
    ]
    fed = [frames.open(), *map(frames.bytes, bodies)]
    for second, frame in enumerate(fed):
        frame.received = f"2026-11-26T10:00:{second:02}.000Z"
        fold.feed(frame)
    assert asked == [
        ("llm.usage", "00", "02"),
        ("llm.tool_result", "02", "04"),
        ("llm.usage", "04", "05"),
    ]
