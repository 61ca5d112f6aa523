"""What Agno says, as JSON values of ours. Every function takes anything and never raises."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import orjson

from penstock.dialects.base import Json, JsonObject

# Parsing a literal costs about 1 microsecond and 100 bytes a character: beyond this it stays text.
MAX_LITERAL_CHARS = 128 * 1024

# orjson writes at most 254 levels, so what is read deeper could not be published.
_MAX_LEVELS = 250

_LITERAL_WORDS = frozenset({"True", "False", "None"})
_LITERAL_STARTS = ("{", "[", "(")

# Agno's figures of a run that are token counts, by the names of `usage`.
_USAGE = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "total_tokens": "total_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "cache_read_tokens": "cached_input_tokens",
}


def loads(data: bytes) -> Json:
    """JSON that can be written again. Raises ValueError: no JSON, or nested too deeply."""
    value = orjson.loads(data)
    if data.count(b"[") + data.count(b"{") > _MAX_LEVELS:
        try:
            orjson.dumps(value)
        except TypeError as error:
            raise ValueError("nested too deeply") from error
    return value


def tool_value(result: Json) -> Json:
    """A tool's result: Agno sends `str(value)`, so JSON, then a Python literal, then text.

    A text that begins with a quote is no literal: Agno passes strings on as they are.
    """
    if not isinstance(result, str):
        return result
    try:
        return loads(result.encode())
    except ValueError:  # no JSON, or a lone surrogate that has no UTF-8
        pass
    literal = result.strip()
    if len(literal) > MAX_LITERAL_CHARS or not (
        literal.startswith(_LITERAL_STARTS) or literal in _LITERAL_WORDS
    ):
        return result
    try:
        value = ast.literal_eval(literal)
        # through JSON: tuples become lists, keys text; sets, bytes and 65-bit integers are refused
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return result


def text(value: Json) -> str:
    """A value as text: itself, "" for null, else as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # nothing that came out of `loads`
        return str(value)


def string(value: Json) -> str | None:
    """A string that says something, else None."""
    return value if isinstance(value, str) and value else None


def obj(value: Json) -> JsonObject:
    """An object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: Json) -> list[JsonObject]:
    """The objects of a list, else none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def number(value: Json) -> float | None:
    """A number that is no truth value, else None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def present(fields: Mapping[str, Any]) -> JsonObject:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def usage(metrics: JsonObject) -> JsonObject | None:
    """The token counts of a run's metrics. Agno 2.3 counts a continued run's first leg twice."""
    counts = {
        ours: metrics[theirs] for theirs, ours in _USAGE.items() if type(metrics.get(theirs)) is int
    }
    return counts or None


def other_metrics(metrics: JsonObject) -> JsonObject | None:
    """What a run's metrics tell besides tokens."""
    others = {
        name: value
        for name, value in metrics.items()
        if name not in _USAGE and value not in (None, {}, [])
    }
    return others or None


def citations(value: Json) -> JsonObject | None:
    """Citations that name anything: Agno ends every message with three empty lists."""
    return value if isinstance(value, dict) and any(value.values()) else None
