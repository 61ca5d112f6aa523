"""Reads the answer of a run from its last frame."""

from __future__ import annotations

from penstock.dialects.agno.decode.agents import Run
from penstock.dialects.agno.decode.frames import AgnoFrame
from penstock.dialects.agno.decode.usage import other_metrics, usage
from penstock.dialects.base import JsonObject
from penstock.dialects.json import obj, string, text, without_none


def answer_of(run: Run, body: AgnoFrame) -> JsonObject:
    """Return the data of `lifecycle.completed`."""
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
