"""Checks values against JSON Schemas that come from clients and agent servers. Pure.

A schema may name other schemas by URL, refer to itself without end, or have a pattern that takes
hours. So this module fetches nothing, supports only keywords that can be checked in a limited time,
and evaluates patterns with RE2. A check takes at most `MAX_STEPS` steps of about a microsecond each
(decision 0271). An event loop checks with `LOOP_STEPS` only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.expressions import ReadPath, VariableType, is_found
from penstock.expressions.patterns import size_of
from penstock.validation import did_you_mean

MAX_DEPTH: Final = 12  # Levels of nested schemas.
# The greatest number of schemas in a definition's schema, which is counted, too.
MAX_SCHEMAS: Final = 500
MAX_STEPS: Final = 300_000
LOOP_STEPS: Final = 15_000  # of a check that an event loop waits for
MAX_MISFITS: Final = 10
MAX_FURTHER: Final = 50  # References that are followed one inside another.
SHOWN: Final = 60  # The number of characters of a value that an error text shows.
# Matching a text takes one step for this many units of work. The units are the bytes of the text,
# multiplied by the instructions of the pattern.
_PATTERN_PER_STEP: Final = 100


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == math.floor(value),
}
_LENGTHS: Final = {
    "minLength": (str, "characters"),
    "maxLength": (str, "characters"),
    "minItems": (list, "elements"),
    "maxItems": (list, "elements"),
    "minProperties": (dict, "fields"),
    "maxProperties": (dict, "fields"),
}
_BOUNDS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "minimum": (lambda value, bound: value >= bound, "at least"),
    "maximum": (lambda value, bound: value <= bound, "at most"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "more than"),
    "exclusiveMaximum": (lambda value, bound: value < bound, "less than"),
}
_ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")
_NOTES: Final = """
    $schema $id $comment title description default examples format deprecated readOnly writeOnly
"""
# The keywords of definitions of workflows.
KEYWORDS: Final = (
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "const",
    "pattern",
    *_BOUNDS,
    *_LENGTHS,
    *_ALTERNATIVES,
    *_NOTES.split(),
)

# The keywords of the specification that `misfits` does not know. It knows `KEYWORDS`, `$ref`,
# `$defs`, `definitions`, `propertyNames`, `if`, `then` and `else`.
_UNSUPPORTED: Final = """
    $dynamicRef $recursiveRef contains dependencies dependentRequired dependentSchemas multipleOf
    not patternProperties prefixItems unevaluatedItems unevaluatedProperties uniqueItems
"""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The types of CEL for the types of a schema, and for lists of them.
_VARIABLE_TYPES: Final[Mapping[str, VariableType]] = {
    "object": "object",
    "array": "list",
    "string": "text",
    "boolean": "boolean",
    "number": "number",
    "integer": "integer",
}
_LIST_TYPES: Final[Mapping[str, VariableType]] = {
    "object": "objects",
    "string": "texts",
    "boolean": "booleans",
    "number": "numbers",
    "integer": "integers",
}

Path = tuple[str | int, ...]


class Misfit(NamedTuple):
    """A mistake: the path of the wrong value, such as ("files", 0, "name"), and the reason."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{shown_path(self.path)}: {self.reason}"


class TooMuchWork(ValueError):
    """The error for a check that would take more steps than it may."""


class UnknownReference(ValueError):
    """The error for a reference to another document, or to a schema that does not exist."""


def shown_path(path: Path, root: str = "input") -> str:
    """Return a path as people write it: `input.files[0].name`."""
    return root + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)


def schema_mistakes(schema: Any, *, is_foreign: bool = False) -> list[Misfit]:
    """Return the mistakes of a schema, at most `MAX_MISFITS`; an empty list if it has none.

    A schema `is_foreign` if it is not written for Penstock. Such a schema may have references, and
    keywords that the specification does not know.
    """
    found: list[Misfit] = []
    count = 0
    open_: list[tuple[Path, Any]] = [((), schema)]
    while open_ and len(found) < MAX_MISFITS:
        path, each = open_.pop()
        count += 1
        if count > MAX_SCHEMAS:
            return [*found, Misfit((), f"a schema has at most {MAX_SCHEMAS} parts")]
        if isinstance(each, bool) and path:
            continue
        if not isinstance(each, dict):
            found.append(Misfit(path, "a schema is an object"))
            continue
        if len(path) > 2 * MAX_DEPTH:
            found.append(Misfit(path, f"schemas are nested at most {MAX_DEPTH} deep"))
            continue
        found += _own_mistakes(path, each, is_foreign)
        open_ += [((*path, *step), part) for step, part in _parts(each)]
    return found[:MAX_MISFITS]


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    if isinstance(properties := schema.get("properties"), dict):
        yield from ((("properties", str(name)), part) for name, part in properties.items())
    for keyword in ("items", "additionalProperties", "propertyNames", "if", "then", "else"):
        if keyword in schema:
            yield (keyword,), schema[keyword]
    for keyword in ("$defs", "definitions"):
        if isinstance(defined := schema.get(keyword), dict):
            yield from (((keyword, str(name)), part) for name, part in defined.items())
    for keyword in _ALTERNATIVES:
        if isinstance(listed := schema.get(keyword), list):
            yield from (((keyword, number), part) for number, part in enumerate(listed))


