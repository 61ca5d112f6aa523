"""AG-UI's JSON as values of ours. Every function takes anything; only `loads` raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from penstock.dialects.base import Json, JsonObject

# orjson writes at most 254 levels, so what is read deeper could not be published.
_MAX_LEVELS = 200


def loads(data: bytes) -> Json:
    """JSON that can be written again. Raises ValueError: no JSON, or nested too deeply."""
    value = orjson.loads(data)
    if data.count(b"[") + data.count(b"{") > _MAX_LEVELS and _levels(value) > _MAX_LEVELS:
        raise ValueError("nested too deeply")
    return value


def tool_value(content: str) -> Json:
    """A tool's result: AG-UI has text only, and many servers put JSON into it."""
    try:
        return loads(content.encode())
    except ValueError:  # no JSON, or a lone surrogate that has no UTF-8
        return content


def string(value: Json) -> str | None:
    """A string that says something, else None."""
    return value if isinstance(value, str) and value else None


def text(value: Json) -> str:
    """A value as text: itself, "" for null, else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()


def obj(value: Json) -> JsonObject:
    """An object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: Json) -> list[JsonObject]:
    """The objects of a list, else none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def strings(value: Json) -> list[str]:
    """The strings of a list that say something, else none."""
    return [item for item in value if string(item)] if isinstance(value, list) else []


def present(fields: Mapping[str, Any]) -> JsonObject:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def with_metadata(data: JsonObject, body: JsonObject) -> JsonObject:
    """The data, with the event's `metadata` where it has any."""
    metadata = obj(body.get("metadata"))
    return {**data, "metadata": metadata} if metadata else data


def _levels(value: Json) -> int:
    """How deep it is nested; not recursive, since the depth is theirs."""
    levels, layer = 0, [value]
    while layer:
        levels += 1
        layer = [
            inner
            for item in layer
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return levels
