"""A run's state as the dialects that know no JSON Patch have it: the changes applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.dialects.base import Json, JsonObject

_CHANGES: Final = frozenset({"add", "replace", "remove"})
_MAX_LEVELS: Final = 100  # of a path: each costs a recursion


def patched(state: Json, changes: Iterable[Json]) -> Json:
    """The state after a JSON Patch (RFC 6902); the one that was given stays as it is.

    Forgiving, since the state is shown and not decided upon: a change that does not fit, and the
    rare `move`, `copy` and `test`, or one deeper than any state is, change nothing.
    """
    for change in changes:
        if isinstance(change, dict) and change.get("op") in _CHANGES:
            path = str(change.get("path", "")).split("/")[1:]
            keys = [key.replace("~1", "/").replace("~0", "~") for key in path]
            if len(keys) <= _MAX_LEVELS:
                state = _changed(state, keys, change)
    return state


def _changed(value: Json, keys: list[str], change: JsonObject) -> Json:
    if not keys:
        return change.get("value")
    if isinstance(value, list):
        return _changed_list(value, keys, change)
    key, *rest = keys
    members = dict(value) if isinstance(value, dict) else {}
    if rest:
        members[key] = _changed(members.get(key), rest, change)
    elif change["op"] == "remove":
        members.pop(key, None)
    else:
        members[key] = change.get("value")
    return members


def _changed_list(items: list[Json], keys: list[str], change: JsonObject) -> Json:
    key, *rest = keys
    at = len(items) if key == "-" else int(key) if key.isascii() and key.isdigit() else -1
    fits = len(items) if change["op"] == "add" and not rest else len(items) - 1
    if not 0 <= at <= fits:
        return items
    here = items[at : at + 1]
    if rest:
        here = [_changed(item, rest, change) for item in here]
    elif change["op"] == "remove":
        here = []
    elif change["op"] == "replace":
        here = [change.get("value")]
    else:
        here = [change.get("value"), *here]
    return [*items[:at], *here, *items[at + 1 :]]
