"""Sums token counts.

AG-UI counts tokens for each model, and the usage of a run is the sum of these counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dialects.agui.vocabulary import TOKENS
from penstock.dialects.base import MAX_COUNT, JsonObject


def add_usage(usage: JsonObject, models: Sequence[JsonObject]) -> None:
    for model in models:
        for ours, theirs in TOKENS.items():
            count = model.get(theirs)
            if type(count) is int and abs(count) < MAX_COUNT:
                usage[ours] = usage.get(ours, 0) + count


def usage_metrics(models: Sequence[JsonObject]) -> JsonObject | None:
    """Return the token counts of each model, as they were received; None if there are no
    counts."""
    return {"models": list(models)} if models else None
