"""The newest items of a hub, and the chunks in which its clients take them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from penstock_edge.stream.direct_write import http_chunk
from penstock_edge.views.items import Item
from penstock_edge.views.positions import ByteOffset, RingPosition, StreamSequence

CHUNK_BYTES: Final = 256 * 1024
KNOWN_CHUNKS: Final = 4  # most clients are at the ring's end, and take the same chunk
ITEM_BYTES: Final = 200  # the memory that an item takes besides its frames


@dataclass(slots=True)
class Chunk:
    """Items that are written together. `end` is the ring's position after them."""

    body: bytes
    end: RingPosition
    items: tuple[Item, ...]
    _framed: bytes = b""

    @property
    def framed(self) -> bytes:
        """The body as an HTTP chunk, made once for all clients that take it."""
        if not self._framed:
            self._framed = http_chunk(self.body)
        return self._framed


class Ring:
    """Items in the order of their stream, the oldest of which are evicted when it is too large."""

    def __init__(self) -> None:
        self.base = RingPosition(0)  # the position of the oldest item that is still here
        self.held_bytes = 0
        self.delivered_bytes = ByteOffset(0)  # of all items that were ever appended
        self.evicted: StreamSequence | None = None  # the newest message that was evicted
        self._items: list[Item] = []
        self._chunks: dict[RingPosition, Chunk] = {}

    def append(self, item: Item) -> None:
        """Add the item that follows the newest one."""
        size_bytes = len(item.body)
        self._items.append(item)
        self.held_bytes += size_bytes + ITEM_BYTES
        self.delivered_bytes = ByteOffset(self.delivered_bytes + size_bytes)
        item.offset = self.delivered_bytes
        self._chunks.clear()

    def evict(self, limit_bytes: int, least: int) -> bool:
        """Remove the oldest items until the rest fits, or only `least` are left.

        Returns whether any was removed.
        """
        count = 0
        while self.held_bytes > limit_bytes and count < len(self._items) - least:
            self.held_bytes -= len(self._items[count].body) + ITEM_BYTES
            count += 1
        if not count:
            return False
        self.evicted = StreamSequence(self._items[count - 1].sequence)
        self.base = RingPosition(self.base + count)
        del self._items[:count]
        self._chunks.clear()
        return True

    def chunk(self, at: RingPosition) -> Chunk | None:
        """The items from a position on, up to 256 KiB or one item; None at the ring's end."""
        known = self._chunks.get(at)
        if known is None:
            items = self._items[at - self.base :]
            if not items:
                return None
            if len(self._chunks) >= KNOWN_CHUNKS:
                self._chunks.clear()
            known = self._chunks[at] = _chunk_of(items, at)
        return known

    def position(self, sequence: StreamSequence) -> RingPosition:
        """The position of the first item at or after this stream sequence."""
        index = bisect_left(self._items, int(sequence), key=lambda item: item.sequence)
        return RingPosition(self.base + index)

    def offset_before(self, at: RingPosition) -> ByteOffset:
        """The bytes of all items before a position."""
        index = at - self.base
        if index >= len(self._items):
            return self.delivered_bytes
        item = self._items[index]
        return ByteOffset(item.offset - len(item.body))

    @property
    def newest(self) -> Item | None:
        """The item that was appended last, unless it was evicted."""
        return self._items[-1] if self._items else None


def _chunk_of(items: list[Item], at: RingPosition) -> Chunk:
    size_bytes = count = 0
    for item in items:
        if count and size_bytes + len(item.body) > CHUNK_BYTES:
            break
        size_bytes += len(item.body)
        count += 1
    body = items[0].body if count == 1 else b"".join(item.body for item in items[:count])
    return Chunk(body, RingPosition(at + count), tuple(items[:count]))
