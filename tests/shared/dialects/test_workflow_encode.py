"""Each dialect shows the runs of workflows, with the children, as its clients expect it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.dialects.a2a import A2aEncoder
from penstock.dialects.adk.encode import AdkEncoder
from penstock.dialects.agno.encode import AgnoEncoder
from penstock.dialects.base import Encoder
from penstock.dialects.executions import ExecutionsEncoder
from penstock.dialects.unified import UnifiedEncoder
from penstock.dialects.vercel import VercelEncoder
from penstock.events.envelope import parse
from penstock_conformance.protocols import agui_rules
from support.drive.agui_out import AUDIENCES, STRICT_1, of_type
from support.drive.agui_out import encoded as agui
from support.drive.for_each import for_each
from support.fakes.raw import RUN_ID
from support.recorded import workflow_runs
from support.recorded.goldens import check
from support.recorded.workflow_runs import child

GOLDEN = Path(__file__).parents[2] / "golden" / "encoded"
RUNS = {"code_review": workflow_runs.code_review(), "diagnosis": workflow_runs.diagnosis()}
SOURCES = {
    "global": workflow_runs.GLOBAL,
    "team": workflow_runs.TEAM_SUPERVISOR,
    "worker": workflow_runs.MONITOR,
}


def encoder_of(dialect: str) -> Encoder:
    match dialect:
        case "agno":
            return AgnoEncoder(kind="workflow", name="Workflow")
        case "adk":
            return AdkEncoder(streaming=True)
        case "unified":
            return UnifiedEncoder()
        case "vercel":
            return VercelEncoder()
        case "a2a":
            return A2aEncoder()
        case _:
            return ExecutionsEncoder()


def encoded(dialect: str, name: str) -> list[dict[str, Any]]:
    if dialect == "agui":
        return agui(STRICT_1, RUNS[name])
    encoder = encoder_of(dialect)
    return [orjson.loads(frame.data) for event in RUNS[name] for frame in encoder.feed(event)]


def named(bodies: Sequence[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [body for body in bodies if body.get("event") == event]


@for_each("name", RUNS)
def test_each_event_is_one_of_the_contract(name: str) -> None:
    for event in RUNS[name]:
        assert parse(orjson.dumps(event)).data_model() is not None


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    "dialect", ["agno", "adk", "agui", "unified", "executions", "vercel", "a2a"]
)
def test_a_workflows_run_gives_its_golden_frames(dialect: str, name: str) -> None:
    lines = [orjson.dumps(body).decode() for body in encoded(dialect, name)]
    check(GOLDEN / dialect / f"workflow_{name}.jsonl", lines)


@for_each("audience", AUDIENCES, str)
@for_each("name", RUNS)
def test_every_client_of_agui_accepts_the_stream(audience: Any, name: str) -> None:
    frames = agui(audience, RUNS[name])
    assert agui_rules.faults(frames, old=audience.client != "1.0.0") == []
    assert agui_rules.remarks(frames) == [] or audience.profile.name != "strict"


# --- unified-events.md


def payloads(type: str) -> list[dict[str, Any]]:
    return [body["payload"] for body in encoded("unified", "code_review") if body["type"] == type]


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("workflow_started", {"workflow": "review_workflow", "run_id": RUN_ID}),
        (
            "workflow_step_started",
            {
                "run_id": RUN_ID,
                "step_id": "step_static_analysis",
                "description": "Running static analysis...",
            },
        ),
        (
            "workflow_step_completed",
            {"run_id": RUN_ID, "step_id": "step_static_analysis", "output": {"score": 82}},
        ),
        ("workflow_completed", {"run_id": RUN_ID, "result": {"summary": workflow_runs.REPORT}}),
        (
            "run_retry",
            {
                "run_id": RUN_ID,
                "retry_count": 1,
                "max_retries": 3,
                "reason": "temporary network issue",
            },
        ),
        (
            "workflow_transition",
            {
                "run_id": RUN_ID,
                "from_step": "sign_off",
                "to_step": "report",
                "reason": "sign_off_complete",
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_unified_document_has_its_payloads(type: str, payload: dict[str, Any]) -> None:
    assert payload in payloads(type)


# --- executions-sse.md


@pytest.mark.parametrize(
    ("type", "source", "data"),
    [
        (
            "dispatch.team",
            "global",
            {"team_name": workflow_runs.TEAM, "task": workflow_runs.TEAM_TASK},
        ),
        (
            "dispatch.worker",
            "team",
            {"worker_name": "Database Monitor", "task": workflow_runs.WORKER_TASK},
        ),
        (
            "llm.tool_call",
            "worker",
            {"tool": "check_database_status", "args": {"host": "db-cluster-01", "timeout": 30}},
        ),
        ("lifecycle.completed", "global", {"summary": workflow_runs.CONCLUSION}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_executions_document_has_its_events(
    type: str, source: str, data: dict[str, Any]
) -> None:
    frames = encoded("executions", "diagnosis")
    found = [
        frame
        for frame in frames
        if f"{frame['event']['category']}.{frame['event']['action']}" == type
        and frame["source"] == SOURCES[source]
    ]
    assert data in [frame["data"] for frame in found]
    assert {frame["run_id"] for frame in frames} == {RUN_ID}


# --- agno


def test_an_agno_step_starts_before_the_run_of_its_agent_and_names_it() -> None:
    frames = encoded("agno", "code_review")
    begun = [
        (frame["event"], frame["step_id"], frame["run_id"])
        for frame in frames
        if frame["event"] in ("StepStarted", "RunStarted")
        and frame["step_id"] == "step_static_analysis"
    ]
    assert begun == [
        ("StepStarted", "step_static_analysis", RUN_ID),
        ("RunStarted", "step_static_analysis", child(1)),
        ("StepStarted", "step_static_analysis", RUN_ID),
        ("RunStarted", "step_static_analysis", child(2)),
    ]
    assert {frame["step_name"] for frame in frames if frame.get("run_id") == child(2)} == {
        "Running static analysis..."
    }


def test_an_agno_team_and_its_workers_are_inner_runs() -> None:
    frames = encoded("agno", "diagnosis")
    begun = {frame["run_id"]: frame for frame in named(frames, "RunStarted")}
    assert begun[child(6)]["agent_name"] == workflow_runs.TEAM
    assert begun[child(6)]["workflow_run_id"] == RUN_ID
    assert begun[child(8)]["parent_run_id"] == child(6)
    ended = {frame["run_id"]: frame["agent_name"] for frame in named(frames, "RunCompleted")}
    assert ended[child(6)] == workflow_runs.TEAM
    assert ended[child(8)] == "Database Monitor"
    assert ended[child(9)] == "Global Supervisor"


# --- several approvals that are open at once


def test_a_pause_asks_about_every_open_approval() -> None:
    [first, second] = [
        frame
        for frame in agui(STRICT_1, RUNS["code_review"])
        if "interrupts" in str(frame) and frame["type"] == "RUN_FINISHED"
    ]
    asked = [each["id"].split("/")[0] for each in first["outcome"]["interrupts"]]
    assert asked == ["a-2", "a-1"]
    assert [each["id"].split("/")[0] for each in second["outcome"]["interrupts"]] == ["a-2"]
    paused = [
        [each["step_id"] for each in frame["step_requirements"]]
        for frame in named(encoded("agno", "code_review"), "WorkflowPaused")
    ]
    assert paused == [["step_license_check", "step_sign_off"], ["step_license_check"]]
    requests = [
        frame["longRunningToolIds"]
        for frame in encoded("adk", "code_review")
        if frame.get("longRunningToolIds")
    ]
    assert requests == [["a-2/step_license_check", "a-1/step_sign_off"], ["a-2/step_license_check"]]


# --- agui


def test_an_agui_team_contains_its_workers() -> None:
    frames = agui(STRICT_1, RUNS["diagnosis"])
    begun = {each["subagentRunId"]: each for each in of_type(frames, "SUBAGENT_STARTED")}
    assert begun[child(6)]["name"] == workflow_runs.TEAM
    assert begun[child(8)]["parentSubagentRunId"] == child(6)
    [call] = of_type(frames, "TOOL_CALL_START")
    assert call["subagentRunId"] == child(8)
