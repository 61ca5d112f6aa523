"""The real ADK server: a decision runs a tool once or never, and a disconnect is the cancel."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.settings import Config
from penstock_connector.service import ConnectorService
from support.drive.pipeline import PIPELINE, Services, new_run_id, pipeline, types
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real

TWO: Services = (*PIPELINE, ConnectorService)


def config(server: Upstream) -> Config:
    common = {"protocol": "adk", "url": server.url}
    return Config.model_validate(
        {
            "agents": [
                {"id": "adk", "agent": "demo", **common},
                {"id": "again", "agent": "resumable", **common},
                {"id": "asks", "agent": "wfhitl", **common},
            ]
        }
    )


def runs_in(server: Upstream, session_id: str) -> list[dict[str, Any]]:
    return [run for run in server.tool_runs() if run["session"] == session_id]


@pytest.mark.chaos
@pytest.mark.parametrize("agent", ["adk", "again"])
@pytest.mark.parametrize(("decision", "times"), [("approve", 1), ("reject", 0)])
async def test_an_approved_tool_runs_once_and_a_rejected_one_never(
    nats_server: NatsServer, adk_server: Upstream, agent: str, decision: str, times: int
) -> None:
    session_id = new_run_id()
    async with pipeline(nats_server.url, config(adk_server), TWO) as penstock:
        run_id = await penstock.start_run(agent, "confirm", session_id=session_id)
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        approval_id = paused.data["approval_id"]
        await penstock.decide(approval_id, decision, note="never for ADK: it refuses more keys")
        command = await penstock.continue_command(approval_id)
        for _ in range(3):
            await penstock.command("continue", command)
        events = await penstock.ended(run_id)
    assert types(events)[-1] == "lifecycle.completed"
    assert len(runs_in(adk_server, session_id)) == times
    (result,) = [event.data for event in events if event.type == "llm.tool_result"]
    assert result["outcome"] == ("ok" if times else "rejected")


async def test_one_session_serves_run_after_run(
    nats_server: NatsServer, adk_server: Upstream
) -> None:
    session_id = new_run_id()
    async with pipeline(nats_server.url, config(adk_server)) as penstock:
        run_ids = [
            await penstock.start_run("adk", "plain hi", session_id=session_id) for _ in range(3)
        ]
        lasts = [(await penstock.ended(run_id))[-1] for run_id in run_ids]
    assert [last.type for last in lasts] == ["lifecycle.completed"] * 3


async def test_hanging_up_cancels_a_run(nats_server: NatsServer, adk_server: Upstream) -> None:
    async with pipeline(nats_server.url, config(adk_server)) as penstock:
        run_id = await penstock.start_run("adk", "slow 100 100")
        await penstock.events_until(run_id, "llm.stream")
        await penstock.cancel(run_id)
        *_, last = await penstock.ended(run_id)
    assert last.type == "lifecycle.cancelled"
    assert last.data["confirmed"] is True


async def test_input_is_checked_before_it_can_poison_the_session(
    nats_server: NatsServer, adk_server: Upstream
) -> None:
    async with pipeline(nats_server.url, config(adk_server)) as penstock:
        run_id = await penstock.start_run("asks", "anything")
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        approval_id = paused.data["approval_id"]
        (item,) = (await penstock.approval(approval_id)).items
        wrong = {item["item_id"]: {"approved": "yes, please"}}
        refused = await penstock.decide(approval_id, values=wrong)
        right = {item["item_id"]: {"approved": True}}
        taken = await penstock.decide(approval_id, values=right)
        events = await penstock.ended(run_id)
    assert (refused.status, taken.status) == (422, 200)
    assert "approved" in refused.detail
    assert types(events)[-1] == "lifecycle.completed"


async def test_a_server_that_does_not_know_the_app_is_quoted(
    nats_server: NatsServer, adk_server: Upstream
) -> None:
    unknown = Config.model_validate(
        {"agents": [{"id": "x", "protocol": "adk", "url": adk_server.url, "agent": "nope"}]}
    )
    async with pipeline(nats_server.url, unknown) as penstock:
        run_id = await penstock.start_run("x", "hello")
        *_, failed = await penstock.ended(run_id)
    assert failed.data["code"] == "upstream_http"
    assert "nope" in failed.data["error"]
