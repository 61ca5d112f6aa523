"""The cursor of a client: the `id:` of the last frame that the client has received (decision
0093)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NewType, Self

# The sequence of a message in its JetStream stream (EVENTS or RAW).
StreamSequence = NewType("StreamSequence", int)

# The number of an item among all items that a hub has encoded; the first item has the number 0.
RingPosition = NewType("RingPosition", int)

# The number of bytes of all items that a hub has encoded before some position.
ByteOffset = NewType("ByteOffset", int)


# The greatest frame index. A client with this cursor has all frames of the message.
LAST_FRAME = 999_999_999

_FORM = re.compile(r"([1-9][0-9]{0,17})-([0-9]{1,9})")


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A cursor `<stream sequence>-<frame index>`. In every dialect, the stream sequence is the
    sequence of the message in JetStream."""

    sequence: int
    frame: int

    def __str__(self) -> str:
        return f"{self.sequence}-{self.frame}"

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text[:80]!r} is no cursor: send back the id of a frame")
        return cls(int(match[1]), int(match[2]))


# The cursor in a shard of which the client has received no frame.
BEFORE_ALL: Final = Cursor(0, 0)

_BETWEEN: Final = "."
_ID: Final = re.compile(rb"^id: ([0-9]+-[0-9]+)$", re.MULTILINE)


@dataclass(slots=True)
class ShardCursor:
    """The position of a client in each shard, shard 0 first; as text separated by dots. If a shard
    was added after the client had received its cursor, the client begins at its first message."""

    positions: list[Cursor] = field(default_factory=list)

    def __str__(self) -> str:
        return _BETWEEN.join(map(str, self.positions))

    @classmethod
    def parse(cls, text: str) -> Self:
        before = str(BEFORE_ALL)
        parts = text.strip().split(_BETWEEN)
        found = [BEFORE_ALL if part == before else Cursor.parse(part) for part in parts]
        if found == [BEFORE_ALL]:
            raise ValueError(f"{text[:80]!r} is no cursor: send back the id of a frame")
        return cls(found)

    def of(self, shard: int) -> Cursor:
        return self.positions[shard] if shard < len(self.positions) else BEFORE_ALL

    def advance(self, shard: int, body: bytes) -> bytes:
        """Move the shard's position to the last frame of `body`; return `body` with cursors of all
        shards as ids.

        JSON has no newlines, so a line that begins with `id:` is never part of a frame's data.
        """

        def id_line(match: re.Match[bytes]) -> bytes:
            self.positions[shard] = Cursor.parse(match[1].decode())
            return b"id: " + str(self).encode()

        return _ID.sub(id_line, body)
