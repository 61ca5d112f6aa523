"""Defines `Bus`: one connection to NATS, and the parts that use the connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from datetime import datetime
from typing import Any

from nats.errors import Error as NatsError

from penstock.bus import subjects
from penstock.bus.admin.ensure import ensure as ensure_streams
from penstock.bus.connection.clock import Clock
from penstock.bus.connection.dialing import Dialer
from penstock.bus.connection.health import Health
from penstock.bus.connection.jetstream import JetStream
from penstock.bus.connection.nats_client import Connection
from penstock.bus.connection.settings import BusSettings
from penstock.bus.connection.supervision import LeaderProbe, Refusals
from penstock.bus.errors import BusError, NotPermitted, StartUpError, refusal
from penstock.bus.messages import Stored
from penstock.bus.read import leader
from penstock.bus.shards import Shards
from penstock.bus.state.continuity import Continuity
from penstock.bus.state.kv import Bucket
from penstock.bus.state.recovery import Recovery
from penstock.bus.write.publisher import Publisher

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2  # the most seconds that `close` waits until NATS has taken the last messages
# the most seconds that a request to the leader, or for the time of NATS, waits
READ_TIMEOUT_S = 2.0
LEASES = "KV_leases"


class Bus:
    """A bus is one connection to NATS, with everything that Penstock does over the connection.

    After `connect`, the bus reconnects until `close` is called. `ready` is true while the
    connection works; `not_ready` has the reasons why no new work should begin.
    """

    def __init__(self, settings: BusSettings) -> None:
        self.settings = settings
        self.client = Connection()
        self.health = Health()
        self.jetstream = JetStream(
            self.client, self.health, settings.publish_timeout_s, settings.content_keys
        )
        self.content = self.jetstream.content
        self.publisher = Publisher(
            self.client,
            settings.publish_timeout_s,
            settings.max_unacked_bytes,
            self.health,
            self.content,
        )
        self.api, self.request = self.jetstream.api, self.jetstream.request
        self.subscribe, self.listen = self.jetstream.subscribe, self.jetstream.listen
        self.on_reconnect, self.has = self.jetstream.on_reconnect, self.jetstream.has
        self.clock = Clock(self._server_time, settings.clock_limit_s)
        self.continuity = Continuity(self, repairs=settings.repairs)
        self._buckets: dict[str, Bucket] = {}
        self._dialer = Dialer(settings, self.client)
        self._refusals = Refusals(self.client, self.health, self.publisher.refused)
        self._recovery = Recovery(self.jetstream, self.continuity, repairs=settings.repairs)
        self._loops: list[asyncio.Task[None]] = []

    @classmethod
    async def connect(cls, settings: BusSettings, *, ensure: bool = True) -> Bus:
        """Connect, check the server, and make or upgrade every stream and bucket.

        A caller that only reads passes `ensure=False`, and the streams are not changed: its
        settings of their retention may differ from those of the services.

        Raises:
            NotThereYet: a later attempt may succeed. The text names what is missing.
            StartUpError: Penstock cannot use the server. The text contains advice.
        """
        bus = cls(settings)
        try:
            await bus._dialer.connect(bus._reconnected, bus._disconnected)
            await bus._dialer.check_server(bus.jetstream)
            await bus.publisher.start()
            if ensure:
                ensured = await ensure_streams(bus, settings.retention)
                await bus._recovery.begin({name: each.created for name, each in ensured.items()})
                await bus._begin_content()
            await bus.clock.begin()
        except BaseException:
            await bus.client.close()
            raise
        bus._loop(LeaderProbe(bus._ask_leader, bus.client.leave, bus.health).run())
        if ensure:
            bus._loop(bus._recovery.watch())
        bus._loop(bus.clock.run())
        return bus

    async def close(self) -> None:
        if self.client.is_closed:
            return
        self._recovery.stop()
        self._refusals.stop()
        for task in self._loops:
            task.cancel()
        try:
            await self.client.flush(CLOSE_TIMEOUT_S)
        except NatsError:
            log.warning("NATS did not take the last messages before the connection was closed")
        await self.client.close()

    async def _begin_content(self) -> None:
        try:
            if self.content.masters:
                await self.listen(subjects.key_notice("*"), self.content.on_notice)
            reason = await self.content.check()
        except NotPermitted as error:
            if self.content.masters:
                raise StartUpError(f"cannot read the keys of runs: {error}") from error
            # The permissions are of an earlier version, in which nothing is sealed.
            log.warning("cannot find out whether content is sealed: %s", error)
            return
        except BusError as error:
            raise refusal(error)(f"cannot find out whether content is sealed: {error}") from error
        if reason:
            raise StartUpError(reason)

    # state

    @property
    def where(self) -> str:
        return self._dialer.where

    @property
    def is_ready(self) -> bool:
        """True while the connection is up and the streams are the same as at the start."""
        return self.client.is_usable

    @property
    def since_reconnect_s(self) -> float:
        """Seconds since the last reconnect; 0 while the bus is not ready."""
        return self.client.since_reconnect_s

    @property
    def since_node_lost_s(self) -> float:
        """Seconds since the cluster last lost a server, as far as this connection knows."""
        return self.client.since_node_lost_s

    @property
    def unavailable_reason(self) -> str:
        """The reason why nothing can be sent now, without addresses; empty while sending works.
        Clients may see this text."""
        return self.client.held_back if self.client.is_connected else "not connected to NATS"

    @property
    def not_ready(self) -> list[str]:
        """The reasons, for operators, why no new work should begin; empty while work may begin."""
        if not self.client.is_connected:
            return [self._dialer.disconnect_reason]
        reasons = self.health.reasons + self.clock.not_ready
        held_back = self.client.held_back
        return reasons if not held_back or held_back in reasons else [held_back, *reasons]

    @property
    def shards(self) -> Shards:
        """The number of shards of RAW and EVENTS, as it was at most some seconds ago."""
        return self.continuity.shards

    # requests, reads and buckets

    def bucket(self, name: str) -> Bucket:
        if name not in self._buckets:
            self._buckets[name] = Bucket(self, name)
        return self._buckets[name]

    # single messages, from the stream's leader

    async def tail(self, stream: str, pattern: str) -> Stored | None:
        return await leader.tail(self, stream, pattern)

    async def at(self, stream: str, sequence: int) -> Stored | None:
        return await leader.at(self, stream, sequence)

    async def since(self, stream: str, time: datetime) -> Stored | None:
        return await leader.since(self, stream, time)

    async def delete(self, stream: str, sequence: int) -> bool:
        return await leader.delete(self, stream, sequence)

    # the connection

    def _loop(self, run: Coroutine[Any, Any, None]) -> None:
        self._loops.append(asyncio.create_task(run))

    async def _ask_leader(self) -> None:
        if self.client.is_connected:
            await self.jetstream.api("INFO", timeout_s=READ_TIMEOUT_S)

    async def _server_time(self) -> str:
        # The leader of the stream of the leases gives the leases their times. The answer carries
        # the leader's time, so the clocks are the same.
        answer = await self.jetstream.api(f"STREAM.INFO.{LEASES}", timeout_s=READ_TIMEOUT_S)
        return str(answer["ts"])

    async def _reconnected(self) -> None:
        url = self.client.connected_url
        log.info("reconnected to NATS at %s", url.netloc.rpartition("@")[2] if url else "")
        self._dialer.record_reconnect()
        self.health.begin_anew()
        self._recovery.reconnected()

    async def _disconnected(self) -> None:
        if self.client.is_closed:
            self._recovery.stop()
        else:
            self._dialer.record_disconnect()
            self._recovery.disconnected()
            log.warning("disconnected from NATS; reconnecting")
        self.content.forget()  # notices that a key was destroyed are lost now
        self.client.connection_lost()
        self.publisher.connection_lost()
