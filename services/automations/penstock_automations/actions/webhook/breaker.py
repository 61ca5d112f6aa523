"""The circuit breaker and the rate limit of one endpoint. Pure: callers pass the time.

A breaker has three states. While it is CLOSED, requests pass. While it is OPEN, no request passes
until a certain time. Then it is HALF_OPEN: one request passes as a probe, and the result of the
probe closes or opens the breaker.
"""

from __future__ import annotations

from enum import Enum, auto

FAILURES = 5  # the number of failures in a row that opens the breaker
FIRST_OPEN_S, MAX_OPEN_S = 30.0, 600.0
PROBE_S = 5.0  # seconds that other requests wait while a probe is under way


class State(Enum):
    """The state of a breaker."""

    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


class Breaker:
    """Stops requests to an endpoint that does not answer. Times are seconds on one clock."""

    def __init__(self, first_open_s: float = FIRST_OPEN_S) -> None:
        self.state = State.CLOSED
        self._first_open_s = first_open_s
        self._open_s = first_open_s
        self._until = 0.0
        self._failed_at = 0.0
        self.failures = 0

    def left_s(self, now: float) -> float:
        return 0.0 if self.state is State.CLOSED else max(self._until - now, 0.0)

    def waits_s(self, now: float, woken: float = 0.0) -> float:
        """Return the seconds until a request may be made, but admit no request."""
        if woken > self._failed_at:
            return 0.0
        match self.state:
            case State.OPEN if now < self._until:
                return max(self._until - now, 1.0)
            case State.HALF_OPEN if now < self._until:
                # The probe's result comes soon, so the wait is short. With a longer wait,
                # deliveries would still wait long after the endpoint works again.
                return min(max(self._until - now, 1.0), PROBE_S)
            case _:
                return 0.0

    def admit(self, now: float, woken: float = 0.0) -> float:
        """Return 0 if a request may be made now, otherwise the seconds to wait.

        `woken` is when a success, perhaps of another process, showed that the endpoint works. The
        breaker does not stop such a request until a later one fails, and with `math.inf` never. If
        the result is 0, the caller makes the request and records its result. If a caller never
        records the result of a probe, another probe is admitted later.
        """
        if wait_s := self.waits_s(now, woken):
            return wait_s
        if self.state is not State.CLOSED and woken <= self._failed_at:
            self.state = State.HALF_OPEN
            self._until = now + self._open_s
        return 0.0

    def record_success(self) -> bool:
        """Report that the endpoint answered. Return whether the breaker was not closed."""
        was_stopping = self.state is not State.CLOSED
        self.state = State.CLOSED
        self.failures = 0
        self._open_s = self._first_open_s
        return was_stopping

    def record_failure(self, now: float) -> None:
        self.failures += 1
        self._failed_at = now
        if self.state is State.HALF_OPEN:
            self._open_s = min(self._open_s * 2, MAX_OPEN_S)
        elif self.state is State.OPEN or self.failures < FAILURES:
            return
        self.state = State.OPEN
        self._until = now + self._open_s


class Rate:
    """A token bucket of `per_s` requests per second, with a burst of one second's requests."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._tokens = max(per_s, 1.0)
        self._at: float | None = None

    def admit(self, now: float) -> float:
        """Take a token and return 0. Without a token, return the seconds until the next one."""
        if self._at is not None:
            earned = (now - self._at) * self.per_s
            self._tokens = min(self._tokens + earned, max(self.per_s, 1.0))
        self._at = now
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self.per_s
