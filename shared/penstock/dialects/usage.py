"""Makes the data of `llm.usage` from the token counts of an agent server.

Providers and frameworks disagree on which counts contain which. The event has one rule, that of
OpenTelemetry's GenAI conventions: `input_tokens` contains the tokens of caches, and `output_tokens`
contains the reasoning. Each dialect says with a `Counting` what a server's counts leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.dialects.base import MAX_COUNT, JsonObject, JsonValue
from penstock.dialects.json import string

USAGE: Final = "llm.usage"
TOOL_RESULT: Final = "llm.tool_result"  # has a cost, too, if calls of the tool have a price
_PARTS: Final = ("reasoning_tokens", "cached_input_tokens", "cache_write_tokens")
_LIMIT: Final = MAX_COUNT // 4  # a field adds up to three counts, and must be below MAX_COUNT


@dataclass(frozen=True, slots=True)
class Counting:
    """How a server names the fields of `llm.usage` (`names`), and which it counts apart from
    another (`adds`)."""

    names: Mapping[str, str]
    adds: Mapping[str, tuple[str, ...]]


def usage_of(
    counts: JsonObject,
    counting: Counting,
    *,
    model: JsonValue = None,
    provider: JsonValue = None,
    reported: str,
    estimated: bool = False,
) -> JsonObject:
    # Counts that are no whole numbers from 0 on are left out.
    found = {
        ours: count
        for ours, theirs in counting.names.items()
        if type(count := counts.get(theirs)) is int and 0 <= count < _LIMIT
    }
    data: JsonObject = {}
    if name := string(model):
        data["model"] = name
    if name := string(provider):
        data["provider"] = name
    for field in ("input_tokens", "output_tokens"):
        if field in found:
            data[field] = found[field] + sum(found.get(part, 0) for part in counting.adds[field])
    if "total_tokens" in found and not data.keys() & {"input_tokens", "output_tokens"}:
        data["total_tokens"] = found["total_tokens"]
    data |= {part: found[part] for part in _PARTS if found.get(part)}
    return {**data, "reported": reported, "estimated": estimated}


def add_usage(total: JsonObject, counts: JsonObject, names: Mapping[str, str]) -> None:
    """`names` maps each canonical name to the upstream's."""
    for ours, theirs in names.items():
        count = counts.get(theirs)
        # not `isinstance`, which would accept a bool as an int
        if type(count) is int and abs(count) < MAX_COUNT:
            total[ours] = total.get(ours, 0) + count


def has_counts(data: JsonObject) -> bool:
    return any(data.get(field) for field in ("input_tokens", "output_tokens", "total_tokens"))
