"""Three real nats-servers that replicate JetStream, on free ports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
from nats.errors import Error as NatsError

from penstock.bus import Bus, BusError, BusSettings
from penstock.bus.streams import Retention
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.fakes.cutter import Gate
from support.real.nats import NatsServer
from support.real.ports import free_port

REPLICATED = Retention(replicas=3)


@contextmanager
def cluster(
    folder: Path, configs: Sequence[str] = ("", "", ""), empty: bool = False
) -> Iterator[list[NatsServer]]:
    """Start a cluster with every stream and bucket on all servers, or an `empty` one.

    `configs`: further lines of configuration for each server.
    """
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    servers = [
        NatsServer(
            folder / f"n{number}",
            name=f"nats {number}",
            config=f"server_name: n{number}\n"
            f'cluster {{ name: test, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n'
            f"{configs[number]}",
            on_disk=True,
        )
        for number, port in enumerate(ports)
    ]
    try:
        for server in servers:
            server.start()
        asyncio.run((_elected if empty else _formed)(servers[0].url))
        yield servers
    finally:
        for server in servers:
            server.remove()


@contextmanager
def nats_of(number: int, folder: Path) -> Iterator[list[NatsServer]]:
    """Run one server or a cluster of three, without any stream."""
    if number > 1:
        with cluster(folder, empty=True) as servers:
            yield servers
        return
    server = NatsServer(folder, name=f"{folder.name} nats")
    server.start()
    try:
        yield [server]
    finally:
        server.remove()


@asynccontextmanager
async def in_thread(
    servers: AbstractContextManager[list[NatsServer]],
) -> AsyncIterator[list[NatsServer]]:
    """Enter a context manager that waits for its servers, and may run an event loop of its own."""
    found = await asyncio.to_thread(servers.__enter__)
    try:
        yield found
    finally:
        await asyncio.to_thread(servers.__exit__, None, None, None)


def url_of(servers: Sequence[NatsServer]) -> str:
    return ",".join(server.url for server in servers)


@dataclass
class Network:
    """Three servers behind gates: one per server for clients, one per route between servers."""

    servers: list[NatsServer]
    gates: list[Gate]
    routes: dict[tuple[int, int], Gate]

    @property
    def urls(self) -> list[str]:
        """The URLs of the servers for clients."""
        return [f"nats://127.0.0.1:{gate.port}" for gate in self.gates]

    def ways_to(self, number: int) -> list[Gate]:
        """Return the gates between this server and the others."""
        return [gate for pair, gate in self.routes.items() if number in pair]

    def node_of(self, service: str) -> int:
        """Return the number of the server to which a service is connected."""
        for number, server in enumerate(self.servers):
            if any(name.startswith(f"{service}-") for name in server.clients()):
                return number
        raise AssertionError(f"{service} is connected to no node")

    async def leader(self, stream: str) -> int:
        """Return the server that leads the stream, when it has a leader."""
        async with self._looking() as bus:

            async def probe() -> str | None:
                try:
                    info = await bus.api(f"STREAM.INFO.{stream}")
                except BusError:
                    return None
                return str(info["cluster"].get("leader", ""))

            return int((await eventually(probe, 30, f"a leader of {stream}")).removeprefix("n"))

    @asynccontextmanager
    async def elections(
        self, lost: int
    ) -> AsyncIterator[Callable[[], Awaitable[dict[str, float]]]]:
        """Yield a function that waits until the surviving servers lead the cluster and each stream.

        The function returns the monotonic time at which each stream was led; for the cluster, the
        name is empty.

        Enter this context before the server `lost` is killed.
        """
        survivor = self.servers[(lost + 1) % 3]
        async with connected(f"nats://127.0.0.1:{survivor.port}", retention=REPLICATED) as bus:
            streams = await _streams(bus)

            async def elected() -> dict[str, float]:
                calls = {"": "INFO", **{name: f"STREAM.INFO.{name}" for name in streams}}
                led_at: dict[str, float] = {}
                while without := [name for name in calls if name not in led_at]:
                    led = await asyncio.gather(
                        *(_is_led(bus, calls[name], lost) for name in without)
                    )
                    now = time.monotonic()
                    led_at |= {
                        name: now for name, is_led in zip(without, led, strict=True) if is_led
                    }
                    await asyncio.sleep(0.05)
                return led_at

            yield elected

    async def whole(self) -> None:
        """Wait until every stream has all replicas and all are current."""
        async with self._looking() as bus:

            async def probe() -> bool:
                try:
                    return all([await _is_whole(bus, name) for name in await _streams(bus)])
                except BusError:
                    return False

            await eventually(probe, 60, "the cluster is whole")

    @asynccontextmanager
    async def _looking(self) -> AsyncIterator[Bus]:
        urls = ",".join(f"nats://127.0.0.1:{server.port}" for server in self.servers)
        settings = BusSettings(url=urls, publish_timeout_s=2)

        async def connect() -> Bus | None:
            try:
                return await Bus.connect(settings, ensure=False)
            except BusError:
                return None

        bus = await eventually(connect, 30, "a server that answers")
        try:
            yield bus
        finally:
            await bus.close()


async def _streams(bus: Bus) -> list[str]:
    answer = await bus.api("STREAM.NAMES")
    return [str(name) for name in answer["streams"]]


async def _is_led(bus: Bus, call: str, lost: int) -> bool:
    """Return whether a leader other than the lost one answers."""
    try:
        msg = await bus.client.request(f"$JS.API.{call}", timeout=0.2)
    except NatsError:
        return False
    answer = orjson.loads(msg.data)
    return "error" not in answer and answer.get("cluster", {}).get("leader") != f"n{lost}"


async def _is_whole(bus: Bus, stream: str) -> bool:
    cluster = (await bus.api(f"STREAM.INFO.{stream}"))["cluster"]
    replicas = cluster.get("replicas", [])
    return (
        "leader" in cluster
        and len(replicas) == 2
        and all(replica["current"] and not replica.get("offline") for replica in replicas)
    )


@asynccontextmanager
async def network(folder: Path) -> AsyncIterator[Network]:
    """Run a cluster whose client connections and routes the test can cut."""
    clients, ports = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
    gates = [Gate(port) for port in clients]
    routes = {(a, b): Gate(ports[b]) for a in range(3) for b in range(3) if a != b}
    for gate in (*gates, *routes.values()):
        await gate.serve()
    servers = []
    for number in range(3):
        to = [f'"nats://127.0.0.1:{gate.port}"' for (a, _), gate in routes.items() if a == number]
        servers.append(
            NatsServer(
                folder / f"n{number}",
                name=f"nats {number}",
                port=clients[number],
                # The address that a server advertises to the others does not exist, so that no
                # route goes past the gates.
                config=f"server_name: n{number}\n"
                f'http: "127.0.0.1:-1", client_advertise: "127.0.0.1:{gates[number].port}"\n'
                "lame_duck_duration: 30s, lame_duck_grace_period: 1s\n"
                f'cluster {{ name: test, listen: "127.0.0.1:{ports[number]}", '
                f'advertise: "127.0.0.1:1", routes: [{", ".join(to)}] }}',
            )
        )
    try:
        for server in servers:
            await asyncio.to_thread(server.start)
        made = Network(servers, gates, routes)
        await _formed(made.urls[0])
        yield made
    finally:
        for server in servers:
            await asyncio.to_thread(server.remove)
        for gate in (*gates, *routes.values()):
            await gate.close()


async def _elected(url: str) -> None:
    """Wait until the three servers have elected a leader; there are no streams."""
    async with asyncio.timeout(30):
        while True:
            try:
                bus = await Bus.connect(BusSettings(url=url), ensure=False)
            except BusError:
                await asyncio.sleep(0.1)
                continue
            await bus.close()
            return


async def _formed(url: str) -> None:
    """Wait until the three servers have elected a leader; JetStream answers only then."""
    async with asyncio.timeout(30):
        while True:
            try:
                async with connected(url, publish_timeout_s=0.5, retention=REPLICATED):
                    return
            except BusError:
                continue
