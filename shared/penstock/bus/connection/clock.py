"""Measures NATS's time, and the difference between this machine's clock and NATS's clock.

NATS stamps messages and expires keys by its own clock. A service that used a different clock would
treat valid leases as expired. So each `Bus` measures the server's time as NTP does: every few
seconds the `Bus` sends a request whose answer carries the server's time. The server reads this time
between the request and the answer. The `Bus` keeps the difference between the server's time and the
monotonic clock, so a step of this machine's wall clock changes nothing.

How to use it:

- `bus.clock.now()`, `bus.clock.time()` and `bus.clock.stamp()` are the server's time as a
  datetime, as Unix seconds and as RFC 3339. Use these for comparisons with a stamp of the server
  (`Stored.stored_at`, `Nats-Time-Stamp`) or with a stamp that another service wrote.
- `bus.clock.age_s(stamp)` is the age of a stamp of the server, or of another service's `stamp()`.
- After `await bus.clock.refresh()`, `bus.clock.has_been_steady_for(seconds)` returns whether the
  server's clock has not jumped in the last `seconds`. A jump forward expires all leases at once
  although their holders still run.
- For a duration within one process use `time.monotonic()`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic, time

from penstock.bus.errors import BusError

log = logging.getLogger(__name__)

# The default limit, in seconds, of the difference between this machine's clock and NATS's clock.
# The limit equals the default leeway of JWTs (PENSTOCK_AUTH_LEEWAY_S).
LIMIT_S = 30.0
ASK_S = 5.0  # seconds between two requests for the server's time
# the number of requests at the start; more than one, since the first answer is often late
FIRST_ASKED = 3
KEPT = 12  # the number of exchanges that an estimate uses: the exchanges of one minute
DRIFT = 1e-3  # the highest rate at which two clocks drift apart, even while NTP slews a clock
# the least change, in seconds, that counts as a jump; slow answers and NTP cause smaller changes
JUMP_S = 1.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer: two readings of the monotonic clock, and the server's time."""

    asked_at_s: float
    answered_at_s: float
    server_s: float  # Unix time

    @property
    def base_s(self) -> float:
        """The server's time minus the monotonic clock's time half-way through the exchange."""
        return self.server_s - (self.asked_at_s + self.answered_at_s) / 2

    @property
    def error_s(self) -> float:
        return (self.answered_at_s - self.asked_at_s) / 2

    def error_at_s(self, moment_s: float) -> float:
        """Return the largest possible error at a later moment, including the clocks' drift."""
        return self.error_s + max(0.0, moment_s - self.answered_at_s) * DRIFT


@dataclass(slots=True)
class Estimate:
    """Estimates the difference between the server's time and the monotonic clock. Pure.

    The estimate comes from the exchange with the smallest possible error among the last `KEPT`
    exchanges. A newer exchange that contradicts the estimate shows that the server's clock was set,
    or that another server answers. After such an exchange, the older exchanges are dropped.
    """

    base_s: float = 0.0
    error_s: float = float("inf")
    _kept: deque[Exchange] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, exchange: Exchange) -> float:
        """Add an exchange; return the seconds by which the server's clock jumped; 0 without a jump.
        A jump backward is a negative number."""
        jumped_s = 0.0
        now_s = exchange.answered_at_s
        if self._kept:
            best = self._best(now_s)
            moved_s = exchange.base_s - best.base_s
            if abs(moved_s) > exchange.error_s + best.error_at_s(now_s):
                self._kept.clear()
                jumped_s = moved_s
        self._kept.append(exchange)
        best = self._best(now_s)
        self.base_s, self.error_s = best.base_s, best.error_at_s(now_s)
        return jumped_s

    def _best(self, now_s: float) -> Exchange:
        return min(self._kept, key=lambda exchange: exchange.error_at_s(now_s))


