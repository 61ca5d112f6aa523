"""Keeps the runs of a partition that are in memory: busy runs, and idle runs by age."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from penstock.bus import Stored
from penstock_normalizer.runs.run import Run

ENDED_IDLE_S = 10.0  # seconds after a terminal event within which an epilogue follows


class OpenRuns:
    """The runs of one partition whose state is in memory.

    Idle runs are kept in the order in which they became idle. So no method looks at all runs: the
    cost depends only on the number of busy runs, or on the number of runs that are removed.
    """

    def __init__(self, begin: Callable[[str, Callable[[Run], None]], Run], idle_s: float) -> None:
        self._begin = begin
        self._idle_s = idle_s
        self._busy: dict[str, Run] = {}  # runs with frames that are not done
        # Idle runs, each with the monotonic time at which it became idle. The run that became idle
        # first is first.
        self._idle: dict[str, tuple[Run, float]] = {}
        self._ended: dict[str, tuple[Run, float]] = {}

    def push(self, run_id: str, stored: Stored) -> None:
        run = self._busy.get(run_id)
        if run is None:
            known = self._idle.pop(run_id, None) or self._ended.pop(run_id, None)
            run = known[0] if known is not None else self._begin(run_id, self._rests)
            self._busy[run_id] = run
        run.push(stored)

    def _rests(self, run: Run) -> None:
        del self._busy[run.run_id]
        idle = self._ended if run.has_ended else self._idle
        idle[run.run_id] = (run, time.monotonic())

    @property
    def is_busy(self) -> bool:
        return bool(self._busy)

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle) + len(self._ended)

    def done_up_to(self, seen: int) -> int:
        """Return the position in RAW up to which all frames are done; `seen` if all are done."""
        return min((run.backlog.done_up_to for run in self._busy.values()), default=seen)

    def forget_idle(self) -> None:
        """Remove the runs that have been idle for `idle_s`; those that have ended earlier."""
        now = time.monotonic()
        _forget(self._idle, now - self._idle_s)
        _forget(self._ended, now - min(self._idle_s, ENDED_IDLE_S))

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop the work on all runs; return the tasks that have not ended yet."""
        return [task for run in self._busy.values() if (task := run.close()) is not None]

    def clear(self) -> None:
        for run in self._busy.values():
            run.backlog.drop()
        self._busy.clear()
        self._idle.clear()
        self._ended.clear()


def _forget(idle: dict[str, tuple[Run, float]], before: float) -> None:
    while idle:
        run_id = next(iter(idle))
        run, since = idle[run_id]
        if since >= before:
            return
        run.close()
        del idle[run_id]
