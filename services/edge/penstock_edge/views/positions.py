"""Three kinds of positions. Each is a type, so that mypy finds one that is used as another."""

from __future__ import annotations

from typing import NewType

# The sequence of a message in its JetStream stream (EVENTS or RAW).
StreamSequence = NewType("StreamSequence", int)

# The number of an item among all items that a hub has encoded: 0, 1, 2 …
RingPosition = NewType("RingPosition", int)

# The bytes of all items that a hub has encoded, up to some point.
ByteOffset = NewType("ByteOffset", int)
