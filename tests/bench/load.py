"""Clients of SSE streams that check and count what they get: the C program, or else `crowd.py`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bench.publisher import Plan
from support.drive.repository import ROOT
from support.real import servers

HERE = Path(__file__).parent
SEQUENCE_KEY, TIME_KEY = "@n=", "@t="
_ANSWER_S = 300.0
_END_S = 10.0


@dataclass(frozen=True, slots=True)
class Clients:
    """Connections that read streams."""

    url: str
    paths: Sequence[str]  # connection i reads path i, and so on from the first
    connections: int
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: str = ""
    per_second: int = 2000  # connections that are opened
    max_connect_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Window:
    """When it is measured: for `duration_s`, after `warmup_s` with all connections open.

    `fresh`: from the first connection on, until `duration_s` after all are open; the latency is
    that of events sent since a client's request. `stop_after`: from the first connection on, until
    each has so many events.
    """

    duration_s: float = 4.0
    warmup_s: float = 1.5
    fresh: bool = False
    stop_after: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the clients have seen in the window, and what the watched processes took for it."""

    connected: int
    events: int
    window_s: float
    gaps: int
    repeats: int
    errors: int
    closed: int
    p50_ms: float
    p99_ms: float
    events_per_read: float
    cpu_s: dict[str, float]
    connect_s: float  # until all connections were open
    connect_events: int  # delivered until then
    connect_cpu_s: dict[str, float]
    rss_kib_first: dict[str, int]  # before the first connection
    rss_kib: dict[str, int]  # at the window's end

    def us_per_event(self, name: str) -> float:
        """CPU of a watched process for each event that was delivered."""
        return self.cpu_s[name] * 1e6 / max(self.events, 1)

    def faults(self) -> dict[str, float]:
        """Gaps, repeats, errors and streams that were closed, where there were some."""
        found = {
            "gaps": self.gaps,
            "repeats": self.repeats,
            "errors": self.errors,
            "closed": self.closed,
        }
        return {name: value for name, value in found.items() if value}


@cache
def program() -> Path | None:
    """The C load generator, compiled when it is older than its source; None without a compiler."""
    source, made = HERE / "sseload.c", ROOT / ".penstock/bench/sseload"
    if made.exists() and made.stat().st_mtime >= source.stat().st_mtime:
        return made
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    made.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-O2", "-o", made, source], check=True)
    return made


async def measure(
    clients: Clients,
    window: Window,
    watched: Mapping[str, Sequence[int]],
    folder: Path,
    once_open: Callable[[], Awaitable[None]] | None = None,
) -> Seen:
    """Open the connections, call `once_open`, wait, measure, and close them."""
    made = program()
    assert made is not None  # TODO
    paths = folder / "paths.txt"
    paths.write_text("\n".join(clients.paths) + "\n")
    command: list[str | Path] = [made, "--url", clients.url, "--paths", paths, "--seq", "data"]
    command += ["--seq-key", SEQUENCE_KEY, "--ts-key", TIME_KEY]
    command += ["--conns", f"{clients.connections}", "--conn-rate", f"{clients.per_second}"]
    command += ["--max-connect", f"{clients.max_connect_s}", "--method", clients.method]
    command += ["--duration", f"{window.duration_s}", "--warmup", f"{window.warmup_s}"]
    for name, value in clients.headers.items():
        command += ["--header", f"{name}: {value}"]
    for name, pids in watched.items():
        command += ["--watch", f"{name}={'+'.join(map(str, pids))}"]
    if clients.body:
        command += ["--body", clients.body]
    if window.fresh:
        command += ["--fresh"]
    if window.stop_after:
        command += ["--stop-after", f"{window.stop_after}"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_ANSWER_S):
            line = await process.stdout.readline()
            if once_open is not None and b'"events"' not in line:
                await once_open()
            rest = await process.stdout.read()
    finally:
        await _ended(process)
    return _seen(json.loads((line + rest).splitlines()[-1]))


def _seen(told: dict[str, Any]) -> Seen:
    watched: dict[str, dict[str, Any]] = told["watched"]
    return Seen(
        connected=told["connected"],
        events=told["events"],
        window_s=told["window_s"],
        gaps=told["gaps"],
        repeats=told["dups"],
        errors=told["errors"] + told["bad_status"],
        closed=told["closed_by_server"],
        p50_ms=told["lat_us"]["p50"] / 1000,
        p99_ms=told["lat_us"]["p99"] / 1000,
        events_per_read=told["loadgen"]["events_per_read"],
        cpu_s={name: each["cpu_s"] for name, each in watched.items()},
        connect_s=told["connect_s"],
        connect_events=told["connect_events"],
        connect_cpu_s={name: each["connect_cpu_s"] for name, each in watched.items()},
        rss_kib_first={name: each["rss_kb_first"] for name, each in watched.items()},
        rss_kib={name: each["rss_kb_after"] for name, each in watched.items()},
    )


@asynccontextmanager
async def script(name: str, folder: Path, *arguments: object) -> AsyncIterator[servers.Process]:
    """A server of this folder, from its `ready` on."""
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


class Publishing:
    """The process of `publisher.py`, with its runs begun."""

    def __init__(self, process: asyncio.subprocess.Process, runs: list[str]) -> None:
        self._process = process
        self.runs = runs
        self.behind_ms = 0.0

    async def publish(self, events: int) -> None:
        """So many events of each run."""
        await self._tell(f"{events}\n")
        await self._published()

    async def begin(self) -> None:
        """Events of each run until `end`."""
        await self._tell("0\n")

    async def end(self) -> None:
        """Return when the last event is out."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._published()

    async def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        await self._process.stdin.drain()

    async def _published(self) -> None:
        self.behind_ms = (await _answer(self._process))["behind_ms"]


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait for a process that ends by itself; kill one that does not."""
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_S)
    if process.returncode is None:
        process.kill()
        await process.wait()


async def _answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), _ANSWER_S)
    assert line, "the publisher ended"
    told: dict[str, Any] = json.loads(line)
    return told


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
        yield Publishing(process, (await _answer(process))["runs"])
    finally:
        assert process.stdin is not None
        process.stdin.close()  # which ends it
        await _ended(process)
