"""The usual first design: FastAPI, sse-starlette, and a JetStream consumer for each client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peers.penstock import broker
from bench.peers.served import NotHere, Served
from bench.publisher import Plan
from support.drive.repository import ROOT
from support.real import servers
from support.real.ports import free_port
from support.real.processes import pid_of

PYTHON = ROOT / ".penstock/venvs/bench_naive/bin/python"


def _path(run_id: str, _: str) -> str:
    return f"/runs/{run_id}"


@asynccontextmanager
async def edge(folder: Path) -> AsyncIterator[Served]:
    """Run the naive edge. Raises NotHere if its environment is missing."""
    if not PYTHON.exists():
        raise NotHere("make bench-peers")
    port = free_port()
    async with broker(folder) as nats:
        process = servers.start(
            "naive",
            [PYTHON, Path(__file__).with_name("naive_edge.py"), str(port), nats.url],
            log=folder / "naive.log",
            owner_pid=os.getpid(),
        )
        servers.await_log(process, "Uvicorn running", 20)
        try:
            yield Served(
                url=f"http://127.0.0.1:{port}",
                pids=[pid_of(process)],
                path=_path,
                replay_path=_path,
                plan=Plan("nats", nats.url, 0, 0.0),
                broker_pids=[nats.pid],
                max_events_per_s=3000,
                max_connections=1000,
            )
        finally:
            await asyncio.to_thread(process.stop)
