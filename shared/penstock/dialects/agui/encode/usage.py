"""Converts token counts into the form of AG-UI."""

from __future__ import annotations

from typing import Final

from penstock.dialects.agui.vocabulary import TOKENS
from penstock.dialects.base import JsonObject

_MAX_SAFE_INTEGER: Final = 2**53 - 1


def token_usage(usage: JsonObject | None) -> JsonObject:
    """Convert a run's `usage` into a `TokenUsage`, which has only those counts that a client
    accepts."""
    counts = {theirs: (usage or {}).get(ours) for ours, theirs in TOKENS.items()}
    return {
        name: count
        for name, count in counts.items()
        if isinstance(count, int)
        and not isinstance(count, bool)
        and 0 <= count <= _MAX_SAFE_INTEGER
    }
