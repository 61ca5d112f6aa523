"""Workflows of each shape run on real agent servers, and have the events of their golden files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from e2e.workflows.conftest import DEFINITIONS, Flows
from support.drive.workflow_events import golden_lines, misplaced, type_of
from support.recorded.goldens import check

GOLDEN = Path(__file__).parents[2] / "golden" / "workflows"

# The shapes that end by themselves, with the input of their runs.
ALONE: Mapping[str, dict[str, Any]] = {
    "sequence": {"topic": "penguins"},
    **{
        name: {}
        for name in (
            *("fan_out", "condition", "loop", "parallel_loop", "nested", "timeout", "waits"),
            *("failure_fails", "failure_continues", "failure_is_handled", "retry", "retry_ends"),
        )
    },
}

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def started(flows: Flows) -> Mapping[str, str]:
    """Start all shapes that end by themselves at once; return their run ids."""
    flows.fail_next(None)
    ids = await asyncio.gather(*(flows.start(name, **given) for name, given in ALONE.items()))
    return dict(zip(ALONE, ids, strict=True))


def compare(name: str, events: list[dict[str, Any]], case: str = "") -> None:
    assert misplaced(events, DEFINITIONS[name]) == []
    check(GOLDEN / f"{case or name}.txt", golden_lines(events))


@pytest.mark.parametrize("name", ALONE)
async def test_a_shape_has_its_golden_events(
    flows: Flows, started: Mapping[str, str], name: str
) -> None:
    compare(name, await flows.events(started[name]))


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_an_approval_holds_its_branch_alone(flows: Flows, decision: str) -> None:
    run_id = await flows.start("approval")
    asked = await flows.until(run_id, "lifecycle.paused")
    # The other branch was done before the run paused.
    assert "workflow.step_completed" in [type_of(event) for event in asked]
    await flows.decide(asked[-1]["data"]["approval_id"], decision)
    compare("approval", await flows.events(run_id), f"approval_{decision}")


async def test_a_child_that_asks_a_person_pauses_the_run(flows: Flows) -> None:
    run_id = await flows.start("child_asks")
    asked = await flows.until(run_id, "lifecycle.paused")
    await flows.decide(asked[-1]["data"]["approval_id"], "approve")
    compare("child_asks", await flows.events(run_id))


async def test_a_step_hears_the_event_that_it_listens_for(flows: Flows) -> None:
    run_id = await flows.start("listens")
    await flows.until(run_id, "workflow.step_started")
    await flows.penstock.run("agno", "the noise")
    await flows.penstock.run("agno", "the signal")
    events = await flows.events(run_id)
    [done] = [event for event in events if type_of(event) == "workflow.step_completed"]
    assert done["data"]["output"] == "echo: the signal"
    compare("listens", events)


# The shapes that are cancelled, with the last event before the cancel.
CANCELLED = {
    "long_wait": "workflow.step_started",
    "slow_run": "workflow.step_started",
    "slow_nested": "workflow.step_started",
    "slow_loop": "workflow.step_started",
    "long_backoff": "lifecycle.retrying",
    "approval": "lifecycle.paused",
    "child_asks": "lifecycle.paused",
    "listens": "workflow.step_started",
}


@pytest.mark.parametrize("name", CANCELLED)
async def test_a_cancelled_shape_ends_with_all_its_children(flows: Flows, name: str) -> None:
    run_id = await flows.start(name)
    await flows.run_under_way(await flows.until(run_id, CANCELLED[name]))
    await flows.cancel(run_id)
    events = await flows.events(run_id)
    compare(name, events, f"cancelled_{name}")
    assert {"queued", "running", "paused"}.isdisjoint(await flows.statuses(events))
