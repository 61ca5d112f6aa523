"""The ring keeps a hub's newest items; clients take these items in chunks (decision 0090)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.telemetry import RING_BYTES
from penstock_edge.views.cursor import ByteOffset, RingPosition, StreamSequence
from penstock_edge.views.items import Item

CHUNK_BYTES: Final = 256 * 1024
# The number of chunks that the ring keeps. Few chunks are enough, because most clients are at the
# ring's end.
KNOWN_CHUNKS: Final = 4
ITEM_BYTES: Final = 200  # the memory of an item without its frames, in bytes


@dataclass(slots=True)
class Chunk:
    """Items that are written together. `end` is the position after them, `end_bytes` the bytes
    before."""

    body: bytes
    end: RingPosition
    end_bytes: ByteOffset
    items: tuple[Item, ...]


class Ring:
    """Keeps items in the order of their stream; if there are too many, evicts the oldest items.

    The ring keeps only numbers and bytes of each item, because Python's garbage collector does not
    track numbers and bytes. If the ring kept objects, 10,000 events/s would cause 30 collections a
    second, and every 4 s a full collection of 0.1 to 0.2 s (on a busy machine). Without objects
    there are 4 collections a second, and no full collection in 8 s. Only the newest item may have
    `Item.last` set, because the ring does not keep `last` for the other items.
    """

    __slots__ = (
        "_bodies",
        "_chunks",
        "_evicted_bytes",
        "_frames",
        "_sequences",
        "base",
        "end",
        "evicted",
        "held_bytes",
        "newest",
    )

    def __init__(self) -> None:
        self.base = RingPosition(0)  # the position of the oldest item in the ring
        self.end = RingPosition(0)  # the position after the newest item
        self.held_bytes = 0  # the memory of all items in the ring, in bytes
        self.evicted: StreamSequence | None = None  # the sequence of the newest evicted item
        self.newest: Item | None = None  # the item that was appended last; None in an empty ring
        self._sequences: list[int] = []
        self._bodies: list[bytes] = []
        self._evicted_bytes = 0  # the number of bytes of all evicted items
        # maps a position to the frames of its item, for items whose number of frames is not one
        self._frames: dict[int, list[bytes]] = {}
        self._chunks: dict[RingPosition, Chunk] = {}

    def append(self, item: Item) -> None:
        body = item.body
        self.held_bytes += len(body) + ITEM_BYTES
        self._sequences.append(item.sequence)
        self._bodies.append(body)
        if len(item.frames) != 1:
            self._frames[self.end] = item.frames
        # A call of a NewType takes 0.1 µs, so the type is ignored here.
        self.end += 1  # type: ignore[assignment]
        self.newest = item
        if self._chunks:
            self._chunks.clear()

    def evict(self, limit_bytes: int, least: int) -> bool:
        """Keep at least `least` items; return whether any was evicted."""
        count, most = 0, len(self._bodies) - least
        while self.held_bytes > limit_bytes and count < most:
            size_bytes = len(self._bodies[count])
            self.held_bytes -= size_bytes + ITEM_BYTES
            self._evicted_bytes += size_bytes
            count += 1
        if not count:
            return False
        self.evicted = StreamSequence(self._sequences[count - 1])
        if self._frames:
            for position in range(self.base, self.base + count):
                self._frames.pop(position, None)
        self.base = RingPosition(self.base + count)
        del self._sequences[:count], self._bodies[:count]
        if not self._bodies:
            self.newest = None
        self._chunks.clear()
        return True

    def chunk(self, at: RingPosition) -> Chunk | None:
        """Return None at the ring's end, else at most 256 KiB, or one item if it alone is
        larger."""
        known = self._chunks.get(at)
        if known is None and at < self.end:
            if len(self._chunks) >= KNOWN_CHUNKS:
                self._chunks.clear()
            known = self._chunks[at] = self._make_chunk(at - self.base)
        return known

    def position(self, sequence: StreamSequence) -> RingPosition:
        return RingPosition(self.base + bisect_left(self._sequences, int(sequence)))

    @property
    def delivered_bytes(self) -> ByteOffset:
        present_bytes = self.held_bytes - ITEM_BYTES * len(self._bodies)
        return ByteOffset(self._evicted_bytes + present_bytes)

    def offset_before(self, at: RingPosition) -> ByteOffset:
        """Count at least all evicted items."""
        after = self._bodies[max(at - self.base, 0) :]
        return ByteOffset(self.delivered_bytes - sum(map(len, after)))

    def joined(self, at: RingPosition) -> tuple[bytes, RingPosition, StreamSequence]:
        """Return a chunk's bytes, its end, and one more than the sequence of its last item, without
        objects for the items. `at` must be before the ring's end."""
        if at + 1 == self.end:  # nearly always, the chunk is the newest item alone
            return self._bodies[-1], self.end, self._sequences[-1] + 1  # type: ignore[return-value]
        body, stop = self._join(at - self.base)
        return body, RingPosition(self.base + stop), StreamSequence(self._sequences[stop - 1] + 1)

    def _join(self, first: int) -> tuple[bytes, int]:
        """Return the index after the chunk, too."""
        bodies = self._bodies
        stop, size_bytes = first + 1, len(bodies[first])
        while stop < len(bodies):
            size_bytes += len(bodies[stop])
            if size_bytes > CHUNK_BYTES:
                break
            stop += 1
        return bodies[first] if stop - first == 1 else b"".join(bodies[first:stop]), stop

    def _make_chunk(self, first: int) -> Chunk:
        body, stop = self._join(first)
        end = RingPosition(self.base + stop)
        items = tuple(map(self._item, range(first, stop)))
        return Chunk(body, end, self.offset_before(end), items)

    def _item(self, index: int) -> Item:
        position = self.base + index
        if position == self.end - 1 and self.newest is not None:
            return self.newest
        frames = self._frames.get(position)
        return Item(self._sequences[index], [self._bodies[index]] if frames is None else frames)


