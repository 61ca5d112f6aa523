"""Decides when a blocked run is tried again.

A run is blocked by a failure of something other than the bus, for example by a corrupt record. If
the frame that failed were skipped, the run's events would have a gap. So the run is tried again,
with growing delays, for a limited time.
"""

from __future__ import annotations

import time

from penstock import telemetry

RETRY_S, MAX_RETRY_S = 1.0, 30.0  # seconds before the second try, and the greatest delay in seconds


class BlockedRun:
    """Limits how long a blocked run is tried again, and counts blocked runs in a metric."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: float | None = None  # when the run was blocked; None if it is not blocked
        self._failures = 0

    def failed(self) -> float:
        """Count a failure; return the seconds until the next try, or 0 after the time limit."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            telemetry.RUNS_STANDING.inc()
        left_s = self._since + self._patience_s - now
        self._failures += 1
        return max(0.0, min(RETRY_S * 2.0 ** min(self._failures - 1, 10), MAX_RETRY_S, left_s))

    @property
    def is_first_failure(self) -> bool:
        """Whether this is the first failure, for which the traceback is logged."""
        return self._failures == 1

    def unblocked(self) -> None:
        """Forget the failures, because the run continues or this process no longer works on the
        run."""
        if self._since is not None:
            telemetry.RUNS_STANDING.dec()
        self._since, self._failures = None, 0
