"""A run that stands: something that is not the bus is in its way, say a record that is garbage."""

from __future__ import annotations

import time

from penstock import telemetry

RETRY_S, MAX_RETRY_S = 1.0, 30.0


class Standing:
    """Since when a run has been standing, and how long that is borne."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: float | None = None
        self._tries = 0

    def again(self) -> float:
        """It has failed once more. Returns how long to wait, in seconds; 0 when it is enough."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            telemetry.RUNS_STANDING.inc()
        left_s = self._since + self._patience_s - now
        self._tries += 1
        return max(0.0, min(RETRY_S * 2.0 ** (self._tries - 1), MAX_RETRY_S, left_s))

    @property
    def is_new(self) -> bool:
        """Whether it has failed only once: the traceback is told then, and when it is given up."""
        return self._tries == 1

    def over(self) -> None:
        """It goes on, or nobody waits for it any more."""
        if self._since is not None:
            telemetry.RUNS_STANDING.dec()
        self._since, self._tries = None, 0
