"""A bus and the loop that it lives in, for tests that are no coroutines: state machines."""

from __future__ import annotations

import asyncio

from penstock.bus import Bus
from support.drive.bus import connected
from support.real.nats import NatsServer


class World:
    """A bus, and the loop that it lives in."""

    def __init__(self, server: NatsServer) -> None:
        self.runner = asyncio.Runner()
        self._context = connected(server.url)
        self.bus: Bus = self.runner.run(self._context.__aenter__())

    def close(self) -> None:
        """Leave the server."""
        self.runner.run(self._context.__aexit__(None, None, None))
        self.runner.close()
