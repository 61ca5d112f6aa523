"""Measure the delay for others while one user reads deep pages of /v1/events, 60 at a time.

The edge, the broker and that user are processes of their own. The test's process is the others: one
reads a run's record again and again, another follows a run live.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus import Bus, BusSettings
from support.drive.clients import Stream
from support.drive.figures import report
from support.fakes.issuer import SECRET, token
from support.fakes.pretend import PretendRun
from support.real.deployment import deployment
from support.real.nats import NatsServer

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

RUNS = 20
EVENTS = 1_000  # events of each run, all of which belong to another user
SECONDS = 10.0
PAUSE_S = 0.02
MOST_S = 10.0  # the most time to wait for an event
PAGES_S = 20.0  # the most time until the answer of a page, which holds a connection until then


async def fill(bus: Bus) -> str:
    """Store other users' runs; return the cursor of the first event."""

    async def play(run: PretendRun) -> None:
        await run.record(user_id="carol")
        await run.started()
        for number in range(EVENTS):
            await run.text(f"{number} some words of an answer of the usual length")

    runs = [PretendRun(bus) for _ in range(RUNS)]
    await asyncio.gather(*(play(run) for run in runs))
    return f"{min(run.first for run in runs)}-0"


@asynccontextmanager
async def deep_pages(port: int, cursor: str) -> AsyncIterator[dict[str, Any]]:
    """Run the user who reads deep pages; at the end, the dictionary holds this user's figures."""
    told: dict[str, Any] = {}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("deep_pages.py")),
        *(str(port), token(sub="mallory"), cursor),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    await asyncio.sleep(2)
    yield told
    out, _ = await process.communicate(b"")
    told.update(json.loads(out))


async def reads(http: httpx.AsyncClient, run: PretendRun) -> list[float]:
    """Return the milliseconds of each `GET /v1/runs/{id}`, one after another."""
    took_ms = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begun = time.perf_counter()
        answer = await http.get(f"/v1/runs/{run.run_id}")
        assert answer.status_code == 200, answer.text
        took_ms.append((time.perf_counter() - begun) * 1000)
        await asyncio.sleep(PAUSE_S)
    return took_ms


async def follows(http: httpx.AsyncClient, run: PretendRun) -> list[float]:
    """Return the milliseconds from the publish of each event to its frame, one after another."""
    took_ms = []
    async with Stream(http, "GET", f"/v1/runs/{run.run_id}/events") as stream:
        await stream.until(b"lifecycle.started")
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            mark = f"at {time.perf_counter_ns()}"
            begun = time.perf_counter()
            await run.text(mark)
            with suppress(TimeoutError):  # after a timeout, the event counts with MOST_S
                async with asyncio.timeout(MOST_S):
                    await stream.until(orjson.dumps(mark))
            took_ms.append((time.perf_counter() - begun) * 1000)
            await asyncio.sleep(PAUSE_S)
    return took_ms


def figures(name: str, took_ms: list[float]) -> dict[str, float]:
    cuts = quantiles(took_ms, n=100)
    return {f"{name} p50 ms": cuts[49], f"{name} p99 ms": cuts[98], f"{name} n": len(took_ms)}


async def test_sixty_deep_pages_of_one_user_do_not_slow_others(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    try:
        async with deployment(
            fresh_nats.url, tmp_path, [], {"edge": 1}, auth_jwt_secret=SECRET
        ) as penstock:
            [served] = penstock.of("edge")
            headers = {"authorization": f"Bearer {token(sub='alice')}"}
            url = f"http://127.0.0.1:{served.port}"
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
                run = PretendRun(bus)
                await run.record(user_id="alice")
                await run.started()
                cursor = await fill(bus)
                quiet_reads, quiet_stream = await asyncio.gather(
                    reads(http, run), follows(http, run)
                )
                async with deep_pages(served.port, cursor) as told:
                    held_reads, held_stream = await asyncio.gather(
                        reads(http, run), follows(http, run)
                    )
    finally:
        await bus.close()
    report("alone", **figures("read", quiet_reads), **figures("stream", quiet_stream))
    report("beside 60 deep pages", **figures("read", held_reads), **figures("stream", held_stream))
    print(told)
    assert quantiles(held_reads, n=100)[49] < 3 * quantiles(quiet_reads, n=100)[49]
    assert told["longest_s"] < PAGES_S
