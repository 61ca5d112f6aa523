"""What stands in a stream of one or many subjects, read in the stream's own order."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from penstock.bus import Bus, Stored
from penstock.bus.read.direct import read
from penstock.web.read_turns import Turn

BATCH = 100
MAX_READ_BYTES = 256 * 1024  # so much may be held for each client that does not read
LEAST = 4  # of many patterns, each is read in small pieces
AT_ONCE = 16

Keep = Callable[[Stored], Awaitable[bool]]


@dataclass(slots=True)
class _Lane:
    """One pattern: what was read of it and is not given yet."""

    pattern: str
    next: int  # where it is read on
    known: int = 0  # all of it that stands below this stream sequence has been read
    held: deque[Stored] = field(default_factory=deque)

    def is_read(self, floor: int) -> bool:
        """Whether all of it below the floor is given."""
        return self.known >= floor and not (self.held and self.held[0].sequence < floor)


@dataclass(frozen=True, slots=True)
class Step:
    """What one reading gave. `read`: messages, also those that `keep` has left out.

    `upto` is the stream sequence of the last of them, 0 without any. `is_last`: below the floor
    nothing follows.
    """

    given: list[Stored]
    read: int
    upto: int
    is_last: bool


class Past:
    """The messages of some patterns from a stream sequence on, merged; each once.

    `patterns` is asked before each batch: what joins later is read from where the reading stands.
    `keep` leaves out what the reader is not to be given. Each step is done within a `turn`.
    """

    def __init__(
        self,
        bus: Bus,
        stream: str,
        patterns: Callable[[], Collection[str]],
        start: int,
        keep: Keep | None = None,
        turn: Turn = nullcontext,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._patterns = patterns
        self._next = start
        self._keep = keep
        self._turn = turn
        self._lanes: dict[str, _Lane] = {}

    async def below(self, floor: int, limit: int = BATCH) -> list[Stored]:
        """The next messages below this stream sequence; none when there are no more.

        Everything below the floor must stand in the stream by now. Raises BusError; asked again,
        it goes on where it stood. Where `keep` leaves out everything, it reads to the floor: who
        must not do that takes steps.
        """
        while True:
            step = await self.step(floor, limit)
            if step.given or step.is_last:
                return step.given

    async def step(self, floor: int, limit: int = BATCH) -> Step:
        """Up to `limit` messages below this stream sequence, and what is kept of them.

        Otherwise like `below`. Unless it is the last, a step reads at least one message.
        """
        async with self._turn():
            found: list[Stored] = []
            while not found:  # what was merged may all have been given before
                await self._fill(floor, limit)
                found = self._merge(floor, limit)
                if not found and all(lane.is_read(floor) for lane in self._lanes.values()):
                    return Step([], 0, 0, is_last=True)
            if self._keep is None:
                kept = found
            else:
                kept = [stored for stored in found if await self._keep(stored)]
            return Step(kept, len(found), found[-1].sequence, is_last=False)

    async def _fill(self, floor: int, limit: int) -> None:
        patterns = self._patterns()
        if len(patterns) > len(self._lanes):
            for pattern in patterns:
                self._lanes.setdefault(pattern, _Lane(pattern, self._next))
        piece = max(LEAST, limit // max(len(self._lanes), 1))
        while lacking := [
            lane for lane in self._lanes.values() if not lane.held and lane.known < floor
        ]:
            for at in range(0, len(lacking), AT_ONCE):
                await asyncio.gather(
                    *(self._read(lane, floor, piece) for lane in lacking[at : at + AT_ONCE])
                )

    async def _read(self, lane: _Lane, floor: int, piece: int) -> None:
        async with self._bus.jetstream.reading:
            found, pending = await read(
                self._bus, self._stream, lane.pattern, lane.next, piece, MAX_READ_BYTES
            )
        if found:
            lane.next = found[-1].sequence + 1
        lane.known = lane.next if found and pending else max(lane.next, floor)
        # another pattern may have the same message
        lane.held.extend(stored for stored in found if stored.sequence >= self._next)

    def _merge(self, floor: int, limit: int) -> list[Stored]:
        given: list[Stored] = []
        lanes = list(self._lanes.values())
        heads = [(lane.held[0].sequence, at) for at, lane in enumerate(lanes) if lane.held]
        heapq.heapify(heads)
        while heads and heads[0][0] < floor and len(given) < limit:
            sequence, at = heapq.heappop(heads)
            lane = lanes[at]
            stored = lane.held.popleft()
            if sequence >= self._next:
                given.append(stored)
                self._next = sequence + 1
            if lane.held:
                heapq.heappush(heads, (lane.held[0].sequence, at))
            elif lane.known < floor:
                break  # what follows in it comes first
        return given


async def tail(bus: Bus, stream: str, patterns: Sequence[str]) -> int:
    """The stream sequence of the last message of all these, 0 when there is none."""
    last = 0
    for at in range(0, len(patterns), AT_ONCE):
        found = await asyncio.gather(
            *(bus.tail(stream, pattern) for pattern in patterns[at : at + AT_ONCE])
        )
        last = max(last, *(stored.sequence for stored in found if stored), 0)
    return last