class Clock:
    """Provides the server's time.

    `ask` returns the stamp (RFC 3339) that the server makes for a request; it raises BusError when
    no server answers. Until the first answer, the clock of this machine is used. While the two
    clocks differ by more than `limit_s` seconds, the service is not ready.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[str]],
        limit_s: float = LIMIT_S,
        *,
        monotonic: Callable[[], float] = monotonic,
        wall: Callable[[], float] = time,
    ) -> None:
        self._ask = ask
        self._limit_s = limit_s
        self._monotonic = monotonic
        self._wall = wall
        self._estimate: Estimate | None = None
        self._asked_at_s = float("-inf")  # the time of the last answered request
        self._jumped_at_s = float("-inf")
        self._asking = asyncio.Lock()
        # the last logged difference; None while the clocks agree
        self._logged_offset_s: float | None = None

    def time(self) -> float:
        if self._estimate is None:
            return self._wall()
        return self._monotonic() + self._estimate.base_s

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.time(), UTC)

    def stamp(self) -> str:
        """Return the server's time as RFC 3339, in UTC, with milliseconds."""
        return self.now().isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"

    def age_s(self, stamp: str) -> float:
        """Return the age of a stamp (RFC 3339); negative for a stamp in the future, ValueError for
        no time."""
        return self.time() - datetime.fromisoformat(stamp).timestamp()

    @property
    def offset_s(self) -> float:
        """The seconds by which this machine's clock is ahead of the server's clock."""
        return self._wall() - self.time()

    @property
    def error_s(self) -> float:
        return self._estimate.error_s if self._estimate is not None else float("inf")

    @property
    def not_ready(self) -> list[str]:
        """The reasons why no new work should begin, with advice; empty while the clocks agree."""
        if abs(self.offset_s) <= self._limit_s + min(self.error_s, self._limit_s):
            return []
        return [self._difference_text()]

    def has_been_steady_for(self, seconds: float) -> bool:
        """Return whether the server's clock has not jumped in the last `seconds`. Call `refresh`
        first."""
        return self._monotonic() >= self._jumped_at_s + seconds

    async def refresh(self) -> None:
        """Request the server's time now, or wait for a request that began after this call."""
        called_at_s = self._monotonic()
        async with self._asking:
            if self._asked_at_s <= called_at_s:
                await self._exchange()

    async def begin(self) -> None:
        """Send the first requests. Without an answer, the clock of this machine is used."""
        try:
            for _ in range(FIRST_ASKED):
                await self.refresh()
        except BusError as error:
            log.debug("the time of NATS is not known yet: %s", error)
        self._log_difference()

    async def run(self) -> None:
        """Request the server's time every few seconds until cancelled; log large differences."""
        while True:
            await asyncio.sleep(ASK_S)
            try:
                await self.refresh()
            except BusError as error:
                log.debug("NATS does not answer with its time: %s", error)
            self._log_difference()

    async def _exchange(self) -> None:
        asked_at_s = self._monotonic()
        server_s = datetime.fromisoformat(await self._ask()).timestamp()
        exchange = Exchange(asked_at_s, self._monotonic(), server_s)
        estimate = self._estimate or Estimate()
        jumped_s = estimate.add(exchange)
        self._estimate, self._asked_at_s = estimate, asked_at_s
        if abs(jumped_s) >= JUMP_S:
            self._jumped_at_s = exchange.answered_at_s
            log.warning(
                "the time of NATS has jumped by %+.1f s: its clock was set, another server "
                "answers now, or this machine was suspended",
                jumped_s,
            )

    def _log_difference(self) -> None:
        offset_s = self.offset_s
        if self.not_ready:
            if self._logged_offset_s is None or abs(offset_s - self._logged_offset_s) >= JUMP_S:
                self._logged_offset_s = offset_s
                log.error("%s", self._difference_text())
        elif self._logged_offset_s is not None:
            self._logged_offset_s = None
            log.info("the clock of this machine and NATS's agree again, to %.1f s", abs(offset_s))

    def _difference_text(self) -> str:
        offset_s = self.offset_s
        which = "ahead of" if offset_s > 0 else "behind"
        return (
            f"the clock of this machine is {abs(offset_s):.1f} s {which} NATS's, more than the "
            f"{self._limit_s:g} s of PENSTOCK_CLOCK_LIMIT_S: tokens expire at the wrong time. Find "
            "out which of the two is wrong (`date -u` on both), and let NTP set that clock"
        )
