"""Counts the runs that one run leads to, and tells the runs of steps that their workflow stops.

A run leads to further runs when a workflow runs its steps, and when rules of automations start runs
for the run's events. These runs and their root, the run at the beginning, are a tree. KV `trees`
has two kinds of entries:

- `runs.<root>` has the ids of all runs below a root. A run is added by compare-and-set before its
  record is written. So the count is exact with several processes, and a start that is repeated
  after a kill is counted once.
- `stopped.<run>` says that a workflow's run stops. A run below this workflow reads the entry before
  it begins. So a cancel has effect at once, also on runs whose own cancel comes later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakValueDictionary

from pydantic import Field

from penstock.bus.records.base import Record
from penstock.bus.state.kv import Buckets


class TreeRuns(Record):
    """KV `trees`, key `runs.<root>`: the runs to which the root has led."""

    runs: list[str] = Field([])


class Stopped(Record):
    """KV `trees`, key `stopped.<run>`: by whom and for what reason a workflow's run stops."""

    by: str
    reason: str
    always_due: int | None = Field(
        None,
        description="Until when the run's `always` steps may run, in milliseconds since 1970; "
        "absent without such steps",
    )


class RunTrees:
    """Reads and writes KV `trees`; all methods raise BusError if the bus does not answer."""

    def __init__(self, bus: Buckets) -> None:
        self._bucket = bus.bucket("trees")
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def add(self, root_run_id: str, run_id: str, limit: int) -> bool:
        """Count a run below a root; return False, and count nothing, if `limit` runs are counted. A
        run that is counted already is not counted again."""
        key = f"runs.{root_run_id}"

        def count(tree: TreeRuns) -> None:
            if run_id not in tree.runs and len(tree.runs) < limit:
                tree.runs.append(run_id)

        # Without the lock, the concurrent starts of this process would refuse each other's writes.
        async with self._locks.setdefault(root_run_id, asyncio.Lock()):
            tree = await self._bucket.change(key, TreeRuns, count, TreeRuns(runs=[]))
        return tree is not None and run_id in tree.runs

    async def mark_stopped(
        self, run_id: str, by: str, reason: str, always_due: int | None = None
    ) -> None:
        """Write the mark. A mark without `always_due`, as of a second cancel, replaces no other."""
        value = Stopped(by=by, reason=reason, always_due=always_due).dump()
        write = self._bucket.create if always_due is None else self._bucket.put
        await write(f"stopped.{run_id}", value)

    async def stopped_among(self, run_ids: Sequence[str]) -> Stopped | None:
        """Return why the outermost stopped run of these runs stops; None if none of them stops."""
        found = await self._bucket.many([f"stopped.{run_id}" for run_id in run_ids])
        for run_id in run_ids:
            if (entry := found.get(f"stopped.{run_id}")) is not None:
                return Stopped.model_validate_json(entry.value)
        return None