def _own_mistakes(path: Path, schema: Mapping[str, Any], is_foreign: bool) -> Iterator[Misfit]:
    for name, value in schema.items():
        place = (*path, str(name))
        is_known = name not in _UNSUPPORTED.split() if is_foreign else name in KEYWORDS
        if not is_known:
            guess = did_you_mean(str(name), KEYWORDS)
            yield Misfit(place, f"the keyword {name!r} is not supported{guess}")
        elif (reason := _keyword_mistake(name, value)) is not None:
            yield Misfit(place, reason)


def _keyword_mistake(name: str, value: Any) -> str | None:
    reason = None
    match name:
        case "type":
            listed = value if isinstance(value, list) else [value]
            if not listed or not all(isinstance(each, str) and each in _TYPES for each in listed):
                reason = f"must be one of {', '.join(_TYPES)}, or a list of these"
        case "properties" | "$defs" | "definitions" if not isinstance(value, dict):
            reason = "must be an object whose values are schemas"
        case "$ref" if not isinstance(value, str):
            reason = "must be a text"
        case "required" if not _is_texts(value):
            reason = "must be a list of names"
        case "enum" if not isinstance(value, list) or not value or not _are_plain(value):
            reason = "must be a list of texts, numbers, booleans or null"
        case "const" if not _are_plain([value]):
            reason = "must be a text, a number, a boolean or null"
        case "anyOf" | "oneOf" | "allOf" if not isinstance(value, list) or not value:
            reason = "must be a list of schemas"
        case "pattern":
            if not isinstance(value, str) or is_found(value, "") is None:
                reason = "must be a regular expression of RE2"
        case _ if name in _BOUNDS and not _is_number(value):
            reason = "must be a number"
        case _ if name in _LENGTHS and not (type(value) is int and value >= 0):
            reason = "must be a whole number"
    return reason


def misfits(schema: Mapping[str, Any], value: Any, max_steps: int = MAX_STEPS) -> list[Misfit]:
    """Return the mistakes of a value, at most `MAX_MISFITS`; an empty list if the value fits the
    schema.

    The schema must have passed `schema_mistakes`.

    Raises:
        TooMuchWork: the check would take more than `max_steps` steps.
        UnknownReference: the schema has a reference that cannot be followed.
    """
    found: list[Misfit] = []
    for each in _Check(schema, max_steps).misfits(schema, value, ()):
        found.append(each)
        if len(found) == MAX_MISFITS:
            break
    return found


