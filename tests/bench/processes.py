"""Run processes that read commands line by line, and scripts of this folder that are servers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from support.real import servers

HERE: Final = Path(__file__).parent
ANSWER_S: Final = 300.0
_END_S: Final = 10.0


@asynccontextmanager
async def script(name: str, folder: Path, *arguments: object) -> AsyncIterator[servers.Process]:
    """Start a server of this folder and wait for its `ready`."""
    process = servers.start(
        name,
        [sys.executable, HERE / name, *map(str, arguments)],
        log=folder / f"{name}.log",
        owner_pid=os.getpid(),
    )
    servers.await_log(process, "ready", 20)
    try:
        yield process
    finally:
        await asyncio.to_thread(process.stop)


async def tell(process: asyncio.subprocess.Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    await process.stdin.drain()


async def ended(process: asyncio.subprocess.Process) -> None:
    """Wait for a process that ends by itself; kill one that does not."""
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_S)
    if process.returncode is None:
        process.kill()
        await process.wait()


async def answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), ANSWER_S)
    assert line, "a process of the load ended"
    told: dict[str, Any] = json.loads(line)
    return told
