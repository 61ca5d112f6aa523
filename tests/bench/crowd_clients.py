"""Run the clients of `crowd.py` on a machine without a C compiler."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bench.processes import HERE, answer, ended, tell
from bench.seen import Clients, Seen, Window
from support.real.cpu import cpu_s
from support.real.processes import rss_bytes


class Crowd:
    """One measurement; the CPU time of the watched processes has a resolution of 10 ms."""

    def __init__(
        self, clients: Clients, window: Window, watched: Mapping[str, Sequence[int]]
    ) -> None:
        self._clients = clients
        self._window = window
        self._watched = watched

    async def measure(self, once_open: Callable[[], Awaitable[None]] | None) -> Seen:
        port = self._clients.url.rsplit(":", 1)[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / "crowd.py"), port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            return await self._measure(process, once_open)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await ended(process)

    async def _measure(
        self,
        process: asyncio.subprocess.Process,
        once_open: Callable[[], Awaitable[None]] | None,
    ) -> Seen:
        clients, window = self._clients, self._window
        first, first_cpu_s, begun = self._rss_kib(), self._cpu_s(), time.monotonic()
        paths = [clients.paths[n % len(clients.paths)] for n in range(clients.connections)]
        opening = {
            "paths": paths,
            "headers": dict(clients.headers),
            "method": clients.method,
            "body": clients.body,
            "until": "head",
            "per_second": clients.per_second,
        }
        await tell(process, json.dumps(opening))
        connected = (await answer(process))["open"]
        connect_s = time.monotonic() - begun
        before = opened_cpu_s = self._cpu_s()
        opened = await self._ask(process, "show")
        if once_open is not None:
            await once_open()
        if window.stop_after:
            before = first_cpu_s
            told = await self._all(process, window.stop_after * connected, begun)
        elif window.fresh:
            before = first_cpu_s
            await asyncio.sleep(window.duration_s)
            told = await self._ask(process, "measure")
        else:
            await asyncio.sleep(window.warmup_s)
            await self._ask(process, "measure")
            before, begun = self._cpu_s(), time.monotonic()
            await asyncio.sleep(window.duration_s)
            told = await self._ask(process, "measure")
        window_s, after = time.monotonic() - begun, self._cpu_s()
        return Seen(
            connected=connected,
            events=told["events"],
            window_s=window_s,
            gaps=told["gaps"],
            repeats=told["repeats"],
            errors=0,
            closed=0 if window.stop_after else told["closed"],
            p50_ms=told["p50_ms"],
            p99_ms=told["p99_ms"],
            events_per_read=0.0,
            cpu_s={name: after[name] - before[name] for name in after},
            connect_s=connect_s,
            connect_events=opened["events"],
            connect_cpu_s={name: opened_cpu_s[name] - first_cpu_s[name] for name in after},
            rss_kib_first=first,
            rss_kib=self._rss_kib(),
        )

    async def _all(
        self, process: asyncio.subprocess.Process, events: int, begun: float
    ) -> dict[str, Any]:
        deadline = begun + self._clients.max_connect_s
        while (told := await self._ask(process, "show"))["events"] < events:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        return told

    async def _ask(self, process: asyncio.subprocess.Process, what: str) -> dict[str, Any]:
        await tell(process, what)
        return await answer(process)

    def _cpu_s(self) -> dict[str, float]:
        return {name: sum(map(cpu_s, pids)) for name, pids in self._watched.items()}

    def _rss_kib(self) -> dict[str, int]:
        return {
            name: sum(rss_bytes(pid) for pid in pids) // 1024
            for name, pids in self._watched.items()
        }
