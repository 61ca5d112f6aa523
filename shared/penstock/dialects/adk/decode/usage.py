"""Reads the tokens of a model's answer from the `usageMetadata` of ADK's events."""

from __future__ import annotations

from typing import Final

from penstock.dialects.adk.decode.frames import AdkEvent, UsageMetadata
from penstock.dialects.adk.vocabulary import TOKENS
from penstock.dialects.base import JsonObject
from penstock.dialects.json import obj
from penstock.dialects.usage import Counting, usage_of

_NAMES: Final = {
    **TOKENS,
    # what the model's own tools, such as a search, gave the model to read
    "tool_tokens": "toolUsePromptTokenCount",
}
# Gemini counts thoughts apart from the answer. With LiteLLM's models, ADK repeats a part of the
# answer's count as thoughts, and the total shows it.
_APART: Final = Counting(
    _NAMES, {"input_tokens": ("tool_tokens",), "output_tokens": ("reasoning_tokens",)}
)
_WITHIN: Final = Counting(_NAMES, {"input_tokens": ("tool_tokens",), "output_tokens": ()})


def usage_of_answer(raw: AdkEvent) -> JsonObject | None:
    """Return None for an event without counts. Those of a partial event without a finishReason are
    of an incomplete answer."""
    counts = raw.get("usageMetadata")
    if not isinstance(counts, dict):
        return None
    known: UsageMetadata = obj(counts)
    parts = (known.get("promptTokenCount"), known.get("candidatesTokenCount"))
    is_within = all(type(part) is int for part in parts) and known.get("totalTokenCount") == sum(
        part for part in parts if type(part) is int
    )
    return usage_of(
        counts,
        _WITHIN if is_within else _APART,
        model=raw.get("modelVersion"),
        reported="call",
        estimated=raw.get("partial") is True and "finishReason" not in raw,
    )
