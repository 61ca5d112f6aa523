"""The NATS servers of a round: one, or a cluster of three. Faults kill or pause them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import orjson
from nats.aio.client import Client
from nats.errors import Error as NatsError

from support.chaos.links import Link
from support.drive.bus import make_streams
from support.real.nats import NatsServer
from support.real.nats_cluster import cluster

_CALL_TIMEOUT_S = 2.0
_WHOLE_TIMEOUT_S = 120.0
_ASK_EVERY_S = 0.2
_BREATH_S = 5.0  # pause after a cluster has recovered, before the next fault


@dataclass(slots=True)
class Brokers:
    """The servers, each behind its link. Faults of brokers do not overlap: see `alone`."""

    servers: list[NatsServer]
    links: Sequence[Link]
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def url(self) -> str:
        """Return the URLs that the services use. They lead to the links."""
        return ",".join(f"nats://127.0.0.1:{link.port}" for link in self.links)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold off all other faults of brokers until every replica has caught up."""
        async with self._alone:
            await self.whole()
            yield
            clock = asyncio.get_running_loop().time
            began = clock()
            await self.whole()
            if len(self.servers) > 1:  # a slower machine gets a longer pause
                await asyncio.sleep(_BREATH_S + clock() - began)

    async def kill(self, number: int) -> None:
        await asyncio.to_thread(self.servers[number].kill)

    async def start(self, number: int) -> None:
        await asyncio.to_thread(self.servers[number].start)

    def connect(self) -> Any:
        """Connect the test itself to the servers, without the links."""
        return connection([server.url for server in self.servers])

    def refused(self) -> list[str]:
        """Return the operations that a service tried and that its NATS user may not do.

        A refused reply to an `_INBOX` does not count: a service that was paused may reply too late.
        """
        found = [line for server in self.servers for line in server.violations()]
        return [line for line in found if 'Publish Violation - Subject "_INBOX' not in line]

    async def whole(self) -> None:
        """Wait until every replica of every stream is current."""
        async with asyncio.timeout(_WHOLE_TIMEOUT_S), self.connect() as client:
            while not await self._is_whole(client):
                await asyncio.sleep(_ASK_EVERY_S)

    async def _is_whole(self, client: Client) -> bool:
        try:
            answer = await client.request("$JS.API.STREAM.LIST", b"", timeout=_CALL_TIMEOUT_S)
        except NatsError:
            return False
        found = orjson.loads(answer.data)
        if "error" in found or found.get("missing"):
            return False
        clusters = [stream.get("cluster", {}) for stream in found["streams"]]
        return len(self.servers) == 1 or all(
            each.get("leader")
            and len(each.get("replicas", ())) == len(self.servers) - 1
            and all(one["current"] and not one.get("offline") for one in each["replicas"])
            for each in clusters
        )


@asynccontextmanager
async def connection(urls: list[str]) -> AsyncIterator[Client]:
    """Connect with plain nats-py, without the product's bus."""

    async def ignore(error: Exception) -> None:
        """Ignore the error: the test kills brokers on purpose."""

    client = await nats.connect(
        urls,
        name="chaos",
        error_cb=ignore,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.1,
        connect_timeout=2,
        ping_interval=2,
        max_outstanding_pings=2,
    )
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def running(
    count: int, links: Sequence[Link], folder: Path
) -> AsyncIterator[list[NatsServer]]:
    """Run one server or a cluster of three, which advertise the links to their clients."""
    advertised = [f'client_advertise: "127.0.0.1:{link.port}"' for link in links]
    make = cluster if count > 1 else _single
    context = make(folder / "nats", advertised)
    # The context manager waits for its servers and runs an event loop of its own.
    servers = await asyncio.to_thread(context.__enter__)
    try:
        for server in servers:
            server.allow_violations()  # `Brokers.refused` checks the violations at the end
        for link, server in zip(links, servers, strict=True):
            link.target = int(server.url.rpartition(":")[2])
        if count == 1:  # `cluster` has already made the streams as a check
            await make_streams(servers[0].url)
        yield servers
    finally:
        for number, server in enumerate(servers):  # the servers' folders are removed
            shutil.copy(server.store.parent / "nats.log", folder / f"nats-{number}.log")
        await asyncio.to_thread(context.__exit__, None, None, None)


@contextmanager
def _single(folder: Path, configs: Sequence[str]) -> Iterator[list[NatsServer]]:
    server = NatsServer(folder, name="chaos nats", config=configs[0], on_disk=True)
    server.start()
    asyncio.run(make_streams(server.url))
    try:
        yield [server]
    finally:
        server.remove()
