"""Check a value against a JSON Schema that an agent server sent, without trusting the schema. Pure.

A schema may name other schemas by URL, refer to itself without end, or have a pattern that takes
hours. So this module fetches nothing, limits the number of references, and evaluates patterns with
RE2. If a value cannot be judged here, the value is accepted, because the agent server checks the
value again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from penstock.expressions import is_found

MAX_REFERENCES: Final = 1000
# A schema with this keyword is not judged. The reason is that for this keyword's patterns, the
# library uses Python's slow regular expressions in several places.
_UNREADABLE: Final = "patternProperties"
_extended: Final[Any] = extend  # the library has no type annotations for `extend`


class _TooMuch(Exception):
    """The error for a validation that has followed more than `MAX_REFERENCES` references."""


def misfit(schema: dict[str, Any], value: Any) -> str | None:
    """Return where and why the value does not fit the schema.

    Return None if the value fits, or if the schema is not judged.
    """
    try:
        Draft202012Validator.check_schema(schema)
        if _has_key(schema, _UNREADABLE):
            return None
        validator = _validator()(schema, registry=Registry())
        errors = sorted(validator.iter_errors(value), key=str)
    except (SchemaError, Unresolvable, _TooMuch, RecursionError):
        return None
    if not errors:
        return None
    where = "".join(f"[{step!r}]" for step in errors[0].absolute_path)
    return f"{where}: {errors[0].message}"


_Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


def _validator() -> Any:
    """Return a class of validators for one value."""
    remaining = MAX_REFERENCES

    def counted(keyword: _Keyword) -> _Keyword:
        def follow(validator: Any, ref: Any, value: Any, schema: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                raise _TooMuch
            return keyword(validator, ref, value, schema)

        return follow

    known = Draft202012Validator.VALIDATORS
    own = {name: counted(known[name]) for name in ("$ref", "$dynamicRef")}
    return _extended(Draft202012Validator, {**own, "pattern": _pattern})


def _pattern(_: Any, pattern: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and is_found(pattern, value) is False:
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _has_key(schema: Any, name: str) -> bool:
    values = [schema]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if name in value:
                return True
            values += value.values()
        elif isinstance(value, list):
            values += value
    return False
