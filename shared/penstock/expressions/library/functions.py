"""Defines the table of all functions and operators. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library.budget import Budget, Function
from penstock.expressions.library.conversions import (
    to_boolean,
    to_double,
    to_duration,
    to_integer,
    to_text,
    to_time,
)
from penstock.expressions.library.kinds import no_overload
from penstock.expressions.library.operators import (
    add,
    contained,
    divide,
    equal,
    invert,
    modulo,
    multiply,
    negate,
    not_equal,
    ordering,
    select,
    subtract,
)
from penstock.expressions.library.plain import json_text
from penstock.expressions.library.texts import join, matches, size, text_test


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
    "_+_": add,
    "_-_": subtract,
    "_*_": multiply,
    "_/_": divide,
    "_%_": modulo,
    "-_": negate,
    "!_": invert,
    "_==_": equal,
    "_!=_": not_equal,
    "_<_": ordering("<", operator.lt),
    "_<=_": ordering("<=", operator.le),
    "_>_": ordering(">", operator.gt),
    "_>=_": ordering(">=", operator.ge),
    "@in": contained,
    "_[_]": select,
    "size": size,
    "contains": text_test("contains", lambda text, part: part in text),
    "startsWith": text_test("startsWith", str.startswith),
    "endsWith": text_test("endsWith", str.endswith),
    "matches": matches,
    "string": to_text,
    "int": to_integer,
    "double": to_double,
    "bool": to_boolean,
    "timestamp": to_time,
    "duration": to_duration,
    "dyn": lambda budget, value: value,
    "json": json_text,
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
