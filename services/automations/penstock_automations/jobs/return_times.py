"""Gives each owner and tenant a queue of times at which what waits for the owner's turn returns."""

from __future__ import annotations

from typing import Final

from penstock.turns import Level, TenantUser

RETURNS_PER_S: Final = 100  # how many deliveries of one owner return in a second
TENANT_TIMES: Final = 10  # how many times as many of all owners of a tenant return
_MAX_KNOWN: Final = 10_000


class ReturnTimes:
    """The times of a process. Without them, the whole backlog of one owner would return at once,
    and stand before what other owners have.
    """

    def __init__(self, per_s: int = RETURNS_PER_S) -> None:
        self._per_s = per_s
        # by owner and tenant: the time on the monotonic clock up to which the owner's queue is full
        self._full_until: dict[Level, float] = {}

    def reserve_wait_s(
        self, owner: TenantUser, now: float, *, soonest_s: float = 1.0, count: int = 1
    ) -> float:
        """Return the seconds, at least `soonest_s`, after which `count` more may return. `now` is
        on the monotonic clock. Each call returns a later time than the last call for this owner."""
        if len(self._full_until) > _MAX_KNOWN:
            self._full_until = {k: at for k, at in self._full_until.items() if at > now}
        tenant, own = owner.levels
        rates: dict[Level, int] = {own: self._per_s}
        if owner.tenant:
            rates[tenant] = self._per_s * TENANT_TIMES
        for level, per_s in rates.items():
            begin = max(self._full_until.get(level, 0.0), now + soonest_s)
            self._full_until[level] = begin + count / per_s
        return max(map(self._full_until.__getitem__, rates)) - now
