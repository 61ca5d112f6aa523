"""Workflows run by the real services: connector, normalizer, approvals and workflows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.drive.pipeline import Pipeline, types
from support.drive.workflows import (
    CountingServer,
    counting,
    define,
    sequence,
    start_workflow,
    workflows,
)
from support.real.nats import NatsServer


@pytest.fixture
async def server() -> AsyncIterator[CountingServer]:
    async with counting() as made:
        yield made


@pytest.fixture
async def penstock(nats_server: NatsServer, server: CountingServer) -> AsyncIterator[Pipeline]:
    async with workflows(nats_server.url, server) as running:
        yield running


async def test_a_workflow_of_two_steps_runs_one_after_the_other(
    penstock: Pipeline, server: CountingServer
) -> None:
    await define(penstock.bus, sequence("a", "b"))
    run_id = await start_workflow(penstock.bus, "sequence", {"id": "1"})
    events = await penstock.ended(run_id)
    step = [
        *("dispatch.worker", "workflow.step_started", "dispatch.finished"),
        "workflow.step_completed",
    ]
    assert types(events) == [
        *("lifecycle.started", "workflow.started", *step, "workflow.transition", *step),
        *("workflow.completed", "lifecycle.completed"),
    ]
    assert server.calls == {"1 a": 1, "1 b": 1}
