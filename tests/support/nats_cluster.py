"""Three real nats-servers that replicate JetStream, on free ports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.bus import BusError
from penstock.bus.streams import Retention
from support.bus import connected
from support.nats import NatsServer

REPLICATED = Retention(replicas=3)


@contextmanager
def cluster(folder: Path) -> Iterator[list[NatsServer]]:
    """Started, with every stream and bucket on all three."""
    ports = [_free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    servers = [
        NatsServer(
            folder / f"n{number}",
            name=f"nats {number}",
            config=f"server_name: n{number}\n"
            f'cluster {{ name: test, listen: "127.0.0.1:{port}", routes: [{routes}] }}',
        )
        for number, port in enumerate(ports)
    ]
    try:
        for server in servers:
            server.start()
        asyncio.run(_formed(servers[0].url))
        yield servers
    finally:
        for server in servers:
            server.remove()


async def _formed(url: str) -> None:
    """JetStream answers when the three have elected a leader."""
    async with asyncio.timeout(30):
        while True:
            try:
                async with connected(url, publish_timeout_s=0.5, retention=REPLICATED):
                    return
            except BusError:
                continue


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
