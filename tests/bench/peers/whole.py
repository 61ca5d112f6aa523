"""All of Penstock at one version: an agent server, the services, and a broker of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers.penstock import bearer, broker, services
from bench.processes import script
from bench.seen import Clients
from support.real.deployment import SERVICES, Deployment
from support.real.nats import NatsServer
from support.real.ports import free_port
from support.real.processes import pid_of

PATH: Final = ("connector", "normalizer", "edge")


@dataclass(frozen=True, slots=True)
class Whole:
    """The services and their broker."""

    penstock: Deployment
    nats: NatsServer

    def pids(self) -> dict[str, list[int]]:
        """Return the process ids of each service and of the broker."""
        found = {
            service: [pid_of(each.process) for each in self.penstock.of(service)]
            for service in SERVICES
        }
        return {**found, "nats": [self.nats.pid]}

    def starting(self, agent: str, runs: int, per_second: int = 2000) -> Clients:
        """Return clients that each start a run and read its stream from the same response."""
        return Clients(
            self.penstock.edge(),
            ["/v1/runs"],
            runs,
            bearer() | {"Content-Type": "application/json"},
            "POST",
            f'{{"agent":"{agent}","message":"go"}}',
            per_second,
        )


@asynccontextmanager
async def upstream(folder: Path) -> AsyncIterator[str]:
    """Run `flooder.py`; yield its URL."""
    port = free_port()
    async with script("flooder.py", folder, port):
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def whole(
    folder: Path,
    python: str,
    url: str,
    agents: Sequence[str],
    names: Sequence[str] = SERVICES,
    **settings: object,
) -> AsyncIterator[Whole]:
    """Run the services `names`, with agents of the server at `url`."""
    rows = [{"id": id, "protocol": "agno", "url": url} for id in agents]
    async with (
        broker(folder) as nats,
        services(nats, folder, names, python, rows, **settings) as penstock,
    ):
        yield Whole(penstock, nats)
