"""Whether a schema may follow a released one: it may only add optional fields.

Readers rely on it that no field is removed, loosened or given another type. Writers, and the events
that are stored already, rely on it that no new field is required. A new type has no released
schema, so nothing is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

# These keywords are for people or give locations; they do not constrain a value.
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated"}
)


def breaking(released: Schema, now: Schema) -> list[str]:
    """Return what breaks, each as `where: what`; empty if `now` may follow `released`."""
    return list(_compare("", _inlined(released, released), _inlined(now, now)))


def missing(released: Mapping[str, Schema], now: Mapping[str, Schema]) -> list[str]:
    return sorted(released.keys() - now.keys())


def _compare(where: str, old: Any, new: Any) -> Iterator[str]:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if old != new:
            yield f"{where}: was {old}, is {new}"
        return
    for keyword in sorted((old.keys() | new.keys()) - _ANNOTATIONS):
        yield from _KEYWORDS.get(keyword, _same)(
            f"{where}/{keyword}", old.get(keyword), new.get(keyword)
        )


def _same(where: str, old: Any, new: Any) -> Iterator[str]:
    if old != new:
        yield f"{where}: was {old}, is {new}"


def _fields(where: str, old: Schema | None, new: Schema | None) -> Iterator[str]:
    before, after = old or {}, new or {}
    for name, schema in before.items():
        if name in after:
            yield from _compare(f"{where}/{name}", schema, after[name])
        else:
            yield f"{where}/{name}: removed"


def _words(where: str, old: list[Any] | None, new: list[Any] | None) -> Iterator[str]:
    """Values may be added, because readers accept values that they do not know."""
    if old is None or new is None:
        yield from _same(where, old, new)
        return
    for word in old:
        if word not in new:
            yield f"{where}: {word} removed"


def _required(where: str, old: list[str] | None, new: list[str] | None) -> Iterator[str]:
    before, after = set(old or ()), set(new or ())
    yield from (f"{where}: {name} may be absent now" for name in sorted(before - after))
    yield from (f"{where}: {name} is demanded now" for name in sorted(after - before))


def _choices(where: str, old: list[Any] | None, new: list[Any] | None) -> Iterator[str]:
    if old is None or new is None or len(old) != len(new):
        yield from _same(where, old, new)
        return
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        yield from _compare(f"{where}/{number}", before, after)


_KEYWORDS: dict[str, Callable[[str, Any, Any], Iterator[str]]] = {
    "properties": _fields,
    "required": _required,
    "enum": _words,
    "anyOf": _choices,
    "items": _compare,
    "additionalProperties": _compare,
}


def _inlined(schema: Any, root: Schema) -> Any:
    """Replace each reference to `#/$defs/…` by the definition, beside its other keywords."""
    if isinstance(schema, list):
        return [_inlined(part, root) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    reference = schema.get("$ref")
    target = root["$defs"][reference.rsplit("/", 1)[-1]] if isinstance(reference, str) else {}
    merged = {**target, **schema}
    return {
        keyword: _inlined(part, root)
        for keyword, part in merged.items()
        if keyword not in {"$ref", "$defs"}
    }
