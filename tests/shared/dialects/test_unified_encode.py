"""The unified dialect encodes all recordings and the examples as unified-events.md says."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from penstock.dialects.unified import CATEGORY_OF, OMITTED, UnifiedEncoder, selected_types
from penstock.events import CATALOGUE, TERMINAL
from support.drive.for_each import for_each
from support.fakes.raw import RUN_ID
from support.recorded.canonical import Recorded, event, recorded, recorded_runs, run
from support.recorded.goldens import check

GOLDEN = Path(__file__).parents[2] / "golden" / "encoded" / "unified"

each_run = for_each("recorded_run", recorded_runs(), lambda each: each.name)

SHOWN = [
    "agno/3.1.10/auto_tool",
    "agno/3.1.10/confirm_reject_note",
    "agno/3.1.10/wf_complex",
    "agno/3.1.10/model_error_midstream",
    "adk/2.13.0/confirm_stream",
    "adk/2.13.0/think_stream",
]

TEXT = {"type": "string"}
OBJECT = {"type": "object"}
TEXT_OR_NULL = {"type": ["string", "null"]}
NUMBER_OR_NULL = {"type": ["number", "null"]}
ANY: dict[str, Any] = {}


def an_object(**fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


DOCUMENT = an_object(id=TEXT, score=NUMBER_OR_NULL, content=TEXT)

# The document's payloads, copied by hand: every key, and no other key but `run_id`.
PAYLOADS: dict[str, dict[str, dict[str, Any]]] = {
    "session_started": {
        "session_id": TEXT,
        "agent": TEXT,
        "metadata": an_object(user_id=TEXT, workflow=TEXT),
    },
    "session_ended": {
        "session_id": TEXT,
        "reason": {"enum": ["completed", "failed", "cancelled"]},
        "summary": TEXT,
    },
    "agent_message_start": {"agent": TEXT, "message_id": TEXT},
    "agent_message_delta": {"message_id": TEXT, "delta": {"type": "string", "minLength": 1}},
    "agent_message_end": {"message_id": TEXT, "content": TEXT},
    "tool_call_started": {"tool_call_id": TEXT, "tool_name": TEXT, "agent": TEXT, "args": OBJECT},
    "tool_call_delta": {"tool_call_id": TEXT, "delta": TEXT},
    "tool_call_result": {
        "tool_call_id": TEXT,
        "tool_name": TEXT,
        "result": ANY,
        "is_error": {"type": "boolean"},
    },
    "workflow_started": {"workflow": TEXT},
    "workflow_step_started": {"step_id": TEXT, "description": TEXT},
    "workflow_step_completed": {"step_id": TEXT, "output": ANY},
    "workflow_transition": {"from_step": TEXT, "to_step": TEXT, "reason": TEXT},
    "workflow_completed": {
        "result": {"type": "object", "properties": {"summary": TEXT}, "required": ["summary"]}
    },
    "agent_thought": {"agent": TEXT, "content": TEXT, "debug": {"type": "boolean"}},
    "run_error": {"error_type": TEXT, "message": TEXT, "agent": TEXT, "step": TEXT_OR_NULL},
    "run_retry": {
        "retry_count": {"type": "integer"},
        "max_retries": {"type": "integer"},
        "reason": TEXT,
    },
    "run_interrupted": {
        "reason": {"enum": ["user_stop", "approval_required"]},
        "step": TEXT_OR_NULL,
    },
    "retrieval_started": {"query": TEXT, "agent": TEXT},
    "retrieval_result": {"documents": {"type": "array", "items": DOCUMENT}},
    "automation_triggered": {"workflow": TEXT, "trigger": TEXT},
    "automation_completed": {"workflow": TEXT, "result": TEXT},
    "metrics_update": {
        "cpu": NUMBER_OR_NULL,
        "memory_used": TEXT_OR_NULL,
        "disk_free": TEXT_OR_NULL,
        "containers_running": {"type": ["integer", "null"]},
    },
}
SCHEMAS = {
    type: Draft202012Validator(
        an_object(
            event_id=TEXT,
            session_id={"const": "s-1"},
            timestamp={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"},
            type={"const": type},
            payload=an_object(run_id=TEXT, **fields),
        )
    )
    for type, fields in PAYLOADS.items()
}


def encoded(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the bodies of all frames; the name of each frame is the type of its body."""
    encoder = UnifiedEncoder()
    bodies = []
    for each in events:
        for frame in encoder.feed(each):
            body = orjson.loads(frame.data)
            assert frame.event == body["type"]
            bodies.append(body)
    return bodies


