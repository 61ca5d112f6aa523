"""Penstock's edge: JWT, access by run, dialects, resume, and events from JetStream."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.peers.served import Served
from bench.publisher import Plan
from support.drive.bus import make_streams
from support.fakes.issuer import SECRET, token
from support.real.deployment import Deployment
from support.real.nats import NatsServer
from support.real.processes import pid_of

USER = "alice"
DAY_S = 86_400
# All clients are one user, whose limits are off (0). Nothing else of the product is turned off.
SETTINGS: Final = {
    "auth_jwt_secret": SECRET,
    "auth_max_connections_per_user": 0,
    "auth_max_streams_per_user": 0,
    "auth_max_requests_per_s": 0,
    "max_open_runs_per_user": 0,
    "max_queued_runs_per_user": 0,
    "log_level": "warning",
}


def bearer() -> dict[str, str]:
    """Return the headers of a user's request."""
    return {"Authorization": f"Bearer {token(sub=USER, exp=int(time.time()) + DAY_S)}"}


def path(run_id: str, dialect: str) -> str:
    """Return the path of a run's stream."""
    if dialect == "openai":
        return f"/openai/v1/responses/resp_{run_id}?stream=true"
    return f"/v1/runs/{run_id}/events?dialect={dialect}"


@asynccontextmanager
async def broker(folder: Path) -> AsyncIterator[NatsServer]:
    """Run a nats-server with JetStream and Penstock's streams."""
    nats = NatsServer(folder / "nats", name=f"{folder.name} nats", on_disk=True)
    nats.start()
    try:
        await make_streams(nats.url)
        yield nats
    finally:
        await asyncio.to_thread(nats.remove)


@asynccontextmanager
async def services(
    nats: NatsServer,
    folder: Path,
    names: Sequence[str],
    python: str = sys.executable,
    agents: Sequence[Mapping[str, str]] = (),
    **settings: object,
) -> AsyncIterator[Deployment]:
    """Run one process for each name, with the code that `python` has; a name may repeat."""
    config = folder / "penstock.yaml"
    config.write_text(json.dumps({"agents": list(agents)}))
    environment = {
        f"PENSTOCK_{name.upper()}": str(value) for name, value in {**SETTINGS, **settings}.items()
    }
    penstock = Deployment(folder, config, nats.url, environment, python)
    try:
        for name in names:
            # as users start it; forked processes looked slower (w3 p99 6.1 ms, 2.9 to 4.7 so)
            await penstock.start(name, before=["env"])
        yield penstock
    finally:
        await penstock.stop()


@asynccontextmanager
async def edge(folder: Path, python: str = sys.executable) -> AsyncIterator[Served]:
    """Run an edge with the code that `python` has, and with a broker of its own."""
    async with broker(folder) as nats, services(nats, folder, ["edge"], python) as penstock:
        [instance] = penstock.of("edge")
        yield Served(
            url=instance.url,
            pids=[pid_of(instance.process)],
            path=path,
            replay_path=path,
            plan=Plan("nats", nats.url, 0, 0.0, USER),
            headers=bearer(),
            broker_pids=[nats.pid],
            python=python,
            dialects=frozenset({"canonical", "agui", "unified", "vercel", "a2a", "openai"}),
        )
