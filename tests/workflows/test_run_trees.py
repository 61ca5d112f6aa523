"""A tree of runs has a bound and ends when it is cancelled; another user's runs go on beside it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.bus import Bus
from penstock.bus.records.runs import RunRecord
from penstock.bus.state.run_trees import RunTrees
from penstock_automations.rules.store import RuleStore
from penstock_automations.service import AutomationsService
from penstock_workflows.service import WorkflowsService
from support.drive.automations import rule_with, user
from support.drive.pipeline import Pipeline, new_run_id, types
from support.drive.waiting import eventually
from support.drive.workflows import (
    SERVICES,
    CountingServer,
    cancel_workflow,
    define,
    definition,
    sequence,
    start_workflow,
    workflows,
)
from support.real.nats import NatsServer

LIMIT = 40
# A workflow that runs an agent and itself, four times each.
SELF = """
name: itself
steps:
  agents:
    for_each: {in: "[1, 2, 3, 4]"}
    run: {agent: worker, message: '"slow-0.2"'}
    on_failure: continue
  itself:
    for_each: {in: "[1, 2, 3, 4]"}
    workflow: {workflow: itself, input: '{"id": "x"}'}
    on_failure: continue
"""


@pytest.fixture
async def penstock(nats_server: NatsServer, server: CountingServer) -> AsyncIterator[Pipeline]:
    services = (*SERVICES, WorkflowsService, AutomationsService)
    async with workflows(
        nats_server.url, server, services, max_runs_per_root=LIMIT, max_legs=200
    ) as running:
        await define(running.bus, definition(SELF))
        await define(running.bus, sequence("a", name="others"))
        yield running


@asynccontextmanager
async def with_a_second_user(penstock: Pipeline) -> AsyncIterator[None]:
    """Run workflows of a second user, one after another, while an attack lasts.

    At least one of them must end before the attack. How long they take is not tested, because all
    services share one process with the attack here. The last one ends, too: the services of the
    next test would go on with it, and call the agents of that test.
    """
    ended, is_over = 0, False

    async def run_again_and_again() -> None:
        nonlocal ended
        while not is_over:
            run_id = await start_workflow(penstock.bus, "others", {"id": "other"}, user_id="u2")
            assert (await penstock.ended(run_id))[-1].type == "lifecycle.completed"
            ended += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(run_again_and_again())
        yield
        ended_before, is_over = ended, True
    assert ended_before


async def below(bus: Bus, root: str) -> list[RunRecord]:
    """Return the records of all runs below a root."""
    entries = await bus.bucket("runs").entries()
    records = [RunRecord.model_validate_json(each.value) for each in entries]
    return [each for each in records if each.root_run_id == root]


async def test_a_workflow_that_runs_itself_ends_at_the_limit_of_its_root(
    penstock: Pipeline, server: CountingServer
) -> None:
    async with with_a_second_user(penstock):
        root = await start_workflow(penstock.bus, "itself", {"id": "1"})
        ended = (await penstock.ended(root, 90))[-1]
    # The items of the root began before the limit was reached, and the root goes on if they fail.
    assert ended.type == "lifecycle.completed"
    found = await below(penstock.bus, root)
    assert len(found) == LIMIT
    refused = next(each for each in found if each.code == "limit_exceeded")
    assert f"run {root} has led to {LIMIT} runs" in (refused.error or "")


async def test_no_agent_of_a_tree_is_called_after_its_root_says_that_it_is_cancelled(
    penstock: Pipeline, server: CountingServer
) -> None:
    async with with_a_second_user(penstock):
        root = await start_workflow(penstock.bus, "itself", {"id": "1"})

        async def is_under_way() -> bool:
            return server.calls["slow-0.2"] >= 3

        await eventually(is_under_way)
        await cancel_workflow(penstock.bus, root)
        ended = (await penstock.ended(root, 60))[-1]
        assert ended.type == "lifecycle.cancelled"
        calls, runs = server.calls["slow-0.2"], len(await below(penstock.bus, root))
        assert runs < LIMIT

        async def has_ended() -> bool:
            found = await below(penstock.bus, root)
            return all(each.status not in ("queued", "running") for each in found)

        await eventually(has_ended, 60)
    assert server.calls["slow-0.2"] == calls
    found = await below(penstock.bus, root)
    assert len(found) == runs
    assert "running" not in Counter(each.status for each in found)


async def test_a_rule_that_loops_over_each_piece_of_text_ends_at_the_limit_of_its_root(
    penstock: Pipeline, server: CountingServer
) -> None:
    store = RuleStore(penstock.bus)
    action = {"run": {"agent": "worker", "message": "deltas-9"}}
    await store.apply(rule_with("loop", action, "llm.stream", loops=True), user("u1"))
    for service in penstock.services:
        if isinstance(service, AutomationsService):
            await service.apply_rule_changes()
    async with with_a_second_user(penstock):
        root = await penstock.start_run("worker", "deltas-9")

        async def is_full() -> bool:
            return server.calls["deltas-9"] == LIMIT + 1

        await eventually(is_full, 60)

        async def is_refused() -> bool:
            entries = await penstock.bus.bucket("deliveries").entries("loop.>")
            return any(b'"limit_exceeded"' in each.value for each in entries)

        await eventually(is_refused, 60)
    assert server.calls["deltas-9"] == LIMIT + 1
    assert len(await below(penstock.bus, root)) == LIMIT
    await store.delete("loop")


async def test_a_step_whose_outer_workflow_has_stopped_ends_without_a_call_of_its_agent(
    penstock: Pipeline, server: CountingServer
) -> None:
    outer, inner = new_run_id(), new_run_id()
    await RunTrees(penstock.bus).mark_stopped(outer, "ann", "user_stop")
    run_id = await penstock.start_run("worker", "late", ancestors=[outer, inner])
    events = await penstock.ended(run_id)
    assert types(events) == ["lifecycle.started", "lifecycle.cancelled"]
    assert events[-1].data["by"] == "ann"
    other = await penstock.start_run("worker", "in time", ancestors=[inner])
    assert (await penstock.ended(other))[-1].type == "lifecycle.completed"
    assert server.calls == {"in time": 1}