def payloads(events: Iterable[dict[str, Any]], type: str) -> list[dict[str, Any]]:
    return [body["payload"] for body in encoded(events) if body["type"] == type]


def types(bodies: Iterable[dict[str, Any]]) -> list[str]:
    return [body["type"] for body in bodies]


# --- the document


def test_there_are_22_types_in_nine_categories() -> None:
    assert len(CATEGORY_OF) == 22
    assert len(set(CATEGORY_OF.values())) == 9
    assert CATEGORY_OF.keys() == PAYLOADS.keys()


AGENT = {
    "agent_id": "infrastructure_monitor",
    "agent_type": "agent",
    "agent_name": "Infrastructure Monitor",
    "team_name": None,
}
M1 = f"{RUN_ID}/m1"

# The canonical type, the canonical data, and the document's example (with the run's id before a
# message's id).
EXAMPLES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (
        "lifecycle.started",
        {"agent": "infrastructure_monitor", "user_id": "123", "workflow": "infra_monitoring"},
        "session_started",
        {
            "session_id": "s-1",
            "agent": "infrastructure_monitor",
            "metadata": {"user_id": "123", "workflow": "infra_monitoring"},
        },
    ),
    (
        "lifecycle.completed",
        {"summary": "Infrastructure monitor finished health scan."},
        "session_ended",
        {
            "session_id": "s-1",
            "reason": "completed",
            "summary": "Infrastructure monitor finished health scan.",
        },
    ),
    (
        "llm.message_started",
        {"message_id": "m1", "role": "assistant"},
        "agent_message_start",
        {"agent": "infrastructure_monitor", "message_id": M1},
    ),
    (
        "llm.stream",
        {"message_id": "m1", "content": "Analyzing code..."},
        "agent_message_delta",
        {"message_id": M1, "delta": "Analyzing code..."},
    ),
    (
        "llm.message_completed",
        {"message_id": "m1", "role": "assistant", "content": "Code review completed."},
        "agent_message_end",
        {"message_id": M1, "content": "Code review completed."},
    ),
    (
        "llm.tool_call",
        {
            "tool": "docker_list_containers",
            "args": {"status": "running"},
            "tool_call_id": "tc_001",
            "pending": True,
        },
        "tool_call_started",
        {
            "tool_call_id": "tc_001",
            "tool_name": "docker_list_containers",
            "agent": "infrastructure_monitor",
            "args": {"status": "running"},
        },
    ),
    (
        "llm.tool_progress",
        {"tool_call_id": "tc_001", "delta": "checking Docker..."},
        "tool_call_delta",
        {"tool_call_id": "tc_001", "delta": "checking Docker..."},
    ),
    (
        "llm.tool_result",
        {
            "tool": "docker_list_containers",
            "tool_call_id": "tc_001",
            "result": [{"name": "supabase-db", "status": "running"}],
            "outcome": "ok",
        },
        "tool_call_result",
        {
            "tool_call_id": "tc_001",
            "tool_name": "docker_list_containers",
            "result": [{"name": "supabase-db", "status": "running"}],
            "is_error": False,
        },
    ),
    (
        "workflow.started",
        {"workflow": "review_workflow", "run_id": "run_001", "version": "3"},
        "workflow_started",
        {"workflow": "review_workflow", "run_id": "run_001"},
    ),
    (
        "workflow.step_started",
        {
            "run_id": "run_001",
            "step_id": "step_static_analysis",
            "description": "Running static analysis...",
            "kind": "step",
        },
        "workflow_step_started",
        {
            "run_id": "run_001",
            "step_id": "step_static_analysis",
            "description": "Running static analysis...",
        },
    ),
    (
        "workflow.step_completed",
        {"run_id": "run_001", "step_id": "step_static_analysis", "output": {"score": 82}},
        "workflow_step_completed",
        {"run_id": "run_001", "step_id": "step_static_analysis", "output": {"score": 82}},
    ),
    (
        "workflow.transition",
        {
            "run_id": "run_001",
            "from_step": "static_analysis",
            "to_step": "security_scan",
            "reason": "static_analysis_complete",
        },
        "workflow_transition",
        {
            "run_id": "run_001",
            "from_step": "static_analysis",
            "to_step": "security_scan",
            "reason": "static_analysis_complete",
        },
    ),
    (
        "workflow.completed",
        {"run_id": "run_001", "result": {"summary": "Code review finished successfully."}},
        "workflow_completed",
        {"run_id": "run_001", "result": {"summary": "Code review finished successfully."}},
    ),
    (
        "llm.reasoning",
        {"thought": "Evaluating code smell patterns...", "reasoning_id": "r1", "debug": True},
        "agent_thought",
        {
            "agent": "infrastructure_monitor",
            "content": "Evaluating code smell patterns...",
            "debug": True,
        },
    ),
    (
        "lifecycle.failed",
        {
            "error": "Docker daemon unreachable.",
            "code": "upstream_error",
            "error_type": "ToolError",
            "step": "docker_check",
        },
        "run_error",
        {
            "error_type": "ToolError",
            "message": "Docker daemon unreachable.",
            "agent": "infrastructure_monitor",
            "step": "docker_check",
        },
    ),
    (
        "lifecycle.retrying",
        {"retry_count": 1, "max_retries": 3, "reason": "temporary network issue"},
        "run_retry",
        {"retry_count": 1, "max_retries": 3, "reason": "temporary network issue"},
    ),
    (
        "lifecycle.cancelled",
        {"reason": "user_stop", "step": "security_scan", "confirmed": True},
        "run_interrupted",
        {"reason": "user_stop", "step": "security_scan"},
    ),
    (
        "retrieval.started",
        {"retrieval_id": "x", "query": "how to fix postgres connection error"},
        "retrieval_started",
        {"query": "how to fix postgres connection error", "agent": "infrastructure_monitor"},
    ),
    (
        "retrieval.result",
        {
            "documents": [
                {
                    "id": "doc1",
                    "score": 0.92,
                    "content": "Increase max_connections in Postgres...",
                    "title": "Postgres",
                }
            ]
        },
        "retrieval_result",
        {
            "documents": [
                {"id": "doc1", "score": 0.92, "content": "Increase max_connections in Postgres..."}
            ]
        },
    ),
    (
        "automation.triggered",
        {
            "automation": "a1",
            "workflow": "SendSlackAlert",
            "trigger": "disk_space_low",
            "delivery_id": "d1",
        },
        "automation_triggered",
        {"workflow": "SendSlackAlert", "trigger": "disk_space_low"},
    ),
    (
        "automation.completed",
        {
            "automation": "a1",
            "workflow": "SendSlackAlert",
            "result": "Notification sent.",
            "delivery_id": "d1",
            "attempts": 1,
            "duration_s": 0.1,
        },
        "automation_completed",
        {"workflow": "SendSlackAlert", "result": "Notification sent."},
    ),
    (
        "system.metrics",
        {
            "cpu": 42,
            "memory_used": "3.2GB",
            "disk_free": "120GB",
            "containers_running": 5,
            "gpu": 1,
        },
        "metrics_update",
        {"cpu": 42, "memory_used": "3.2GB", "disk_free": "120GB", "containers_running": 5},
    ),
]


