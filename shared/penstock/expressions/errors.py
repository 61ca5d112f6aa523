"""Defines the errors of expressions, with the reason and the position in the expression's text.

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# CEL writes the line of the expression below the reason.
_WHERE: Final = re.compile(r"ERROR: <input>:(\d+):(-?\d+): ([^\n]*)(?:\n \| ([^\n]*))?")
_UNDECLARED: Final = re.compile(r"undeclared reference to '([^']+)'")
_STATUS: Final = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]\s*$")
# The end of the reason of an operation with an integer and a double.
_MIXED_NUMBERS: Final = re.compile(r"'\((?:\w+, )?(?:int, double|double, int)\)'")
# The texts of CEL's parser list all tokens that may follow, by their names in its grammar.
_SYNTAX: Final = "Syntax error: "
_SYNTAX_ERRORS: Final = (
    (r"missing '(.+?)' at '<EOF>'", "the expression ends too early: a {0} is missing"),
    (r"missing '(.+?)' at '(.+)'", "a {0} is missing before {1}"),
    (r"mismatched input '<EOF>' expecting ':'", "the expression ends too early: a : is missing"),
    (r"(?:mismatched|extraneous) input '<EOF>' .*", "the expression ends too early"),
    (
        r"(?:mismatched|extraneous) input '(.+?)' expecting <EOF>",
        "before {0}, an operator is missing",
    ),
    (r"(?:mismatched|extraneous) input '(.+?)' expecting .*", "{0} cannot stand here"),
    (r"no viable alternative at input '(.+)'", "after {0}, a name is missing"),
    (r"token recognition error at: '([\"'].*)'", "the text {0} has no end, or a wrong escape"),
    (r"token recognition error at: '(.+)'", "{0} is no sign of expressions"),
)
_MIXED_HINT: Final = "; write an integer as a double, as in 2.0 or double(n)"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in an expression's text; lines and columns count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class ExpressionError(ValueError):
    """The error for an expression that cannot be compiled or evaluated. `position` is None if the
    place is not known."""

    def __init__(self, reason: str, position: Position | None = None) -> None:
        super().__init__(f"{position}: {reason}" if position is not None else reason)
        self.reason = reason
        self.position = position


class NoExpression(ExpressionError):
    """The error for a text that CEL cannot parse. Its types and names were not looked at."""


class MissingField(ExpressionError):
    """The error for an expression that reads a field or an element which the data does not have."""


def compile_error(text: str, ignored: re.Pattern[str] | None = None) -> ExpressionError | None:
    """Return the first error in a message of CEL's compiler, with the error's position.

    Errors whose reason begins with a match of `ignored` are left out; the result is None if no
    other error remains.
    """
    if "recursion" in text:
        return NoExpression("it is nested too deep, or has too many operators in a row (32)")
    found = list(_WHERE.finditer(text))
    if not found:
        return ExpressionError(_STATUS.sub("", _STATUS.sub("", text)).strip())
    for line, column, reason, shown in (each.groups() for each in found):
        if ignored is not None and ignored.match(reason):
            continue
        hint = _MIXED_HINT if _MIXED_NUMBERS.search(reason) else ""
        position = Position(int(line), _column(max(int(column), 1), reason, shown or ""))
        # If CEL cannot parse a text, it looks at nothing else.
        is_parsed = not any(each[3].startswith(_SYNTAX) for each in found)
        return (ExpressionError if is_parsed else NoExpression)(
            _in_words(_STATUS.sub("", reason).removesuffix(" (in container '')")) + hint, position
        )
    return None


def _in_words(reason: str) -> str:
    """Return the reason; that of a syntax error in words that need no grammar."""
    if not reason.startswith(_SYNTAX):
        return reason
    for pattern, words in _SYNTAX_ERRORS:
        if (found := re.fullmatch(pattern, reason.removeprefix(_SYNTAX))) is not None:
            return f"{_SYNTAX}{words.format(*(part.strip() for part in found.groups()))}"
    return f"{_SYNTAX}this is no expression"


def _column(column: int, reason: str, shown: str) -> int:
    """Return the column of an unknown name's first character; CEL gives that of its last dot."""
    if (found := _UNDECLARED.match(reason)) is None:
        return column
    first = column - max(found[1].rfind("."), 0)
    return first if first > 0 and shown.startswith(found[1], first - 1) else column
