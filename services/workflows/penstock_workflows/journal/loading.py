"""Brings runs in memory up to their journals."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import orjson

from penstock_workflows.engine.effects import Frame
from penstock_workflows.engine.projection import projection
from penstock_workflows.engine.records import Json, Record
from penstock_workflows.engine.state import State, fold
from penstock_workflows.engine.values import ValuesNeeded
from penstock_workflows.journal.journal import EMPTY, Journals
from penstock_workflows.journal.memory import RunInMemory

T = TypeVar("T")

Place = tuple[int, int]  # the numbers of a record and of one of its source frames
MAX_KEPT_BYTES: Final = 16 * 1024 * 1024


class Values:
    """Reads the large values of runs, and keeps the last ones in memory."""

    def __init__(self, journals: Journals) -> None:
        self._journals = journals
        self._kept: OrderedDict[str, tuple[Json, int]] = OrderedDict()
        self._bytes = 0

    async def load(self, run_id: str, digests: Iterable[str], into: dict[str, Json]) -> None:
        """Add the values of these digests to `into`.

        Raises:
            Incomplete: JOURNAL does not have a value.
            BusError: JOURNAL cannot be read now.
        """
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

    async def with_values(self, run_id: str, call: Callable[[dict[str, Json]], T]) -> T:
        """Return the result of `call`, which gets the large values that it asks for.

        Raises:
            Incomplete, BusError: as `load` does.
        """
        values: dict[str, Json] = {}
        while True:
            try:
                return call(values)
            except ValuesNeeded as needed:
                await self.load(run_id, needed.digests, values)


async def read_on(
    run: RunInMemory, journals: Journals, values: Values, projected: Place = (0, 0)
) -> bool:
    """Fold the records that the journal has after the run's end here, and make their frames.

    `projected` is the place of the last frame that RAW has. Returns whether there were records.

    Raises:
        Incomplete: JOURNAL lacks messages.
        UnknownRecord: a newer version of Penstock has written the journal.
        BusError: JOURNAL cannot be read now.
    """
    records, end = await journals.read(run.run_id, run.end)
    state = run.state.copy() if run.state is not None and records else run.state
    frames: list[Frame] = []
    for number, record in enumerate(records, run.end.records + 1):
        if number >= projected[0]:
            made = await values.with_values(run.run_id, _projection(state, record))
            frames += [frame for frame in made if frame.position > projected]
        state = fold(state, record)
    run.is_known = True
    if state is not None and end != EMPTY:
        run.take_over(state, end, frames)
    return bool(records)


def _projection(state: State | None, record: Record) -> Callable[[dict[str, Json]], list[Frame]]:
    return lambda values: projection(state, record, values)
