"""Reads the answer of a run from its last frame."""

from __future__ import annotations

from penstock.dialects.agno.decode.agents import Run
from penstock.dialects.agno.decode.frames import AgnoFrame
from penstock.dialects.agno.vocabulary import TOKENS
from penstock.dialects.base import JsonObject
from penstock.dialects.json import obj, string, text, without_none


def usage(metrics: JsonObject) -> JsonObject | None:
    """Return the token counts of a run's `metrics`. Agno 2.3 counts a continued run's first leg
    twice."""
    counts = {
        ours: metrics[theirs] for ours, theirs in TOKENS.items() if type(metrics.get(theirs)) is int
    }
    return counts or None


def other_metrics(metrics: JsonObject) -> JsonObject | None:
    """Return the members of a run's `metrics` that have a value and are not token counts."""
    others = {
        name: value
        for name, value in metrics.items()
        if name not in TOKENS.values() and value not in (None, {}, [])
    }
    return others or None


def answer_of(run: Run, body: AgnoFrame) -> JsonObject:
    content = body.get("content")
    content_type = string(body.get("content_type"))
    metrics = obj(body.get("metrics"))
    return without_none(
        {
            "summary": text(content) or run.last_text,
            "value": None if isinstance(content, str) else content,
            "content_type": content_type if content_type != "str" else None,
            "usage": usage(metrics),
            "metrics": other_metrics(metrics),
        }
    )
