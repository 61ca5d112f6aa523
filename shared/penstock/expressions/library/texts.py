"""Implements the functions of texts, as CEL's extension of strings has them. Pure.

Positions and lengths count characters (code points), from 0.
Source: https://pkg.go.dev/github.com/google/cel-go/ext#Strings
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any, Final

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library.values import (
    CHARACTERS_PER_STEP,
    Budget,
    Function,
    kind_of,
    no_overload,
)

# Python's `strip` also removes the separators \x1c to \x1f, which are no white space in Unicode.
_WHITE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_UPPER: Final = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)


def test(name: str, act: Callable[[str, str], bool]) -> Function:
    """Return the function that tests whether a text has a part, such as `startsWith`."""

    def test(budget: Budget, text: Any, part: Any) -> bool:
        _check(name, (text, part), (str, str))
        budget.take((len(text) + len(part)) // CHARACTERS_PER_STEP)
        return act(text, part)

    return test


def changed(name: str, act: Callable[[str], str]) -> Function:
    """Return the function that makes a text of at most the same length, such as `trim`."""

    def change(budget: Budget, text: Any) -> str:
        _check(name, (text,), (str,))
        budget.build(len(text))
        return act(text)

    return change


lower = changed("lowerAscii", lambda text: text.translate(_LOWER))
upper = changed("upperAscii", lambda text: text.translate(_UPPER))
trim = changed("trim", lambda text: text.strip(_WHITE))


def join(budget: Budget, values: Any, between: Any = "") -> str:
    _check("join", (values, between), (list, str))
    budget.take(len(values))
    for each in values:
        if not isinstance(each, str):
            raise ExpressionError(f"join takes a list of texts, which has {kind_of(each)}")
    budget.build(sum(map(len, values)) + len(between) * len(values))
    return str(between.join(values))


def split(budget: Budget, text: Any, between: Any, limit: Any = -1) -> list[str]:
    """Return the parts, at most `limit` of them. An empty separator gives the characters."""
    _check("split", (text, between, limit), (str, str, int))
    if limit == 0:
        return []
    budget.build(len(text))
    most = limit - 1 if limit > 0 else len(text)
    budget.take(min(most, len(text) if not between else text.count(between)))
    if between:
        return list(text.split(between, most))
    return [*text[:most], *([text[most:]] if text[most:] else [])]


def replace(budget: Budget, text: Any, old: Any, new: Any, limit: Any = -1) -> str:
    _check("replace", (text, old, new, limit), (str, str, str, int))
    found = text.count(old)
    times = found if limit < 0 else min(limit, found)
    budget.build(len(text) + times * (len(new) - len(old)))
    return str(text.replace(old, new, times))


def substring(budget: Budget, text: Any, start: Any, end: Any = None) -> str:
    end = len(text) if end is None and isinstance(text, str) else end
    _check("substring", (text, start, end), (str, int, int))
    if not 0 <= start <= end <= len(text):
        raise ExpressionError(f"substring({start}, {end}): the text has {len(text)} characters")
    budget.build(end - start)
    return str(text[start:end])


def character(budget: Budget, text: Any, at: Any) -> str:
    _check("charAt", (text, at), (str, int))
    _check_position("charAt", text, at)
    return str(text[at : at + 1])


def first_position(budget: Budget, text: Any, part: Any, start: Any = 0) -> int:
    """Return the first position of a part at or after `start`; -1 if there is none."""
    _check("indexOf", (text, part, start), (str, str, int))
    _check_position("indexOf", text, start)
    budget.take((len(text) + len(part)) // CHARACTERS_PER_STEP)
    return int(text.find(part, start))


def last_position(budget: Budget, text: Any, part: Any, start: Any = None) -> int:
    """Return the last position of a part at or before `start`; -1 if there is none."""
    start = len(text) if start is None and isinstance(text, str) else start
    _check("lastIndexOf", (text, part, start), (str, str, int))
    _check_position("lastIndexOf", text, start)
    # Python's `rfind` takes the product of both lengths, unlike `find`.
    looked_at = text[: start + len(part)]
    budget.build(2 * len(looked_at) + len(part))
    found = looked_at[::-1].find(part[::-1])
    return -1 if found < 0 else len(looked_at) - len(part) - found


def _check_position(name: str, text: str, at: int) -> None:
    if not 0 <= at <= len(text):
        raise ExpressionError(f"{name}: the text of {len(text)} characters has no position {at}")


def _check(name: str, values: tuple[Any, ...], types: tuple[type, ...]) -> None:
    for value, wanted in zip(values, types, strict=True):
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise no_overload(name, *values)
