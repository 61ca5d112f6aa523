"""`penstock up` is killed and restarted, and takes over its predecessor's work at once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from support.drive.figures import report
from support.drive.waiting import eventually
from support.fakes.misbehaving import Misbehaving, misbehaving, plays, stalls
from support.fakes.raw import agno, agno_approved, agno_pause, agno_text
from support.real.up import Up

KILLS = 10
WITHIN_S = 5.0  # the limit for the median, in seconds; the slowest restart may take twice as long
# With these settings, no lease and no acknowledgement wait ends during a test, so no recovery
# depends on one.
LONG = {
    "PENSTOCK_POD_TTL_S": "120",
    "PENSTOCK_PARTITION_TTL_S": "120",
    "PENSTOCK_ACK_WAIT_S": "120",
}


@pytest.fixture
async def upstream() -> AsyncIterator[Misbehaving]:
    async with misbehaving() as server:
        yield server


@pytest.fixture
def up(make_up: Callable[..., Up], upstream: Misbehaving, tmp_path: Path) -> Up:
    config = tmp_path / "penstock.yaml"
    config.write_text(f"agents:\n  - {{id: agent, protocol: agno, url: '{upstream.url}'}}\n")
    return make_up("--config", str(config))


async def started(http: httpx.AsyncClient) -> str:
    answer = await http.post("/v1/runs", json={"agent": "agent", "message": "hello"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


async def reached(http: httpx.AsyncClient, run_id: str, *statuses: str) -> str:
    """Return the run's status, once it is one of these."""

    async def is_there() -> str | None:
        try:
            answer = await http.get(f"/v1/runs/{run_id}")
        except httpx.TransportError:
            return None
        status = str(answer.json().get("status")) if answer.is_success else ""
        return status if status in statuses else None

    found = await eventually(is_there, 60, f"the run is {statuses}")
    assert found is not None
    return found


@pytest.mark.chaos
async def test_the_work_of_a_killed_process_is_taken_over_before_its_leases_expire(
    up: Up, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno("RunStarted"), stalls))
    await asyncio.to_thread(up.start, **LONG)
    async with httpx.AsyncClient(base_url=up.url) as http:
        run_id = await started(http)
        await reached(http, run_id, "running")
        await asyncio.to_thread(up.signal, signal.SIGKILL)
        upstream.script(plays(agno_text("x")))
        await asyncio.to_thread(up.start, **LONG)
        assert await reached(http, run_id, "failed", "completed") == "failed"
        assert await reached(http, await started(http), "failed", "completed") == "completed"
    assert await asyncio.to_thread(up.signal, signal.SIGTERM) == 0


async def test_an_approval_waits_through_a_kill_and_its_decision_is_sent_once(
    up: Up, upstream: Misbehaving
) -> None:
    """The services log in at NATS after the restart with the same passwords as before."""
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    await asyncio.to_thread(up.start, **LONG)
    async with httpx.AsyncClient(base_url=up.url) as http:
        run_id = await started(http)
        await reached(http, run_id, "paused")
        users = {file: file.read_bytes() for file in (up.data / "credentials").rglob("*")}
        await asyncio.to_thread(up.signal, signal.SIGKILL)
        await asyncio.to_thread(up.start, **LONG)
        await reached(http, run_id, "paused")
        (approval,) = (await http.get(f"/v1/approvals?run_id={run_id}")).json()["approvals"]
        items = [{"item_id": each["item_id"], "decision": "approve"} for each in approval["items"]]
        decision = f"/v1/approvals/{approval['approval_id']}/decision"
        answer = await http.post(decision, json={"items": items, "digest": approval["digest"]})
        assert answer.status_code == 200, answer.text
        assert await reached(http, run_id, "failed", "completed") == "completed"
    assert users
    assert all(file.read_bytes() == before for file, before in users.items())
    assert [call.path.endswith("/continue") for call in upstream.calls] == [False, True]
    assert await asyncio.to_thread(up.signal, signal.SIGTERM) == 0


@pytest.mark.chaos
@pytest.mark.timeout(400)
async def test_a_killed_one_is_back_within_five_seconds(up: Up, upstream: Misbehaving) -> None:
    """The time runs from the kill, with a start right after it, to the end of the run under way."""
    upstream.script(plays(agno("RunStarted"), stalls))
    took_s = []
    await asyncio.to_thread(up.start)
    async with httpx.AsyncClient(base_url=up.url) as http:
        for _ in range(KILLS):
            run_id = await started(http)
            await reached(http, run_id, "running")
            since = time.monotonic()
            await asyncio.to_thread(up.signal, signal.SIGKILL)
            up.begin()
            await reached(http, run_id, "failed")
            took_s.append(time.monotonic() - since)
    took_s.sort()
    report("penstock up killed", p50_s=took_s[len(took_s) // 2], max_s=took_s[-1], kills=KILLS)
    assert took_s[len(took_s) // 2] < WITHIN_S
    assert took_s[-1] < 2 * WITHIN_S
