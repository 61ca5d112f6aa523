"""Reads the stored messages of one or many subjects in the order of their stream."""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from penstock.bus import Bus, Stored
from penstock.bus.read.direct import read
from penstock.bus.streams import events_for
from penstock.web.read_scheduler import Turn
from penstock_edge.views.run_tree import Members
from penstock_edge.views.view import RunTree, Source, View

BATCH = 100
# The greatest number of bytes that one read returns. Because of this limit, the messages that wait
# for a slow client need little memory.
MAX_READ_BYTES = 256 * 1024
# Each read asks for at least this number of messages of a pattern, even if there are many patterns.
LEAST = 4
AT_ONCE = 16  # the number of patterns that are read at the same time

LEAST_READ_BYTES = 16 * 1024

Keep = Callable[[Stored], Awaitable[bool]]
Learn = Callable[[Stored], object]


@dataclass(slots=True)
class _Lane:
    """A pattern, and its messages that were read but not returned yet."""

    pattern: str
    next: int  # the stream sequence from which the next batch is read
    known: int = 0  # all messages of the pattern before this stream sequence have been read
    unreturned: deque[Stored] = field(default_factory=deque)

    def is_read(self, end: int) -> bool:
        return self.known >= end and not (self.unreturned and self.unreturned[0].sequence < end)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a History: the messages that `keep` accepted, how many were `read`, the last
    one's stream sequence (`upto`, 0 if none), and whether no more come before the end."""

    kept: list[Stored]
    read: int
    upto: int
    is_last: bool


