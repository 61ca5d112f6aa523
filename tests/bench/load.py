"""Run clients that check and count their SSE streams: the C program, or without it `crowd.py`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from bench.crowd_clients import Crowd
from bench.processes import ANSWER_S, HERE, ended
from bench.seen import Clients, Seen, Window
from support.drive.repository import ROOT

# the variable's value `python` selects crowd.py even if there is a C compiler
CLIENTS: Final = "PENSTOCK_BENCH_CLIENTS"
SEQUENCE_KEY, TIME_KEY = "@n=", "@t="


@cache
def program() -> Path | None:
    """Compile the C load generator if it is older than its source; None without a compiler."""
    source, made = HERE / "sseload.c", ROOT / ".penstock/bench/sseload"
    if os.environ.get(CLIENTS) == "python":
        return None
    if made.exists() and made.stat().st_mtime >= source.stat().st_mtime:
        return made
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    made.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may compile at the same time, and none may run a half-written program.
    unfinished = made.with_name(f"{made.name}.{os.getpid()}")
    subprocess.run([compiler, "-O2", "-o", unfinished, source], check=True)
    unfinished.replace(made)
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
    if made is None:
        return await Crowd(clients, window, watched).measure(once_open)
    return await _measure_with(made, clients, window, watched, folder, once_open)


async def _measure_with(
    made: Path,
    clients: Clients,
    window: Window,
    watched: Mapping[str, Sequence[int]],
    folder: Path,
    once_open: Callable[[], Awaitable[None]] | None,
) -> Seen:
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
        async with asyncio.timeout(ANSWER_S):
            line = await process.stdout.readline()
            if once_open is not None and b'"events"' not in line:
                await once_open()
            rest = await process.stdout.read()
    finally:
        await ended(process)
    return _seen(json.loads((line + rest).splitlines()[-1]))


def _seen(told: dict[str, Any]) -> Seen:
    watched: dict[str, dict[str, Any]] = told["watched"]
    return Seen(
        connected=told["connected"],
        events=told["events"],
        window_s=told["window_s"],
        gaps=told["gaps"],
        repeats=told["dups"],
        errors=told["errors"],
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
