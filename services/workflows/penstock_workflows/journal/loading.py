"""Updates the runs in memory from their journals."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import orjson
from pydantic import ValidationError

from penstock.off_loop import OFF_LOOP
from penstock_workflows.definition import InvalidDefinition
from penstock_workflows.engine.effects import Frame
from penstock_workflows.engine.plan import plan_of_json
from penstock_workflows.engine.projection import projection
from penstock_workflows.engine.records import End, Json, Record, Scheduled, Started
from penstock_workflows.engine.state import State, fold
from penstock_workflows.engine.values import ValuesNeeded
from penstock_workflows.journal.journal import Journals, Position
from penstock_workflows.journal.memory import RunInMemory

T = TypeVar("T")

MAX_KEPT_BYTES: Final = 16 * 1024 * 1024
FOLDED_AT_ONCE: Final = 100  # the most records that are folded in one turn of the event loop


class Values:
    """Reads the large values of runs, and keeps the values that were used last in memory."""

    def __init__(self, journals: Journals) -> None:
        self._journals = journals
        self._kept: OrderedDict[str, tuple[Json, int]] = OrderedDict()
        self._bytes = 0

    async def load(self, run_id: str, digests: Iterable[str], into: dict[str, Json]) -> None:
        for digest in digests:
            kept = self._kept.get(digest)
            if kept is None:
                payload = await self._journals.value(run_id, digest)
                kept = orjson.loads(payload), len(payload)
                self._keep(digest, *kept)
            into[digest] = kept[0]

    def _keep(self, digest: str, value: Json, size_bytes: int) -> None:
        self._kept[digest] = value, size_bytes
        self._bytes += size_bytes
        while self._bytes > MAX_KEPT_BYTES:
            _, (_, dropped) = self._kept.popitem(last=False)
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
                owner = str(command.get("user_id") or "")
                await OFF_LOOP.run(owner, partial(plan_of_json, definition))
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
    has ended, and which children must be cancelled."""
    if run.state is None:
        first = records[0]
        assert isinstance(first, Started)
        run.state = fold(None, replace(first, definition=None))
    for record in records:
        if isinstance(record, Scheduled):
            run.children.append(record.child)
        elif isinstance(record, End):
            run.state.end = record
    run.state.length, run.end, run.is_known = end.records, end, True


def _projection(
    state: State | None, record: Record
) -> Callable[[dict[str, Json]], Awaitable[list[Frame]]]:
    async def call(values: dict[str, Json]) -> list[Frame]:
        return projection(state, record, values)

    return call
