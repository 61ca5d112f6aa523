"""The open streams of this process: how many there may be, and when their clients must reconnect.

A stream is closed when it is old, so that clients spread over all edges, and when this edge drains.
Its client then reconnects, perhaps to another edge, and continues at its cursor. A stream whose
client cannot do so is left open until it ends by itself, or the process ends.
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

JITTER: Final = 0.2  # a part of the age, so that streams of one moment are not closed in one
# The part of the grace period in which streams are closed. Earlier, a load balancer may not know
# yet that this edge drains, and would route the clients back to it. Later, the last bytes of a
# response might not be written before the process ends.
DRAINED_BETWEEN: Final = (0.2, 0.8)
RETRY_MS: Final = (500, 3000)
TICK_S: Final = 0.05
OTHER_FILES: Final = 500  # for NATS, the servers of agents, and requests without a stream


class ReconnectReason(StrEnum):
    """Why a client is asked to reconnect."""

    AGE = "age"
    DRAIN = "drain"


class Stream(Protocol):
    """One client's stream."""

    @property
    def resumable(self) -> bool:
        """Whether its client can reconnect and continue at its cursor."""
        ...

    def ask_to_reconnect(self, reason: ReconnectReason) -> None:
        """End between two frames, and ask the client to reconnect. May be called again."""
        ...


class OpenStreams:
    """All open streams of this process. `max_age_s` 0: no stream is too old."""

    def __init__(self, max_streams: int, max_age_s: float) -> None:
        self.max_streams = max_streams
        self._max_age_s = max_age_s
        self._close_at: dict[Stream, float] = {}
        self._grace_s: float | None = None  # once the edge drains

    def __len__(self) -> int:
        return len(self._close_at)

    def fit(self, max_files: int) -> None:
        """Lower the limit to the number of files that this process may open."""
        room = max(max_files - OTHER_FILES, 1)
        if room < self.max_streams:
            log.warning(
                "this process may open only %d files, so it opens at most %d streams; for the %d "
                "of PENSTOCK_MAX_STREAMS, raise the limit of files (ulimit -Hn) to %d",
                *(max_files, room, self.max_streams, self.max_streams + OTHER_FILES),
            )
            self.max_streams = room

    def require_room(self, scope: Scope) -> None:
        """Require that one more stream may be open; the request of this scope counts as one then.

        Handlers call this before they begin any work.

        Raises:
            Problem: 503 if this edge opens no more streams; 429 if the user has too many.
        """
        if self._grace_s is not None:
            STREAMS_REFUSED.labels("draining").inc()
            raise Problem(503, "this edge is about to stop; try again, and another one answers")
        if len(self) >= self.max_streams:
            STREAMS_REFUSED.labels("full").inc()
            raise Problem(503, f"this edge has {len(self)} streams open and takes no more")
        take_stream(scope)

    def add(self, stream: Stream) -> None:
        """The stream is open from now on."""
        self._close_at[stream] = self._when()

    def discard(self, stream: Stream) -> None:
        """The stream is over."""
        self._close_at.pop(stream, None)

    def rotate(self) -> None:
        """Ask the clients of old streams to reconnect. To be called from time to time."""
        self._close_due(ReconnectReason.AGE)

    async def drain(self, grace_s: float) -> None:
        """Open no more streams, and ask all clients that can to reconnect, spread over the grace.

        Returns when no stream is open, at the latest after `grace_s`.
        """
        self._grace_s = grace_s
        for stream in self._close_at:
            self._close_at[stream] = self._when()
        over = asyncio.get_running_loop().time() + grace_s
        while self._close_at and asyncio.get_running_loop().time() < over:
            self._close_due(ReconnectReason.DRAIN)
            await asyncio.sleep(TICK_S)

    def _when(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._grace_s is not None:
            return now + self._grace_s * random.uniform(*DRAINED_BETWEEN)
        if self._max_age_s:
            return now + self._max_age_s * random.uniform(1 - JITTER, 1)
        return float("inf")

    def _close_due(self, reason: ReconnectReason) -> None:
        now = asyncio.get_running_loop().time()
        due = [each for each, at in self._close_at.items() if at <= now and each.resumable]
        for stream in due:
            SENT_AWAY.labels(reason).inc()
            self._close_at[stream] = float("inf")
            stream.ask_to_reconnect(reason)


def retry_ms() -> int:
    """After how long a client should reconnect; random, so that not all reconnect at once."""
    return random.randint(*RETRY_MS)
