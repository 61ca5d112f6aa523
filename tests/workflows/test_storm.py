"""One user's workflows with long expressions do not keep another user waiting."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.drive.waiting import eventually
from support.real.ports import free_port
from support.real.up import Up

ITEMS = 1000
# Each item takes about 170,000 steps, so that each of them alone is allowed.
ATTACK = {
    "for_each": {"in": "input.items", "limit": 100},
    "set": "size(input.data.filter(x, size(input.data.filter(y, y == x)) > 1))",
    "on_failure": "continue",
}
FIRST_RUNS = 20


def stored(name: str, step: dict[str, Any]) -> dict[str, Any]:
    return {"dsl": "penstock/1", "name": name, "version": "1", "steps": {"a": step}}


async def start(http: httpx.AsyncClient, name: str, user: str, given: dict[str, Any]) -> str:
    body = {"input": given, "user_id": user}
    answer = await http.post(f"/v1/workflows/{name}/runs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


async def status(http: httpx.AsyncClient, run_id: str) -> str:
    answer = await http.get(f"/v1/runs/{run_id}")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["status"])


async def ended(http: httpx.AsyncClient, run_id: str) -> bool:
    return await status(http, run_id) in ("completed", "failed", "cancelled")


async def seconds_of_a_run(http: httpx.AsyncClient) -> float:
    """Start a small run of the second user; return the seconds until its end."""
    began = time.monotonic()
    run_id = await start(http, "small", "second", {"n": 1})

    async def is_done() -> bool:
        return await ended(http, run_id)

    await eventually(is_done, 60, "the second user's run")
    return time.monotonic() - began


@asynccontextmanager
async def running(folder: Path, probe_port: int, **environment: str) -> AsyncIterator[Up]:
    up = Up(folder, "--probe-port", str(probe_port))
    await asyncio.to_thread(up.start, PENSTOCK_CONFIG=os.devnull, **environment)
    try:
        yield up
    finally:
        await asyncio.to_thread(up.signal, signal.SIGKILL)


async def metric(probe_port: int, name: str) -> float:
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"http://127.0.0.1:{probe_port}/metrics")
    [line] = [each for each in answer.text.splitlines() if each.startswith(f"{name} ")]
    return float(line.split()[1])


@pytest.mark.timeout(240)
async def test_a_thousand_long_items_delay_no_other_user_and_end_at_the_limit_of_the_run(
    tmp_path: Path,
) -> None:
    probe_port = free_port()
    async with (
        running(tmp_path, probe_port, PENSTOCK_STEPS_PER_RUN="2000000") as up,
        httpx.AsyncClient(base_url=up.url, timeout=60) as http,
    ):
        for name, step in (("attack", ATTACK), ("small", {"set": "input.n + 1"})):
            answer = await http.put(f"/v1/workflows/{name}/versions/1", json=stored(name, step))
            assert answer.status_code == 201, answer.text
        alone_s = sorted([await seconds_of_a_run(http) for _ in range(FIRST_RUNS)])
        given = {"items": list(range(ITEMS)), "data": list(range(180))}
        attacks = [await start(http, "attack", "first", given) for _ in range(3)]
        waited_s: list[float] = []
        while not all([await ended(http, each) for each in attacks]):
            waited_s.append(await seconds_of_a_run(http))
        assert len(waited_s) > 5, "the attack was over before it was measured"
        # Before a decision had a budget, a run waited for a minute. Now it waited for up to 1.3 s
        # beside the whole suite on two slow cores, so this test cannot show a limit of 1 s.
        worst_s = sorted(waited_s)[int(len(waited_s) * 0.99) - 1]
        assert worst_s < max(5, 3 * alone_s[-1]), (worst_s, alone_s)
        assert await metric(probe_port, "penstock_loop_longest_turn_seconds") < max(0.5, worst_s)
        for each in attacks:
            run = (await http.get(f"/v1/runs/{each}")).json()
            assert run["status"] == "failed"
            assert "limit_exceeded" in str(run), run
