"""JSON Patch (RFC 6902): whether one is well formed, and what it makes of a document."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Final

from penstock.dialects.base import Json, JsonObject

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
    """The patch and the document do not fit."""


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


def apply(document: Json, patch: list[JsonObject]) -> Json:
    """The document after all operations; it is not changed itself. Raises `DoesNotApply`."""
    result = copy.deepcopy(document)
    for operation in patch:
        result = _OPERATIONS[operation["op"]](result, operation)
    return result


def tokens(pointer: str) -> list[str]:
    """The reference tokens of a pointer."""
    return [each.replace("~1", "/").replace("~0", "~") for each in pointer.split("/")[1:]]


def _get(document: Json, path: list[str]) -> Json:
    for token in path:
        document = document[_key(document, token)]
    return document


def _key(container: Json, token: str) -> str | int:
    """The existing key or index that the token names."""
    if isinstance(container, dict) and token in container:
        return token
    if isinstance(container, list) and _INDEX.fullmatch(token) and int(token) < len(container):
        return int(token)
    raise DoesNotApply(f"there is no {token!r}")


def _put(document: Json, path: list[str], value: Json) -> Json:
    if not path:
        return value
    parent, last = _get(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list) and last == "-":
        parent.append(value)
    elif isinstance(parent, list) and _INDEX.fullmatch(last) and int(last) <= len(parent):
        parent.insert(int(last), value)
    else:
        raise DoesNotApply(f"nothing can be added at {last!r}")
    return document


def _drop(document: Json, path: list[str]) -> Json:
    if not path:
        return None
    parent = _get(document, path[:-1])
    del parent[_key(parent, path[-1])]
    return document


def _add(document: Json, operation: JsonObject) -> Json:
    return _put(document, tokens(operation["path"]), copy.deepcopy(operation["value"]))


def _remove(document: Json, operation: JsonObject) -> Json:
    return _drop(document, tokens(operation["path"]))


def _replace(document: Json, operation: JsonObject) -> Json:
    path = tokens(operation["path"])
    if not path:
        return copy.deepcopy(operation["value"])
    parent = _get(document, path[:-1])
    parent[_key(parent, path[-1])] = copy.deepcopy(operation["value"])
    return document


def _move(document: Json, operation: JsonObject) -> Json:
    source = tokens(operation["from"])
    value = _get(document, source)
    return _put(_drop(document, source), tokens(operation["path"]), value)


def _copy(document: Json, operation: JsonObject) -> Json:
    value = copy.deepcopy(_get(document, tokens(operation["from"])))
    return _put(document, tokens(operation["path"]), value)


def _test(document: Json, operation: JsonObject) -> Json:
    if _get(document, tokens(operation["path"])) != operation["value"]:
        raise DoesNotApply(f"another value is at {operation['path']!r}")
    return document


_OPERATIONS: Final[Mapping[str, Callable[[Json, JsonObject], Json]]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}
