"""Keeps the states of runs in memory, so that an input does not read its run's whole journal.

A state in memory is old if another process has appended to the journal. NATS then refuses this
process's append, because the append's fence names the old end.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

import orjson
from pydantic import ValidationError

from penstock.bus import RawWriter
from penstock.off_loop import OFF_LOOP
from penstock.turns import TenantUser
from penstock_workflows.definition import InvalidDefinition
from penstock_workflows.engine.effects import Frame
from penstock_workflows.engine.plan import plan_of_json
from penstock_workflows.engine.projection import projection
from penstock_workflows.engine.records import End, Json, Record, Scheduled, Started, TurnAsked
from penstock_workflows.engine.state import State, fold
from penstock_workflows.engine.values import ValuesNeeded
from penstock_workflows.journal.journal import EMPTY, Journals, Position

# the numbers of a record and of one of its source frames
FramePosition: TypeAlias = tuple[int, int]
BEFORE_FIRST_FRAME: Final[FramePosition] = (0, 0)  # before the first frame


@dataclass(slots=True, eq=False)
class RunInMemory:
    """The state of a run after the journal records that this process has read or written.

    `frames` are the source frames of records up to `end` that RAW may not have yet. `writer` writes
    these frames, and is None while it is unknown which frames RAW has. `last_frame_position` is the
    position of the last frame that RAW is known to have. This position may be beyond `end` if
    another process has written more. `is_known` is False until this process has read or written the
    journal. `owes_effects` is True from an append until the effects of its records are done. If
    `owes_effects` is True, the next input first does the effects of all open steps again.
    """

    run_id: str
    state: State | None = None
    end: Position = EMPTY
    is_known: bool = False
    owes_effects: bool = False
    frames: deque[Frame] = field(default_factory=deque)
    writer: RawWriter | None = None
    last_frame_position: FramePosition = BEFORE_FIRST_FRAME
    unreadable: str | None = None  # why this version cannot compile the run's definition
    # The child runs to cancel; filled only if the run's definition is unreadable.
    children: list[str] = field(default_factory=list)
    # True if the state may be wrong, and must be read again before the next input of the run.
    is_stale: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0  # The number of inputs that use the run or wait for it.

    def take_over(self, state: State, end: Position, frames: Sequence[Frame]) -> None:
        """Take the state after the records up to `end`, and their source frames."""
        self.state, self.end, self.is_known = state, end, True
        self.frames += frames

    def reset(self) -> None:
        """Forget the journal's records, and which frames RAW has, so that both are read again."""
        self.state, self.end, self.is_known, self.is_stale = None, EMPTY, False, False
        self.unreadable = None
        self.children.clear()
        self.frames.clear()
        self.writer, self.last_frame_position = None, BEFORE_FIRST_FRAME


