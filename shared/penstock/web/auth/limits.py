"""Limits the connections, streams, and requests per second of each user and of each tenant, in
each process.

Nothing is counted for `anonymous`, because many people may be `anonymous`. A limit of 0 means no
limit.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from penstock.telemetry import LIMITED
from penstock.turns import Level, TenantUser
from penstock.web.auth.identity import STREAMS, Identity
from penstock.web.problems import Problem

Limit = Literal["connections", "streams", "requests", "open_runs", "queued_runs", "paused_runs"]

RETRY_S: Final = 1
MAX_BUCKETS: Final = 10_000


def limit_refusal(limit: Limit, reason: str, retry_s: int = RETRY_S) -> Problem:
    """Count a refusal, and return it as a 429. The response names the limit and says when to try
    again."""
    LIMITED.labels(limit).inc()
    return Problem(429, reason, {"retry-after": str(retry_s)}, limit=limit)


class Limited(NamedTuple):
    """Whom a limit is for: the user, or all users of the tenant, who have it `times` times."""

    level: Level
    name: str
    times: int = 1


def limited(user: TenantUser, tenant_limits: int) -> list[Limited]:
    """Return whom limits are for if this user asks. `tenant_limits` is the setting."""
    tenant, own = user.levels
    found = [Limited(own, "this user")]
    if user.tenant and tenant_limits:
        found.append(Limited(tenant, "this tenant", tenant_limits))
    return found


class OpenCounts:
    """Counts the open connections of each user and tenant, or the open streams."""

    def __init__(self, limit: Limit, most: int, what: str, tenant_limits: int = 0) -> None:
        self._limit: Limit = limit
        self._most = most
        self._what = what
        self._tenant_limits = tenant_limits
        self._open: Counter[Level] = Counter()

    def take(self, identity: Identity) -> Callable[[], None]:
        """Count one more connection or stream. The returned function removes it from the count.
        Raises Problem 429 at the limit."""
        if identity.kind == "anonymous" or not self._most:
            return lambda: None
        counted = limited(identity.tenant_user, self._tenant_limits)
        for level, name, times in counted:
            if self._open[level] >= (most := self._most * times):
                raise limit_refusal(
                    self._limit, f"{name} has {most} {self._what} already; end some"
                )
        for level, *_ in counted:
            self._open[level] += 1

        def give_back() -> None:
            for level, *_ in counted:
                self._open[level] -= 1
                if not self._open[level]:
                    del self._open[level]

        return give_back


class Requests:
    """Limits requests with a token bucket for each user and each tenant.

    A user may send `burst` requests at once, and `rate` requests per second in the long run.

    A `rate` of 0 means no limit. Buckets that are full again are removed from memory.
    """

    def __init__(
        self,
        rate: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        tenant_limits: int = 0,
    ) -> None:
        self._rate = rate
        self._burst = max(burst, 1)
        self._clock = clock
        self._tenant_limits = tenant_limits
        # the times at which the buckets are full again
        self._full_at: dict[Level, float] = {}

    def take(self, identity: Identity) -> None:
        """Count one request. Raises Problem 429 if the bucket is empty."""
        if identity.kind == "anonymous" or not self._rate:
            return
        now = self._clock()
        full_at: dict[Level, float] = {}
        for level, name, times in limited(identity.tenant_user, self._tenant_limits):
            rate = self._rate * times
            full_at[level] = max(self._full_at.get(level, now), now) + 1 / rate
            # the burst is `times` times larger, too
            lacking_s = full_at[level] - now - self._burst / self._rate
            if lacking_s > 1e-9:
                raise limit_refusal(
                    "requests",
                    f"more than {rate:g} requests a second of {name}; send fewer",
                    math.ceil(lacking_s),
                )
        if len(self._full_at) >= MAX_BUCKETS:
            self._full_at = {level: at for level, at in self._full_at.items() if at > now}
        self._full_at |= full_at

    def __len__(self) -> int:
        return len(self._full_at)


class RequestCount:
    """What one request counts for: one connection of the user, and at most one stream.

    The request counts until its handler ends. If a stream keeps the places, the request counts
    until the stream gives the places back.
    """

    def __init__(
        self, streams: OpenCounts, identity: Identity, connection: Callable[[], None] = lambda: None
    ) -> None:
        """Take `connection`, which removes the request's connection from the count."""
        self._streams = streams
        self._identity = identity
        self._connection = connection
        self._give_back: Callable[[], None] | None = None
        self._is_kept = False

    def take(self) -> None:
        """Count the request as a stream. Raises Problem 429 if the user has too many streams."""
        if self._give_back is None:
            self._give_back = self._streams.take(self._identity)

    def keep(self) -> Callable[[], None]:
        """Let the request count after its handler has ended. The returned function gives the places
        back."""
        self._is_kept = True
        return self._release

    def give_back(self) -> None:
        if not self._is_kept:
            self._release()

    def _release(self) -> None:
        self._connection()
        if self._give_back is not None:
            self._give_back()
            self._give_back = None


def count_stream(scope: Mapping[str, Any]) -> None:
    place: RequestCount = scope["state"][STREAMS]
    place.take()


def keep_counting(scope: Mapping[str, Any]) -> Callable[[], None]:
    """Let a request count after its handler has ended, because its stream continues. The returned
    function gives the places back."""
    place: RequestCount = scope["state"][STREAMS]
    return place.keep()
