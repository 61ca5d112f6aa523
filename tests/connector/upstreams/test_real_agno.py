"""The real Agno server: a decision runs a tool once or never; a cut connection loses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.settings import Config
from penstock_connector.service import ConnectorService
from support.drive.pipeline import PIPELINE, Event, Services, new_run_id, pipeline, types
from support.drive.short import in_short
from support.fakes.cutter import cutter
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real

TWO: Services = (*PIPELINE, ConnectorService)


def config(url: str) -> Config:
    common = {"protocol": "agno", "url": url}
    return Config.model_validate(
        {
            "agents": [
                {"id": "agent", "agent": "demo-agent", **common},
                {"id": "team", "agent": "demo-team", "kind": "team", **common},
                {"id": "flow", "agent": "hitl-wf", "kind": "workflow", **common},
            ]
        }
    )


def text(events: list[Event]) -> str:
    return "".join(event.data["content"] for event in events if event.type == "llm.stream")


def runs_with(server: Upstream, title: str) -> list[dict[str, Any]]:
    return [run for run in server.tool_runs() if run["args"].get("title") == title]


@pytest.mark.chaos
@pytest.mark.parametrize(("decision", "times"), [("approve", 1), ("reject", 0)])
async def test_an_approved_tool_runs_once_and_a_rejected_one_never(
    nats_server: NatsServer, agno_server: Upstream, decision: str, times: int
) -> None:
    title = new_run_id()
    async with pipeline(nats_server.url, config(agno_server.url), TWO) as penstock:
        run_id = await penstock.start_run("agent", f"confirm {title}")
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        reply = await penstock.decide(paused.data["approval_id"], decision, note="looked at it")
        events = await penstock.ended(run_id)
    assert reply.status == 200
    assert types(events)[-1] == "lifecycle.completed"
    assert len(runs_with(agno_server, title)) == times
    (result,) = [event.data for event in events if event.type == "llm.tool_result"]
    assert result["outcome"] == ("ok" if times else "rejected")


async def test_a_tool_that_runs_with_other_arguments_than_were_approved_is_told_as_it_ran(
    nats_server: NatsServer, agno_server: Upstream
) -> None:
    title, another = new_run_id(), new_run_id()
    async with (
        cutter(agno_server.url, []) as proxy,
        pipeline(nats_server.url, config(proxy.url), TWO) as penstock,
    ):
        run_id = await penstock.start_run("agent", f"confirm {title}")
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        proxy.rewrites = (title.encode(), another.encode())  # Agno runs the continue's arguments
        await penstock.decide(paused.data["approval_id"])
        events = await penstock.ended(run_id)
    assert (len(runs_with(agno_server, title)), len(runs_with(agno_server, another))) == (0, 1)
    (warning,) = [event.data for event in events if event.type == "system.warning"]
    assert warning["code"] == "not_what_was_approved"
    assert warning["detail"]["approved"]["args"]["title"] == title
    assert warning["detail"]["ran"]["args"]["title"] == another
    (asked,) = [event.data for event in events if event.type == "llm.tool_call"]
    assert asked["args"]["title"] == title
    (runs,) = [event.data for event in events if event.type == "llm.tool_progress"]
    assert runs["args"]["title"] == another


async def test_a_decision_that_is_delivered_five_times_runs_the_tool_once(
    nats_server: NatsServer, agno_server: Upstream
) -> None:
    title = new_run_id()
    async with pipeline(nats_server.url, config(agno_server.url), TWO) as penstock:
        run_id = await penstock.start_run("agent", f"confirm {title}")
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        approval_id = paused.data["approval_id"]
        await penstock.decide(approval_id)
        command = await penstock.continue_command(approval_id)
        for _ in range(5):
            await penstock.command("continue", command)
        events = await penstock.ended(run_id)
        await penstock.command("continue", command)
        await penstock.ended(await penstock.start_run("agent", "text"))
    assert types(events)[-1] == "lifecycle.completed"
    assert len(runs_with(agno_server, title)) == 1


async def test_a_running_agent_is_cancelled_by_the_server_itself(
    nats_server: NatsServer, agno_server: Upstream
) -> None:
    async with pipeline(nats_server.url, config(agno_server.url)) as penstock:
        run_id = await penstock.start_run("agent", "slow")
        await penstock.events_until(run_id, "llm.stream")
        await penstock.cancel(run_id)
        *_, last = await penstock.ended(run_id)
    assert last.type == "lifecycle.cancelled"


@pytest.mark.parametrize("agent", in_short(["agent", "team"], ["agent"]))
async def test_a_run_continues_over_cut_connections_without_gap_or_repeat(
    nats_server: NatsServer, agno_server: Upstream, agent: str
) -> None:
    async with pipeline(nats_server.url, config(agno_server.url)) as penstock:
        whole = await penstock.ended(await penstock.start_run(agent, "long"))
    async with (
        cutter(agno_server.url, [1500, 2500, 4000]) as proxy,
        pipeline(nats_server.url, config(proxy.url)) as penstock,
    ):
        run_id = await penstock.start_run(agent, "long")
        events = await penstock.ended(run_id)
        frames = await penstock.raw(run_id)
    assert proxy.cut == 3
    assert types(events)[-1] == "lifecycle.completed"
    assert text(events) == text(whole)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    connections = [frame.connection for frame in frames if frame.kind == "bytes"]
    assert len(set(connections)) == 4


async def test_a_cut_connection_of_a_continued_run_does_not_run_the_tool_again(
    nats_server: NatsServer, agno_server: Upstream
) -> None:
    title = new_run_id()
    async with (
        # The first connection transfers leg 1 completely. The second one breaks in leg 2.
        cutter(agno_server.url, [10_000_000, 1800]) as proxy,
        pipeline(nats_server.url, config(proxy.url)) as penstock,
    ):
        run_id = await penstock.start_run("agent", f"confirm {title}")
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        await penstock.decide(paused.data["approval_id"])
        events = await penstock.ended(run_id)
    assert types(events)[-1] == "lifecycle.completed"
    assert len(runs_with(agno_server, title)) == 1


async def test_a_team_and_a_workflow_continue_after_a_decision(
    nats_server: NatsServer, agno_server: Upstream
) -> None:
    async with pipeline(nats_server.url, config(agno_server.url)) as penstock:
        for agent, message in (("team", "delegateconfirm"), ("flow", "text")):
            run_id = await penstock.start_run(agent, message)
            *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
            await penstock.decide(paused.data["approval_id"])
            events = await penstock.ended(run_id)
            assert types(events)[-1] == "lifecycle.completed", (agent, events[-1].data)
