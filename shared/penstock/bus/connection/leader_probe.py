"""Does the cluster answer here? A server that is cut off from the others keeps its clients.

The connection stands, pings are answered, reads come from a replica that learns nothing more: only
what needs a leader tells. So a leader is asked, now and then, and where none answers for longer
than an election takes, the connection moves to another server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from penstock.bus.connection.health import AWAY_S, Health
from penstock.bus.errors import BusError

BEAT_S = 3.0
JETSTREAM = "JetStream"


class Pulse:
    """`ask` raises BusError where no leader answers; `leave` moves to another server."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        leave: Callable[[], Awaitable[None]],
        health: Health,
    ) -> None:
        self._ask = ask
        self._leave = leave
        self._health = health

    async def run(self) -> None:
        """Ask until cancelled."""
        answered_at = time.monotonic()
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self._ask()
            except BusError as error:
                self._health.refused("away", JETSTREAM, str(error))
                if time.monotonic() - answered_at < AWAY_S:
                    continue
                await self._leave()
            else:
                self._health.worked(JETSTREAM, "away")
            answered_at = time.monotonic()
