"""No erasure is half done after kills of every service (`make faults`)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.bus import streams
from support.drive.bus import connected
from support.drive.erasing import erased, streams_with
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, misbehaving
from support.fakes.raw import agno
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

RUNS, SECRET = 100, "secret-of-all-runs"
SERVICES = {"normalizer": 2, "connector": 1, "edge": 2, "approvals": 1, "automations": 1}
QUICK: dict[str, Any] = {"pod_ttl_s": 4, "pod_renew_s": 0.5, "reap_s": 0.5, "watch_s": 1}
DELETED = {streams.EVENTS, streams.RAW}


async def says_it(answer: Answer) -> None:
    """Say the secret in many pieces, and end."""
    await answer.head()
    await answer.send(agno("RunStarted"))
    for _ in range(50):
        await answer.send(agno("RunContent", content=SECRET))
    await answer.send(agno("RunContentCompleted") + agno("RunCompleted", content=SECRET))
    await answer.end()


async def asked(penstock: Deployment, number: int, method: str, path: str, **request: Any) -> Any:
    """Send a request to one of the edges until one has answered; return the JSON."""

    async def tried() -> Any:
        try:
            url = f"{penstock.edge(number)}{path}"
            answer = await penstock.http.request(method, url, **request)
        except httpx.TransportError:
            return None
        return answer.json() if answer.is_success else None

    return await eventually(tried, 120, f"{method} {path}")


async def test_no_erasure_is_half_done_while_every_service_is_killed(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with misbehaving() as upstream:
        upstream.script(says_it)
        agents = [{"id": "agent", "protocol": "agno", "url": upstream.url, "timeout_s": 120}]
        async with (
            deployment(fresh_nats.url, tmp_path / "p", agents, SERVICES, **QUICK) as penstock,
            connected(fresh_nats.url) as bus,
        ):

            async def run(number: int) -> str:
                body = {"agent": "agent", "message": SECRET, "session_id": f"s-{number}"}
                started = await asked(penstock, number, "POST", "/v1/runs", json=body)
                path = f"/v1/runs/{started['run_id']}"

                async def ended() -> bool:
                    shown = await asked(penstock, number, "GET", path)
                    return bool(shown["status"] == "completed")

                await eventually(ended, 120, "the run's end")
                return str(started["run_id"])

            runs = await asyncio.gather(*map(run, range(RUNS)))
            erasing = asyncio.gather(
                *(
                    asked(penstock, number, "DELETE", f"/v1/runs/{run_id}/content")
                    for number, run_id in enumerate(runs)
                )
            )
            for service in SERVICES:
                await penstock.kill(penstock.of(service)[0])
                await penstock.start(service)
            await erasing
            for run_id in runs:
                await erased(bus, run_id)
            for number, run_id in enumerate(runs):
                page = {"accept": "application/json"}
                path = f"/v1/runs/{run_id}/events"
                shown = await asked(penstock, number, "GET", path, headers=page)
                actions = [each["event"]["action"] for each in shown["events"]]
                assert actions == ["started", "erased", "completed"]

            async def gone() -> bool:
                return not streams_with(fresh_nats, SECRET) & DELETED

            await eventually(gone, 30, "files without the secret")
