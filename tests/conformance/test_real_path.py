"""Statements about events: a recorded stream passes through its decoder and its encoder.

If no recording has what a statement is about, the test alters a recording: it inserts frames of the
same framework, or replaces a value. No test here makes a canonical event by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.dialects.agui.ids import unscoped
from penstock.dialects.executions import ExecutionsEncoder
from penstock.dialects.unified import UnifiedEncoder
from penstock.events import TERMINAL
from support.drive.agui_out import RUNS_1, Event, encoded, of_type, recorded
from support.drive.for_each import for_each
from support.recorded import agno, agui
from support.recorded.canonical import folded, type_of

Alter = Callable[[bytes], bytes]

each_recording = for_each("name", recorded())
# An agent's data may have these field names, which some protocols use for their own counters.
BUSINESS = {"title": "Spike Test", "model": "T", "cost": 3, "inputTokens": 5, "latencyMs": 1}


def altered(protocol: str, name: str, folder: Path, alter: Alter) -> list[Event]:
    """Return the canonical events of a recorded run after `alter` has changed its legs."""
    found = {each.name: each for each in (agno if protocol == "agno" else agui).scenarios()}[name]
    legs = []
    for number, leg in enumerate(found.legs):
        body = leg.read_bytes()
        legs.append(folder / f"{number}.sse")
        legs[-1].write_bytes(alter(body))
    changed = replace(found, legs=legs)
    assert any(
        old.read_bytes() != new.read_bytes() for old, new in zip(found.legs, legs, strict=True)
    )
    return folded(changed, protocol).events


def with_customs(folder: Path, *customs: tuple[str, Mapping[str, Any]]) -> list[Event]:
    """Return a recorded run of pydantic-ai whose agent sends these CUSTOM events at its start."""
    frames = b"".join(
        b"data: " + orjson.dumps({"type": "CUSTOM", "name": name, "value": value}) + b"\n\n"
        for name, value in customs
    )

    def insert(body: bytes) -> bytes:
        started, parted, rest = body.partition(b"\n\n")
        return started + parted + frames + rest

    return altered("agui", "pydantic_ai/text", folder, insert)


def unified(events: list[Event], type: str) -> list[dict[str, Any]]:
    """Return the payloads of that type."""
    encoder = UnifiedEncoder()
    bodies = [orjson.loads(frame.data) for each in events for frame in encoder.feed(each)]
    return [body["payload"] for body in bodies if body["type"] == type]


def executions(events: list[Event]) -> list[dict[str, Any]]:
    encoder = ExecutionsEncoder()
    return [orjson.loads(frame.data) for each in events for frame in encoder.feed(each)]


def data_of(events: list[Event], type: str) -> list[dict[str, Any]]:
    return [each["data"] for each in events if type_of(each) == type]


def ended(events: list[Event]) -> str | None:
    return next((type for each in events if (type := type_of(each)) in TERMINAL), None)


# agent-runs-sse.md


@each_recording
def test_a_recorded_call_has_the_documents_fields_from_start_to_result(name: str) -> None:
    events = recorded()[name]
    told = encoded(RUNS_1, events)
    calls = {each["tool_call_id"]: each for each in data_of(events, "llm.tool_call")}
    of_call: dict[str, list[Event]] = {}
    for type in ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"):
        for each in of_type(told, type):
            of_call.setdefault(unscoped(each["toolCallId"]), []).append(each)
    assert of_call.keys() == calls.keys()
    for id, (start, args, end) in of_call.items():
        for each in (start, args, end):
            assert each["toolCallName"] == calls[id]["tool"]
            assert each["stage"] == "worker"
            assert isinstance(each["messageId"], str)
        assert args["args"] == calls[id]["args"]
        assert isinstance(args["args"], dict)
    results = {each["tool_call_id"]: each for each in data_of(events, "llm.tool_result")}
    shown = of_type(told, "TOOL_CALL_RESULT")
    assert {unscoped(each["tool_call_id"]) for each in shown} == results.keys()
    for each in shown:
        id = unscoped(each["tool_call_id"])
        outcome = results[id]["outcome"]
        assert each["status"] == ("success" if outcome == "ok" else "failure")
        assert (each["error"] is None) is (outcome == "ok")
        assert each["error"] is None or isinstance(each["error"], str)
        assert isinstance(each["result"], str)
        assert each["tool_name"] == results[id]["tool"]
        assert each["tool_call_args"] == calls[id]["args"]
        assert each["role"] == "tool"
        assert "ui_schema" not in each


def test_a_call_id_that_a_server_repeats_is_unique_in_the_run_and_in_the_thread(
    tmp_path: Path,
) -> None:
    """The recorded call occurs twice in a run, and the run occurs twice in its thread."""

    def repeats(body: bytes) -> bytes:
        frames = body.split(b"\n\n")
        calls = [at for at, frame in enumerate(frames) if b'"TOOL_CALL_' in frame]
        behind = calls[-1] + 1
        again = [frames[at] for at in calls]
        return b"\n\n".join([*frames[:behind], *again, *frames[behind:]])

    first = altered("agui", "agno/tool", tmp_path, repeats)
    second = [each | {"run_id": f"{each['run_id'][:-1]}f"} for each in first]
    assert first[0]["run_id"] != second[0]["run_id"]
    told = [*encoded(RUNS_1, first), *encoded(RUNS_1, second)]
    asked = [each["toolCallId"] for each in of_type(told, "TOOL_CALL_START")]
    assert len(set(asked)) == len(asked) == 4
    assert [each["toolCallId"] for each in of_type(told, "TOOL_CALL_END")] == asked
    assert [each["tool_call_id"] for each in of_type(told, "TOOL_CALL_RESULT")] == asked
    said = [each["messageId"] for each in of_type(told, "TEXT_MESSAGE_END")]
    assert len(set(said)) == len(said) > 0


@each_recording
def test_a_recorded_answer_ends_as_it_came_to_its_end(name: str) -> None:
    events = recorded()[name]
    completed = data_of(events, "llm.message_completed")
    said = {each["message_id"]: each for each in completed}
    for each in of_type(encoded(RUNS_1, events), "TEXT_MESSAGE_END"):
        message = said[unscoped(each["messageId"])]
        assert (each["role"], each["stage"]) == ("assistant", "worker")
        cut = message.get("error")
        assert each["status"] == (message.get("status", "failed") if cut else "success")
        assert each["error"] == cut
        assert each["result_type"] in (
            ("error_report",) if each["status"] == "failed" else ("unknown",)
        )
        assert (each["key_points"], each["suggested_actions"], each["ui_schema"]) == ([], [], {})


def test_recordings_have_answers_that_succeed_and_that_fail_and_calls_of_both_kinds() -> None:
    """If the recordings had only one kind, the tests above would show nothing."""
    ends: Counter[str] = Counter()
    for events in recorded().values():
        told = encoded(RUNS_1, events)
        ends.update(f"text {each['status']}" for each in of_type(told, "TEXT_MESSAGE_END"))
        ends.update(f"tool {each['status']}" for each in of_type(told, "TOOL_CALL_RESULT"))
        ends.update(each["type"] for each in told)
    assert {"text success", "text failed", "text partial_success"} <= ends.keys()
    assert {"tool success", "tool failure", "RUN_ERROR", "STATE_SNAPSHOT"} <= ends.keys()


def test_what_an_agent_tells_of_its_answer_reaches_the_client(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "status": "partial_success",
        "result_type": "clarification",
        "key_points": ["a", {"cost": 1}],
        "suggested_actions": [{"do": "x"}],
        "ui_schema": {"form": {"model": "T"}},
    }
    events = with_customs(
        tmp_path,
        ("agent_message_start", {"message_id": "m", "agent": "kb"}),
        ("agent_message_delta", {"message_id": "m", "delta": "Which one?"}),
        ("agent_message_end", {"message_id": "m", "content": "Which one?", **more}),
    )
    end = of_type(encoded(RUNS_1, events), "TEXT_MESSAGE_END")[0]
    assert end["answer"] == "Which one?"
    assert {name: end[name] for name in more} == more


def test_what_an_ag_ui_server_adds_to_the_end_of_a_message_reaches_the_client(
    tmp_path: Path,
) -> None:
    more: dict[str, Any] = {
        "status": "partial_success",
        "result_type": "clarification",
        "key_points": ["a"],
        "suggested_actions": [{"do": "x"}],
        "ui_schema": {"form": {"model": "T"}},
        "error": "one source was missing",
    }
    old = b'"type":"TEXT_MESSAGE_END",'
    new = old + orjson.dumps(more)[1:-1] + b","
    events = altered("agui", "pydantic_ai/text", tmp_path, lambda body: body.replace(old, new))
    end = of_type(encoded(RUNS_1, events), "TEXT_MESSAGE_END")[0]
    assert {name: end[name] for name in more} == more


@pytest.mark.parametrize("version", ["2.3.18", "3.1.10"])
def test_an_agents_own_data_reaches_the_client_whatever_it_is_called(
    tmp_path: Path, version: str
) -> None:
    old, new = b'{"title":"Spike Test"}', orjson.dumps(BUSINESS)
    result = b"{'success': True, 'result': {'id': 'doc-123', 'title': 'Spike Test'}}"
    events = altered(
        "agno",
        f"{version}/confirm_approve",
        tmp_path,
        lambda body: body.replace(old, new).replace(result, new.replace(b'"', b'\\"'), 1),
    )
    told = encoded(RUNS_1, events)
    assert of_type(told, "TOOL_CALL_ARGS")[0]["args"] == BUSINESS
    (shown,) = of_type(told, "TOOL_CALL_RESULT")
    assert (shown["tool_call_args"], json.loads(shown["result"])) == (BUSINESS, BUSINESS)


def test_an_agents_own_state_and_history_reach_the_client_whatever_their_keys(
    tmp_path: Path,
) -> None:
    messages = [{"id": "x", "role": "assistant", "content": "hi"}]

    def insert(body: bytes) -> bytes:
        started, parted, rest = body.partition(b"\n\n")
        said: list[dict[str, Any]] = [
            {"type": "STATE_SNAPSHOT", "snapshot": {"cars": [BUSINESS]}},
            {"type": "MESSAGES_SNAPSHOT", "messages": messages},
        ]
        frames = b"".join(b"data: " + orjson.dumps(each) + b"\n\n" for each in said)
        return started + parted + frames + rest

    told = encoded(RUNS_1, altered("agui", "pydantic_ai/text", tmp_path, insert))
    assert of_type(told, "STATE_SNAPSHOT")[0]["snapshot"] == {"cars": [BUSINESS]}
    assert of_type(told, "MESSAGES_SNAPSHOT")[0]["messages"] == messages


def test_a_servers_own_steps_router_and_worker_pass_as_they_are(tmp_path: Path) -> None:
    def steps(body: bytes) -> bytes:
        started, parted, rest = body.partition(b"\n\n")
        said = b"".join(
            b"data: " + orjson.dumps({"type": f"STEP_{what}", "stepName": "router"}) + b"\n\n"
            for what in ("STARTED", "FINISHED")
        )
        return started + parted + said + rest

    told = encoded(RUNS_1, altered("agui", "pydantic_ai/text", tmp_path, steps))
    names = [
        f"{each['type'].removeprefix('STEP_')} {each['stepName']}"
        for each in told
        if each["type"].startswith("STEP_")
    ]
    assert names == ["STARTED router", "FINISHED router", "STARTED worker", "FINISHED worker"]


@pytest.mark.parametrize(
    "name", [name for name, events in recorded().items() if ended(events) == "lifecycle.failed"]
)
def test_a_recorded_failure_is_told_in_the_upstreams_words_and_with_a_code(name: str) -> None:
    events = recorded()[name]
    (failed,) = data_of(events, "lifecycle.failed")
    *_, before, error = encoded(RUNS_1, events)
    assert before["type"] == "STEP_FINISHED"
    assert error["type"] == "RUN_ERROR"
    assert isinstance(error["code"], str)
    assert error["message"] == failed["error"]


# unified-events.md


@pytest.mark.parametrize(
    ("name", "reason"),
    [("agno/3.1.10/model_error", "failed"), ("agno/3.1.10/cancel_midrun", "cancelled")],
)
def test_a_recorded_run_that_breaks_off_is_told_why(name: str, reason: str) -> None:
    events = recorded()[name]
    (end,) = unified(events, "session_ended")
    assert end["reason"] == reason
    errors, stops = unified(events, "run_error"), unified(events, "run_interrupted")
    if reason == "failed":
        assert errors[-1]["message"] == data_of(events, "lifecycle.failed")[0]["error"]
        assert errors[-1]["agent"]
        assert stops == []
    else:
        assert [each["reason"] for each in stops] == ["user_stop"]


def test_a_recorded_step_that_failed_is_a_run_error_that_names_it() -> None:
    events = recorded()["agno/3.1.10/wf_step_fails"]
    (failed,) = data_of(events, "workflow.step_failed")
    assert failed["step_id"] in [each["step"] for each in unified(events, "run_error")]


def test_a_recorded_pause_interrupts_for_an_approval() -> None:
    events = recorded()["adk/2.13.0/confirm_stream"]
    stops = unified(events, "run_interrupted")
    assert [each["reason"] for each in stops] == ["approval_required"]
    assert [each["reason"] for each in unified(events, "session_ended")] == ["completed"]


def test_a_recorded_tool_that_takes_long_tells_its_progress() -> None:
    events = recorded()["adk/2.13.0/longrun_stream"]
    (delta,) = unified(events, "tool_call_delta")
    (progress,) = data_of(events, "llm.tool_progress")
    assert (delta["tool_call_id"], delta["delta"]) == (
        progress["tool_call_id"],
        progress["delta"],
    )


@pytest.mark.parametrize(
    "name", [name for name, events in recorded().items() if data_of(events, "llm.reasoning")]
)
def test_recorded_thoughts_are_told_with_their_agent(name: str) -> None:
    events = recorded()[name]
    thoughts = unified(events, "agent_thought")
    told = "".join(each["content"] for each in thoughts)
    assert told == "".join(each["thought"] for each in data_of(events, "llm.reasoning"))
    assert all(each["agent"] and each["debug"] is False for each in thoughts)


# Payloads of the document for which no framework has a frame. An agent sends them as custom events.
SAID: dict[str, dict[str, Any]] = {
    "retrieval_started": {"query": "refund policy", "agent": "kb"},
    "retrieval_result": {"documents": [{"id": "d1", "score": 0.9, "content": "30 days"}]},
    "metrics_update": {
        "cpu": 12.5,
        "memory_used": "1 GiB",
        "disk_free": "9 GiB",
        "containers_running": 3,
    },
    "agent_thought": {"agent": "kb", "content": "hm", "debug": True},
    "run_error": {"error_type": "E", "message": "no index", "agent": "kb", "step": "s1"},
}


@pytest.mark.parametrize("type", SAID)
def test_a_payload_of_the_document_that_an_agent_says_reaches_the_client_as_it_was(
    tmp_path: Path, type: str
) -> None:
    (payload,) = unified(with_customs(tmp_path, (type, SAID[type])), type)
    assert {name: payload[name] for name in SAID[type]} == SAID[type]


# executions-sse.md


@each_recording
def test_the_source_of_a_recorded_run_is_null_at_its_start_and_where_it_is_cancelled(
    name: str,
) -> None:
    keys = {"agent_id", "agent_type", "agent_name", "team_name"}
    for body in executions(recorded()[name]):
        event = f"{body['event']['category']}.{body['event']['action']}"
        if event in ("lifecycle.started", "lifecycle.cancelled"):
            assert body["source"] is None
        else:
            assert body["source"] is None or body["source"].keys() == keys
        if event == "llm.reasoning":
            assert body["data"].keys() == {"thought"}
        if event == "system.warning":
            assert body["data"].keys() == {"message"}
        if event == "dispatch.worker":
            assert body["data"].keys() == {"worker_name", "task"}


def test_recordings_have_what_the_executions_document_names() -> None:
    """If the recordings had none of it, the test above would show nothing."""
    found = {
        f"{body['event']['category']}.{body['event']['action']}"
        for events in recorded().values()
        for body in executions(events)
    }
    assert {"llm.reasoning", "system.warning", "dispatch.worker", "lifecycle.cancelled"} <= found


def test_a_dispatch_as_the_document_writes_it_reaches_the_client(tmp_path: Path) -> None:
    said: dict[str, dict[str, str]] = {
        "dispatch.team": {"team_name": "Payment Gateway", "task": "Check"},
        "dispatch.worker": {"worker_name": "Database Monitor", "task": "Check"},
        "system.warning": {"message": "85%"},
    }
    bodies = executions(with_customs(tmp_path, *said.items()))
    told = {f"{body['event']['category']}.{body['event']['action']}": body for body in bodies}
    assert {type: told[type]["data"] for type in said} == said


@each_recording
def test_a_recorded_call_that_was_refused_or_failed_says_so_in_its_result(name: str) -> None:
    events = recorded()[name]
    outcomes = data_of(events, "llm.tool_result")
    bodies = executions(events)
    results = [each["data"] for each in bodies if each["event"]["action"] == "tool_result"]
    assert len(results) == len(outcomes)
    for told, came in zip(results, outcomes, strict=True):
        if came["outcome"] == "ok":
            assert told["result"] == came["result"]
        else:
            assert told["result"]["outcome"] == came["outcome"]
            assert told["result"]["error"]


# all dialects


@each_recording
def test_no_recorded_run_is_said_to_differ_from_what_was_approved(name: str) -> None:
    warnings = data_of(recorded()[name], "system.warning")
    assert "not_what_was_approved" not in [each["code"] for each in warnings]


@each_recording
def test_a_person_who_decides_is_shown_no_recorded_hint_for_programs(name: str) -> None:
    asked = data_of(recorded()[name], "approval.requested")
    items = [item for each in asked for item in each["items"]]
    assert not any("FunctionResponse" in (item.get("description") or "") for item in items)


@pytest.mark.parametrize(
    "name", [name for name in recorded() if name.startswith(("agno/", "adk/"))]
)
def test_no_counter_of_a_framework_is_told_in_the_agent_runs_contract(name: str) -> None:
    counters = ("input_tokens", "output_tokens", "inputTokens", "outputTokens", "latency_ms")
    for each in of_type(encoded(RUNS_1, recorded()[name]), "CUSTOM"):
        assert not any(f'"{counter}"' in json.dumps(each) for counter in counters)


def test_a_second_pause_does_not_ask_again_for_a_requirement_that_agno_2_3_repeats(
    tmp_path: Path,
) -> None:
    """Agno 2.3 repeats the first pause's requirements unchanged.

    The test alters the recording of Agno 3.1 in this way.
    """
    name = "agno/3.1.10/confirm_twice"
    first = data_of(recorded()[name], "approval.requested")[0]["items"][0]["item_id"]
    kept: list[Any] = []

    def repeats(body: bytes) -> bytes:
        frames = body.split(b"\n\n")
        for at, frame in enumerate(frames):
            if b"event: RunPaused" in frame:
                head, _, data = frame.partition(b"data: ")
                paused = json.loads(data)
                known = {each["tool_execution"]["tool_call_id"] for each in kept}
                kept.extend(
                    each
                    for each in paused["requirements"]
                    if each["tool_execution"]["tool_call_id"] not in known
                )
                paused["requirements"] = list(kept)
                frames[at] = head + b"data: " + orjson.dumps(paused)
        return b"\n\n".join(frames)

    events = altered("agno", "3.1.10/confirm_twice", tmp_path, repeats)
    assert len(kept) == 2
    assert len({each["tool_execution"]["tool_call_id"] for each in kept}) == 2
    asked = [
        [item["item_id"] for item in each["items"]]
        for each in data_of(events, "approval.requested")
    ]
    assert len(asked) == 2
    assert asked[0] == [first]
    assert first not in asked[1]
    assert ended(events) == "lifecycle.completed"
