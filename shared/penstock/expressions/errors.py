"""Defines the errors of expressions, with the reason and the position in the expression's text.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


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
