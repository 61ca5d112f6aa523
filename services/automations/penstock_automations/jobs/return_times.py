"""Gives each owner a queue of times at which what waits for the owner's turn returns."""

from __future__ import annotations

from typing import Final

RETURNS_PER_S: Final = 100  # how many deliveries of one owner return in a second
_MAX_KNOWN: Final = 10_000


class ReturnTimes:
    """The times of a process. Without them, the whole backlog of one owner would return at once,
    and stand before what other owners have.
    """

    def __init__(self, per_s: int = RETURNS_PER_S) -> None:
        self._per_s = per_s
        # by owner: the time on the monotonic clock up to which the owner's queue is full
        self._full_until: dict[str, float] = {}

    def reserve_wait_s(
        self, owner: str, now: float, *, soonest_s: float = 1.0, count: int = 1
    ) -> float:
        """Return the seconds, at least `soonest_s`, after which `count` more may return. `now` is
        on the monotonic clock. Each call returns a later time than the last call for this owner."""
        if len(self._full_until) > _MAX_KNOWN:
            self._full_until = {k: at for k, at in self._full_until.items() if at > now}
        until = max(self._full_until.get(owner, 0.0), now + soonest_s) + count / self._per_s
        self._full_until[owner] = until
        return until - now
