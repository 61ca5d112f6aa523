"""Run Caddy, the proxy of docker-compose.yml. Without Caddy, a test is skipped; in CI it fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from support.drive.waiting import eventually
from support.real import servers
from support.real.node import absent
from support.real.ports import free_port


@asynccontextmanager
async def caddy(
    folder: Path, config: Path, ready: str, url: str = "", **variables: str
) -> AsyncIterator[str]:
    """Run Caddy with a Caddyfile, whose `{$PORT}` is that of `url`, or of a free one; yield its
    URL when the path `ready` answers. `folder` gets its log and its files."""
    program = shutil.which("caddy")
    if program is None:
        absent("no Caddy on the PATH (Debian's package `caddy`)")
    url = url or f"http://127.0.0.1:{free_port()}"
    process = servers.start(
        "caddy",
        [str(program), "run", "--config", str(config), "--adapter", "caddyfile"],
        log=folder / "caddy.log",
        owner_pid=os.getpid(),
        env={
            **variables,
            "PORT": url.rpartition(":")[2],
            "XDG_DATA_HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
        },
    )
    try:
        async with httpx.AsyncClient(verify=False) as http:  # a certificate of the test

            async def answers() -> bool:
                try:
                    return (await http.get(url + ready)).is_success
                except httpx.TransportError:
                    return False

            await eventually(answers, 30, "the proxy")
        yield url
    finally:
        process.stop()
