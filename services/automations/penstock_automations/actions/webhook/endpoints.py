"""Keeps the limits of each rule's endpoint in this process: breaker, rate, concurrent requests.

A delivery's turn begins when the endpoint may get its request, and ends when the answer has come.
The endpoints of one host also share the places of this host, which no rule can change.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from penstock.bus import subjects
from penstock.runs.calls import CALLS
from penstock.turns import TenantUser
from penstock_automations.actions.executor import AttemptDeferred
from penstock_automations.actions.shares import Shares
from penstock_automations.actions.webhook.breaker import Breaker, Rate, State
from penstock_automations.rules.actions import Webhook
from penstock_automations.rules.records import CompiledRule

MAX_KNOWN = 1000
SHORT_S = 1.0  # a delivery waits in memory if the rate allows a request within this many seconds
# A delivery waits in memory if its turn comes within `AHEAD_S` seconds. At most `MAX_AHEAD`
# deliveries of an endpoint wait in memory.
AHEAD_S, MAX_AHEAD = 5.0, 384
# The assumed length of a turn in seconds, and the number of deliveries that may wait in memory.
# Both are used until the first turn at an endpoint has ended. The number is small, because the
# endpoint may never answer.
UNKNOWN_S, MAX_UNKNOWN = 0.01, 64
MAX_BOOKED_S = 3600.0
_WEIGHT = 0.2  # the weight of the newest turn in the average length of a turn


class Endpoint:
    """A receiver of one rule's webhooks, with the limits of the rule's requests to it.

    `url` is the receiver's scheme, host and port. `busy` is the number of deliveries that are under
    way or wait for their turn. `concurrency` may change while requests are under way.
    """

    def __init__(self, rule: str, owner: TenantUser, url: str) -> None:
        self.rule = rule
        self.owner = owner
        self.url = url
        self.breaker = Breaker()
        self.rate: Rate | None = None
        self.concurrency = 1
        self.busy = 0
        # the average length of a turn; None before the first turn has ended
        self._usual_s: float | None = None
        self._booked = 0.0
        self._first_turn_at: float | None = None
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def max_deliveries(self) -> int:
        """How many deliveries may be under way or wait for their turn. To a slow endpoint, many
        would fill the memory; to a fast one, each waits only for a short time."""
        limit = MAX_AHEAD if self._usual_s is not None else MAX_UNKNOWN
        return self.concurrency + min(int(self._per_s * AHEAD_S), limit)

    def reserve_wait_s(self, now: float) -> float:
        """Return the seconds after which a delivery that finds no room should be tried again.

        Each call returns a later time than the last call. The distance between two times is the
        time that the endpoint needs for one delivery. If all deliveries were tried again at the
        same time, most of them would find no room again.
        """
        self._booked = max(self._booked, now + SHORT_S) + 1 / self._per_s
        self._booked = min(self._booked, now + MAX_BOOKED_S)
        return self._booked - now

    @property
    def _per_s(self) -> float:
        usual_s = self._usual_s
        if usual_s is None:
            # A turn has taken this long at least. Without this, deliveries to an endpoint that is
            # silent would be tried again many times before the first turn has ended.
            begun = self._first_turn_at
            usual_s = max(UNKNOWN_S, 0.0 if begun is None else time.monotonic() - begun)
        per_s = self.concurrency / usual_s
        return per_s if self.rate is None else min(per_s, self.rate.per_s)

    @asynccontextmanager
    async def request_capacity(self) -> AsyncIterator[None]:
        """Wait until one more request may be made, and count it until the context ends."""
        await self._enter()
        begun = time.monotonic()
        self._first_turn_at = self._first_turn_at or begun
        try:
            yield
        finally:
            took_s = max(time.monotonic() - begun, 0.001)
            usual_s = self._usual_s or took_s
            self._usual_s = usual_s + _WEIGHT * (took_s - usual_s)
            self._leave()

    async def _enter(self) -> None:
        if self._running < self.concurrency and not self._waiting:
            self._running += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # This delivery may have got its turn just before it was cancelled. Then the turn passes
            # to the next delivery.
            if not waiter.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        self._running -= 1
        while self._waiting and self._running < self.concurrency:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._running += 1
                waiter.set_result(None)


class Endpoints:
    """The endpoints to which this process has sent webhooks, at most `MAX_KNOWN`. `per_host` is the
    number of requests that this process makes to one host at once, for all rules."""

    def __init__(self, per_host: int) -> None:
        self._per_host = per_host
        self._known: OrderedDict[str, Endpoint] = OrderedDict()
        self._hosts: dict[str, Shares] = {}

    def of(self, rule: CompiledRule, webhook: Webhook) -> Endpoint:
        """Return the endpoint of a rule, with the webhook's present limits; the calls of one user
        to one host have one endpoint, and so have the checks."""
        url, owner = origin(webhook.url), rule.record.owner.user
        whose = subjects.key_of(*owner) if rule.record.uid == CALLS else rule.record.uid
        key = f"{rule.id} {whose} {url}"
        endpoint = self._known.get(key)
        if endpoint is None:
            endpoint = self._known[key] = Endpoint(rule.id, owner, url)
            if len(self._known) > MAX_KNOWN:
                self._forget_one()
        self._known.move_to_end(key)
        endpoint.concurrency = webhook.concurrency
        if webhook.rate_per_s is None:
            endpoint.rate = None
        elif endpoint.rate is None:
            endpoint.rate = Rate(webhook.rate_per_s)
        else:
            endpoint.rate.per_s = webhook.rate_per_s
        return endpoint

    def forget(self, rule_id: str, uid: str) -> None:
        """Forget the endpoints of a rule that was deleted."""
        for key in [key for key in self._known if key.startswith(f"{rule_id} {uid} ")]:
            del self._known[key]

    @asynccontextmanager
    async def place_at_host(self, endpoint: Endpoint) -> AsyncIterator[None]:
        """Wait until the host may get one more request of the endpoint's owner, and count it."""
        host = self._hosts.setdefault(endpoint.url, Shares(self._per_host))
        try:
            async with host.place(endpoint.owner):
                yield
        finally:
            if host.is_idle:
                self._hosts.pop(endpoint.url, None)

    def not_closed(self) -> dict[str, Endpoint]:
        """Return the endpoints whose breakers are not closed, by a key that no two have."""
        return {
            key: each for key, each in self._known.items() if each.breaker.state is not State.CLOSED
        }

    def open_breakers(self) -> int:
        return len(self.not_closed())

    def _forget_one(self) -> None:
        for key, endpoint in self._known.items():
            if not endpoint.busy and endpoint.breaker.state is State.CLOSED:
                del self._known[key]
                return


def origin(url: str) -> str:
    """Return the endpoint of a URL: its scheme, host and port, such as `https://x.example:443`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://[{host}]:{port}" if ":" in host else f"{parts.scheme}://{host}:{port}"


async def admit(endpoint: Endpoint, woken: float) -> AttemptDeferred | None:
    """Return None if the breaker and the rate allow a request now; else what puts it off.

    `Breaker.admit` describes `woken`. If the rate allows a request within `SHORT_S` seconds, this
    function waits and returns None.
    """
    if wait_s := endpoint.breaker.waits_s(time.monotonic(), woken):
        return AttemptDeferred(wait_s, "breaker")
    if endpoint.rate is None or not (wait_s := endpoint.rate.admit(time.monotonic())):
        return None
    if wait_s > SHORT_S:
        return AttemptDeferred(wait_s, "rate")
    await asyncio.sleep(wait_s)
    wait_s = endpoint.rate.admit(time.monotonic())
    return AttemptDeferred(max(wait_s, SHORT_S), "rate") if wait_s else None
