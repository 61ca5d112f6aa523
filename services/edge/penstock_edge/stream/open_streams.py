"""Limits the open streams of this process, and decides when they reconnect or get a keep-alive
(decision 0098).

This module closes a stream in two cases: when the stream is old, so that clients spread over all
edges, and when this edge drains. The client of a closed stream reconnects, perhaps to another edge,
and continues at its cursor. If a client has no cursor to continue at, its stream stays open until
the stream is complete or the process ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
from enum import StrEnum
from typing import Final, Protocol

from starlette.types import Scope

from penstock.telemetry import SENT_AWAY, STREAMS_REFUSED
from penstock.web.auth import count_stream
from penstock.web.problems import Problem

log = logging.getLogger(__name__)

# A stream may be closed before it is `max_age_s` old, by at most this fraction of `max_age_s`. The
# fraction is random for each stream. If it were the same for all streams, streams that were opened
# together would be closed together.
JITTER: Final = 0.2
# Streams are closed between these two fractions of the grace period. Before the first fraction, a
# load balancer may not know yet that this edge drains, and would route the clients back to this
# edge. After the second fraction, the process might end before the last bytes of a response are
# written.
DRAINED_BETWEEN: Final = (0.2, 0.8)
RETRY_MS: Final = (500, 3000)
TICK_S: Final = 0.05
# the number of open files that the process needs for NATS, agent servers, and requests without a
# stream
OTHER_FILES: Final = 500


class ReconnectReason(StrEnum):
    """Why a client is asked to reconnect."""

    AGE = "age"
    DRAIN = "drain"


class Stream(Protocol):
    """A client's stream, as `OpenStreams` sees it."""

    @property
    def is_resumable(self) -> bool: ...

    def ask_to_reconnect(self, reason: ReconnectReason) -> None: ...


class OpenStreams:
    """The open streams of this process. If `max_age_s` is 0, none is closed because of its age."""

    def __init__(self, max_streams: int, max_age_s: float) -> None:
        self.max_streams = max_streams
        self._max_age_s = max_age_s
        self._close_at: dict[Stream, float] = {}
        self._grace_s: float | None = None  # None until the edge begins to drain

    def __len__(self) -> int:
        return len(self._close_at)

    def fit(self, max_files: int) -> None:
        """Lower `max_streams` to the files that this process may open."""
        room = max(max_files - OTHER_FILES, 1)
        if room < self.max_streams:
            log.warning(
                "this process may open only %d files, so it opens at most %d streams; for the %d "
                "of PENSTOCK_MAX_STREAMS, raise the limit of files (ulimit -Hn) to %d",
                max_files,
                room,
                self.max_streams,
                self.max_streams + OTHER_FILES,
            )
            self.max_streams = room

    def require_room(self, scope: Scope) -> None:
        """Count the stream for the user. Handlers call this before they begin any work."""
        if self._grace_s is not None:
            STREAMS_REFUSED.labels("draining").inc()
            raise Problem(503, "this edge is about to stop; try again to reach another edge")
        if len(self) >= self.max_streams:
            STREAMS_REFUSED.labels("full").inc()
            raise Problem(503, f"this edge has {len(self)} streams open and takes no more")
        count_stream(scope)

    def add(self, stream: Stream) -> None:
        self._close_at[stream] = self._when()

    def discard(self, stream: Stream) -> None:
        self._close_at.pop(stream, None)

    def rotate(self) -> None:
        self._close_due(ReconnectReason.AGE)

    async def drain(self, grace_s: float) -> None:
        """Refuse new streams, and ask the clients that have a cursor, spread over the grace period,
        to reconnect to another edge. Return when no stream is open, or after `grace_s`."""
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
        due = [each for each, at in self._close_at.items() if at <= now and each.is_resumable]
        for stream in due:
            SENT_AWAY.labels(reason).inc()
            self._close_at[stream] = float("inf")
            stream.ask_to_reconnect(reason)


def retry_ms() -> int:
    """Return a random time, so that not all clients come at once."""
    return random.randint(*RETRY_MS)


# Proxies close a connection on which no bytes are sent for some time, so `Hubs.maintain` and
# `WaitingStream` check each stream several times in `keep_alive_s`. WebSockets have pings instead.
CHECKS_PER_KEEP_ALIVE: Final = 3  # the number of checks of one stream in `keep_alive_s`


def check_period_s(keep_alive_s: float) -> float:
    return keep_alive_s / CHECKS_PER_KEEP_ALIVE


def is_keep_alive_due(idle_s: float, period_s: float) -> bool:
    """Return whether a silent stream needs a keep-alive now: the next check may come too late."""
    return idle_s >= (CHECKS_PER_KEEP_ALIVE - 1) * period_s
