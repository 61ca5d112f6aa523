"""Defines the table of all functions and operators. Pure."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Final

from penstock.expressions.library.budget import Function
from penstock.expressions.library.conversions import (
    to_boolean,
    to_double,
    to_duration,
    to_integer,
    to_text,
    to_time,
)
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
from penstock.expressions.library.times import getter

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
