"""The limits of each endpoint in this process: breaker, rate, and requests at once."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock_automations.delivery.breaker import Breaker, Rate, State
from penstock_automations.rules.model import Webhook

MAX_KNOWN = 1000
SHORT_S = 1.0  # a wait of up to so many seconds is made in memory


@dataclass(slots=True)
class Endpoint:
    """A scheme, host and port. `busy`: how many requests are under way or wait for their turn."""

    breaker: Breaker = field(default_factory=Breaker)
    rate: Rate | None = None
    concurrency: int = 0
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    busy: int = 0


class Endpoints:
    """The endpoints that this process knows."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, int | None], Endpoint] = OrderedDict()

    def of(self, webhook: Webhook) -> Endpoint:
        """Return the endpoint of a webhook. The last rule decides its concurrency and rate."""
        parts = urlsplit(webhook.url)
        key = (parts.scheme, parts.hostname or "", parts.port)
        endpoint = self._known.get(key)
        if endpoint is None:
            endpoint = self._known[key] = Endpoint()
            if len(self._known) > MAX_KNOWN:
                self._forget_one()
        self._known.move_to_end(key)
        if endpoint.concurrency != webhook.concurrency:
            endpoint.concurrency = webhook.concurrency
            endpoint.turns = asyncio.Semaphore(webhook.concurrency)
        if (endpoint.rate.per_s if endpoint.rate else None) != webhook.rate_per_s:
            endpoint.rate = Rate(webhook.rate_per_s) if webhook.rate_per_s else None
        return endpoint

    def open_breakers(self) -> int:
        """Return how many breakers are not closed."""
        return sum(each.breaker.state is not State.CLOSED for each in self._known.values())

    def _forget_one(self) -> None:
        for key, endpoint in self._known.items():
            if not endpoint.busy and endpoint.breaker.state is State.CLOSED:
                del self._known[key]
                return


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
