"""Counts the tokens and costs of published events for the metrics."""

from __future__ import annotations

from typing import Final

from penstock import telemetry
from penstock.dialects.base import JsonObject

_KINDS: Final = {"input": "input_tokens", "output": "output_tokens"}


def count_cost(agent: str, called: str, cost: JsonObject) -> None:
    """Count the `cost` of a published event; `called` is the name of the model or tool."""
    labels = telemetry.agent_label(agent), telemetry.model_label(called), cost["currency"]
    telemetry.COST.labels(*labels).inc(cost["micros"] / 1_000_000)


def count_usage(agent: str, used: JsonObject) -> None:
    """Count the data of one published `llm.usage`."""
    model = telemetry.model_label(used.get("model") or "")
    cost = used.get("cost")
    if cost is None:
        telemetry.COST_UNKNOWN.labels(model).inc()
    else:
        count_cost(agent, used.get("model") or "", cost)
    if used["reported"] != "call":
        return  # the histogram is of single calls
    for kind, name in _KINDS.items():
        if name in used:
            telemetry.TOKEN_USAGE.labels(kind, model).observe(used[name])
