"""Measure the time from the kill of a service to the next event (`make faults`).

This file kills approvals and edges. Other tests kill normalizers (`test_scale_out.py`), connectors
(`tests/connector/succession/test_within_5_s.py`), `penstock up` (`tests/cli/test_killed_up.py`) and
brokers (`tests/broker`).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from support.drive.figures import report
from support.drive.watching import streamer
from support.fakes.misbehaving import misbehaving, plays
from support.fakes.raw import agno_pause
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

KILLS = 10
WITHIN_S = 5.0  # the limit for the median, in seconds; the slowest kill may take twice as long
RUNS = 5


def check(what: str, took_s: list[float]) -> None:
    took_s.sort()
    report(what, p50_s=took_s[len(took_s) // 2], max_s=took_s[-1], kills=KILLS)
    assert took_s[len(took_s) // 2] < WITHIN_S
    assert took_s[-1] < 2 * WITHIN_S


async def test_runs_that_pause_while_an_approvals_service_is_killed_wait_for_a_person_soon(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with misbehaving() as upstream:
        upstream.script(plays(agno_pause()))
        agents = [{"id": "agent", "protocol": "agno", "url": upstream.url}]
        count = {"normalizer": 1, "connector": 1, "edge": 1, "approvals": 2}
        async with deployment(fresh_nats.url, tmp_path, agents, count) as penstock:
            took_s = []
            for _ in range(KILLS):
                runs = [await penstock.run("agent", "pause") for _ in range(RUNS)]
                since = time.monotonic()
                await penstock.kill(penstock.of("approvals")[0])
                paused = (penstock.until(run_id, "lifecycle.paused") for run_id in runs)
                await asyncio.gather(*paused)
                took_s.append(time.monotonic() - since)
                await penstock.start("approvals")
    check("approvals killed: to the last pause of five runs", took_s)


async def test_the_client_of_a_killed_edge_continues_at_another_soon(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    count = {"normalizer": 1, "connector": 1, "edge": 2, "approvals": 1}
    async with (
        streamer(tmp_path, 4000, 20.0) as agent,
        deployment(fresh_nats.url, tmp_path, [{"id": "agent", **agent}], count) as penstock,
    ):
        run_id = await penstock.run("agent", "go")
        seen, took_s = "", []
        for _ in range(KILLS):
            seen, after_s = await killed_under_a_client(penstock, run_id, seen)
            took_s.append(after_s)
            await penstock.start("edge")
    check("edge killed: to its client's next event at another", took_s)


async def killed_under_a_client(penstock: Deployment, run_id: str, seen: str) -> tuple[str, float]:
    """Kill the client's edge; return the other edge's first cursor and its delay in seconds."""
    victim = penstock.of("edge")[0]
    since = 0.0
    try:
        async for event in penstock.events(run_id, after=seen or None):
            seen = event.id or seen
            if not since and penstock.of("edge")[0] is victim:
                since = time.monotonic()
                await penstock.kill(victim)
    except httpx.HTTPError:
        pass
    assert since
    async for event in penstock.events(run_id, after=seen or None):
        return event.id or seen, time.monotonic() - since
    raise AssertionError("the other edge says nothing")
