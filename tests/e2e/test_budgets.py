"""A runaway agent on a real server stops at its budget; a person lets it go on, and it ends."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.budgets.admission import CurrentBudgets
from penstock.bus.records import RunRecord
from support.drive.bus import connected
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.real.deployment import Deployment

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="session"),
]
AGENTS = ("runaway", "runaway-adk")
IN_SHORT = in_short(AGENTS, AGENTS[:1])
LIMIT = 4


async def store(penstock: Deployment, **fields: Any) -> None:
    """Store a budget of the two agents alone: the deployment is shared with other tests."""
    budget = {"id": "careful", "match": {"agent": list(AGENTS)}, "per": "run", **fields}
    async with connected(penstock.nats_url) as bus:
        budgets = CurrentBudgets(bus)
        await budgets.load()
        version = budgets.current.version + 1
        await budgets.apply({"version": version, "budgets": [budget]}, "root")
        for number in range(2):

            async def in_force(number: int = number) -> bool:
                run_id = await penstock.run("runaway", "text", edge=number)
                record = await bus.bucket("runs").load(run_id, RunRecord)
                return record is not None and record.budgets == ["careful"]

            await eventually(in_force, what="the budgets at each edge")


@pytest.mark.parametrize("agent", IN_SHORT)
async def test_a_runaway_agent_stops_asks_and_goes_on(penstock: Deployment, agent: str) -> None:
    await store(
        penstock,
        limit={"model_calls": LIMIT},
        at=[{"share": 0.5, "do": "warn"}, {"share": 1.0, "do": "ask"}],
        ask={"raise": ["3 model_calls"]},
    )
    run_id = await penstock.run(agent, "runaway please")
    before = await penstock.until(run_id, "lifecycle.paused")
    used = len([each for each in before if each.type == "llm.usage"])
    assert LIMIT <= used <= LIMIT + 1, "at most the model call that was under way"
    assert "system.warning" in [each.type for each in before]
    [asked] = [each.data for each in before if each.type == "approval.requested"]
    [item] = asked["items"]
    assert (item["kind"], item["args"]["dimension"]) == ("budget", "model_calls")
    answer = await penstock.decide(asked["approval_id"], "approve", value="3 model_calls")
    assert answer.status_code == 200, answer.text
    events = await penstock.all(run_id)
    assert events[-1].type == "lifecycle.completed", events[-1].data
    legs = [each.body["leg"] for each in events if each.type == "llm.usage"]
    assert legs.count(1) == used, "nothing of the first leg came later"
    assert legs.count(2) == 1


@pytest.mark.parametrize("agent", IN_SHORT)
async def test_a_runaway_agent_is_stopped(penstock: Deployment, agent: str) -> None:
    await store(penstock, limit={"tool_calls": LIMIT}, at=[{"share": 1.0, "do": "stop"}])
    run_id = await penstock.run(agent, "runaway please")
    events = await penstock.all(run_id)
    assert events[-1].type == "lifecycle.cancelled", events[-1].data
    assert (events[-1].data["reason"], events[-1].data["confirmed"]) == ("budget", True)
    assert events[-1].data["budget"]["budget"] == "careful"
    calls = len([each for each in events if each.type == "llm.tool_call"])
    assert LIMIT <= calls <= LIMIT + 1
