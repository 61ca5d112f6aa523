"""Implements the functions of CEL for texts and lists. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library.budget import (
    CHARACTERS_PER_STEP,
    PATTERN_PER_STEP,
    Budget,
    Function,
)
from penstock.expressions.library.kinds import kind_of, no_overload
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