def http_chunk(body: bytes) -> bytes:
    """Return a chunk of a chunked HTTP response (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class EvictableHub(Protocol):
    """A hub whose ring can be emptied, because clients can replay the evicted items."""

    flush_at: float  # grows with each flush, so it is greatest for the hub with the newest items

    def evict_all(self) -> int:
        """Return the number of bytes that the ring still has."""
        ...


class RingBudget:
    """Empties rings if all together have more bytes than the limit, first those that have had no
    new items for the longest time: their frames were written long ago, so only a client that
    reconnects may still need them."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[EvictableHub, int] = {}  # maps each hub to the bytes of its ring
        self.held_bytes = 0
        self._most_bytes = limit_bytes  # rings are emptied when `held_bytes` exceeds this number

    def hold(self, hub: EvictableHub, held_bytes: int) -> None:
        self.held_bytes += held_bytes - self._held.get(hub, 0)
        self._held[hub] = held_bytes
        if self.held_bytes > self._most_bytes:
            self._empty_rings()

    def forget(self, hub: EvictableHub) -> None:
        self.held_bytes -= self._held.pop(hub, 0)
        self._most_bytes = self._limit_bytes
        self.report()

    def report(self) -> None:
        """Set the metric, at most once every `REPORT_S` (`Flushes`), not for each event."""
        RING_BYTES.set(self.held_bytes)

    def _empty_rings(self) -> None:
        # An eighth of the limit is freed at once, because the hubs must be sorted each time.
        slack_bytes = self._limit_bytes // 8
        for hub in sorted(self._held, key=lambda hub: hub.flush_at):
            if self.held_bytes <= self._limit_bytes - slack_bytes:
                break
            left_bytes = hub.evict_all()
            self.held_bytes += left_bytes - self._held[hub]
            self._held[hub] = left_bytes
        # A ring may keep its last item. If these items alone exceed the limit, the next attempt is
        # made only after the rings have grown by an eighth of the limit, or a hub has ended.
        self._most_bytes = max(self._limit_bytes, self.held_bytes + slack_bytes)