@pytest.mark.parametrize(
    ("type", "data", "unified", "example"), EXAMPLES, ids=lambda v: str(v)[:24]
)
def test_each_example_of_the_document_is_made(
    type: str, data: dict[str, Any], unified: str, example: dict[str, Any]
) -> None:
    [payload] = payloads([event(type, data, source=AGENT)], unified)
    assert payload == {**example, "run_id": RUN_ID}


@pytest.mark.parametrize(
    ("type", "data", "unified"),
    [
        ("retrieval.started", {"query": "why", "agent": "kb"}, "retrieval_started"),
        ("llm.reasoning", {"thought": "hm", "reasoning_id": "r", "agent": "kb"}, "agent_thought"),
        (
            "system.error",
            {"message": "x", "code": "E", "detail": {"agent": "kb", "step": "s"}},
            "run_error",
        ),
    ],
)
def test_the_agent_that_a_payload_names_goes_before_the_source(
    type: str, data: dict[str, Any], unified: str
) -> None:
    [payload] = payloads([event(type, data, source=AGENT)], unified)
    assert payload["agent"] == "kb" != AGENT["agent_id"]


def test_a_truncated_answer_is_warned_of_after_its_message() -> None:
    run = next(each for each in recorded_runs() if each.name == "adk/2.13.0/maxtokens_stream")
    bodies = encoded(run.events)
    at = next(n for n, body in enumerate(bodies) if body["type"] == "run_error")
    assert bodies[at]["payload"]["error_type"] == "max_tokens"
    assert bodies[at - 1]["type"] == "agent_message_end"
    assert bodies[-1]["type"] == "session_ended"


