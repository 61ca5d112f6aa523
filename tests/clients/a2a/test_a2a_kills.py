"""Edges and connectors are killed under the official client, which subscribes again: it has the
whole task, and nothing of it twice."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from support.drive.waiting import eventually
from support.drive.watching import streamer
from support.real.a2a_client import Official, normal, official, text_of
from support.real.deployment import Deployment, Event, deployment
from support.real.nats import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
COUNT = {"normalizer": 1, "connector": 1, "edge": 2, "approvals": 1}
FRAMES, RATE = 400, 20.0
KILLS = 6


async def followed(
    penstock: Deployment, client: Official, agent: str = "agent"
) -> tuple[str, asyncio.Task[dict[str, Any]]]:
    """Let the client begin a task and follow it; return the task's id, and what the client has."""
    session = uuid.uuid4().hex
    message = {"messageId": session, "contextId": session, "role": "ROLE_USER"}
    request = {"message": {**message, "parts": [{"text": "go"}]}}
    urls = [f"{each.url}/a2a/{agent}" for each in penstock.of("edge")]
    task = asyncio.create_task(client.call("follow", request, urls=urls))

    async def begun() -> str | None:
        query = {"session_id": session}
        answer = await penstock.http.get(f"{penstock.edge()}/v1/runs", params=query)
        return str(runs[0]["run_id"]) if (runs := answer.json()["runs"]) else None

    return await eventually(begun, what="the run"), task


async def check(penstock: Deployment, client: Official, run_id: str, task: dict[str, Any]) -> None:
    """Check that the task is what Penstock has stored, piece by piece."""
    asked = client.call("get_task", {"id": run_id}, agent="agent")
    assert normal(task) == normal(await asked)
    events: list[Event] = await penstock.all(run_id)
    pieces = [str(each.data["content"]) for each in events if each.type == "llm.stream"]
    assert pieces
    assert text_of(task) == "".join(pieces)


async def test_edges_that_are_killed_one_after_another_cost_the_client_nothing(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with (
        streamer(tmp_path, FRAMES, RATE) as agent,
        deployment(fresh_nats.url, tmp_path, [{"id": "agent", **agent}], COUNT) as penstock,
        official(penstock.edge()) as client,
    ):
        run_id, following = await followed(penstock, client)
        for _ in range(KILLS):
            victim = penstock.of("edge")[0]
            await penstock.kill(victim)
            await penstock.start("edge", victim.port)
        assert not following.done()
        told = await following
        task = told["task"]
        assert told["breaks"] >= KILLS // 2
        assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
        await check(penstock, client, run_id, task)


async def test_a_connector_that_is_killed_ends_the_task_for_its_client_with_all_that_came(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with (
        streamer(tmp_path, FRAMES, RATE) as agent,
        deployment(
            fresh_nats.url, tmp_path, [{"id": "agent", **agent}], COUNT, pod_ttl_s=2
        ) as penstock,
        official(penstock.edge()) as client,
    ):
        run_id, following = await followed(penstock, client)
        await penstock.until(run_id, "llm.stream")
        await penstock.kill(penstock.of("connector")[0])
        await penstock.start("connector")
        task = (await following)["task"]
        assert task["status"]["state"] == "TASK_STATE_FAILED", task["status"]
        await check(penstock, client, run_id, task)
