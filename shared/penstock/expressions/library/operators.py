"""Implements the operators of CEL: arithmetic, comparisons, fields and elements. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from penstock.expressions.errors import ExpressionError, MissingField
from penstock.expressions.library.values import (
    CHARACTERS_PER_STEP,
    ELEMENTS_PER_STEP,
    Budget,
    Function,
    in_range,
    is_number,
    kind_of,
    no_overload,
)


def select(budget: Budget, value: Any, field: Any) -> Any:
    match value, field:
        case dict(), str():
            if field not in value:
                raise MissingField(f"there is no field {field[:100]!r}")
            return value[field]
        case dict(), bool() | int() | float():
            key = _key(budget, value, field)
            if key is None:
                raise MissingField(f"there is no key {field} in the map")
            return value[key]
        case list(), int() | float() if is_number(field) and field == math.floor(field):
            if not 0 <= field < len(value):
                raise MissingField(f"there is no element {int(field)} in a list of {len(value)}")
            return value[int(field)]
    raise ExpressionError(f"{kind_of(value)} has no field {str(field)[:100]!r}")


def _key(budget: Budget, container: dict[Any, Any], wanted: Any) -> Any:
    """Return the key that equals a number or a boolean; None if there is none. True is not 1."""
    if wanted not in container:
        return None
    budget.take(len(container) // ELEMENTS_PER_STEP)
    equals = (each for each in container if each == wanted)
    return next(
        (each for each in equals if isinstance(each, bool) is isinstance(wanted, bool)), None
    )


def add(budget: Budget, one: Any, other: Any) -> Any:
    """Return the sum of numbers, times and durations, or the concatenation of texts and lists."""
    match one, other:
        case str(), str():
            budget.build(len(one) + len(other))
            return one + other
        case list(), list():
            budget.take(1 + (len(one) + len(other)) // ELEMENTS_PER_STEP)
            return one + other
        case (datetime() | timedelta(), timedelta()) | (timedelta(), datetime()):
            return _time(operator.add, one, other)
    return _arithmetic("+", operator.add, one, other)


def subtract(budget: Budget, one: Any, other: Any) -> Any:
    match one, other:
        case (datetime(), datetime() | timedelta()) | (timedelta(), timedelta()):
            return _time(operator.sub, one, other)
    return _arithmetic("-", operator.sub, one, other)


# CEL counts durations in nanoseconds, of 64 bits.
_LONGEST: Final = timedelta(microseconds=2**63 // 1000)


def _time(act: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    try:
        found = act(one, other)
    except OverflowError:
        raise ExpressionError("the time is out of range") from None
    if isinstance(found, timedelta) and abs(found) > _LONGEST:
        raise ExpressionError("the duration is longer than 292 years")
    return found


def _arithmetic(name: str, act: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    if type(one) is not type(other) or not is_number(one):
        raise no_overload(name, one, other)
    try:
        return in_range(act(one, other))
    except OverflowError:
        raise ExpressionError("number overflow") from None


def multiply(budget: Budget, one: Any, other: Any) -> Any:
    return _arithmetic("*", operator.mul, one, other)


def divide(budget: Budget, one: Any, other: Any) -> Any:
    """Return the quotient. A quotient of integers is rounded towards zero."""

    def quotient(one: Any, other: Any) -> Any:
        if isinstance(one, float):
            if other:
                return one / other
            sign = math.copysign(1, one) * math.copysign(1, other)
            return math.nan if not one or math.isnan(one) else math.inf * sign
        if not other:
            raise ExpressionError("divide by zero")
        return _towards_zero(one, other)

    return _arithmetic("/", quotient, one, other)


def modulo(budget: Budget, one: Any, other: Any) -> Any:
    """Return the remainder of a division of integers, with the sign of the dividend."""

    def remainder(one: int, other: int) -> int:
        if not other:
            raise ExpressionError("modulus by zero")
        return one - other * _towards_zero(one, other)

    if isinstance(one, float):
        raise no_overload("%", one, other)
    return _arithmetic("%", remainder, one, other)


def _towards_zero(one: int, other: int) -> int:
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


def negate(budget: Budget, value: Any) -> Any:
    if not is_number(value):
        raise no_overload("-", value)
    return in_range(-value)


def invert(budget: Budget, value: Any) -> bool:
    if not isinstance(value, bool):
        raise no_overload("!", value)
    return not value


def equal(budget: Budget, one: Any, other: Any) -> bool:
    """Return whether two values are equal. Only numbers of different types can be."""
    budget.take()
    match one, other:
        case (bool(), _) | (_, bool()):
            return one is other
        case str(), str():
            budget.take(min(len(one), len(other)) // CHARACTERS_PER_STEP)
            return one == other
        case list(), list():
            return len(one) == len(other) and all(
                equal(budget, each, one_of_other)
                for each, one_of_other in zip(one, other, strict=True)
            )
        case dict(), dict():
            return len(one) == len(other) and all(
                name in other and equal(budget, each, other[name]) for name, each in one.items()
            )
    return bool(one == other)


def not_equal(budget: Budget, one: Any, other: Any) -> bool:
    return not equal(budget, one, other)


def ordering(name: str, act: Callable[[Any, Any], bool]) -> Function:
    """Return the operator that compares numbers, texts, times, durations or booleans."""

    def compare(budget: Budget, one: Any, other: Any) -> bool:
        are_numbers = is_number(one) and is_number(other)
        are_alike = type(one) is type(other) and isinstance(one, bool | str | datetime | timedelta)
        if not are_numbers and not are_alike:
            raise no_overload(name, one, other)
        if isinstance(one, str):
            budget.take(min(len(one), len(other)) // CHARACTERS_PER_STEP)
        return act(one, other)

    return compare


def contained(budget: Budget, value: Any, container: Any) -> bool:
    match container:
        case dict() if isinstance(value, str):
            return value in container
        case dict() if isinstance(value, bool | int | float):
            return _key(budget, container, value) is not None
        case list():
            return any(equal(budget, value, each) for each in container)
    raise no_overload("in", value, container)
