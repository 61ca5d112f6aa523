"""Centrifugo: it takes events by its HTTP API, keeps them in memory, and sends SSE."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from bench.peers.served import NotHere, Served
from bench.publisher import Plan
from support.drive.repository import ROOT
from support.drive.waiting import wait_for
from support.real import servers
from support.real.ports import free_port
from support.real.processes import pid_of

PROGRAM = ROOT / ".penstock/go/centrifugo"


@asynccontextmanager
async def edge(folder: Path) -> AsyncIterator[Served]:
    """Run Centrifugo. Raises NotHere if it was not built."""
    if not PROGRAM.exists():
        raise NotHere("make bench-peers builds Centrifugo, with Go")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    configuration = folder / "centrifugo.json"
    configuration.write_text(
        json.dumps(
            {
                "http_server": {"address": "127.0.0.1", "port": port},
                "log": {"level": "error"},
                "http_api": {"insecure": True},
                "client": {"allow_anonymous_connect_without_token": True},
                "uni_sse": {"enabled": True},
                "channel": {
                    "without_namespace": {
                        "allow_subscribe_for_client": True,
                        "allow_subscribe_for_anonymous": True,
                        "history_size": 2000,
                        "history_ttl": "10m",
                        "force_recovery": True,
                    }
                },
            }
        )
    )
    process = servers.start(
        "centrifugo",
        [PROGRAM, "-c", configuration],
        log=folder / "centrifugo.log",
        owner_pid=os.getpid(),
    )

    def answers() -> bool:
        if process.popen.poll() is not None:
            raise RuntimeError(f"centrifugo ended:\n{servers.tail(process.log)}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        wait_for(answers, 20, "centrifugo")
        yield Served(
            url=f"http://127.0.0.1:{port}",
            pids=[pid_of(process)],
            path=lambda run_id, _: _path(run_id, {}),
            replay_path=lambda run_id, _: _path(run_id, {"recover": True}),
            plan=Plan("centrifugo", f"127.0.0.1:{port}", 0, 0.0),
        )
    finally:
        process.stop()


def _path(run_id: str, subscription: dict[str, object]) -> str:
    connect = json.dumps({"subs": {run_id: subscription}})
    return f"/connection/uni_sse?cf_connect={quote(connect)}"
