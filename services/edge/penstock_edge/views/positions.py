"""Three types of positions. Because the types are different, mypy finds a position of the wrong
type."""

from __future__ import annotations

from typing import NewType

# The sequence of a message in its JetStream stream (EVENTS or RAW).
StreamSequence = NewType("StreamSequence", int)

# The number of an item among all items that a hub has encoded; the first item has the number 0.
RingPosition = NewType("RingPosition", int)

# The number of bytes of all items that a hub has encoded before some position.
ByteOffset = NewType("ByteOffset", int)
