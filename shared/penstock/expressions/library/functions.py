"""Defines the table of all functions and operators. Pure."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from zoneinfo import ZoneInfo

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library import conversions, lists, operators, texts
from penstock.expressions.library.values import (
    PATTERN_PER_STEP,
    Budget,
    Function,
    in_range,
    is_number,
    no_overload,
)
from penstock.expressions.patterns import MAX_PATTERN_CHARACTERS, is_found, size_of


def size(budget: Budget, value: Any) -> int:
    if not isinstance(value, str | list | dict):
        raise no_overload("size", value)
    return len(value)


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


_OFFSET: Final = re.compile(r"([+-]?)(\d\d):(\d\d)")


def _zone(name: Any) -> Any:
    """Return the time zone of a name such as `Europe/Rome`, or of an offset such as `-02:30`."""
    try:
        if offset := _OFFSET.fullmatch(name):
            minutes = 60 * int(offset[2]) + int(offset[3])
            return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
        return ZoneInfo(name)
    except (ValueError, LookupError, OSError, TypeError):
        raise ExpressionError(f"there is no time zone {str(name)[:60]!r}") from None


_OF_DURATION: Final[Mapping[str, Callable[[timedelta], int]]] = {
    "getHours": lambda value: int(value.total_seconds() / 3600),
    "getMinutes": lambda value: int(value.total_seconds() / 60),
    "getSeconds": lambda value: int(value.total_seconds()),
    "getMilliseconds": lambda value: int(math.fmod(value / timedelta(milliseconds=1), 1000)),
}


def of_number(name: str, act: Callable[[Any], Any], *types: type) -> Function:
    """Return the function of one number, which is of one of the types. Default: a double."""
    wanted = types or (float,)

    def call(budget: Budget, value: Any) -> Any:
        if not is_number(value) or not isinstance(value, wanted):
            raise no_overload(name, value)
        return in_range(act(value))

    return call


def sign(value: Any) -> Any:
    return value if value == 0 or math.isnan(value) else type(value)(math.copysign(1, value))


def whole(act: Callable[[float], int]) -> Callable[[float], float]:
    """Return the function that rounds a double; it gives infinities and NaN back."""
    return lambda value: float(act(value)) if math.isfinite(value) else value


def half_away_from_zero(value: float) -> int:
    down = math.floor(abs(value))
    return int(math.copysign(down + (abs(value) - down >= 0.5), value))


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
    "contains": texts.test("contains", lambda text, part: part in text),
    "startsWith": texts.test("startsWith", str.startswith),
    "endsWith": texts.test("endsWith", str.endswith),
    "matches": matches,
    "string": conversions.to_text,
    "${_}": conversions.inserted_text,  # a placeholder; no expression can call it by this name
    "int": conversions.to_integer,
    "double": conversions.to_double,
    "bool": conversions.to_boolean,
    "timestamp": conversions.to_time,
    "duration": conversions.to_duration,
    "dyn": lambda budget, value: value,
    "json": conversions.json_text,
    "parseJson": conversions.parse_json,
    "join": texts.join,
    "split": texts.split,
    "replace": texts.replace,
    "lowerAscii": texts.lower,
    "upperAscii": texts.upper,
    "trim": texts.trim,
    "substring": texts.substring,
    "charAt": texts.character,
    "indexOf": texts.first_position,
    "lastIndexOf": texts.last_position,
    "sum": lists.total,
    "min": lists.least,
    "max": lists.greatest,
    "sort": lists.sort,
    "distinct": lists.distinct,
    "flatten": lists.flatten,
    "reverse": lists.reverse,
    "slice": lists.slice_,
    "math.@min": lists.extreme_of("math.least", lists.least),
    "math.@max": lists.extreme_of("math.greatest", lists.greatest),
    "math.abs": of_number("math.abs", abs, int, float),
    "math.sign": of_number("math.sign", sign, int, float),
    "math.ceil": of_number("math.ceil", whole(math.ceil)),
    "math.floor": of_number("math.floor", whole(math.floor)),
    "math.round": of_number("math.round", whole(half_away_from_zero)),
    "math.trunc": of_number("math.trunc", whole(math.trunc)),
    "math.isNaN": of_number("math.isNaN", math.isnan),
    "math.isInf": of_number("math.isInf", math.isinf),
    "math.isFinite": of_number("math.isFinite", math.isfinite),
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
