"""Detects a server that is cut off from its cluster but still serves its clients.

The connection to such a server stays up, and the server answers pings. The replicas on such a
server answer reads with old state. Only a request that needs a leader fails. So this probe sends
such a request every few seconds. When no leader answers for longer than an election takes, the
connection moves to another server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from penstock.bus.connection.health import DISCONNECTED_S, Health
from penstock.bus.errors import BusError

PROBE_S = 3.0  # seconds between two requests
JETSTREAM = "JetStream"


class LeaderProbe:
    """Moves the connection to another server when no leader answers for too long.

    `ask` raises BusError when no leader answers; `leave` moves to another server.
    """

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
        answered_at = time.monotonic()
        while True:
            await asyncio.sleep(PROBE_S)
            try:
                await self._ask()
            except BusError as error:
                self._health.refused("away", JETSTREAM, str(error))
                if time.monotonic() - answered_at < DISCONNECTED_S:
                    continue
                await self._leave()
            else:
                self._health.worked(JETSTREAM, "away")
            answered_at = time.monotonic()
