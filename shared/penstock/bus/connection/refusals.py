"""Handles publishes and subscriptions that the server refuses for lack of a permission."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.bus.connection.health import Health, stream_of, subject_family
from penstock.bus.connection.nats_client import Connection

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
