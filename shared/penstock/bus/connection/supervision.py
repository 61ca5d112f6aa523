"""Supervises a connection that is up: servers that are cut off, and missing permissions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from penstock.bus.connection.health import DISCONNECTED_S, Health, stream_of, subject_family
from penstock.bus.connection.nats_client import Connection
from penstock.bus.errors import BusError

PROBE_S = 3.0  # seconds between two requests
JETSTREAM = "JetStream"


class LeaderProbe:
    """Moves the connection to another server when no leader answers for too long.

    A server that is cut off from its cluster still serves its clients: it answers pings, and its
    replicas answer reads with old state. Only a request that needs a leader fails. So this probe
    sends such a request every few seconds. When no leader answers for longer than an election
    takes, the connection moves.

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


SUBSCRIBE_AGAIN_S = 10.0  # seconds after which refused subscriptions are made again


class Refusals:
    """Reports refused publishes and subscriptions, and retries subscriptions.

    The server does not announce that a subscription has become permitted. So the client makes a new
    connection, in which nats-py makes all subscriptions again. `on_publish` gets the subject of a
    refused publish, in lower case.
    """

    def __init__(
        self, connection: Connection, health: Health, on_publish: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._health = health
        self._on_publish = on_publish
        self._timer: asyncio.TimerHandle | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        connection.on_refused = self._refused

    def stop(self) -> None:
        for each in (self._timer, self._reconnecting):
            if each is not None:
                each.cancel()

    def _refused(self, action: str, subject: str) -> None:
        if action == "publish":
            self._health.refused("denied", stream_of(subject), subject)
            self._on_publish(subject)
            return
        self._health.refused("unheard", subject_family(subject), subject)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(SUBSCRIBE_AGAIN_S, self._connect_anew)

    def _connect_anew(self) -> None:
        self._timer = None
        self._reconnecting = asyncio.create_task(self._connection.connect_anew())
