"""Token counts. AG-UI has them by model; a run's usage is their sum."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dialects.agui.vocabulary import TOKENS
from penstock.dialects.base import MAX_COUNT, JsonObject


def add_usage(usage: JsonObject, models: Sequence[JsonObject]) -> None:
    """Adds the counts of some models to `usage`."""
    for model in models:
        for ours, theirs in TOKENS.items():
            count = model.get(theirs)
            if type(count) is int and abs(count) < MAX_COUNT:
                usage[ours] = usage.get(ours, 0) + count


def usage_metrics(models: Sequence[JsonObject]) -> JsonObject | None:
    """The counts of each model, as the upstream sent them."""
    return {"models": list(models)} if models else None