@pytest.mark.parametrize("name", ["adk/2.13.0/wf_stream", "agno/3.1.10/wf_complex"])
def test_a_recorded_workflow_is_one_run_whose_transitions_lead_from_step_to_step(
    name: str,
) -> None:
    run = next(each for each in recorded_runs() if each.name == name)
    bodies = encoded(run.events)
    assert {body["payload"]["run_id"] for body in bodies} == {RUN_ID}
    (started,) = [n for n, body in enumerate(bodies) if body["type"] == "workflow_started"]
    first_step = next(n for n, each in enumerate(bodies) if each["type"] == "workflow_step_started")
    assert started < first_step
    steps = {body["payload"].get("step_id") for body in bodies}
    moves = [body["payload"] for body in bodies if body["type"] == "workflow_transition"]
    assert {move["reason"] for move in moves} >= {"sequence"}
    assert steps >= {move[end] for move in moves for end in ("from_step", "to_step")}


def test_every_type_of_the_document_has_an_example() -> None:
    assert {unified for _, _, unified, _ in EXAMPLES} == CATEGORY_OF.keys()


def test_every_canonical_type_is_sent_or_listed_as_omitted() -> None:
    told = {type for type, _, _, _ in EXAMPLES}
    told |= {"lifecycle.paused", "system.error", "workflow.step_failed", "automation.failed"}
    told |= {"system.warning"}
    assert told | OMITTED.keys() == CATALOGUE.keys()
    assert not told & OMITTED.keys()


@for_each("type", OMITTED)
def test_what_has_no_unified_type_makes_no_frame(type: str) -> None:
    assert encoded([event(type, {"reason": "x", "message": "m", "code": "c"})]) == []


def test_an_action_of_a_later_version_makes_no_frame() -> None:
    assert encoded([event("llm.invented", {})]) == []


# --- errors, interruptions, ends


def test_a_failed_run_has_its_error_and_then_its_end() -> None:
    said = run(("lifecycle.failed", {"error": "gone", "code": "upstream_lost"}))
    bodies = encoded(said)
    assert types(bodies) == ["session_started", "run_error", "session_ended"]
    assert bodies[1]["payload"]["error_type"] == "upstream_lost"
    ended = {"session_id": "s-1", "reason": "failed", "summary": "gone", "run_id": RUN_ID}
    assert bodies[2]["payload"] == ended


def test_a_cancelled_run_is_interrupted_and_then_ended() -> None:
    said = run(("lifecycle.cancelled", {"reason": "user_stop", "confirmed": True}))
    assert types(encoded(said))[1:] == ["run_interrupted", "session_ended"]


def test_a_pause_interrupts_the_run_for_an_approval_and_does_not_end_it() -> None:
    said = run(("lifecycle.paused", {"reason": "approval_required", "approval_id": "a"}))
    bodies = encoded(said)
    assert types(bodies) == ["session_started", "run_interrupted"]
    paused = {"reason": "approval_required", "step": None, "run_id": RUN_ID}
    assert bodies[1]["payload"] == paused


