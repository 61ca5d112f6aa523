"""The cursor of a client: the `id:` of the last frame that the client has received."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

# The greatest frame index. A client with this cursor has all frames of the message.
LAST_FRAME = 999_999_999

_FORM = re.compile(r"([1-9][0-9]{0,17})-([0-9]{1,9})")


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A cursor `<stream sequence>-<frame index>`.

    In every dialect, the stream sequence is the sequence of the message in JetStream.
    """

    sequence: int
    frame: int

    def __str__(self) -> str:
        return f"{self.sequence}-{self.frame}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a cursor.

        Raises:
            ValueError: the text is not a cursor.
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text[:80]!r} is no cursor: send back the id of a frame")
        return cls(int(match[1]), int(match[2]))
