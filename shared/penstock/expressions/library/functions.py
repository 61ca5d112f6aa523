"""Defines the table of all functions and operators. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library import conversions, operators
from penstock.expressions.library.values import (
    CHARACTERS_PER_STEP,
    PATTERN_PER_STEP,
    Budget,
    Function,
    kind_of,
    no_overload,
)
from penstock.expressions.patterns import MAX_PATTERN_CHARACTERS, is_found, size_of


def size(budget: Budget, value: Any) -> int:
    if not isinstance(value, str | list | dict):
        raise no_overload("size", value)
    return len(value)


def text_test(name: str, act: Callable[[str, str], bool]) -> Function:
    """Return the function that tests whether a text has a part, such as `startsWith`."""

    def test(budget: Budget, text: Any, part: Any) -> bool:
        if not isinstance(text, str) or not isinstance(part, str):
            raise no_overload(name, text, part)
        budget.take((len(text) + len(part)) // CHARACTERS_PER_STEP)
        return act(text, part)

    return test


def matches(budget: Budget, text: Any, pattern: Any) -> bool:
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise no_overload("matches", text, pattern)
    found = None
    if len(pattern) <= MAX_PATTERN_CHARACTERS:
        budget.take(len(pattern) + (1 + len(text)) * size_of(pattern) // PATTERN_PER_STEP)
        found = is_found(pattern, text)
    if found is None:
        raise ExpressionError("matches: the pattern is no regular expression of RE2, or too long")
    return found


def join(budget: Budget, values: Any, between: Any = "") -> str:
    if not isinstance(values, list) or not isinstance(between, str):
        raise no_overload("join", values, between)
    budget.take(len(values))
    for each in values:
        if not isinstance(each, str):
            raise ExpressionError(f"join takes a list of texts, which has {kind_of(each)}")
    budget.build(sum(map(len, values)) + len(between) * len(values))
    return between.join(values)


def getter(name: str, part: Callable[[datetime], int]) -> Function:
    """Return the function for a part of a time in a time zone, or of a duration."""

    def get(budget: Budget, value: Any, zone: Any = "UTC") -> int:
        budget.take(50)
        if isinstance(value, timedelta) and name in _OF_DURATION and zone == "UTC":
            return _OF_DURATION[name](value)
        if not isinstance(value, datetime):
            raise no_overload(name, value)
        return part(value.astimezone(_zone(zone)))

    return get


def _zone(name: Any) -> Any:
    try:
        return ZoneInfo(name)
    except (ValueError, LookupError, OSError, TypeError):
        raise ExpressionError(f"there is no time zone {str(name)[:60]!r}") from None


_OF_DURATION: Final[Mapping[str, Callable[[timedelta], int]]] = {
    "getHours": lambda value: int(value.total_seconds() / 3600),
    "getMinutes": lambda value: int(value.total_seconds() / 60),
    "getSeconds": lambda value: int(value.total_seconds()),
    "getMilliseconds": lambda value: int(value.microseconds / 1000),
}


# Maps a function's name in the syntax tree to its implementation. `&&`, `||` and `?:` are not
# here, because they do not evaluate all their arguments.
FUNCTIONS: Final[Mapping[str, Function]] = {
    "_+_": operators.add,
    "_-_": operators.subtract,
    "_*_": operators.multiply,
    "_/_": operators.divide,
    "_%_": operators.modulo,
    "-_": operators.negate,
    "!_": operators.invert,
    "_==_": operators.equal,
    "_!=_": operators.not_equal,
    "_<_": operators.ordering("<", operator.lt),
    "_<=_": operators.ordering("<=", operator.le),
    "_>_": operators.ordering(">", operator.gt),
    "_>=_": operators.ordering(">=", operator.ge),
    "@in": operators.contained,
    "_[_]": operators.select,
    "size": size,
    "contains": text_test("contains", lambda text, part: part in text),
    "startsWith": text_test("startsWith", str.startswith),
    "endsWith": text_test("endsWith", str.endswith),
    "matches": matches,
    "string": conversions.to_text,
    "int": conversions.to_integer,
    "double": conversions.to_double,
    "bool": conversions.to_boolean,
    "timestamp": conversions.to_time,
    "duration": conversions.to_duration,
    "dyn": lambda budget, value: value,
    "json": conversions.json_text,
    "join": join,
    "getFullYear": getter("getFullYear", lambda time: time.year),
    "getMonth": getter("getMonth", lambda time: time.month - 1),
    "getDate": getter("getDate", lambda time: time.day),
    "getDayOfMonth": getter("getDayOfMonth", lambda time: time.day - 1),
    "getDayOfWeek": getter("getDayOfWeek", lambda time: time.isoweekday() % 7),
    "getDayOfYear": getter("getDayOfYear", lambda time: time.timetuple().tm_yday - 1),
    "getHours": getter("getHours", lambda time: time.hour),
    "getMinutes": getter("getMinutes", lambda time: time.minute),
    "getSeconds": getter("getSeconds", lambda time: time.second),
    "getMilliseconds": getter("getMilliseconds", lambda time: time.microsecond // 1000),
}
