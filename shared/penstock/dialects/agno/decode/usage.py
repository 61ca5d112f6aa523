"""Reads the metrics of a run: token counts, and Agno's other measurements."""

from __future__ import annotations

from penstock.dialects.agno.vocabulary import TOKENS
from penstock.dialects.base import JsonObject


def usage(metrics: JsonObject) -> JsonObject | None:
    """Return the token counts of a run's `metrics`, as `usage` of `lifecycle.completed`.

    Return None if there are no counts. Note that Agno 2.3 counts the first leg of a continued run
    twice.
    """
    counts = {
        ours: metrics[theirs] for ours, theirs in TOKENS.items() if type(metrics.get(theirs)) is int
    }
    return counts or None


def other_metrics(metrics: JsonObject) -> JsonObject | None:
    """Return the members of a run's `metrics` that have a value and are not token counts.

    Return None if there are no such members.
    """
    others = {
        name: value
        for name, value in metrics.items()
        if name not in TOKENS.values() and value not in (None, {}, [])
    }
    return others or None
