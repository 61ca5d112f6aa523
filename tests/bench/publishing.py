"""Publish the events of a workload through the process of `publisher.py`."""

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
    """The process of `publisher.py` after it has begun its runs."""

    def __init__(self, process: asyncio.subprocess.Process, runs: list[str]) -> None:
        self._process = process
        self.runs = runs
        self.behind_ms = 0.0

    async def publish(self, events: int) -> None:
        """Publish this many events of each run."""
        await tell(self._process, f"{events}")
        await self._published()

    async def begin(self) -> None:
        """Publish events of each run until `end`."""
        await tell(self._process, "0")

    async def end(self) -> None:
        """Return when the last event is published."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._published()

    async def _published(self) -> None:
        self.behind_ms = (await answer(self._process))["behind_ms"]


@asynccontextmanager
async def publishing(plan: Plan, python: str = sys.executable) -> AsyncIterator[Publishing]:
    """Run a publisher on `python`, the interpreter of the measured code."""
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
        process.stdin.close()  # the publisher ends when its input ends
        await ended(process)
