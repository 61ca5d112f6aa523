"""Each dialect shows a workflow's run and the runs of its steps as one run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from e2e.workflows.conftest import Flows
from penstock_conformance.protocols import agui_rules
from support.drive.workflow_events import Names
from support.recorded.goldens import check

GOLDEN = Path(__file__).parents[2] / "golden" / "workflows"
DIALECTS = ("canonical", "executions", "unified", "agui", "agui+runs", "agno", "adk")
# Workflows whose steps follow one another, so that their events have one order: two agent servers
# in a nested workflow, and an agent that fails at first.
NAMES = ("nested", "retry")

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ended(flows: Flows) -> Mapping[str, str]:
    """Run the workflows; return the ids of their runs."""
    flows.fail_next(None)
    ids = {name: await flows.start(name) for name in NAMES}
    for run_id in ids.values():
        await flows.events(run_id)
    return ids


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", NAMES)
async def test_a_run_with_its_steps_has_its_golden_frames(
    flows: Flows, ended: Mapping[str, str], name: str, dialect: str
) -> None:
    run_id = ended[name]
    names = Names(await flows.shown(run_id, "canonical", include="children"))
    frames = await flows.shown(run_id, dialect, include="children")
    lines = [json.dumps(names.shown(frame), ensure_ascii=False) for frame in frames]
    check(GOLDEN / "dialects" / f"{name}.{dialect}.jsonl", lines)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_steps_are_shown_unless_the_events_are_those_of_the_bus(
    flows: Flows, ended: Mapping[str, str], dialect: str
) -> None:
    run_id = ended["nested"]
    shown = await flows.shown(run_id, dialect)
    assert len(shown) > 1
    included = await flows.shown(run_id, dialect, include="children")
    assert (shown == included) is (dialect != "canonical")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dialect", ["agui", "agui+runs"])
async def test_a_client_of_agui_accepts_the_run(
    flows: Flows, ended: Mapping[str, str], name: str, dialect: str
) -> None:
    assert agui_rules.faults(await flows.shown(ended[name], dialect)) == []


async def test_a_step_that_is_tried_again_is_a_run_retry(
    flows: Flows, ended: Mapping[str, str]
) -> None:
    frames = await flows.shown(ended["retry"], "unified")
    [retry] = [frame["payload"] for frame in frames if frame["type"] == "run_retry"]
    assert retry == {
        "run_id": ended["retry"],
        "retry_count": 1,
        "max_retries": 3,
        "reason": "the agent server answered 503: busy",
    }


@pytest.mark.parametrize(("code", "ends"), [("rate_limited", "completed"), ("other", "failed")])
async def test_a_retry_is_named_by_the_code_of_an_ag_ui_servers_run_error(
    flows: Flows, code: str, ends: str
) -> None:
    flows.fail_next(code)
    run_id = await flows.start("retry_named")
    events = await flows.events(run_id)
    assert events[-1]["event"] == {"category": "lifecycle", "action": ends}
    retried = [each for each in events if each["event"]["action"] == "retrying"]
    assert len(retried) == (ends == "completed")


@pytest.mark.parametrize("name", ["failure_fails", "failure_continues"])
async def test_a_failed_step_is_one_run_error_with_the_name_of_the_step(
    flows: Flows, name: str
) -> None:
    run_id = await flows.start(name)
    await flows.events(run_id)
    frames = await flows.shown(run_id, "unified", include="children")
    errors = [frame["payload"] for frame in frames if frame["type"] == "run_error"]
    assert [(each["step"], each["message"]) for each in errors] == [
        ("bad", "model backend exploded")
    ]


async def test_a_workflows_output_is_the_last_message_of_its_run(
    flows: Flows, ended: Mapping[str, str]
) -> None:
    for name, answer in (
        ("nested", "echo: about payments / Hello from demo_agent."),
        ("retry", "at last"),
    ):
        for include in ({}, {"include": "children"}):
            frames = await flows.shown(ended[name], "agui+runs", **include)
            answers = [each["answer"] for each in frames if each["type"] == "TEXT_MESSAGE_END"]
            assert (answers[-1], answers.count(answer)) == (answer, 1)


async def test_an_idle_session_shows_the_runs_of_a_workflow_that_was_started_by_its_name(
    flows: Flows,
) -> None:
    run_id = await flows.start_by_name("by_name", "session by name")
    await flows.events(run_id)
    edge, http = flows.penstock.edge(), flows.penstock.http
    session = f"{edge}/v1/sessions/session%20by%20name/events"
    thread = f"{edge}/api/v1/agent/runs/session%20by%20name"
    stream = await http.get(session, params={"until": "idle"})
    assert stream.status_code == 200
    page = (await http.get(session, headers={"accept": "application/json"})).json()
    assert [each["event"]["action"] for each in page["events"]][-1] == "completed"
    assert {each["run_id"] for each in page["events"]} == {run_id}
    history = (await http.get(f"{thread}/history")).json()["events"]
    assert [each["answer"] for each in history if each["type"] == "TEXT_MESSAGE_END"] == [
        "two files"
    ]
    live = await http.get(f"{thread}/events", params={"until": "idle"})
    assert live.text.count('"answer":"two files"') == 1


async def test_a_message_of_a_step_is_shown_once_with_its_agent(
    flows: Flows, ended: Mapping[str, str]
) -> None:
    frames = await flows.shown(ended["nested"], "executions")
    texts: dict[str, str] = {}
    for frame in frames:
        if frame["event"] == {"category": "llm", "action": "stream"}:
            source: dict[str, Any] = frame["source"]
            assert (source["agent_type"], source["team_name"]) == ("worker", "Payments")
            texts[source["agent_id"]] = texts.get(source["agent_id"], "") + frame["data"]["content"]
    assert texts == {
        "demo-agent": "echo: about payments",
        "demo_agent": "Hello from demo_agent.",
    }
