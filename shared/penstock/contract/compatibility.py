"""Whether a schema may follow a released one: it may add optional fields, and nothing else.

A type that is new has no released schema and is never in question. What a reader was promised is
that nothing is taken away, made looser or given another type; what a writer and the events already
stored were promised is that nothing new is demanded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

# They say something to people, or where things stand; they are no constraint.
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated"}
)


def breaking(released: Schema, now: Schema) -> list[str]:
    """What breaks, each `where: what`; empty when `now` may follow `released`."""
    return list(_compare("", _inlined(released, released), _inlined(now, now)))


def missing(released: Mapping[str, Schema], now: Mapping[str, Schema]) -> list[str]:
    """The released schemas that there are no more."""
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
    """Fields may come; none may go."""
    before, after = old or {}, new or {}
    for name, schema in before.items():
        if name in after:
            yield from _compare(f"{where}/{name}", schema, after[name])
        else:
            yield f"{where}/{name}: removed"


def _words(where: str, old: list[Any] | None, new: list[Any] | None) -> Iterator[str]:
    """Readers accept words that they do not know, so a list of them may grow."""
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
    """The schema with each `#/$defs/…` in place of its reference, beside its other keywords."""
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
