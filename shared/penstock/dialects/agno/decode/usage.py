"""Reads the tokens that the models of a run used, each call once.

Agno 3.1 sends ModelRequestCompleted after each call of a run's own model. The `metrics` of the
run's last frame repeat these calls, so only other kinds of models are read from there, such as an
output model, for which Agno sends no frame. Agno 2.3 sends no ModelRequestCompleted, so all of
`metrics` is read. A team's metrics do not contain those of its members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.dialects.agno.decode.agents import Run
from penstock.dialects.agno.decode.frames import AgnoFrame, ModelMetrics, RunMetrics
from penstock.dialects.agno.vocabulary import TOKENS
from penstock.dialects.base import JsonObject
from penstock.dialects.json import number, obj, objects, string
from penstock.dialects.usage import Counting, has_counts, usage_of

_NAMES: Final = {**TOKENS, "cache_write_tokens": "cache_write_tokens"}
_CACHE: Final = ("cached_input_tokens", "cache_write_tokens")
# Agno passes on what a provider counts. These providers (as Agno names them) count tokens of caches
# apart from the input, or the reasoning apart from the output (Agno 3.1: models/*).
_CACHE_APART: Final = frozenset({"Anthropic", "AwsBedrock", "AzureFoundry", "VertexAI"})
_REASONING_APART: Final = frozenset({"Google"})
_OWN_MODEL: Final = "model"  # the kind of the model whose calls ModelRequestCompleted reports


def _counting(provider: str | None) -> Counting:
    return Counting(
        _NAMES,
        {
            "input_tokens": _CACHE if provider in _CACHE_APART else (),
            "output_tokens": ("reasoning_tokens",) if provider in _REASONING_APART else (),
        },
    )


def usage_of_call(body: AgnoFrame) -> JsonObject:
    provider = string(body.get("model_provider"))
    data = usage_of(
        {**body},
        _counting(provider),
        model=body.get("model"),
        provider=provider,
        reported="call",
    )
    first_token_s = number(body.get("time_to_first_token"))
    return data if first_token_s is None else {**data, "time_to_first_token_s": first_token_s}


def usage_of_run(run: Run, metrics: JsonObject, *, is_continued: bool) -> Iterator[JsonObject]:
    """Yield `llm.usage` for the calls that no frame has reported. Agno 2.3 counts the calls before
    a pause once more for each leg, and tells no number from which the sum could be corrected: the
    sum of a continued run is an estimate."""
    known: RunMetrics = obj(metrics)
    details: dict[str, Any] = obj(known.get("details"))
    rows: list[JsonObject]
    if details:
        rows = [
            row
            for kind, rows in details.items()
            if kind != _OWN_MODEL or not run.n_calls
            for row in objects(rows)
        ]
    elif run.n_calls:
        rows = []
    else:
        rows = [{**metrics, "id": run.model, "provider": run.model_provider}]
    for row in rows:
        model: ModelMetrics = obj(row)
        provider = string(model.get("provider"))
        data = usage_of(
            row,
            _counting(provider),
            model=model.get("id"),
            provider=provider,
            reported="run",
            estimated=is_continued and not run.n_calls,
        )
        if has_counts(data):
            yield data
