"""Token counts of ADK's answers, summed over a run."""

from __future__ import annotations

from penstock.dialects.adk.vocabulary import TOKENS
from penstock.dialects.base import MAX_COUNT, JsonObject


def add_usage(total: JsonObject, counts: JsonObject) -> None:
    """Adds a `usageMetadata` to `total`, which becomes `usage` of `lifecycle.completed`."""
    for ours, theirs in TOKENS.items():
        count = counts.get(theirs)
        # a bool is an int to isinstance
        if type(count) is int and abs(count) < MAX_COUNT:
            total[ours] = total.get(ours, 0) + count
