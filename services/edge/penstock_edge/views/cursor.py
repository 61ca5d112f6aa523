"""A client's cursor: the `id:` of the last frame that it has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

LAST_FRAME = 999_999_999

_FORM = re.compile(r"([1-9][0-9]{0,17})-([0-9]{1,9})")


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """`<stream sequence>-<frame index>`: the same for every dialect over the same stream."""

    sequence: int
    frame: int

    def __str__(self) -> str:
        return f"{self.sequence}-{self.frame}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cursor that `str` has written.

        Raises:
            ValueError: the text is no cursor.
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text[:80]!r} is no cursor: send back the id of a frame")
        return cls(int(match[1]), int(match[2]))
