"""Reads JSON values from an agent server.

Only `loads` raises exceptions; the other functions accept any value.

`obj` and `objects` return Any, so that a caller can assign the result to a TypedDict. At run time,
nothing checks that the value has the TypedDict's members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock.dialects.base import Json, JsonObject, JsonValue

# The greatest number of levels in an agent server's JSON. orjson writes at most 254 levels. This
# limit is lower, because canonical events and the frames for clients wrap some levels around a
# value.
MAX_LEVELS: Final = 200
_ORJSON_LEVELS: Final = 254

# The type `dict`, for the check `isinstance(value, OBJECT)`. After this check, mypy treats the
# value as Any, so a caller can pass the value as a TypedDict. After `isinstance(value, dict)`, mypy
# would not accept this.
OBJECT: Final[Any] = dict


def loads(data: bytes) -> Json:
    """Raise ValueError if the data is not JSON, or is nested deeper than `MAX_LEVELS`: orjson could
    not write the value again inside an event."""
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
    """Return the JSON value that a text contains, or the text itself if it is not JSON."""
    try:
        return loads(content.encode())
    except ValueError:  # also raised for a lone surrogate, which UTF-8 cannot encode
        return content


def dumped(value: JsonValue) -> str:
    """Return compact JSON, or `str(value)` for what orjson refuses: nothing that `loads`
    returned."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return str(value)


def string(value: JsonValue) -> str | None:
    """Return the string unchanged; None for an empty string or a value of another type."""
    return value if isinstance(value, str) and value else None


def text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else dumped(value)


def verbatim(value: JsonValue) -> str:
    """Return a string unchanged, and any other value as JSON ("null" for null)."""
    return value if isinstance(value, str) else dumped(value)


def number(value: JsonValue) -> float | None:
    """Return the number; None for a boolean or a value of another type."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def obj(value: JsonValue) -> Any:
    """Return the object unchanged; an empty object for a value of another type."""
    return value if isinstance(value, dict) else {}


def array(value: JsonValue) -> list[Json]:
    """Return the array unchanged; an empty array for a value of another type."""
    return value if isinstance(value, list) else []


def objects(value: JsonValue) -> list[Any]:
    """Return the objects in an array; an empty list for a value of another type."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def strings(value: JsonValue) -> list[str]:
    """Return the nonempty strings in an array; an empty list for a value of another type."""
    return [item for item in value if string(item)] if isinstance(value, list) else []


def has_content(value: JsonValue) -> bool:
    """Return False for null, false, "", [] and {}; True for any other value, even for 0."""
    return value is not None and value is not False and value not in ("", [], {})


def without_none(fields: Mapping[str, Any]) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}
