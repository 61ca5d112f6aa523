"""Counts the steps and the characters that an evaluation takes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

MAX_STEPS: Final = 200_000  # a step takes a microsecond or two
MAX_BUILT: Final = 4 * 1024 * 1024  # characters of all texts that one evaluation makes
# The characters or elements that are copied or compared in the time of one step, and the characters
# that a pattern of size 1 is matched with.
CHARACTERS_PER_STEP, ELEMENTS_PER_STEP, PATTERN_PER_STEP = 2000, 50, 100


class TooMuch(Exception):
    """An evaluation would take too much time or memory. Unlike other errors, `||` keeps it."""


@dataclass(slots=True)
class Budget:
    """What an evaluation may still take."""

    steps: int = MAX_STEPS
    characters: int = MAX_BUILT

    def take(self, steps: int = 1) -> None:
        """Count steps.

        Raises:
            TooMuch: there are no more steps.
        """
        self.steps -= steps
        if self.steps < 0:
            raise TooMuch(f"it takes more than {MAX_STEPS} steps")

    def build(self, characters: int) -> None:
        """Count the characters of a new text.

        Raises:
            TooMuch: there are no more characters.
        """
        self.characters -= characters
        if self.characters < 0:
            raise TooMuch(f"it makes texts of more than {MAX_BUILT} characters")
        self.take(1 + characters // CHARACTERS_PER_STEP)


Function = Callable[..., Any]  # takes the budget and the arguments