class Runs:
    """Keeps at most `limit` runs in memory, except while inputs use more runs at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: OrderedDict[str, RunInMemory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    @asynccontextmanager
    async def take(self, run_id: str) -> AsyncIterator[RunInMemory]:
        """Yield the run to one input at a time; other inputs of the run wait."""
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = RunInMemory(run_id)
        self._runs.move_to_end(run_id)
        run.users += 1
        try:
            async with run.lock:
                if run.is_stale:
                    run.reset()
                yield run
        finally:
            run.users -= 1
            self._drop_some(run)

    def forget(self) -> None:
        """Forget every state, because NATS may have lost the end of JOURNAL.

        Then another process's record can get the same sequence as the last record of a state in
        memory, and the fence would accept an append that belongs to the lost records.
        """
        for run_id, run in list(self._runs.items()):
            if run.users or run.owes_effects:
                run.is_stale = True
            else:
                del self._runs[run_id]

    def _drop_some(self, done: RunInMemory) -> None:
        is_over = done.state is None or done.state.end is not None
        if is_over and not done.users and not done.owes_effects:
            self._runs.pop(done.run_id, None)
        excess = len(self._runs) - self._limit
        if excess <= 0:
            return
        idle = (run_id for run_id, run in self._runs.items() if not run.users | run.owes_effects)
        for run_id in list(itertools.islice(idle, excess)):
            del self._runs[run_id]


T = TypeVar("T")

MAX_KEPT_BYTES: Final = 16 * 1024 * 1024
FOLDED_AT_ONCE: Final = 100  # the most records that are folded in one turn of the event loop


class Values:
    """Reads the large values of runs, and keeps the values that were used last in memory."""

    def __init__(self, journals: Journals) -> None:
        self._journals = journals
        self._values: OrderedDict[str, tuple[Json, int]] = OrderedDict()
        self._bytes = 0

    async def load(self, run_id: str, digests: Iterable[str], into: dict[str, Json]) -> None:
        for digest in digests:
            found = self._values.get(digest)
            if found is None:
                payload = await self._journals.value(run_id, digest)
                found = orjson.loads(payload), len(payload)
                self._keep(digest, *found)
            into[digest] = found[0]

    def _keep(self, digest: str, value: Json, size_bytes: int) -> None:
        self._values[digest] = value, size_bytes
        self._bytes += size_bytes
        while self._bytes > MAX_KEPT_BYTES:
            _, (_, dropped) = self._values.popitem(last=False)
            self._bytes -= dropped

    async def with_values(self, run_id: str, call: Callable[[dict[str, Json]], Awaitable[T]]) -> T:
        """Call `call` with the large values that it needs, which its ValuesNeeded names."""
        values: dict[str, Json] = {}
        while True:
            try:
                return await call(values)
            except ValuesNeeded as needed:
                await self.load(run_id, needed.digests, values)


async def fold_new_records(
    run: RunInMemory,
    journals: Journals,
    values: Values,
    find_last_frame: Callable[[RunInMemory], Awaitable[object]],
) -> bool:
    """Fold the journal's records that the run in memory lacks, and make their frames.

    `find_last_frame` sets the position of the run's last frame in RAW, before which no frames are
    made. Returns whether there were new records. Raises Incomplete and UnknownRecord as
    `Journals.read`.
    """
    records, end = await journals.read(run.run_id, run.end)
    if not records:
        run.is_known = True
        return False
    if not run.is_known:
        await find_last_frame(run)
    if not run.end.records and isinstance(records[0], Started):
        command, definition = records[0].command, records[0].definition
        try:
            if definition is not None:
                user = TenantUser.of(command)
                await OFF_LOOP.run(user, partial(plan_of_json, definition))
        except (ValidationError, InvalidDefinition) as error:
            run.unreadable = str(error)
    if run.unreadable is not None:
        _pass_over(run, records, end)
        return True
    state = run.state.copy() if run.state is not None else None
    frames: list[Frame] = []
    for number, record in enumerate(records, run.end.records + 1):
        if number >= run.last_frame_position[0]:
            frames += await values.with_values(run.run_id, _projection(state, record))
        state = fold(state, record)
        if number % FOLDED_AT_ONCE == 0:
            await asyncio.sleep(0)  # other runs go on meanwhile
    assert state is not None
    run.take_over(state, end, frames)
    return True


def _pass_over(run: RunInMemory, records: Sequence[Record], end: Position) -> None:
    """Take over records of a run whose definition this version cannot compile: only whether the run
    has ended, which children must be cancelled, and which queue it must leave."""
    if run.state is None:
        first = records[0]
        assert isinstance(first, Started)
        run.state = fold(None, replace(first, definition=None))
    for record in records:
        if isinstance(record, Scheduled):
            run.children.append(record.child)
        elif isinstance(record, TurnAsked):
            run.state.turn = record
        elif isinstance(record, End):
            run.state.end = record
    run.state.length, run.end, run.is_known = end.records, end, True


def _projection(
    state: State | None, record: Record
) -> Callable[[dict[str, Json]], Awaitable[list[Frame]]]:
    async def call(values: dict[str, Json]) -> list[Frame]:
        return projection(state, record, values)

    return call