@dataclass(slots=True)
class _Check:
    """Checks a value against a schema, and counts the steps of the check."""

    root: Any
    max_steps: int
    steps: int = 0
    references: int = 0  # how many references are being followed

    def _count(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > self.max_steps:
            raise TooMuchWork("it is too large to be checked against the input's schema")

    def misfits(self, schema: Any, value: Any, path: Path) -> Iterator[Misfit]:
        self._count()
        if schema is False:
            yield Misfit(path, "there is no such field")
        if not isinstance(schema, dict):
            return
        if "$ref" in schema:
            yield from self._follow(schema["$ref"], value, path)
        if (type_ := schema.get("type")) is not None:
            types = type_ if isinstance(type_, list) else [type_]
            if not any(_TYPES[each](value) for each in types):
                yield Misfit(path, f"must be {_or(types)}, not {_shown(value)}")
                return
        yield from self._simple(schema, value, path)
        match value:
            case dict():
                yield from self._object(schema, value, path)
            case list():
                items = schema.get("items", True)
                for number, each in enumerate(value):
                    yield from self.misfits(items, each, (*path, number))
        yield from self._alternatives(schema, value, path)

    def _follow(self, reference: str, value: Any, path: Path) -> Iterator[Misfit]:
        if self.references >= MAX_FURTHER:
            raise TooMuchWork(f"the schema follows more than {MAX_FURTHER} references at once")
        document, _, pointer = reference.partition("#")
        target = self.root if not document and (not pointer or pointer[0] == "/") else None
        for token in pointer.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, dict) else None
        if target is None:
            raise UnknownReference(f"the reference {reference[:SHOWN]!r} cannot be followed")
        self.references += 1
        try:
            yield from self.misfits(target, value, path)
        finally:  # the caller may look at the first misfit only
            self.references -= 1

    def _simple(self, schema: Mapping[str, Any], value: Any, path: Path) -> Iterator[Misfit]:
        if "enum" in schema:
            self._count(len(schema["enum"]))
            if not any(_equal(value, each) for each in schema["enum"]):
                allowed = ", ".join(_shown(each) for each in schema["enum"][:10])
                yield Misfit(path, f"must be one of {allowed}; not {_shown(value)}")
        if "const" in schema and not _equal(value, schema["const"]):
            yield Misfit(path, f"must be {_shown(schema['const'])}, not {_shown(value)}")
        for name, (fits, words) in _BOUNDS.items():
            if name in schema and _is_number(value) and not fits(value, schema[name]):
                yield Misfit(path, f"must be {words} {schema[name]}, not {_shown(value)}")
        for name, (type_, unit) in _LENGTHS.items():
            if name in schema and isinstance(value, type_):
                bound, size = schema[name], len(value)
                is_least = name.startswith("min")
                if (size < bound) if is_least else (size > bound):
                    words = "at least" if is_least else "at most"
                    yield Misfit(path, f"must have {words} {bound} {unit}, not {size}")
        if "pattern" in schema and isinstance(value, str):
            self._count(len(value) * size_of(schema["pattern"]) // _PATTERN_PER_STEP)
            if not is_found(schema["pattern"], value):
                yield Misfit(path, f"must match the pattern {schema['pattern'][:200]}")

    def _object(
        self, schema: Mapping[str, Any], value: Mapping[str, Any], path: Path
    ) -> Iterator[Misfit]:
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for name in schema.get("required", ()):
            self._count()
            if name not in value:
                yield Misfit((*path, name), "is missing")
        for name, each in value.items():
            if "propertyNames" in schema:
                yield from self.misfits(schema["propertyNames"], name, (*path, name[:SHOWN]))
            if name in properties:
                yield from self.misfits(properties[name], each, (*path, name))
            elif others is False:
                guess = did_you_mean(name, properties)
                yield Misfit((*path, name[:SHOWN]), f"there is no such field{guess}")
            else:
                yield from self.misfits(others, each, (*path, name))

    def _alternatives(self, schema: Mapping[str, Any], value: Any, path: Path) -> Iterator[Misfit]:
        if "if" in schema:
            fits = next(self.misfits(schema["if"], value, path), None) is None
            yield from self.misfits(schema.get("then" if fits else "else"), value, path)
        for each in schema.get("allOf", ()):
            yield from self.misfits(each, value, path)
        for keyword in ("anyOf", "oneOf"):
            if keyword not in schema:
                continue
            fitting = 0
            for each in schema[keyword]:
                fitting += next(self.misfits(each, value, path), None) is None
            if not fitting:
                yield Misfit(path, f"must fit one of the {len(schema[keyword])} of {keyword}")
            elif keyword == "oneOf" and fitting > 1:
                yield Misfit(path, f"must fit one of oneOf only, but fits {fitting}")


def with_numbers(schema: Any, value: Any) -> Any:
    """Return the value with the numbers that the types of the schema name: integers or doubles.

    A client may send 2 for a `number`, or 2.0 for an `integer`. CEL has no operation that takes an
    integer and a double. The schema must have passed `schema_mistakes`.
    """
    if not isinstance(schema, dict):
        return value
    types = schema.get("type", ())
    types = types if isinstance(types, list) else [types]
    match value:
        case int() if "number" in types and not isinstance(value, bool) and abs(value) < 2**63:
            return float(value)
        case float() if "integer" in types and "number" not in types and value.is_integer():
            return int(value)
        case list():
            items = schema.get("items")
            return [with_numbers(items, each) for each in value]
        case dict():
            properties, others = schema.get("properties", {}), schema.get("additionalProperties")
            return {
                name: with_numbers(properties.get(name, others), each)
                for name, each in value.items()
            }
    return value


def types_of_fields(schema: Any, path: ReadPath) -> Iterator[tuple[ReadPath, VariableType]]:
    """Yield the type of each field that the schema of an object describes, by the field's path.

    `path` is the path of the object. Fields whose names cannot stand in an expression are left out,
    and so are fields that may have several types.
    """
    for name, field in schema.get("properties", {}).items():
        if not _NAME.fullmatch(name) or not isinstance(field, dict):
            continue
        place, type_ = (*path, name), _VARIABLE_TYPES.get(str(field.get("type")))
        if type_ == "object":
            yield from types_of_fields(field, place)
        if type_ == "list" and isinstance(items := field.get("items"), dict):
            type_ = _LIST_TYPES.get(str(items.get("type")), type_)
        if type_ is not None:
            yield place, type_


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; unlike in Python, true is not equal to 1. At least
    one of the values must be a simple value, which is neither an object nor a list."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _are_plain(values: list[Any]) -> bool:
    return not any(isinstance(each, dict | list) for each in values)


def _or(types: list[str]) -> str:
    return " or ".join(types)


def _shown(value: Any) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            text = value if len(value) <= SHOWN else f"{value[:SHOWN]}…"
            return f'"{text}"'
        case _:
            return str(value)[:SHOWN]
