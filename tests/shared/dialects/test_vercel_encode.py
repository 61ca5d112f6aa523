"""The Vercel dialect encodes all recordings into streams that the AI SDK's client accepts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.dialects.vercel import SDKS, VercelEncoder
from penstock.events import TERMINAL
from support.drive.for_each import for_each
from support.fakes.raw import RUN_ID
from support.recorded import vercel_rules
from support.recorded.canonical import Recorded, event, recorded, recorded_runs, run, type_of
from support.recorded.goldens import check

GOLDEN = Path(__file__).parents[2] / "golden" / "encoded" / "vercel"
SHOWN = [
    "agno/3.1.10/auto_tool",
    "agno/3.1.10/confirm_reject_note",
    "agno/3.1.10/external_execution",
    "agno/3.1.10/model_error_midstream",
    "agno/3.1.10/team_delegate",
    "agno/3.1.10/wf_complex",
    "adk/2.13.0/confirm_stream",
    "adk/2.13.0/think_stream",
]

Chunk = dict[str, Any]
each_run = for_each("recorded_run", recorded_runs(), lambda each: each.name)

DIGEST = "sha256:d1"
DELETE = {"item_id": "i/1", "kind": "confirmation", "tool_call_id": "c1", "tool": "delete"}
ASKED = {"approval_id": "a1", "digest": DIGEST, "deciders_required": 1}
CALLED = ("llm.tool_call", {"tool": "delete", "args": {"path": "x"}, "tool_call_id": "c1"})
REQUESTED = ("approval.requested", {**ASKED, "items": [DELETE]})
PAUSED = ("lifecycle.paused", {"reason": "approval_required", "approval_id": "a1"})
RESUMED = ("lifecycle.resumed", {"approval_id": "a1"})
COMPLETED = ("lifecycle.completed", {"summary": "x"})


def decided(decision: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    items = [{"item_id": "i/1", "decision": decision, **fields}]
    said = {"approval_id": "a1", "outcome": "mixed", "by": "u", "automatic": False}
    return "approval.decided", {**said, "items": items}


def chunks(events: Iterable[dict[str, Any]], sdk: str = "6") -> list[Chunk]:
    encoder = VercelEncoder(sdk)
    return [orjson.loads(frame.data) for each in events for frame in encoder.feed(each)]


def of_type(type: str, events: Iterable[dict[str, Any]], sdk: str = "6") -> list[Chunk]:
    return [each for each in chunks(events, sdk) if each["type"] == type]


def types(events: Iterable[dict[str, Any]], sdk: str = "6") -> list[str]:
    return [each["type"] for each in chunks(events, sdk)]


@for_each("name", SHOWN)
def test_a_recorded_run_gives_its_golden_chunks(name: str) -> None:
    lines = [orjson.dumps(chunk).decode() for chunk in chunks(recorded(name).events)]
    check(GOLDEN / f"{name.replace('/', '_')}.jsonl", lines)


@pytest.mark.parametrize("sdk", SDKS)
@each_run
def test_a_recorded_run_is_accepted_by_the_client(sdk: str, recorded_run: Recorded) -> None:
    assert vercel_rules.faults(chunks(recorded_run.events, sdk), sdk) == []


@each_run
def test_a_recorded_run_is_complete(recorded_run: Recorded) -> None:
    made = chunks(recorded_run.events)
    texts = [data["content"] for data in recorded_run.data("llm.stream")]
    whole = [data["content"] for data in recorded_run.data("llm.message_completed")]
    assert vercel_rules.joined(made, "text-delta") == "".join(texts or whole)
    thoughts = [data["thought"] for data in recorded_run.data("llm.reasoning")]
    assert vercel_rules.joined(made, "reasoning-delta") == "".join(thoughts)
    called = [data["tool"] for data in recorded_run.data("llm.tool_call")]
    assert sorted(vercel_rules.tools(made)) == sorted(called)
    ended = type_of(recorded_run.events[-1]) in TERMINAL
    assert ended == (made[-1].get("finishReason") != "tool-calls")


def test_the_message_has_the_runs_id_in_each_leg() -> None:
    starts = of_type("start", run(CALLED, REQUESTED, PAUSED, RESUMED, COMPLETED))
    assert [each["messageId"] for each in starts] == [RUN_ID, RUN_ID]
    assert starts[0]["messageMetadata"] == {"runId": RUN_ID, "sessionId": "s-1"}


def test_a_request_has_the_digest_where_the_client_sends_it_back() -> None:
    (asked,) = of_type("tool-approval-request", run(CALLED, REQUESTED, PAUSED))
    assert asked["approvalId"] == "a1/i/1"
    assert asked["toolCallId"] == "c1"
    assert asked["approvalDescriptor"] == {"digest": DIGEST}


def test_a_request_that_a_policy_decides_at_once_is_not_shown() -> None:
    events = run(CALLED, REQUESTED, decided("approve"), COMPLETED)
    assert of_type("tool-approval-request", events) == []
    assert "finish-step" in types(events)


def test_the_call_of_a_request_is_shown_before_it() -> None:
    events = run(REQUESTED, PAUSED)
    assert types(events)[2:4] == ["tool-input-available", "tool-approval-request"]


VALUE = {**DELETE, "kind": "input", "input_schema": {"type": "object"}, "options": None}


@pytest.mark.parametrize(("item", "sdk"), [(DELETE, "5"), (VALUE, "5"), (VALUE, "6"), (VALUE, "7")])
def test_what_a_response_cannot_say_is_asked_for_as_the_output_of_the_call(
    item: Chunk, sdk: str
) -> None:
    asked = ("approval.requested", {**ASKED, "items": [item]})
    called, asks = of_type("tool-input-available", run(CALLED, asked, PAUSED), sdk)
    assert of_type("tool-approval-request", run(CALLED, asked, PAUSED), sdk) == []
    assert (called["toolCallId"], called["providerExecuted"]) == ("c1", True)
    assert (asks["toolCallId"], asks["providerExecuted"]) == ("c1", False)
    question = vercel_rules.asked_by(asks)
    assert (question["id"], question["digest"]) == ("a1/i/1", DIGEST)
    for name in ("kind", "input_schema", "options"):
        assert question.get(name) == item.get(name)


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize(
    ("settled", "end"),
    [
        (decided("approve"), "available"),
        (decided("approve", value=0), "available"),
        (decided("reject", note="no"), "denied"),
        (("approval.expired", {"approval_id": "a1"}), "error"),
        (("approval.withdrawn", {"approval_id": "a1"}), "error"),
    ],
)
@pytest.mark.parametrize("kind", ["confirmation", "input"])
def test_an_item_of_no_tool_is_a_call_that_ends_with_its_decision(
    sdk: str, settled: tuple[str, Chunk], end: str, kind: str
) -> None:
    item = {"item_id": "i/1", "kind": kind, "description": "Merge?", "args": {"score": 8}}
    asked = ("approval.requested", {**ASKED, "items": [item]})
    events = run(asked, PAUSED, settled, RESUMED, COMPLETED)
    assert vercel_rules.faults(chunks(events, sdk), sdk) == []
    (call,) = of_type("tool-input-available", events, sdk)
    assert (call["toolCallId"], call["toolName"]) == ("a1/i/1", kind)
    assert call["input"] == {"kind": kind, "description": "Merge?", "score": 8}
    (ended,) = (each for each in chunks(events, sdk) if each["type"].startswith("tool-output-"))
    assert ended["toolCallId"] == "a1/i/1"
    assert ended["type"] == f"tool-output-{'error' if sdk == '5' and end == 'denied' else end}"
    if end == "available":
        assert ended["output"] == settled[1]["items"][0].get("value", "approved")
    assert vercel_rules.tools(chunks(events, sdk)) == []


@pytest.mark.parametrize(("sdk", "told"), [("5", 0), ("6", 0), ("7", 1)])
def test_only_version_7_is_told_of_an_answer(sdk: str, told: int) -> None:
    events = run(CALLED, REQUESTED, PAUSED, decided("reject", note="no"), RESUMED, COMPLETED)
    found = of_type("tool-approval-response", events, sdk)
    assert len(found) == told
    assert all(each["approved"] is False and each["reason"] == "no" for each in found)


@pytest.mark.parametrize(
    ("outcome", "sdk", "type"),
    [
        ("ok", "6", "tool-output-available"),
        ("partial", "6", "tool-output-available"),
        ("error", "6", "tool-output-error"),
        ("expired", "6", "tool-output-error"),
        ("rejected", "6", "tool-output-denied"),
        ("rejected", "5", "tool-output-error"),
    ],
)
def test_a_result_is_as_its_outcome_says(outcome: str, sdk: str, type: str) -> None:
    result = {"tool": "delete", "tool_call_id": "c1", "result": 1, "outcome": outcome}
    found = chunks(run(CALLED, ("llm.tool_result", result)), sdk)[-1]
    assert (found["type"], found["toolCallId"]) == (type, "c1")


def test_a_client_runs_no_tool_before_the_run_waits_for_its_result() -> None:
    for execution in ({}, {"execution": "client"}):
        (call,) = of_type("tool-input-available", run(("llm.tool_call", CALLED[1] | execution)))
        assert call["providerExecuted"] is True


def test_the_parts_of_sub_agents_and_steps_are_replaced_as_they_go_on() -> None:
    events = run(
        ("dispatch.worker", {"worker_name": "W", "task": "t", "subrun_id": "s1"}),
        ("dispatch.finished", {"subrun_id": "s1", "status": "completed"}),
        ("workflow.step_started", {"run_id": "r", "step_id": "p1", "description": "d"}),
        ("workflow.step_failed", {"run_id": "r", "step_id": "p1", "error": {"code": "x"}}),
    )
    agents = of_type("data-penstock-agent", events)
    assert [each["data"]["status"] for each in agents] == ["running", "completed"]
    assert {(each["id"], each["data"]["worker_name"]) for each in agents} == {("s1", "W")}
    steps = of_type("data-penstock-step", events)
    assert [each["data"]["status"] for each in steps] == ["running", "failed"]
    assert steps[-1]["data"]["error"] == {"code": "x"}


def test_a_sub_agents_text_names_it() -> None:
    said = event("llm.stream", {"message_id": "m", "content": "x"}, subrun={"id": "s1"})
    (started,) = of_type("text-start", [*run(), said])
    assert started["providerMetadata"] == {"penstock": {"agent": "Writer", "subrun": "s1"}}


def test_usage_is_metadata_of_the_end() -> None:
    usage = {"input_tokens": 3, "output_tokens": 1}
    end = chunks(run(("lifecycle.completed", {"summary": "x", "usage": usage})))[-1]
    assert end["messageMetadata"] == {"status": "completed", "usage": usage}


def test_a_failure_closes_what_is_open_and_then_is_an_error() -> None:
    events = run(
        ("llm.stream", {"message_id": "m", "content": "x"}),
        ("lifecycle.failed", {"error": "broken", "code": "timeout"}),
    )
    assert types(events)[-4:] == ["text-end", "finish-step", "message-metadata", "error"]
    assert chunks(events)[-1]["errorText"] == "broken"
    failed = {"status": "failed", "error": {"code": "timeout"}}
    assert chunks(events)[-2]["messageMetadata"] == failed


@pytest.mark.parametrize("before", [(), (CALLED, REQUESTED, PAUSED)])
def test_a_cancelled_run_is_an_abort_also_in_a_pause(before: Any) -> None:
    cancelled = ("lifecycle.cancelled", {"reason": "user_stop", "confirmed": True})
    metadata, abort = chunks(run(*before, cancelled))[-2:]
    assert metadata["messageMetadata"] == {"status": "cancelled"}
    assert abort == {"type": "abort", "reason": "user_stop"}
    assert vercel_rules.faults(chunks(run(*before, cancelled))) == []


def test_what_the_protocol_lacks_is_a_transient_part() -> None:
    delta = [{"op": "add", "path": "/a", "value": 1}]
    (part,) = of_type("data-penstock", run(("state.delta", {"delta": delta})))
    assert part["transient"] is True
    assert (part["data"]["event"], part["data"]["sequence"]) == ("state.delta", 2)
    assert part["data"]["data"] == {"delta": delta}


def test_a_workflows_output_is_said_unless_an_agent_has_said_it() -> None:
    started = event("lifecycle.started", {"agent": "w", "user_id": "u", "workflow": "w"}, 1)
    done = event("lifecycle.completed", {"summary": "the sum"})
    said = event("llm.message_completed", {"message_id": "m", "content": "the sum"})
    assert vercel_rules.joined(chunks([started, done]), "text-delta") == "the sum"
    assert vercel_rules.joined(chunks([started, said, done]), "text-delta") == "the sum"
