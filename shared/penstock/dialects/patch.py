"""Checks JSON patches (RFC 6902) and applies them to a document (decision 0034).

A few bytes of a patch may cause much work. For example, `copy` can double a document. So sizes are
limited, and a patch that exceeds a limit is not applied. If a patch fails, the document must be as
it was before. Copying a large document before each patch would be slow. So a patch changes the
document in place, and the document records how to undo the patch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock.dialects.base import Json, JsonObject
from penstock.dialects.json import obj

# The greatest size of a document. The size is the number of values plus the number of characters in
# the texts.
MAX_SIZE: Final = 16 * 1024 * 1024
# the greatest number of levels in a document; orjson writes at most 254 levels
MAX_LEVELS: Final = 200
# The greatest size of a value that one operation may copy, or may move to a deeper place.
MAX_COPIED: Final = 10_000
# The greatest number of keys in a path for `apply_each`. The limit is needed because `apply_each`
# may add a level for each key.
MAX_KEYS: Final = 100

_POINTER = re.compile(r"(?:/(?:[^/~]|~[01])*)*")  # RFC 6901
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_EACH: Final = frozenset({"add", "replace", "remove"})
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("value",),
    "replace": ("value",),
    "test": ("value",),
    "remove": (),
    "move": ("from",),
    "copy": ("from",),
}


class DoesNotApply(ValueError):
    """The patch does not fit the document, or its result would exceed a limit."""


def is_patch(value: Json) -> bool:
    """Return whether the value is a list of RFC 6902 operations that have all required members."""
    return isinstance(value, list) and all(map(_is_operation, value))


def _is_operation(value: Json) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("op"), str):
        return False
    needs = _NEEDS.get(value["op"])
    if needs is None or any(name not in value for name in needs):
        return False
    pointers = [value.get("path"), *(value[name] for name in needs if name == "from")]
    return all(isinstance(each, str) and _POINTER.fullmatch(each) for each in pointers)


def tokens(pointer: str) -> list[str]:
    """Return the reference tokens of a JSON pointer, unescaped."""
    return [each.replace("~1", "/").replace("~0", "~") for each in pointer.split("/")[1:]]


class Document:
    """A copy of a JSON value, which patches change. The original value is never changed."""

    def __init__(self, value: Json) -> None:
        self.value, self._size = _copied(value)
        self._undo: list[Callable[[], object]] = []

    def apply(self, patch: list[JsonObject]) -> None:
        """Apply all operations, or none if `DoesNotApply` is raised."""
        self._undo = []
        try:
            for operation in patch:
                _OPERATIONS[operation["op"]](self, operation)
        except DoesNotApply:
            for undo in reversed(self._undo):
                undo()
            raise
        finally:
            self._undo = []

    def replace(self, value: Json) -> list[str]:
        """Return the outermost keys at which old and new value differ."""
        old, new = obj(self.value), obj(value)
        self.value, self._size = _copied(value)
        return [
            key
            for key in {**old, **new}
            if key not in old or key not in new or old[key] != new[key]
        ]

    def apply_each(self, changes: Iterable[Json]) -> list[str]:
        """Apply each change that fits, and skip all others; make missing parents. Return the
        outermost keys under which a value may have changed.

        Clients of Agno and ADK get whole values instead of patches, and a nearly correct state
        serves them better than none. `move`, `copy` and `test` are skipped, because no known server
        uses them for its state.
        """
        changed: dict[str, None] = {}
        for change in changes:
            if not isinstance(change, dict) or change.get("op") not in _EACH:
                continue
            keys = tokens(str(change.get("path", "")))
            if not keys:
                changed.update(dict.fromkeys(self.replace(change.get("value"))))
            elif len(keys) <= MAX_KEYS and self._change(keys, change):
                changed[keys[0]] = None
        return list(changed)

    def _change(self, keys: list[str], change: JsonObject) -> bool:
        if not isinstance(self.value, dict | list):
            self.value = {}
        container: Json = self.value
        for key in keys[:-1]:
            place: Json = key
            if isinstance(container, list):
                if not _is_index(key, len(container)):
                    return False
                place = int(key)
                inner = container[place]
            else:
                inner = container.get(key)
            if not isinstance(inner, dict | list):
                inner = container[place] = {}
            container = inner
        put = _change_list if isinstance(container, list) else _change_object
        return put(container, keys[-1], change)

    def _get(self, path: list[str]) -> Json:
        value = self.value
        for token in path:
            value = value[_key(value, token)]
        return value

    def _own(self, value: Json, path: list[str], limit: int) -> Json:
        """Add the size of the copy to the document's size."""
        copy, size = _copied(value, limit, len(path))
        # The size does not shrink when a value is removed, because computing the size of the
        # removed value would take a walk through the whole value.
        self._size += size
        if self._size > MAX_SIZE:
            raise DoesNotApply(f"the document is larger than {MAX_SIZE}")
        return copy

    def _put(self, path: list[str], value: Json) -> None:
        if not path:
            self._replace_document(value)
            return
        parent, last = self._get(path[:-1]), path[-1]
        if isinstance(parent, dict):
            self._set(parent, last, value)
        elif isinstance(parent, list) and (last == "-" or _is_index(last, len(parent) + 1)):
            at = len(parent) if last == "-" else int(last)
            parent.insert(at, value)
            self._undo.append(lambda: parent.pop(at))
        else:
            raise DoesNotApply(f"nothing can be added at {last!r}")

    def _set(self, parent: JsonObject, key: str, value: Json) -> None:
        if key in parent:
            before = parent[key]
            self._undo.append(lambda: parent.__setitem__(key, before))
        else:
            self._undo.append(lambda: parent.pop(key))
        parent[key] = value

    def _drop(self, path: list[str]) -> Json:
        if not path:
            return self._replace_document(None)
        parent = self._get(path[:-1])
        key = _key(parent, path[-1])
        dropped = parent.pop(key)
        if isinstance(parent, list):
            self._undo.append(lambda: parent.insert(int(key), dropped))
        else:
            self._undo.append(lambda: parent.__setitem__(key, dropped))
        return dropped

    def _replace_document(self, value: Json) -> Json:
        before, self.value = self.value, value
        self._undo.append(lambda: setattr(self, "value", before))
        return before

    def _add(self, operation: JsonObject) -> None:
        path = tokens(operation["path"])
        self._put(path, self._own(operation["value"], path, MAX_SIZE))

    def _remove(self, operation: JsonObject) -> None:
        self._drop(tokens(operation["path"]))

    def _replace(self, operation: JsonObject) -> None:
        path = tokens(operation["path"])
        value = self._own(operation["value"], path, MAX_SIZE)
        if not path:
            self._replace_document(value)
            return
        parent = self._get(path[:-1])
        key = _key(parent, path[-1])
        before = parent[key]
        parent[key] = value
        self._undo.append(lambda: parent.__setitem__(key, before))

    def _move(self, operation: JsonObject) -> None:
        source, path = tokens(operation["from"]), tokens(operation["path"])
        if len(path) > len(source):
            # The copy is not used. This call only raises the error if the moved value is too large
            # or would become too deep.
            _copied(self._get(source), MAX_COPIED, len(path))
        self._put(path, self._drop(source))

    def _copy(self, operation: JsonObject) -> None:
        path = tokens(operation["path"])
        self._put(path, self._own(self._get(tokens(operation["from"])), path, MAX_COPIED))

    def _test(self, operation: JsonObject) -> None:
        if self._get(tokens(operation["path"])) != operation["value"]:
            raise DoesNotApply(f"another value is at {operation['path']!r}")