def test_a_failed_step_is_a_run_error_that_names_the_step() -> None:
    error = {"code": "upstream_error", "message": "no"}
    data = {"run_id": "w", "step_id": "scan", "error": error}
    [payload] = payloads(run(("workflow.step_failed", data)), "run_error")
    assert (payload["error_type"], payload["message"]) == ("upstream_error", "no")
    assert payload["step"] == "scan"


def test_a_workflows_failed_step_is_one_run_error_with_the_steps_name() -> None:
    error = {"code": "upstream_error", "message": "no"}
    said = [event("lifecycle.started", {"agent": "w", "workflow": "w"})]
    for step_id in ("step_each.0", "step_each.1", "step_each"):
        data = {"run_id": "w", "step_id": step_id, "error": error}
        said.append(event("workflow.step_failed", data))
    failed = {"error": "the step each failed: no", "code": "upstream_error", "step": "each"}
    said.append(event("lifecycle.failed", failed))
    assert [each["step"] for each in payloads(said, "run_error")] == ["each.0", "each.1"]
    assert payloads(said, "session_ended")[0]["reason"] == "failed"


def test_a_failed_automation_is_a_completed_one_that_says_so() -> None:
    data = {"automation": "a", "workflow": "Alert", "result": "410 gone", "delivery_id": "d"}
    [payload] = payloads(run(("automation.failed", data)), "automation_completed")
    assert payload["result"] == "failed: 410 gone"


@pytest.mark.parametrize("outcome", ["error", "rejected", "expired"])
def test_a_call_without_a_good_end_says_is_error(outcome: str) -> None:
    data = {"tool": "t", "tool_call_id": "c", "result": None, "outcome": outcome}
    [payload] = payloads(run(("llm.tool_result", data)), "tool_call_result")
    assert payload["is_error"] is True


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("done", {"summary": "done"}),
        ({"score": 1}, {"summary": '{"score":1}', "value": {"score": 1}}),
        (None, {"summary": "", "value": None}),
    ],
)
def test_a_workflow_result_is_an_object_with_a_summary(result: Any, expected: Any) -> None:
    said = run(("workflow.completed", {"run_id": "w", "result": result}))
    [payload] = payloads(said, "workflow_completed")
    assert payload["result"] == expected


# --- messages


STARTED = ("llm.message_started", {"message_id": "m1", "role": "assistant"})
HALF = ("llm.stream", {"message_id": "m1", "content": "half"})
REST = ("llm.stream", {"message_id": "m1", "content": " rest"})
WHOLE = (
    "llm.message_completed",
    {"message_id": "m1", "role": "assistant", "content": "half rest"},
)
ERRED = ("system.error", {"message": "no", "code": "c"})
FAILED = ("lifecycle.failed", {"error": "gone", "code": "upstream_lost"})


def test_an_open_message_is_ended_with_what_was_emitted_before_the_error() -> None:
    bodies = encoded(run(STARTED, HALF, FAILED))
    assert types(bodies)[-3:] == ["agent_message_end", "run_error", "session_ended"]
    assert bodies[-3]["payload"]["content"] == "half"


def test_a_message_that_continues_after_an_error_is_another_one() -> None:
    bodies = encoded(run(STARTED, HALF, ERRED, REST, WHOLE))
    ends = [body["payload"] for body in bodies if body["type"] == "agent_message_end"]
    assert [(end["message_id"], end["content"]) for end in ends] == [
        (M1, "half"),
        (f"{M1}#2", " rest"),
    ]


def test_text_that_nobody_announced_begins_its_message() -> None:
    bodies = encoded(run(HALF, STARTED, WHOLE))
    assert types(bodies)[1:] == ["agent_message_start", "agent_message_delta", "agent_message_end"]


