"""Readers of JSON values from an agent server. Only `loads` raises; all others take any value.

`obj` and `objects` return Any, so that a caller can assign the result to the TypedDict that it
expects. This checks nothing at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock.dialects.base import Json, JsonObject, JsonValue

# How deep an upstream's JSON may be nested. orjson writes 254 levels, and events and frames of
# clients wrap some levels around a value.
MAX_LEVELS: Final = 200
_ORJSON_LEVELS: Final = 254

# For `isinstance`: mypy then leaves the value untyped, so that it can be passed as a TypedDict.
OBJECT: Final[Any] = dict


def loads(data: bytes) -> Json:
    """Parses JSON that can be written again inside an event.

    Raises:
        ValueError: The data is no JSON, or is nested deeper than `MAX_LEVELS`.
    """
    value = orjson.loads(data)
    if data.count(b"[") + data.count(b"{") > MAX_LEVELS:
        wrapped = value
        for _ in range(_ORJSON_LEVELS - MAX_LEVELS):
            wrapped = [wrapped]
        try:
            orjson.dumps(wrapped)
        except TypeError as error:
            raise ValueError(f"nested deeper than {MAX_LEVELS} levels") from error
    return value


def parsed(content: str) -> Json:
    """The JSON value that a text holds, or the text itself where it holds none."""
    try:
        return loads(content.encode())
    except ValueError:  # also a lone surrogate, which has no UTF-8
        return content


def dumped(value: JsonValue) -> str:
    """Compact JSON. A value that orjson refuses (none that `loads` returned) becomes `str`."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return str(value)


def string(value: JsonValue) -> str | None:
    """The string, or None for an empty string and any other type."""
    return value if isinstance(value, str) and value else None


def text(value: JsonValue) -> str:
    """A string as it is, "" for null, and any other value as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else dumped(value)


def verbatim(value: JsonValue) -> str:
    """A string as it is, and any other value, null included, as JSON."""
    return value if isinstance(value, str) else dumped(value)


def number(value: JsonValue) -> float | None:
    """The number, or None for any other type; a boolean is no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def obj(value: JsonValue) -> Any:
    """The object, or an empty one for any other type."""
    return value if isinstance(value, dict) else {}


def array(value: JsonValue) -> list[Json]:
    """The array, or an empty one for any other type."""
    return value if isinstance(value, list) else []


def objects(value: JsonValue) -> list[Any]:
    """The objects in an array."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def strings(value: JsonValue) -> list[str]:
    """The strings in an array that are not empty."""
    return [item for item in value if string(item)] if isinstance(value, list) else []


def has_content(value: JsonValue) -> bool:
    """False for null, false, "", [] and {}. True for any other value, zero included."""
    return value is not None and value is not False and value not in ("", [], {})


def present(fields: Mapping[str, Any]) -> JsonObject:
    """The fields whose value is not None."""
    return {name: value for name, value in fields.items() if value is not None}
