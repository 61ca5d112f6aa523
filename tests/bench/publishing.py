"""The events of a workload, from the process of `publisher.py`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from bench.processes import HERE, answer, ended, tell
from bench.publisher import Plan


class Publishing:
    """The process of `publisher.py`, with its runs begun."""

    def __init__(self, process: asyncio.subprocess.Process, runs: list[str]) -> None:
        self._process = process
        self.runs = runs
        self.behind_ms = 0.0

    async def publish(self, events: int) -> None:
        """So many events of each run."""
        await tell(self._process, f"{events}")
        await self._published()

    async def begin(self) -> None:
        """Events of each run until `end`."""
        await tell(self._process, "0")

    async def end(self) -> None:
        """Return when the last event is out."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._published()

    async def _published(self) -> None:
        self.behind_ms = (await answer(self._process))["behind_ms"]


@asynccontextmanager
async def publishing(plan: Plan, python: str = sys.executable) -> AsyncIterator[Publishing]:
    """A publisher that runs on `python`, whose code is that which is measured."""
    process = await asyncio.create_subprocess_exec(
        python,
        str(HERE / "publisher.py"),
        json.dumps(asdict(plan)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    try:
        yield Publishing(process, (await answer(process))["runs"])
    finally:
        assert process.stdin is not None
        process.stdin.close()  # which ends it
        await ended(process)
