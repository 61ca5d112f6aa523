"""Authentication over separate processes: one user's run, from its start through a decision."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.drive.secured import bearer
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET
from support.real.deployment import Deployment, deployment, frames
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real


@pytest.fixture
async def penstock(
    fresh_nats: NatsServer, tmp_path: Path, agno_server: Upstream
) -> AsyncIterator[Deployment]:
    agent = {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    async with deployment(
        fresh_nats.url, tmp_path / "penstock", [agent], auth_jwt_secret=SECRET
    ) as running:
        yield running


async def test_a_run_belongs_to_who_started_it_in_every_process(penstock: Deployment) -> None:
    http, runs = penstock.http, f"{penstock.edge()}/v1/runs"
    alice, bob = bearer("alice"), bearer("bob")
    body = {"agent": "assistant", "message": "confirm A note"}
    assert (await http.post(runs, json=body)).status_code == 401
    started = await http.post(runs, json=body, headers=alice)
    assert started.status_code == 202, started.text
    run = f"{runs}/{started.json()['run_id']}"

    paused = await _until(penstock, f"{run}/events", alice, "lifecycle.paused")
    assert (await http.get(f"{run}/events", headers=bob)).status_code == 404

    approval = f"{penstock.approvals}/v1/approvals/{paused['data']['approval_id']}"
    item_id, digest = await _item(penstock, approval, alice)
    decision = {"items": [{"item_id": item_id, "decision": "approve"}], "digest": digest}
    assert (await http.get(approval)).status_code == 401
    assert (await http.post(f"{approval}/decision", json=decision, headers=bob)).status_code == 404
    decided = await http.post(f"{approval}/decision", json=decision, headers=alice)
    assert decided.json()["decision"]["by"] == "alice"

    await _until(penstock, f"{run}/events", alice, "lifecycle.completed")
    assert (await http.get(run, headers=alice)).json()["user_id"] == "alice"
    assert (await http.get(runs, headers=bob)).json()["runs"] == []


async def test_a_stream_token_of_one_process_opens_streams_of_another(penstock: Deployment) -> None:
    http = penstock.http
    # Approvals and the edge both serve stream tokens, and keep them on the bus.
    made = await http.post(
        f"{penstock.approvals}/v1/tokens", json={"subjects": ["*.*"]}, headers=bearer()
    )
    token = made.json()["token"]
    events = f"{penstock.edge()}/v1/events?token={token}"
    async with asyncio.timeout(20), http.stream("GET", events) as answer:
        assert answer.status_code == 200
        body = {"agent": "assistant", "message": "text please"}
        await http.post(f"{penstock.edge()}/v1/runs", json=body, headers=bearer())
        first = await anext(frames(answer))
        assert first.event == "lifecycle.started"
    for instance in penstock.instances:
        assert token not in instance.process.log.read_text()


async def _until(
    penstock: Deployment, url: str, headers: dict[str, str], type_: str
) -> dict[str, Any]:
    """Return the body of the stream's first event of that type."""
    async with asyncio.timeout(30), penstock.http.stream("GET", url, headers=headers) as answer:
        assert answer.status_code == 200
        async for frame in frames(answer):
            if frame.event == type_:
                body: dict[str, Any] = json.loads(frame.data)
                return body
    raise AssertionError(f"{type_} did not come")


async def _item(penstock: Deployment, approval: str, headers: dict[str, str]) -> tuple[str, str]:
    """Return the id of the approval's one item, and the digest, once the approval is known."""

    async def known() -> dict[str, Any] | None:
        answer = await penstock.http.get(approval, headers=headers)
        return answer.json() if answer.is_success else None

    shown = await eventually(known, what="the approval")
    return str(shown["items"][0]["item_id"]), str(shown["digest"])
