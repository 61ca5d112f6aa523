"""Keep the runs of a partition that are in memory: the busy ones, and the idle ones by age."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from penstock.bus import Stored
from penstock_normalizer.runs.active_run import ActiveRun

ENDED_IDLE_S = 10.0  # an epilogue follows its terminal event within this time


class OpenRuns:
    """The runs of one partition whose state is in memory.

    Idle runs are kept in the order in which they became idle. So no method looks at all runs: the
    costs depend only on the number of busy runs, and of the runs that are forgotten.
    """

    def __init__(
        self, begin: Callable[[str, Callable[[ActiveRun], None]], ActiveRun], idle_s: float
    ) -> None:
        self._begin = begin
        self._idle_s = idle_s
        self._busy: dict[str, ActiveRun] = {}  # frames of these runs are not done
        # Idle runs, with the time of the monotonic clock since when they are idle. The first run is
        # idle for the longest time.
        self._idle: dict[str, tuple[ActiveRun, float]] = {}
        self._ended: dict[str, tuple[ActiveRun, float]] = {}

    def push(self, run_id: str, stored: Stored) -> None:
        """Hand a frame to its run; begin the run if it is not in memory."""
        run = self._busy.get(run_id)
        if run is None:
            known = self._idle.pop(run_id, None) or self._ended.pop(run_id, None)
            run = known[0] if known is not None else self._begin(run_id, self._rests)
            self._busy[run_id] = run
        run.push(stored)

    def _rests(self, run: ActiveRun) -> None:
        del self._busy[run.run_id]
        idle = self._ended if run.has_ended else self._idle
        idle[run.run_id] = (run, time.monotonic())

    @property
    def is_busy(self) -> bool:
        """Whether some frames are not done."""
        return bool(self._busy)

    def __len__(self) -> int:
        """The number of runs in memory."""
        return len(self._busy) + len(self._idle) + len(self._ended)

    def floor(self, seen: int) -> int:
        """Return the position in RAW up to which all frames are done; `seen` if all are done."""
        return min((run.floor for run in self._busy.values()), default=seen)

    def forget_idle(self) -> None:
        """Remove the runs that have been idle for long enough."""
        now = time.monotonic()
        _forget(self._idle, now - self._idle_s)
        _forget(self._ended, now - min(self._idle_s, ENDED_IDLE_S))

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop the work on all runs; return the tasks that still have to end."""
        return [task for run in self._busy.values() if (task := run.close()) is not None]

    def clear(self) -> None:
        """Remove all runs, and free the memory of their frames."""
        for run in self._busy.values():
            run.drop()
        self._busy.clear()
        self._idle.clear()
        self._ended.clear()


def _forget(idle: dict[str, tuple[ActiveRun, float]], before: float) -> None:
    """Remove the runs that are idle since a time before `before`."""
    while idle:
        run_id = next(iter(idle))
        run, since = idle[run_id]
        if since >= before:
            return
        run.close()
        del idle[run_id]
