"""A bus and its event loop, for tests that are no coroutines, such as state machines."""

from __future__ import annotations

import asyncio

from penstock.bus import Bus
from support.drive.bus import connected
from support.real.nats import NatsServer


class World:
    """A bus, and the event loop that runs it."""

    def __init__(self, server: NatsServer) -> None:
        self.runner = asyncio.Runner()
        self._context = connected(server.url)
        self.bus: Bus = self.runner.run(self._context.__aenter__())

    def close(self) -> None:
        """Close the bus and its event loop."""
        self.runner.run(self._context.__aexit__(None, None, None))
        self.runner.close()
