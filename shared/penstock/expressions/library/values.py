"""Counts what an evaluation takes, names the types of values, and checks integers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from penstock.expressions.errors import ExpressionError

MAX_STEPS: Final = 200_000  # A step takes a microsecond or two.
MAX_BUILT: Final = 4 * 1024 * 1024  # Characters of all texts that one evaluation makes.
# Amounts of work that take the time of one step: the characters that are copied, the elements that
# are compared, the keys that are sorted, and the characters that are matched with a pattern of
# size 1.
CHARACTERS_PER_STEP, ELEMENTS_PER_STEP, KEYS_PER_STEP, PATTERN_PER_STEP = 2000, 50, 3, 25


class TooMuch(Exception):
    """The error for an evaluation that would take too much time or memory. The operator `||`
    ignores other errors, but never this error."""


@dataclass(slots=True)
class Budget:
    """The number of steps and characters that an evaluation may still use. After an evaluation that
    has used all steps, `steps` is negative."""

    steps: int = MAX_STEPS
    characters: int = MAX_BUILT

    def take(self, steps: int = 1) -> None:
        """Count steps. Raises TooMuch."""
        self.steps -= steps
        if self.steps < 0:
            raise TooMuch(f"it takes more than {MAX_STEPS} steps")

    def build(self, characters: int) -> None:
        """Count the characters of a new text. Raises TooMuch."""
        self.characters -= characters
        if self.characters < 0:
            raise TooMuch(f"it makes texts of more than {MAX_BUILT} characters")
        self.take(1 + characters // CHARACTERS_PER_STEP)


Function = Callable[..., Any]  # called with the budget and the function's arguments


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
