"""The streams that are open in this process: how many there may be, and how they are led elsewhere.

A stream is sent away when it is old, so that clients spread over the edges in normal life too, and
when the edge drains. Only one whose client can come back with its cursor is: the others are left
until they end, or until the process does.
"""

from __future__ import annotations

import asyncio
import logging
import random
from enum import StrEnum
from typing import Final, Protocol

from starlette.types import Scope

from penstock.telemetry import SENT_AWAY, STREAMS_REFUSED
from penstock.web.auth import take_stream
from penstock.web.problems import Problem

log = logging.getLogger(__name__)

JITTER: Final = 0.2  # of the age, so that those who came together do not leave together
# Of the grace. Not from its beginning: until then a load balancer may not know that we drain, and
# would send them back. Not to its end: the last must be written.
DRAINED_BETWEEN: Final = (0.2, 0.8)
RETRY_MS: Final = (500, 3000)
TICK_S: Final = 0.05
OTHER_FILES: Final = 500  # NATS, upstreams' servers, requests that are no streams


class Departure(StrEnum):
    """Why a stream is sent away."""

    AGE = "age"
    DRAIN = "drain"


class Stream(Protocol):
    """One client's stream."""

    @property
    def resumable(self) -> bool:
        """Whether its client can come back and go on where it was."""
        ...

    def depart(self, why: Departure) -> None:
        """End between two frames, and tell the client to come back. May be called again."""
        ...


class OpenStreams:
    """All of them. `max_age_s` 0: a stream may be as old as it likes."""

    def __init__(self, max_streams: int, max_age_s: float) -> None:
        self.max_streams = max_streams
        self._max_age_s = max_age_s
        self._leave_at: dict[Stream, float] = {}
        self._grace_s: float | None = None  # once the edge drains

    def __len__(self) -> int:
        return len(self._leave_at)

    def fit(self, max_files: int) -> None:
        """Take no more than this process can open files for."""
        room = max(max_files - OTHER_FILES, 1)
        if room < self.max_streams:
            log.warning(
                "only %d streams can be open, for this process may open only %d files; for %d of "
                "them, as PENSTOCK_MAX_STREAMS says, raise its limit (ulimit -Hn) to %d",
                *(room, max_files, self.max_streams, self.max_streams + OTHER_FILES),
            )
            self.max_streams = room

    def require_room(self, scope: Scope) -> None:
        """Ask before anything is begun; the request of this scope is a stream from here on.

        Raises Problem 503 where no stream may be opened, 429 where its user has too many.
        """
        if self._grace_s is not None:
            STREAMS_REFUSED.labels("draining").inc()
            raise Problem(503, "this edge is about to stop; try again, and another one answers")
        if len(self) >= self.max_streams:
            STREAMS_REFUSED.labels("full").inc()
            raise Problem(503, f"this edge has {len(self)} streams open and takes no more")
        take_stream(scope)

    def add(self, stream: Stream) -> None:
        """It is open from now on."""
        self._leave_at[stream] = self._when()

    def discard(self, stream: Stream) -> None:
        """It is over."""
        self._leave_at.pop(stream, None)

    def rotate(self) -> None:
        """Send away who has been here for long enough. To be called now and then."""
        self._send_away(Departure.AGE)

    async def drain(self, grace_s: float) -> None:
        """Open none, and send away all that can come back, at moments spread over the grace.

        Returns when none is left, at the latest when the grace is over.
        """
        self._grace_s = grace_s
        for stream in self._leave_at:
            self._leave_at[stream] = self._when()
        over = asyncio.get_running_loop().time() + grace_s
        while self._leave_at and asyncio.get_running_loop().time() < over:
            self._send_away(Departure.DRAIN)
            await asyncio.sleep(TICK_S)

    def _when(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._grace_s is not None:
            return now + self._grace_s * random.uniform(*DRAINED_BETWEEN)
        if self._max_age_s:
            return now + self._max_age_s * random.uniform(1 - JITTER, 1)
        return float("inf")

    def _send_away(self, why: Departure) -> None:
        now = asyncio.get_running_loop().time()
        due = [each for each, at in self._leave_at.items() if at <= now and each.resumable]
        for stream in due:
            SENT_AWAY.labels(why).inc()
            self._leave_at[stream] = float("inf")
            stream.depart(why)


def retry_ms() -> int:
    """When a client that is sent away should come back: not all at once."""
    return random.randint(*RETRY_MS)
