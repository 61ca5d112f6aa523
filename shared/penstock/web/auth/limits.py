"""Limits the connections, streams, and requests per second of each user in each process.

Nothing is counted for `anonymous`, because many people may be `anonymous`. A limit of 0 means no
limit.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from penstock.telemetry import LIMITED
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


class OpenCounts:
    """Counts the open connections of each user, or the open streams."""

    def __init__(self, limit: Limit, most: int, what: str) -> None:
        self._limit: Limit = limit
        self._most = most
        self._what = what
        self._open: Counter[str] = Counter()

    def take(self, identity: Identity) -> Callable[[], None]:
        """Count one more connection or stream. The returned function removes it from the count.
        Raises Problem 429 at the limit."""
        if identity.kind == "anonymous" or not self._most:
            return lambda: None
        user_id = identity.user_id
        if self._open[user_id] >= self._most:
            raise limit_refusal(
                self._limit, f"this user has {self._most} {self._what} already; end some"
            )
        self._open[user_id] += 1

        def give_back() -> None:
            self._open[user_id] -= 1
            if not self._open[user_id]:
                del self._open[user_id]

        return give_back


class Requests:
    """Limits requests with a token bucket for each user.

    A user may send `burst` requests at once, and `rate` requests per second in the long run.

    A `rate` of 0 means no limit. Buckets that are full again are removed from memory.
    """

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = max(burst, 1)
        self._clock = clock
        # maps a user to the time at which the user's bucket is full again
        self._full_at: dict[str, float] = {}

    def take(self, identity: Identity) -> None:
        """Count one request. Raises Problem 429 if the bucket is empty."""
        if identity.kind == "anonymous" or not self._rate:
            return
        now = self._clock()
        full_at = max(self._full_at.get(identity.user_id, now), now) + 1 / self._rate
        lacking_s = full_at - now - self._burst / self._rate
        if lacking_s > 1e-9:
            raise limit_refusal(
                "requests",
                f"more than {self._rate:g} requests a second of this user; send fewer",
                math.ceil(lacking_s),
            )
        if len(self._full_at) >= MAX_BUCKETS:
            self._full_at = {user: at for user, at in self._full_at.items() if at > now}
        self._full_at[identity.user_id] = full_at

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