def _change_object(members: JsonObject, key: str, change: JsonObject) -> bool:
    if change["op"] == "remove":
        existed = key in members
        members.pop(key, None)
        return existed
    value = change.get("value")
    if key in members and members[key] == value:
        return False
    members[key] = _copied(value)[0]
    return True


def _change_list(items: list[Json], key: str, change: JsonObject) -> bool:
    adds = change["op"] == "add"
    if adds and key == "-":
        items.append(_copied(change.get("value"))[0])
        return True
    if not _is_index(key, len(items) + adds):
        return False
    at, value = int(key), change.get("value")
    if change["op"] == "replace" and items[at] == value:
        return False
    items[at : at + (not adds)] = [] if change["op"] == "remove" else [_copied(value)[0]]
    return True


def _key(container: Json, token: str) -> str | int:
    if isinstance(container, dict) and token in container:
        return token
    if isinstance(container, list) and _is_index(token, len(container)):
        return int(token)
    raise DoesNotApply(f"there is no {token!r}")


def _is_index(token: str, end: int) -> bool:
    return bool(_INDEX.fullmatch(token)) and int(token) < end


def _copied(value: Json, limit: int | None = None, level: int = 0) -> tuple[Json, int]:
    """Return a copy at this `level` of its document, and its size in values and characters. The
    agent server decides how deeply the value is nested, and a recursion could exceed Python's
    limit."""
    holder: list[Json] = [value]
    layer: list[Json] = [holder]
    size = 0
    while layer:
        level += 1
        if limit is not None and level > MAX_LEVELS:
            raise DoesNotApply(f"deeper than {MAX_LEVELS} levels")
        below: list[Json] = []
        for container in layer:
            places = container.items() if isinstance(container, dict) else enumerate(container)
            for place, item in places:
                size += 1
                if isinstance(item, str):
                    size += len(item)
                elif isinstance(item, dict | list):
                    container[place] = inner = item.copy()
                    if isinstance(item, dict):
                        size += sum(map(len, item))
                    if inner:
                        below.append(inner)
            if limit is not None and size + len(below) > limit:
                raise DoesNotApply(f"more than {limit} values and characters")
        layer = below
    return holder[0], size


_OPERATIONS: Final[Mapping[str, Callable[[Document, JsonObject], None]]] = {
    "add": Document._add,
    "remove": Document._remove,
    "replace": Document._replace,
    "move": Document._move,
    "copy": Document._copy,
    "test": Document._test,
}
