"""The limits of each endpoint in this process: breaker, rate, and requests at once."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from penstock_automations.actions.webhook.breaker import Breaker, Rate, State
from penstock_automations.rules.model import Webhook

MAX_KNOWN = 1000
SHORT_S = 1.0  # a wait of up to so many seconds is made in memory


class Endpoint:
    """A scheme, host and port.

    `busy`: how many deliveries are under way or wait for their turn. `concurrency`: how many
    requests may be made at once; it may change while requests are made.
    """

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.rate: Rate | None = None
        self.concurrency = 1
        self.busy = 0
        self._running = 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until one more request may be made, and hold its place."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._running < self.concurrency)
            self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            # Without the shield, a cancellation here would leave the waiters asleep.
            await asyncio.shield(self._wake())

    async def _wake(self) -> None:
        async with self._freed:
            self._freed.notify_all()


class Endpoints:
    """The endpoints that this process knows."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Endpoint] = OrderedDict()

    def of(self, webhook: Webhook) -> Endpoint:
        """Return the endpoint of a webhook. The last rule decides its concurrency and rate."""
        key = origin(webhook.url)
        endpoint = self._known.get(key)
        if endpoint is None:
            endpoint = self._known[key] = Endpoint()
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

    def not_closed(self) -> dict[str, Breaker]:
        """Return the breakers that are not closed, by their endpoint."""
        return {
            key: each.breaker
            for key, each in self._known.items()
            if each.breaker.state is not State.CLOSED
        }

    def open_breakers(self) -> int:
        """Return how many breakers are not closed."""
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


async def admitted(endpoint: Endpoint) -> float:
    """Return 0 when a request may be made now, after a short wait at most; else seconds to wait.

    More than four times the endpoint's concurrency never wait in memory: a slow endpoint must not
    take all places of this process.
    """
    if endpoint.busy > 4 * endpoint.concurrency:
        return SHORT_S
    if endpoint.rate is not None:
        wait_s = endpoint.rate.admit(time.monotonic())
        if wait_s > SHORT_S:
            return wait_s
        if wait_s:
            await asyncio.sleep(wait_s)
            wait_s = endpoint.rate.admit(time.monotonic())
            if wait_s:
                return max(wait_s, SHORT_S)
    return endpoint.breaker.admit(time.monotonic())
