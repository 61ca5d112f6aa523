"""Custom events whose names equal canonical types or one of the 22 unified types."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.custom_events import from_custom
from penstock.events import CATALOGUE, typed_data
from support.drive.for_each import for_each

# The unified payloads of the document, and the canonical types that they become.
UNIFIED: list[tuple[str, dict[str, Any], str | None]] = [
    ("session_started", {"session_id": "abc", "agent": "a", "metadata": {}}, None),
    ("session_ended", {"session_id": "abc", "reason": "completed", "summary": "x"}, None),
    ("run_retry", {"retry_count": 1, "max_retries": 3, "reason": "x"}, None),
    ("run_interrupted", {"reason": "user_stop", "step": "x"}, None),
    ("agent_message_start", {"agent": "a", "message_id": "m1"}, "llm.message_started"),
    ("agent_message_delta", {"message_id": "m1", "delta": "x"}, "llm.stream"),
    ("agent_message_end", {"message_id": "m1", "content": "x"}, "llm.message_completed"),
    (
        "tool_call_started",
        {"tool_call_id": "t", "tool_name": "ls", "agent": "a", "args": {"all": True}},
        "llm.tool_call",
    ),
    ("tool_call_delta", {"tool_call_id": "t", "delta": "x"}, "llm.tool_progress"),
    (
        "tool_call_result",
        {"tool_call_id": "t", "tool_name": "ls", "result": [{"name": "db"}]},
        "llm.tool_result",
    ),
    ("workflow_started", {"workflow": "w", "run_id": "r"}, "workflow.started"),
    (
        "workflow_step_started",
        {"run_id": "r", "step_id": "s", "description": "x"},
        "workflow.step_started",
    ),
    (
        "workflow_step_completed",
        {"run_id": "r", "step_id": "s", "output": {"score": 82}},
        "workflow.step_completed",
    ),
    (
        "workflow_transition",
        {"run_id": "r", "from_step": "a", "to_step": "b", "reason": "x"},
        "workflow.transition",
    ),
    ("workflow_completed", {"run_id": "r", "result": {"summary": "x"}}, "workflow.completed"),
    ("agent_thought", {"agent": "a", "content": "hm", "debug": True}, "llm.reasoning"),
    (
        "run_error",
        {"error_type": "ToolError", "message": "x", "agent": "a", "step": "s"},
        "system.error",
    ),
    ("retrieval_started", {"query": "why", "agent": "kb"}, "retrieval.started"),
    (
        "retrieval_result",
        {"documents": [{"id": "d", "score": 0.92, "content": "x"}]},
        "retrieval.result",
    ),
    ("automation_triggered", {"workflow": "Alert", "trigger": "disk"}, "automation.triggered"),
    ("automation_completed", {"workflow": "Alert", "result": "sent"}, "automation.completed"),
    (
        "metrics_update",
        {"cpu": 42, "memory_used": "3.2GB", "disk_free": "120GB", "containers_running": 5},
        "system.metrics",
    ),
]


@for_each(("name", "payload", "event_type"), UNIFIED)
def test_every_unified_name_has_its_event(
    name: str, payload: dict[str, Any], event_type: str | None
) -> None:
    draft = from_custom(name, payload)
    assert (draft.type if draft else None) == event_type
    if draft is not None:
        typed_data(draft.type, draft.data)


def test_the_table_has_all_22_names() -> None:
    assert len({name for name, _, _ in UNIFIED}) == 22


@for_each("event_type", sorted(CATALOGUE))
def test_what_ends_pauses_or_decides_a_run_is_never_taken_from_a_custom_event(
    event_type: str,
) -> None:
    value = {"reason": "x", "approval_id": "a", "summary": "x", "error": "x", "code": "x"}
    draft = from_custom(event_type, value | {"confirmed": True, "by": "me", "outcome": "approved"})
    if event_type.startswith(("lifecycle.", "approval.")):
        assert draft is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retrieval.started", {"query": "why"}),
        ("retrieval.result", {"documents": [{"id": 5, "content": "x"}]}),
        ("system.metrics", {"cpu": "a lot"}),
        ("metrics_update", None),
        ("metrics_update", [1]),
        ("unheard.of", {"a": 1}),
        ("", {}),
    ],
)
def test_what_does_not_fit_its_name_is_none_of_ours(name: str, value: Any) -> None:
    assert from_custom(name, value) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dispatch.worker", {"worker_name": "Database Monitor", "task": "Check the database"}),
        ("dispatch.team", {"team_name": "Payment Gateway", "task": "Diagnose"}),
        ("system.warning", {"message": "slow"}),
        ("system.error", {"message": "broken", "code": "E1"}),
    ],
)
def test_what_the_executions_document_writes_is_ours(name: str, value: dict[str, Any]) -> None:
    draft = from_custom(name, value)
    assert draft is not None
    assert draft.type == name
    assert draft.data.items() >= value.items()


def test_further_fields_are_kept() -> None:
    draft = from_custom("metrics_update", {"cpu": 1.5, "gpu": 3})
    assert draft is not None
    assert draft.data == {"cpu": 1.5, "gpu": 3}


def test_the_words_of_an_error_keep_their_place() -> None:
    draft = from_custom("run_error", {"error_type": "E", "message": "x", "step": "s"})
    assert draft is not None
    assert draft.data == {"message": "x", "code": "E", "detail": {"step": "s"}}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
_FIELDS = st.sampled_from(
    sorted({field for _, payload, _ in UNIFIED for field in payload} | {"tool", "thought"})
)


@given(
    st.sampled_from([name for name, _, _ in UNIFIED] + sorted(CATALOGUE)),
    st.dictionaries(_FIELDS, _VALUES),
)
def test_what_comes_out_is_always_an_event_of_the_contract(
    name: str, value: dict[str, Any]
) -> None:
    draft = from_custom(name, value)
    if draft is not None:
        typed_data(draft.type, draft.data)
