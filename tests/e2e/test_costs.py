"""What real agents used is the same in the events, in the run, in /v1/costs and in the terminal."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from penstock_cli.main import app
from support.drive.waiting import eventually
from support.real.deployment import Deployment

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.mark.parametrize(("agent", "message"), [("assistant", "tool"), ("adk", "weather")])
async def test_events_run_and_sums_agree(penstock: Deployment, agent: str, message: str) -> None:
    session = f"costs-{agent}"
    run_id = await penstock.run(agent, message, session_id=session)
    used = [each.data for each in await penstock.all(run_id) if each.type == "llm.usage"]
    assert len(used) == 2  # the call of the tool, and the answer
    read = sum(each["input_tokens"] for each in used)
    assert read > 0

    async def shown() -> int | None:
        run = (await penstock.http.get(f"{penstock.edge(1)}/v1/runs/{run_id}")).json()
        tokens: int = run.get("usage", {}).get("input_tokens", 0)
        return tokens if tokens >= read else None

    assert await eventually(shown, 30, "the sum of the run") == read
    query = {"by": "session", "session_id": session}
    sums = (await penstock.http.get(f"{penstock.edge()}/v1/costs", params=query)).json()
    assert [(each["session"], each["calls"]) for each in sums["costs"]] == [(session, 2)]
    assert sums["total"]["without_price"] == 2  # nobody knows a price of these scripted models
    command = ["costs", "--by", "agent", "--json", "--url", penstock.edge()]
    told = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert told.exit_code == 0, told.output
    agents = {line["agent"]: line for line in map(json.loads, told.stdout.splitlines())}
    assert agents[agent]["input_tokens"] >= read
