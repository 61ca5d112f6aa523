"""The executions dialect gives the examples of executions-sse.md."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.dialects.executions import ExecutionsEncoder

TOP = {"run_id", "timestamp", "sequence", "source", "event", "data"}
SOURCE = {
    "agent_id": "20",
    "agent_type": "worker",
    "agent_name": "Database Monitor",
    "team_name": "Payment Gateway",
}

# The type, the canonical data, and the data of the document.
DOCUMENTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("lifecycle.started", {"agent": "a", "user_id": "u", "message": "hi"}, {}),
    (
        "lifecycle.completed",
        {"summary": "Diagnosis completed", "usage": {"total_tokens": 3}, "metrics": {}},
        {"summary": "Diagnosis completed"},
    ),
    (
        "lifecycle.failed",
        {"error": "Connection timeout", "code": "upstream_error", "status_code": 500},
        {"error": "Connection timeout"},
    ),
    ("lifecycle.cancelled", {"reason": "user_stop", "confirmed": True}, {}),
    ("llm.stream", {"content": "Analyzing", "message_id": "m1"}, {"content": "Analyzing"}),
    ("llm.reasoning", {"thought": "first", "reasoning_id": "r1"}, {"thought": "first"}),
    (
        "llm.tool_call",
        {"tool": "check", "args": {"host": "db"}, "tool_call_id": "c1", "pending": True},
        {"tool": "check", "args": {"host": "db"}},
    ),
    (
        "llm.tool_result",
        {"tool": "check", "result": {"ok": [1, None]}, "tool_call_id": "c1", "outcome": "ok"},
        {"tool": "check", "result": {"ok": [1, None]}},
    ),
    (
        "llm.tool_result",
        {"tool": "check", "result": None, "tool_call_id": "c1", "outcome": "ok"},
        {"tool": "check", "result": None},
    ),
    (
        "llm.tool_result",
        {"tool": "check", "result": None, "tool_call_id": "c1", "outcome": "rejected"},
        {"tool": "check", "result": {"outcome": "rejected", "error": "rejected"}},
    ),
    (
        "llm.tool_result",
        {"tool": "check", "result": "x", "tool_call_id": "c", "outcome": "error", "error": "boom"},
        {"tool": "check", "result": {"outcome": "error", "error": "boom", "result": "x"}},
    ),
    (
        "dispatch.team",
        {"team_name": "Payment Gateway", "task": "Check", "x": 1},
        {"team_name": "Payment Gateway", "task": "Check"},
    ),
    (
        "dispatch.worker",
        {"worker_name": "Database Monitor", "task": "Check", "subrun_id": "s"},
        {"worker_name": "Database Monitor", "task": "Check"},
    ),
    ("system.warning", {"message": "85%", "code": "pool"}, {"message": "85%"}),
    (
        "system.error",
        {"message": "no replica", "code": "DB_CONNECTION_FAILED", "detail": 1},
        {"message": "no replica", "code": "DB_CONNECTION_FAILED"},
    ),
]


def event(type: str, data: dict[str, Any]) -> dict[str, Any]:
    category, _, action = type.partition(".")
    return {
        "run_id": "01938b5e-0000-7000-8000-000000000001",
        "timestamp": "2026-01-02T03:04:05.678Z",
        "sequence": 7,
        "source": SOURCE | {"invented": 1},
        "event": {"category": category, "action": action},
        "data": data,
        "session_id": "s",
        "leg": 1,
        "subrun": {"id": "x"},
    }


def encoded(type: str, data: dict[str, Any]) -> dict[str, Any]:
    [frame] = ExecutionsEncoder().feed(event(type, data))
    assert frame.event == type
    body: dict[str, Any] = orjson.loads(frame.data)
    return body


@pytest.mark.parametrize(("type", "data", "documented"), DOCUMENTED, ids=lambda v: str(v)[:24])
def test_a_documented_action_has_exactly_the_documented_data(
    type: str, data: dict[str, Any], documented: dict[str, Any]
) -> None:
    body = encoded(type, data)
    assert set(body) == TOP
    assert body["data"] == documented
    assert body["event"] == dict(zip(("category", "action"), type.split("."), strict=True))


def test_all_twelve_documented_actions_are_covered() -> None:
    assert len({type for type, _, _ in DOCUMENTED}) == 12


@pytest.mark.parametrize("type", ["lifecycle.started", "lifecycle.cancelled"])
def test_started_and_cancelled_have_no_source(type: str) -> None:
    assert encoded(type, {})["source"] is None


def test_a_source_has_exactly_its_four_keys() -> None:
    assert encoded("llm.stream", {"content": "x"})["source"] == SOURCE


def test_an_action_that_the_document_does_not_know_follows_whole_in_the_same_six_keys() -> None:
    data = {"reason": "approval_required", "approval_id": "a1"}
    body = encoded("lifecycle.paused", data)
    assert set(body) == TOP
    assert body["data"] == data
