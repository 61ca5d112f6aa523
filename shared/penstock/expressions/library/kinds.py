"""Names the types of values for people, and checks the range of integers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from penstock.expressions.errors import ExpressionError

LEAST, MOST = -(2**63), 2**63 - 1  # the least and the greatest integer of CEL
_KINDS: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a double",
    str: "a text",
    list: "a list",
    dict: "an object",
    datetime: "a time",
    timedelta: "a duration",
}


def kind_of(value: Any) -> str:
    """Return the name of a value's type, as error texts for people show it."""
    return _KINDS.get(type(value), "an unknown value")


def no_overload(name: str, *values: Any) -> ExpressionError:
    """Return the error for values of types that the function does not take."""
    kinds = " and ".join(map(kind_of, values))
    hint = ""
    if {int, float} == set(map(type, values)):
        hint = "; convert the integer with double()"
    return ExpressionError(f"{name} does not take {kinds}{hint}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def in_range(value: Any) -> Any:
    """Return the value unchanged. Raises ExpressionError for an integer that CEL does not have."""
    if isinstance(value, int) and not LEAST <= value <= MOST:
        raise ExpressionError("integer overflow")
    return value
