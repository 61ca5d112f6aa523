"""Defines the errors of expressions, with the reason and the position in the expression's text.

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_WHERE: Final = re.compile(r"ERROR: <input>:(\d+):(-?\d+): ([^\n]*)")
_STATUS: Final = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]\s*$")


@dataclass(frozen=True, slots=True)
class Position:
    """A place in an expression's text; lines and columns count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class ExpressionError(ValueError):
    """The error for an expression that cannot be compiled or evaluated.

    `position` is None if the place is not known.
    """

    def __init__(self, reason: str, position: Position | None = None) -> None:
        super().__init__(f"{position}: {reason}" if position is not None else reason)
        self.reason = reason
        self.position = position


class MissingField(ExpressionError):
    """The error for an expression that reads a field or an element which the data does not have."""


def compile_error(text: str) -> ExpressionError:
    """Return the error that a message of CEL's compiler describes, with the error's position."""
    if "recursion" in text:
        return ExpressionError("it is nested too deep, or has too many operators in a row (32)")
    found = _WHERE.search(text)
    if found is None:
        return ExpressionError(_STATUS.sub("", _STATUS.sub("", text)).strip())
    line, column = int(found[1]), max(int(found[2]), 1)
    return ExpressionError(found[3].removesuffix(" (in container '')"), Position(line, column))
