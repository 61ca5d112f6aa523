"""Sums the token counts of ADK's answers over a run."""

from __future__ import annotations

from penstock.dialects.adk.vocabulary import TOKENS
from penstock.dialects.base import MAX_COUNT, JsonObject


def add_usage(total: JsonObject, counts: JsonObject) -> None:
    """Add the counts of a `usageMetadata` to `total`, which becomes the `usage` of
    `lifecycle.completed`."""
    for ours, theirs in TOKENS.items():
        count = counts.get(theirs)
        # not `isinstance`, which would accept a bool as an int
        if type(count) is int and abs(count) < MAX_COUNT:
            total[ours] = total.get(ours, 0) + count
