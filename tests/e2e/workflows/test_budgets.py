"""What the steps of a workflow use counts for the workflow's own budget, which asks or stops."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.workflows.conftest import Flows
from support.drive.budgets import put_in_force
from support.drive.workflow_events import type_of

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

LIMIT = 3
BUDGET: dict[str, Any] = {
    "id": "flow",
    "match": {"agent": "overspends"},
    "per": "run",
    "limit": {"model_calls": LIMIT, "time": "1h"},
}
ASKS = {**BUDGET, "at": [{"share": 1.0, "do": "ask"}], "ask": {"raise": ["5 model_calls"]}}


async def asked(flows: Flows) -> tuple[str, str]:
    """Start the workflow, and wait until its step asks; return the ids of run and approval."""
    await put_in_force(flows.penstock, ASKS)
    run_id = await flows.start("overspends")
    return run_id, (await flows.until(run_id, "lifecycle.paused"))[-1]["data"]["approval_id"]


def check_numbers(cancelled: dict[str, Any]) -> None:
    assert type_of(cancelled) == "lifecycle.cancelled", cancelled
    assert cancelled["data"]["reason"] == "budget"
    told = cancelled["data"]["budget"]
    assert (told["budget"], told["dimension"], told["limit"]) == ("flow", "model_calls", LIMIT)
    assert LIMIT <= told["used"] <= LIMIT + 1


async def test_a_step_asks_for_its_workflow_which_goes_on_with_a_raised_limit(
    flows: Flows,
) -> None:
    run_id, approval_id = await asked(flows)
    await flows.decide(approval_id, "approve")
    events = await flows.events(run_id)
    assert type_of(events[-1]) == "lifecycle.completed", events[-1]
    assert "system.warning" not in map(type_of, events)


async def test_a_rejection_ends_the_workflow_and_its_step_with_the_budgets_numbers(
    flows: Flows,
) -> None:
    run_id, approval_id = await asked(flows)
    await flows.decide(approval_id, "reject")
    events = await flows.events(run_id)
    check_numbers(events[-1])
    assert events[-1]["data"]["by"] == "anonymous"
    assert await flows.statuses(events) == ["cancelled"]


async def test_a_workflow_that_is_stopped_ends_with_its_step_and_the_numbers(flows: Flows) -> None:
    await put_in_force(flows.penstock, {**BUDGET, "at": [{"share": 1.0, "do": "stop"}]})
    run_id = await flows.start("overspends")
    events = await flows.events(run_id)
    check_numbers(events[-1])
    assert await flows.statuses(events) == ["cancelled"]
