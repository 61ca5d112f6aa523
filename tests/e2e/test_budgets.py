"""A runaway agent on a real server stops at its budget; a lead lets it go on, and it ends."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.bus.records.approvals import Decider, LinkRequest
from penstock.runs.decide import request_link
from support.drive.budgets import put_in_force
from support.drive.bus import connected
from support.drive.figures import report
from support.drive.short import in_short
from support.real.deployment import CONTENT_KEY, Deployment, Event, deployment
from support.real.nats import NatsServer

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="session"),
]
AGENTS = ("runaway", "runaway-adk")
# The other servers, by their fixture: how the runaway agent is configured, and what is limited.
# Agno 2.3 and AG-UI servers tell no model calls before the end.
OTHERS: dict[str, tuple[dict[str, str], str]] = {
    "agno_older_server": ({"protocol": "agno", "agent": "demo-agent"}, "tool_calls"),
    "adk_older_server": ({"protocol": "adk", "agent": "demo"}, "model_calls"),
    "pydantic_ai_server": ({"protocol": "agui", "path": "/runaway"}, "tool_calls"),
    "agno_agui_server": ({"protocol": "agui", "path": "/runaway/agui"}, "tool_calls"),
}
LIMIT = 4
TOLD_BY = {"model_calls": "llm.usage", "tool_calls": "llm.tool_call"}
# The deployment is shared with other tests, so the budget is of these agents alone.
BUDGET: dict[str, Any] = {"id": "careful", "match": {"agent": "runaway*"}, "per": "run"}
LEAD = LinkRequest(maker=Decider(name="root", scopes=["administer"]), user="grace", role="leads")


async def raise_on_the_page(penstock: Deployment, approval_id: str, amount: str) -> None:
    """Let a lead raise the limit on the page of a one-time link."""
    async with connected(penstock.nats_url, content_keys=("none", CONTENT_KEY)) as bus:
        made = await request_link(bus, approval_id, LEAD)
    assert made.url is not None, made.detail
    url = f"{penstock.approvals}{made.url}"
    page = (await penstock.http.get(url)).text
    assert f">{amount}</option>" in page
    signature = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
    assert signature is not None, page
    form = {"csrf": signature[1], "decision": "approve", "value-0": amount}
    answer = await penstock.http.post(url, data=form, follow_redirects=True)
    assert "You have approved this" in answer.text


async def stops_asks_and_goes_on(penstock: Deployment, agent: str, dimension: str) -> int:
    """Check that the agent is stopped within one call of its limit, and that it ends after a lead
    has raised the limit. Return how much it has used when it was stopped."""
    budget = {
        **BUDGET,
        "limit": {dimension: LIMIT},
        "at": [{"share": 0.5, "do": "warn"}, {"share": 1.0, "do": "ask"}],
        "ask": {
            "deciders": {"roles": ["leads"], "not": ["requester"]},
            "raise": [f"3 {dimension}"],
        },
    }
    await put_in_force(penstock, budget)
    run_id = await penstock.run(agent, "runaway please")
    before = await penstock.until(run_id, "lifecycle.paused")
    calls = count(before, dimension)
    assert LIMIT <= calls <= LIMIT + 1, "at most the call that was under way"
    assert "system.warning" in [each.type for each in before]
    [asked] = [each.data for each in before if each.type == "approval.requested"]
    [item] = asked["items"]
    assert (item["kind"], item["args"]["dimension"]) == ("budget", dimension)
    await raise_on_the_page(penstock, asked["approval_id"], f"3 {dimension}")
    events = await penstock.all(run_id)
    assert events[-1].type == "lifecycle.completed", events[-1].data
    assert events[-1].body["leg"] == 2
    first = [each for each in events if each.body["leg"] == 1]
    assert count(first, dimension) == calls, "nothing of the first leg came later"
    return calls


def count(events: list[Event], dimension: str) -> int:
    return len([each for each in events if each.type == TOLD_BY[dimension]])


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_runaway_agent_stops_and_goes_on_when_a_lead_raises_its_limit_on_a_page(
    penstock: Deployment, agent: str
) -> None:
    report(f"budget of {agent}", used=await stops_asks_and_goes_on(penstock, agent, "model_calls"))


@pytest_asyncio.fixture(params=OTHERS, loop_scope="session")
async def other(
    request: pytest.FixtureRequest, fresh_nats: NatsServer, tmp_path: Path
) -> AsyncIterator[tuple[Deployment, str, str]]:
    """Run Penstock with the runaway agent of another server; return its name, too, and what its
    budget limits."""
    fields, dimension = OTHERS[request.param]
    url = request.getfixturevalue(request.param).url + fields.get("path", "")
    named = {name: value for name, value in fields.items() if name != "path"}
    agents = [{"id": "runaway", **named, "url": url}]
    async with deployment(fresh_nats.url, tmp_path / "penstock", agents) as running:
        yield running, request.param, dimension


@pytest.mark.chaos
async def test_runaway_agents_of_other_servers_stop_and_go_on(
    other: tuple[Deployment, str, str],
) -> None:
    penstock, server, dimension = other
    used = await stops_asks_and_goes_on(penstock, "runaway", dimension)
    report(f"budget of {server}, {dimension}", used=used)


@pytest.mark.parametrize("agent", in_short(AGENTS, AGENTS[:1]))
async def test_a_runaway_agent_is_stopped(penstock: Deployment, agent: str) -> None:
    stops = {"limit": {"tool_calls": LIMIT}, "at": [{"share": 1.0, "do": "stop"}]}
    await put_in_force(penstock, {**BUDGET, **stops})
    run_id = await penstock.run(agent, "runaway please")
    events = await penstock.all(run_id)
    assert events[-1].type == "lifecycle.cancelled", events[-1].data
    assert (events[-1].data["reason"], events[-1].data["confirmed"]) == ("budget", True)
    assert events[-1].data["budget"]["budget"] == "careful"
    assert LIMIT <= count(events, "tool_calls") <= LIMIT + 1
