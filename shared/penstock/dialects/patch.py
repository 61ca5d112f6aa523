"""JSON Patch (RFC 6902): whether one is well formed, and what it makes of a document.

A few bytes of patch may ask for a lot: `copy` doubles a document, and each change of a large one
would cost its size if it were copied first. So it is changed in place, with a way back, and has
limits: what passes them does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from penstock.dialects.base import Json, JsonObject

MAX_SIZE: Final = 16 * 1024 * 1024  # of a document: values, and characters of text
MAX_LEVELS: Final = 200  # orjson writes 254
MAX_COPIED: Final = 10_000  # size of what one operation may copy, or move further down

_POINTER = re.compile(r"(?:/(?:[^/~]|~[01])*)*")  # RFC 6901
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("value",),
    "replace": ("value",),
    "test": ("value",),
    "remove": (),
    "move": ("from",),
    "copy": ("from",),
}


class DoesNotApply(ValueError):
    """The patch and the document do not fit, or it would pass a limit."""


def is_patch(value: Json) -> bool:
    """Whether every operation is one of the six, with its members and pointers."""
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
    """The reference tokens of a pointer."""
    return [each.replace("~1", "/").replace("~0", "~") for each in pointer.split("/")[1:]]


class Document:
    """A JSON value that patches change. It is a copy: what was given stays as it is."""

    def __init__(self, value: Json) -> None:
        self.value, self._size = _copied(value)
        self._undo: list[Callable[[], object]] = []

    def apply(self, patch: list[JsonObject]) -> None:
        """All operations, or none. Raises `DoesNotApply`."""
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

    def _get(self, path: list[str]) -> Json:
        value = self.value
        for token in path:
            value = value[_key(value, token)]
        return value

    def _own(self, value: Json, path: list[str], limit: int) -> Json:
        """The value as a part of this document."""
        copy, size = _copied(value, limit, len(path))
        # what was removed still counts: to count it down would cost its size
        self._size += size
        if self._size > MAX_SIZE:
            raise DoesNotApply(f"the document is larger than {MAX_SIZE}")
        return copy

    def _put(self, path: list[str], value: Json) -> None:
        if not path:
            self._become(value)
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
            return self._become(None)
        parent = self._get(path[:-1])
        key = _key(parent, path[-1])
        dropped = parent.pop(key)
        if isinstance(parent, list):
            self._undo.append(lambda: parent.insert(int(key), dropped))
        else:
            self._undo.append(lambda: parent.__setitem__(key, dropped))
        return dropped

    def _become(self, value: Json) -> Json:
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
            self._become(value)
            return
        parent = self._get(path[:-1])
        key = _key(parent, path[-1])
        before = parent[key]
        parent[key] = value
        self._undo.append(lambda: parent.__setitem__(key, before))

    def _move(self, operation: JsonObject) -> None:
        source, path = tokens(operation["from"]), tokens(operation["path"])
        if len(path) > len(source):
            _copied(self._get(source), MAX_COPIED, len(path))  # it may become too deep
        self._put(path, self._drop(source))

    def _copy(self, operation: JsonObject) -> None:
        path = tokens(operation["path"])
        self._put(path, self._own(self._get(tokens(operation["from"])), path, MAX_COPIED))

    def _test(self, operation: JsonObject) -> None:
        if self._get(tokens(operation["path"])) != operation["value"]:
            raise DoesNotApply(f"another value is at {operation['path']!r}")


def _key(container: Json, token: str) -> str | int:
    """The existing key or index that the token names."""
    if isinstance(container, dict) and token in container:
        return token
    if isinstance(container, list) and _is_index(token, len(container)):
        return int(token)
    raise DoesNotApply(f"there is no {token!r}")


def _is_index(token: str, end: int) -> bool:
    return bool(_INDEX.fullmatch(token)) and int(token) < end


def _copied(value: Json, limit: int | None = None, level: int = 0) -> tuple[Json, int]:
    """A copy, and its size. Raises `DoesNotApply` over a limit, or where it would be too deep."""
    holder: list[Json] = []
    layer: list[tuple[Json, Callable[[Json], object]]] = [(value, holder.append)]
    size = 0
    while layer:
        level += 1
        if limit is not None and level > MAX_LEVELS:
            raise DoesNotApply(f"deeper than {MAX_LEVELS} levels")
        below: list[tuple[Json, Callable[[Json], object]]] = []
        for item, place in layer:
            size += 1 + (len(item) if isinstance(item, str) else 0)
            if isinstance(item, dict):
                size += sum(map(len, item))
                made: Json = dict.fromkeys(item)
                below += [(each, partial(made.__setitem__, key)) for key, each in item.items()]
            elif isinstance(item, list):
                made = []
                below += [(each, made.append) for each in item]
            else:
                made = item
            place(made)
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