def test_the_messages_of_two_runs_of_a_session_have_different_ids() -> None:
    other = [dict(each, run_id="other") for each in run(STARTED, HALF, WHOLE)]
    one = encoded(run(STARTED, HALF, WHOLE))
    two = encoded(other)
    ids = [{body["payload"].get("message_id") for body in bodies} - {None} for bodies in (one, two)]
    assert ids[0].isdisjoint(ids[1])
    assert {body["event_id"] for body in one}.isdisjoint(body["event_id"] for body in two)


# --- every recording


@each_run
def test_a_recorded_run_is_of_the_document_in_every_frame(recorded_run: Recorded) -> None:
    for body in encoded(recorded_run.events):
        SCHEMAS[body["type"]].validate(body)
        assert uuid.UUID(body["event_id"]).version == 5


@each_run
def test_a_recorded_run_is_complete(recorded_run: Recorded) -> None:
    bodies = encoded(recorded_run.events)
    named = types(bodies)
    assert named[0] == "session_started"
    ended = bool(TERMINAL.intersection(recorded_run.types))
    assert named.count("session_ended") == ended
    assert named[-1] == ("session_ended" if ended else "run_interrupted")
    for canonical, unified in (
        ("llm.tool_call", "tool_call_started"),
        ("llm.tool_result", "tool_call_result"),
    ):
        calls = [data["tool_call_id"] for data in recorded_run.data(canonical)]
        assert [b["payload"]["tool_call_id"] for b in bodies if b["type"] == unified] == calls
    text = "".join(data["content"] for data in recorded_run.data("llm.message_completed"))
    ends = [b["payload"]["content"] for b in bodies if b["type"] == "agent_message_end"]
    assert "".join(ends) == text


@each_run
def test_the_messages_of_a_recorded_run_are_well_formed(recorded_run: Recorded) -> None:
    opened: dict[str, str] = {}
    ended: set[str] = set()
    for body in encoded(recorded_run.events):
        payload = body["payload"]
        match body["type"]:
            case "agent_message_start":
                assert payload["message_id"] not in opened.keys() | ended
                opened[payload["message_id"]] = ""
            case "agent_message_delta":
                opened[payload["message_id"]] += payload["delta"]
            case "agent_message_end":
                assert opened.pop(payload["message_id"]) == payload["content"]
                ended.add(payload["message_id"])
            case "run_error" | "run_interrupted" | "session_ended":
                assert not opened
    assert not opened


@each_run
def test_a_reconnecting_client_gets_exactly_the_rest(recorded_run: Recorded) -> None:
    """A resumed stream encodes from the start and omits what the client has.

    The test resumes after every event.
    """
    whole = frames_of(recorded_run.events)
    assert len({data for _, data in whole}) == len(whole)
    for cut in range(len(recorded_run.events) + 1):
        before = frames_of(recorded_run.events[:cut])
        assert whole[: len(before)] == before


def frames_of(events: Iterable[dict[str, Any]]) -> list[tuple[str | None, bytes]]:
    encoder = UnifiedEncoder()
    return [(frame.event, frame.data) for each in events for frame in encoder.feed(each)]


@pytest.mark.parametrize("name", SHOWN)
def test_a_recorded_run_gives_its_golden_frames(name: str) -> None:
    path = GOLDEN / f"{name.replace('/', '_')}.jsonl"
    check(path, [body.decode() for _, body in frames_of(recorded(name).events)])


# --- filters


def test_a_filter_by_category_and_type_takes_what_is_in_both() -> None:
    assert selected_types() == CATEGORY_OF.keys()
    tools = {"tool_call_started", "tool_call_delta", "tool_call_result"}
    assert selected_types(["tools"]) == tools
    assert selected_types(["tools", "reasoning"]) == tools | {"agent_thought"}
    assert selected_types((), ["run_error"]) == {"run_error"}
    assert selected_types(["tools"], ["run_error", "tool_call_delta"]) == {"tool_call_delta"}


@pytest.mark.parametrize(("categories", "types"), [(["tool"], []), ([], ["run_errors"])])
def test_a_filter_that_means_nothing_is_refused(categories: list[str], types: list[str]) -> None:
    name = (categories + types)[0]
    with pytest.raises(ValueError, match=re.escape(name)):
        selected_types(categories, types)
