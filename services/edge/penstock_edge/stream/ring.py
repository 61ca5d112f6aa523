"""The ring of a hub's newest items, and the chunks in which clients take these items."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from penstock_edge.views.items import Item
from penstock_edge.views.positions import ByteOffset, RingPosition, StreamSequence

CHUNK_BYTES: Final = 256 * 1024
# The number of chunks that are kept. Few chunks are enough, because most clients are at the ring's
# end.
KNOWN_CHUNKS: Final = 4
ITEM_BYTES: Final = 200  # the memory that an item needs in addition to its frames


@dataclass(slots=True)
class Chunk:
    """Items that are written together. `end` is the position in the ring after these items."""

    body: bytes
    end: RingPosition
    items: tuple[Item, ...]


class Ring:
    """Items in the order of their stream. If there are too many, the oldest items are evicted."""

    def __init__(self) -> None:
        self.base = RingPosition(0)  # the position of the oldest item in the ring
        self.held_bytes = 0  # the memory of all items in the ring
        self.delivered_bytes = ByteOffset(0)  # the bytes of all items that were ever appended
        self.evicted: StreamSequence | None = None  # the sequence of the newest evicted item
        self._items: list[Item] = []
        self._chunks: dict[RingPosition, Chunk] = {}

    def append(self, item: Item) -> None:
        """Add an item after the newest item."""
        size_bytes = len(item.body)
        self._items.append(item)
        self.held_bytes += size_bytes + ITEM_BYTES
        self.delivered_bytes = ByteOffset(self.delivered_bytes + size_bytes)
        item.offset = self.delivered_bytes
        if self._chunks:
            self._chunks.clear()

    def evict(self, limit_bytes: int, least: int) -> bool:
        """Evict the oldest items until the others fit in `limit_bytes`, or only `least` are left.

        Returns:
            Whether any item was evicted.
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
        """Return the chunk that begins at this position; None at the ring's end.

        A chunk has at most 256 KiB, unless its first item alone is larger.
        """
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
        """Return the position of the first item at or after this stream sequence."""
        index = bisect_left(self._items, int(sequence), key=lambda item: item.sequence)
        return RingPosition(self.base + index)

    def offset_before(self, at: RingPosition) -> ByteOffset:
        """Return the number of bytes of all items before `at`, including evicted items."""
        index = max(at - self.base, 0)
        if index >= len(self._items):
            return self.delivered_bytes
        item = self._items[index]
        return ByteOffset(item.offset - len(item.body))

    @property
    def end(self) -> RingPosition:
        """The position after the newest item."""
        return RingPosition(self.base + len(self._items))

    @property
    def newest(self) -> Item | None:
        """The item that was appended last; None if the ring is empty."""
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


def http_chunk(body: bytes) -> bytes:
    """Frame the body as one chunk of a chunked response (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(body), body)
