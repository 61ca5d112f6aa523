"""Converts canonical values into AG-UI's."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import orjson

from penstock.dialects.base import Json, JsonObject

_USAGE: Final = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "total_tokens": "totalTokens",
    "reasoning_tokens": "reasoningTokens",
    "cached_input_tokens": "cachedInputTokens",
}
_MAX_SAFE_INTEGER: Final = 2**53 - 1


def token_usage(usage: JsonObject | None) -> JsonObject:
    """The `TokenUsage` of ours: only counts that a client accepts."""
    counts = {theirs: (usage or {}).get(ours) for ours, theirs in _USAGE.items()}
    return {
        name: count
        for name, count in counts.items()
        if isinstance(count, int)
        and not isinstance(count, bool)
        and 0 <= count <= _MAX_SAFE_INTEGER
    }


def result_text(result: JsonObject) -> str:
    """A tool's result as text: the text itself, other values as JSON, or the error."""
    value = result.get("result")
    if value is None:
        return result.get("error") or ""
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Json) -> str:
    """Compact JSON."""
    return orjson.dumps(value).decode()


def epoch_ms(timestamp: str | None) -> int | None:
    """An envelope's time in milliseconds since 1970."""
    if timestamp is None:
        return None
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
