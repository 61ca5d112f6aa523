"""Implements the functions of lists. Pure.

CEL has no such functions of its own. `distinct`, `flatten`, `reverse`, `slice` and `sort` are those
of CEL's extension of lists; `sum`, `min` and `max` are those of Kubernetes.
Sources: https://pkg.go.dev/github.com/google/cel-go/ext#Lists and
https://kubernetes.io/docs/reference/using-api/cel/#kubernetes-list-library
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial, reduce
from typing import Any

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library import operators
from penstock.expressions.library.values import (
    CHARACTERS_PER_STEP,
    ELEMENTS_PER_STEP,
    KEYS_PER_STEP,
    Budget,
    Function,
    in_range,
    is_number,
    kind_of,
    no_overload,
)


def total(budget: Budget, values: Any) -> Any:
    """Return the sum of numbers or durations; 0 of an empty list. One double makes a double, since
    JSON does not tell 2 from 2.0."""
    _check("sum", values)
    budget.take(len(values))
    if not values:
        return 0
    if all(isinstance(each, timedelta) for each in values):
        return reduce(partial(operators.add, budget), values)
    for each in values:
        if not is_number(each):
            raise ExpressionError(f"sum takes numbers or durations, not {kind_of(each)}")
    return in_range(sum(values))


def extreme(name: str, choose: Callable[..., Any]) -> Function:
    """Return the function for the least or the greatest element."""

    def find(budget: Budget, values: Any) -> Any:
        _check(name, values)
        budget.take(len(values))
        if not values:
            raise ExpressionError(f"{name} takes a list that is not empty")
        _check_comparable(budget, name, values)
        return choose(values)

    return find


least, greatest = extreme("min", min), extreme("max", max)


def extreme_of(name: str, choose: Function) -> Function:
    """Return the function for the least or the greatest of one list or of several numbers."""

    def find(budget: Budget, *values: Any) -> Any:
        found = values[0] if len(values) == 1 and isinstance(values[0], list) else [*values]
        if not all(map(is_number, found)):
            raise no_overload(name, *values)
        return choose(budget, found)

    return find


def sort(budget: Budget, values: Any) -> list[Any]:
    """Return the elements in ascending order. Texts are in the order of their code points."""
    _check("sort", values)
    times = max(1, len(values).bit_length())
    budget.take(len(values) * times // KEYS_PER_STEP)
    _check_comparable(budget, "sort", values, times)
    return sorted(values)


def distinct(budget: Budget, values: Any) -> list[Any]:
    """Return the elements without those that equal an earlier one."""
    _check("distinct", values)
    found: list[Any] = []
    plain: set[Any] = set()
    composed: list[Any] = []
    for each in values:
        budget.take()
        if isinstance(each, list | dict):
            if any(operators.equal(budget, each, one) for one in composed):
                continue
            composed.append(each)
        else:
            key = (isinstance(each, bool), each)  # Python has True == 1
            if key in plain:
                continue
            if not (isinstance(each, float) and math.isnan(each)):
                plain.add(key)
        found.append(each)
    return found


def flatten(budget: Budget, values: Any) -> list[Any]:
    """Return the elements, and in place of each list its elements."""
    _check("flatten", values)
    found: list[Any] = []
    for each in values:
        budget.take(1 + (len(each) // ELEMENTS_PER_STEP if isinstance(each, list) else 0))
        found += each if isinstance(each, list) else [each]
    return found


def reverse(budget: Budget, values: Any) -> Any:
    """Return the elements of a list, or the characters of a text, in the other direction."""
    if isinstance(values, str):
        budget.build(len(values))
        return values[::-1]
    _check("reverse", values)
    budget.take(len(values) // ELEMENTS_PER_STEP)
    return values[::-1]


def slice_(budget: Budget, values: Any, start: Any, end: Any) -> list[Any]:
    """Return the elements from the position `start` to before the position `end`."""
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in (start, end)):
        raise no_overload("slice", values, start, end)
    _check("slice", values)
    if not 0 <= start <= end <= len(values):
        raise ExpressionError(f"slice({start}, {end}): the list has {len(values)} elements")
    budget.take((end - start) // ELEMENTS_PER_STEP)
    return list(values[start:end])


def _check(name: str, values: Any) -> None:
    if not isinstance(values, list):
        raise no_overload(name, values)


def _check_comparable(budget: Budget, name: str, values: list[Any], times: int = 1) -> None:
    """Check the types, and count the characters that are compared if each value is `times`
    times."""
    if all(map(is_number, values)):
        return
    types = set(map(type, values))
    if types == {str}:
        budget.take(sum(map(len, values)) * times // CHARACTERS_PER_STEP)
    if len(types) > 1 or not types <= {str, bool, datetime, timedelta}:
        kinds = ", ".join(sorted({kind_of(each) for each in values}))
        raise ExpressionError(f"{name} takes values that can be compared, not {kinds}")