class History:
    """Reads the messages of several patterns from the stream sequence `start` on, in the stream's
    order, each once, within one `turn` a step. `keep` decides which are returned.

    `patterns` is called before each batch; a new pattern is read from the current position on. If
    `learn`, which gets each message in order, returns a true value, then a new pattern is read from
    the next message on, and one that `patterns` no longer returns is not read any more.
    """

    def __init__(
        self,
        bus: Bus,
        stream: str,
        patterns: Callable[[], Collection[str]],
        start: int,
        keep: Keep | None = None,
        turn: Turn = nullcontext,
        learn: Learn | None = None,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._patterns = patterns
        self._next = start
        self._keep = keep
        self._turn = turn
        self._learn = learn
        self._lanes: dict[str, _Lane] = {}

    @property
    def next(self) -> int:
        return self._next

    def restart(self) -> None:
        """Read again all messages that have not been returned yet. A caller that misses messages
        calls this method, because a replica that lagged behind may have the messages now."""
        self._lanes.clear()

    async def before(self, end: int, limit: int = BATCH) -> list[Stored]:
        """Return the next messages before this stream sequence; none if there are no more. All of
        them must be stored already. If `keep` accepts none, one call reads up to the end; `step`
        reads fewer. After a BusError, the next call continues at the same position."""
        while True:
            step = await self.step(end, limit)
            if step.kept or step.is_last:
                return step.kept

    async def step(self, end: int, limit: int = BATCH) -> Step:
        """Read up to `limit` messages before this stream sequence. If a step reads no messages, it
        is the last step. After a BusError, the next call continues at the same position."""
        async with self._turn():
            found: list[Stored] = []
            # If all messages of a batch were already returned under another pattern, the next batch
            # is read.
            while not found:
                await self._fill(end, limit)
                found = self._merge(end, limit)
                if not found and all(lane.is_read(end) for lane in self._lanes.values()):
                    return Step([], 0, 0, is_last=True)
            if self._keep is None:
                kept = found
            else:
                kept = [stored for stored in found if await self._keep(stored)]
            return Step(kept, len(found), found[-1].sequence, is_last=False)

    async def _fill(self, end: int, limit: int) -> None:
        patterns = self._patterns()
        if len(patterns) > len(self._lanes):
            for pattern in patterns:
                self._lanes.setdefault(pattern, _Lane(pattern, self._next))
        lanes = max(len(self._lanes), 1)
        piece = max(LEAST, limit // lanes)
        piece_bytes = max(LEAST_READ_BYTES, MAX_READ_BYTES // lanes)
        while lacking := [
            lane for lane in self._lanes.values() if not lane.unreturned and lane.known < end
        ]:
            for at in range(0, len(lacking), AT_ONCE):
                await asyncio.gather(
                    *(
                        self._read(lane, end, piece, piece_bytes)
                        for lane in lacking[at : at + AT_ONCE]
                    )
                )

    async def _read(self, lane: _Lane, end: int, piece: int, piece_bytes: int) -> None:
        async with self._bus.jetstream.reading:
            found, pending = await read(
                self._bus, self._stream, lane.pattern, lane.next, piece, piece_bytes
            )
        if found:
            lane.next = found[-1].sequence + 1
        lane.known = lane.next if found and pending else max(lane.next, end)
        # A message before `_next` matches another pattern, too, and was returned already.
        lane.unreturned.extend(stored for stored in found if stored.sequence >= self._next)

    def _merge(self, end: int, limit: int) -> list[Stored]:
        merged: list[Stored] = []
        lanes = list(self._lanes.values())
        heads = [
            (lane.unreturned[0].sequence, at) for at, lane in enumerate(lanes) if lane.unreturned
        ]
        heapq.heapify(heads)
        while heads and heads[0][0] < end and len(merged) < limit:
            sequence, at = heapq.heappop(heads)
            lane = lanes[at]
            stored = lane.unreturned.popleft()
            if sequence >= self._next:
                merged.append(stored)
                self._next = sequence + 1
                if self._learn is not None and self._learn(stored):
                    self._keep_lanes()
                    break
            if lane.unreturned:
                heapq.heappush(heads, (lane.unreturned[0].sequence, at))
            elif lane.known < end:
                # The next message of this pattern is not read yet, and may come before the messages
                # in `heads`.
                break
        return merged

    def _keep_lanes(self) -> None:
        self._lanes = {
            pattern: self._lanes.get(pattern) or _Lane(pattern, self._next)
            for pattern in self._patterns()
        }


async def tail(bus: Bus, stream: str, patterns: Sequence[str]) -> int:
    """Return the stream sequence of the newest message under these patterns; 0 if there is none."""
    last = 0
    for at in range(0, len(patterns), AT_ONCE):
        found = await asyncio.gather(
            *(bus.tail(stream, pattern) for pattern in patterns[at : at + AT_ONCE])
        )
        last = max(last, *(stored.sequence for stored in found if stored), 0)
    return last


def history_of(
    bus: Bus, view: View, source: Source | None, start: int, turn: Turn = nullcontext
) -> History:
    """Return a reader of the view's stored messages. `source` selects those of a view over many
    runs, and need not be started. For a run tree, `start` must be the sequence of the root's first
    event: only the events before a position show which runs belong to the tree there."""
    if isinstance(view.reads, RunTree):
        members = Members(view.reads.run_id, view.reads.known)
        return history_of_tree(bus, members, start, turn)
    stream, pattern = view.followed.stream, view.followed.pattern
    if source is None:
        return History(bus, stream, lambda: (pattern,), start, turn=turn)
    return History(bus, stream, source.patterns, start, source.accepts, turn)


async def newest_sequence_of(bus: Bus, view: View, start: int) -> int:
    """Return 0 if there is none. This reads all of the view's messages."""
    history, newest = history_of(bus, view, None, start), 0
    while batch := await history.before(sys.maxsize):
        newest = batch[-1].sequence
    return newest


def history_of_tree(bus: Bus, members: Members, start: int, turn: Turn = nullcontext) -> History:
    """Return a reader that updates `members` as it reads."""
    stream = events_for(members.root)
    return History(bus, stream, members.patterns, start, turn=turn, learn=members.learn)
