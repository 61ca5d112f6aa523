"""Decides when each hub encodes its new messages and writes them to its clients (decision 0112).

A flush encodes a hub's new messages and writes them to the hub's clients. One callback of the event
loop flushes all hubs that are due; no hub has a task of its own. A hub whose last flush ended at
least `join_s` ago is flushed at once. Any other hub waits until `join_s` have passed, so several
events of a fast run are joined to one write for each client.

`join_s` grows with the load, because each write costs 6 µs: it is `JOIN_S` while the event loop is
busy all the time, and 0 while it is idle (decision 0370).
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from penstock.busyness import BUSYNESS, LOOK_S, Busyness, until_tick_s
from penstock.telemetry import ADDED_SECONDS, DELIVERED

JOIN_S: Final = 0.02  # the greatest value of `join_s`, in seconds
# The number of writes after which other callbacks of the event loop may run. 100 writes take about
# 0.6 ms.
SLICE: Final = 100
SAMPLE_S: Final = 1.0  # the shortest time between two measurements of the added latency, in seconds
REPORT_S: Final = 0.2  # seconds between two updates of the metrics; an update takes 1.5 µs
# The greatest number of seconds by which a hub may be flushed early. When a timer ends, the hubs
# that are due within this time are flushed, too. So one timer serves several hubs.
EARLY_S: Final = 0.001


class Flushable(Protocol):
    """The part of a hub that the scheduler uses."""

    flush_at: float  # the event loop's time at which the hub may be flushed again

    def flush(self) -> int:
        """Encode the new messages and write them; return the number of writes, of which a hub does
        at most `SLICE` before it calls `Flushes.flush_soon`. This must not raise an exception."""
        ...


class Flushes:
    """Flushes the hubs of one process."""

    def __init__(self, report: Callable[[], None], busyness: Busyness = BUSYNESS) -> None:
        """`report` sets metrics; it is called within 1.5 times `REPORT_S` of a flush."""
        self._report = report
        self._busyness = busyness
        self._loop = asyncio.get_running_loop()
        self.time: Callable[[], float] = self._loop.time
        # The time at the beginning of the present turn, which the hubs of this turn use.
        self.now = self.time()
        self._due: deque[Flushable] = deque()
        # a heap, ordered by the time of the flush
        self._waiting: list[tuple[float, int, Flushable]] = []
        # a different number for each entry of the heap, so that two hubs are never compared
        self._count = count()
        self._is_scheduled = False
        self._timer: asyncio.Handle | None = None
        # The loop's time at which `_timer` calls `_on_timer`. The handle cannot be asked for this
        # time: for a time in the past, uvloop returns a handle without `when`.
        self._timer_at = math.inf
        self._delivered: dict[str, int] = {}
        self._reporting: asyncio.TimerHandle | None = None
        # Whether the next hub that encodes new messages measures the added latency of its first new
        # message. Not every event is measured, because a measurement costs as much as a tenth of a
        # delivery.
        self.is_sample_due = True
        self._sampled_at = -math.inf
        self.join_s = 0.0  # the shortest time between two flushes of one hub
        self._looked_at = -math.inf  # the loop's time at which `join_s` was set

    def add(self, hub: Flushable) -> None:
        """Flush a hub at once or at its `flush_at`. Do not add it again before it is flushed."""
        if hub.flush_at <= self.time():
            self._due.append(hub)  # as `flush_soon` does
            if not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon(self._flush)
            return
        heapq.heappush(self._waiting, (hub.flush_at, next(self._count), hub))
        if self._timer is None or hub.flush_at < self._timer_at:
            self._set_timer()

    def flush_soon(self, hub: Flushable) -> None:
        self._due.append(hub)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def delivered(self, dialect: str, events: int) -> None:
        """Count delivered events; the metric is updated soon after."""
        if self._reporting is None:
            # when other loops of the process look, too, so that it wakes once
            after_s = until_tick_s(REPORT_S, self.time())
            self._reporting = self._loop.call_later(after_s, self._set_metrics)
        self._delivered[dialect] = self._delivered.get(dialect, 0) + events

    def sampled(self, added_s: float) -> None:
        self._sampled_at = self.time()
        ADDED_SECONDS.observe(max(0.0, added_s))  # below 0 if two machines' clocks differ

    def close(self) -> None:
        self._due.clear()
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reporting is not None:
            self._reporting.cancel()
            self._set_metrics()

    def _flush(self) -> None:
        due, writes = self._due, 0
        self.now = self.time()
        if self.now >= self._looked_at + LOOK_S:
            self._looked_at, self.join_s = self.now, self._busyness.wait_s(JOIN_S)
        for _ in range(len(due)):
            writes += due.popleft().flush()
            if writes >= SLICE:
                break
        self._is_scheduled = bool(due)
        if due:
            self._loop.call_soon(self._flush)

    def _set_metrics(self) -> None:
        self._reporting = None
        now = self.time()
        for dialect, events in self._delivered.items():
            DELIVERED.labels(dialect).inc(events)
        self._delivered.clear()
        self.is_sample_due = now >= self._sampled_at + SAMPLE_S
        self._report()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._waiting[0][0]
        self._timer = self._loop.call_at(self._timer_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        waiting, until = self._waiting, self.time() + EARLY_S
        while waiting and waiting[0][0] <= until:
            self.flush_soon(heapq.heappop(waiting)[2])
        if waiting:
            self._set_timer()
