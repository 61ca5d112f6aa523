"""A run's state as the dialects that know no JSON Patch have it: the changes applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.dialects.base import Json, JsonObject

_CHANGES: Final = frozenset({"add", "replace", "remove"})
_MAX_LEVELS: Final = 100  # of a path: each may make one
_MAX_DIGITS: Final = 9  # of an index


class State:
    """A JSON value that JSON Patch (RFC 6902) changes. It is a copy: what was given stays as it is.

    Forgiving, since the state is shown and not decided upon: a change that does not fit, and the
    rare `move`, `copy` and `test`, or one deeper than any state is, change nothing. A change costs
    its own size, however large the state is.
    """

    def __init__(self) -> None:
        self._root: JsonObject = {"": {}}

    @property
    def value(self) -> Json:
        """The state as it is now; it goes on changing."""
        return self._root.get("")

    def become(self, value: Json) -> list[str]:
        """Another state. Returns the outermost keys of both that differ."""
        before = self.value
        self._root[""] = after = _copied(value)
        old, new = (each if isinstance(each, dict) else {} for each in (before, after))
        return [
            key
            for key in {**old, **new}
            if key not in old or key not in new or old[key] != new[key]
        ]

    def apply(self, changes: Iterable[Json]) -> list[str]:
        """Changed by a patch. Returns the outermost keys where something may have changed."""
        told: dict[str, None] = {}
        for change in changes:
            if not isinstance(change, dict) or change.get("op") not in _CHANGES:
                continue
            path = str(change.get("path", "")).split("/")[1:]
            keys = [key.replace("~1", "/").replace("~0", "~") for key in path]
            if not keys:
                told.update(dict.fromkeys(self.become(change.get("value"))))
            elif len(keys) <= _MAX_LEVELS and self._change(keys, change):
                told[keys[0]] = None
        return list(told)

    def _change(self, keys: list[str], change: JsonObject) -> bool:
        """Whether it changed something."""
        container: Json = self._root
        for key in ("", *keys[:-1]):
            if isinstance(container, list):
                at = _index(key)
                if not 0 <= at < len(container):
                    return False
                inner = container[at]
                if not isinstance(inner, dict | list):
                    inner = container[at] = {}
            else:
                inner = container.get(key)
                if not isinstance(inner, dict | list):
                    inner = container[key] = {}
            container = inner
        put = _put_in_list if isinstance(container, list) else _put_in_object
        return put(container, keys[-1], change)


def _put_in_object(members: JsonObject, key: str, change: JsonObject) -> bool:
    if change["op"] == "remove":
        is_there = key in members
        members.pop(key, None)
        return is_there
    value = change.get("value")
    if key in members and members[key] == value:
        return False
    members[key] = _copied(value)
    return True


def _put_in_list(items: list[Json], key: str, change: JsonObject) -> bool:
    adds = change["op"] == "add"
    at = len(items) if key == "-" else _index(key)
    if not 0 <= at < len(items) + adds:
        return False
    value = change.get("value")
    if change["op"] == "replace" and items[at] == value:
        return False
    items[at : at + (not adds)] = [] if change["op"] == "remove" else [_copied(value)]
    return True


def _index(key: str) -> int:
    """-1 where it is none."""
    return int(key) if key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS else -1


def _copied(value: Json) -> Json:
    # no recursion: an event may have more levels than Python has frames
    holder: list[Json] = [value]
    open_: list[Json] = [holder]
    while open_:
        container = open_.pop()
        places = container.items() if isinstance(container, dict) else enumerate(container)
        for place, item in places:
            if isinstance(item, dict | list):
                container[place] = inner = item.copy()
                open_.append(inner)
    return holder[0]
