"""AG-UI's strict profile: the events for each canonical event, and the limits of an AG-UI run."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.dialects.agui.encode import STRICT, Phase, prelude
from penstock.dialects.agui.encode.memory import Memory, remember
from penstock.dialects.agui.ids import scope_of, unscoped
from penstock.dialects.agui.vocabulary import is_modern
from penstock.dialects.answers import UnclearAnswer, decided
from penstock.dialects.approvals import parse_question_id, question_id
from penstock_conformance.protocols.agui_rules import faults
from support.drive.agui_out import (
    STRICT_059,
    STRICT_1,
    THREAD,
    Audience,
    Event,
    Run,
    decoded,
    encoded,
    of_type,
    types,
)
from support.fakes.raw import RUN_ID

ID = scope_of(RUN_ID)


def told(run: Run, audience: Audience = STRICT_1) -> list[Event]:
    return encoded(audience, run.events)


def last(run: Run, audience: Audience = STRICT_1) -> Event:
    return told(run, audience)[-1]


def bare(event: Event) -> Event:
    """Return the event without its timestamp, which has a test of its own."""
    return {name: value for name, value in event.items() if name != "timestamp"}


def a_run() -> Run:
    return Run().start()


# a run


def test_a_run_starts_with_its_thread_its_leg_and_the_version_that_we_speak() -> None:
    assert told(a_run()) == [
        {
            "type": "RUN_STARTED",
            "threadId": THREAD,
            "runId": "run-1",
            "protocolVersion": "1.0",
            "timestamp": 1795168800001,
            "metadata": {"penstock": {"run_id": RUN_ID, "leg": 1, "agent": "assistant"}},
        }
    ]


def test_an_older_client_is_sent_no_version() -> None:
    assert "protocolVersion" not in told(a_run(), STRICT_059)[0]


@pytest.mark.parametrize(
    ("version", "modern"),
    [("1.0", True), ("1", True), ("2.3", True), ("0.9", False), (None, False), ("x1", False)],
)
def test_what_1_0_added_is_for_clients_that_declare_it(version: str | None, modern: bool) -> None:
    assert is_modern(version) is modern


def test_a_run_that_completes_finishes_with_its_value_and_usage() -> None:
    run = a_run().complete(value=[1], usage={"input_tokens": 3}, metrics={"cost": 1})
    assert bare(last(run)) == {
        "type": "RUN_FINISHED",
        "threadId": THREAD,
        "runId": "run-1",
        "result": [1],
        "usage": [{"inputTokens": 3}],
    }


def test_a_run_that_failed_says_what_the_upstream_said() -> None:
    run = a_run().say("lifecycle.failed", error="overloaded", code="upstream_http", status_code=503)
    assert bare(last(run)) == {
        "type": "RUN_ERROR",
        "message": "overloaded",
        "code": "upstream_http",
        "metadata": {"penstock": {"status_code": 503}},
    }


def test_a_cancelled_run_is_neither_success_nor_failure() -> None:
    run = a_run().say("lifecycle.cancelled", reason="user_stop", confirmed=True)
    assert last(run)["outcome"] == {"type": "cancelled"}


def test_an_older_client_which_knows_no_cancelled_run_is_sent_an_error() -> None:
    run = a_run().say("lifecycle.cancelled", reason="user_stop", confirmed=True)
    error = last(run, STRICT_059)
    assert (error["type"], error["code"]) == ("RUN_ERROR", "cancelled")
    assert "did not confirm" not in error["message"]


def test_a_cancel_that_the_agent_server_did_not_confirm_says_so() -> None:
    run = a_run().say("lifecycle.cancelled", reason="user_stop", confirmed=False)
    assert "did not confirm" in last(run, STRICT_059)["message"]


@pytest.mark.parametrize(
    "end",
    [
        ("lifecycle.completed", {"summary": ""}),
        ("lifecycle.failed", {"error": "e", "code": "timeout"}),
        ("lifecycle.cancelled", {"reason": "user_stop", "confirmed": True}),
    ],
)
def test_all_that_is_open_ends_before_the_run_does(end: tuple[str, Event]) -> None:
    run = a_run().say("dispatch.worker", worker_name="w", task="", subrun_id="s")
    run.say("workflow.step_started", run_id="w", step_id="s1", description="one")
    run.say("llm.reasoning", reasoning_id="t", thought="hm")
    run.say("llm.stream", subrun="s", message_id="m", content="Hel")
    run.say("llm.tool_args", subrun="s", tool_call_id="c", tool="t", delta="{")
    events = told(run.say(end[0], **end[1]))
    subagent = "SUBAGENT_FINISHED" if end[0] == "lifecycle.completed" else "SUBAGENT_ERROR"
    assert sorted(types(events)[-7:-1]) == sorted(
        [
            "REASONING_MESSAGE_END",
            "REASONING_END",
            "TEXT_MESSAGE_END",
            "TOOL_CALL_END",
            "STEP_FINISHED",
            subagent,
        ]
    )


def test_nothing_follows_the_end() -> None:
    run = a_run().complete()
    run.say("automation.triggered", automation="a").say("approval.withdrawn", approval_id="a")
    assert last(run)["type"] == "RUN_FINISHED"


def test_a_run_that_is_joined_late_starts_all_the_same() -> None:
    """The run's first events have aged out: the edge warns, and the client still needs a start."""
    run = Run().say("system.warning", message="gone", code="history_truncated").text("x")
    assert types(told(run))[:2] == ["RUN_STARTED", "CUSTOM"]


def test_a_stream_that_must_stop_says_so_since_silence_reads_as_success() -> None:
    encoder = STRICT_1.encoder()
    for event in a_run().events:
        encoder.feed(event)
    (error,) = decoded(encoder.cut("the server goes away", "shutdown"))
    assert bare(error) == {
        "type": "RUN_ERROR",
        "message": "the server goes away",
        "code": "shutdown",
    }
    assert encoder.cut("again", "shutdown") == ()


def test_a_stream_that_must_stop_before_it_began_is_an_error_too() -> None:
    (error,) = decoded(STRICT_1.encoder().cut("gone", "history_gone"))
    assert error["type"] == "RUN_ERROR"


def test_the_author_of_a_message_follows_the_history() -> None:
    """A client rejects an event of this message that names another subagent than the history."""
    run = a_run().say("llm.stream", subrun="a", message_id="m1", content="x")
    run.say("llm.message_completed", subrun="a", message_id="m1", role="assistant", content="x")
    messages = [{"id": "m1", "role": "assistant", "subagentRunId": "b"}]
    run.say("state.messages", messages=messages)
    run.say("llm.stream", subrun="a", message_id="m1", content="y")
    assert [event["subagentRunId"] for event in of_type(told(run), "TEXT_MESSAGE_START")] == [
        "a",
        "b",
    ]


def test_an_entity_stays_whose_it_was_over_a_pause() -> None:
    """A client that joins after the pause has the call and its result in one AG-UI run.

    Such a client rejects a result that names another subagent than the call.
    """
    run = a_run().say("llm.tool_call", subrun="a", tool_call_id="c1", tool="t", args={})
    run.pause().resume()
    run.say("llm.tool_result", subrun="b", tool_call_id="c1", tool="t", result=1, outcome="ok")
    assert last(run)["subagentRunId"] == "a"


# messages and thoughts


def test_text_streams_as_it_comes() -> None:
    events = told(a_run().text("Hel", "lo"))[1:]
    assert [bare(event) for event in events] == [
        {"type": "TEXT_MESSAGE_START", "messageId": f"{ID}m1", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": f"{ID}m1", "delta": "Hel"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": f"{ID}m1", "delta": "lo"},
        {"type": "TEXT_MESSAGE_END", "messageId": f"{ID}m1"},
    ]


def test_text_that_did_not_stream_comes_whole() -> None:
    run = a_run().say("llm.message_completed", message_id="m1", role="assistant", content="Hello")
    assert [event.get("delta") for event in told(run)[1:]] == [None, "Hello", None]


def test_what_else_a_message_has_stands_in_its_metadata() -> None:
    run = a_run().text("x", citations={"a": 1}, value={"b": 2}, metadata={"theirs": 3})
    assert last(run)["metadata"] == {
        "penstock": {"value": {"b": 2}, "citations": {"a": 1}},
        "theirs": 3,
    }


@pytest.mark.parametrize(("role", "said"), [("user", "user"), ("tool", "assistant")])
def test_a_role_is_one_that_text_may_have(role: str, said: str) -> None:
    run = a_run().say("llm.message_started", message_id="m1", role=role, name="Ann")
    assert (last(run)["role"], last(run)["name"]) == (said, "Ann")


def test_ids_are_apart_in_a_thread() -> None:
    run = a_run().text("x")
    assert {event["messageId"] for event in told(run)[1:]} == {f"{ID}m1"}
    assert {unscoped(event["messageId"]) for event in told(run)[1:]} == {"m1"}


def test_thoughts_are_a_span_with_a_message_and_end_when_the_agent_speaks() -> None:
    run = a_run().say("llm.reasoning", reasoning_id="t1", thought="hm", title="first")
    events = told(run.text("so"))
    assert types(events)[1:7] == [
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
    ]
    assert events[3]["metadata"] == {"penstock": {"title": "first"}}


def test_another_agents_words_do_not_end_ones_thoughts() -> None:
    run = a_run().say("llm.reasoning", subrun="a", reasoning_id="t1", thought="hm")
    run.say("llm.stream", subrun="b", message_id="m1", content="so")
    assert "REASONING_END" not in types(told(run))


# tools


def test_a_call_is_sent_with_its_arguments_as_text() -> None:
    events = told(a_run().call(q=1))[1:]
    assert [bare(event) for event in events] == [
        {"type": "TOOL_CALL_START", "toolCallId": f"{ID}c1", "toolCallName": "search"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": f"{ID}c1", "delta": '{"q":1}'},
        {"type": "TOOL_CALL_END", "toolCallId": f"{ID}c1"},
    ]


def test_arguments_that_streamed_are_not_sent_again() -> None:
    run = a_run()
    for delta in ('{"q":', "1}"):
        run.say("llm.tool_args", tool_call_id="c1", tool="search", delta=delta)
    events = told(run.call(q=1))
    deltas = [event["delta"] for event in of_type(events, "TOOL_CALL_ARGS")]
    assert deltas == ['{"q":', "1}"]


def test_arguments_by_path_are_sent_once_at_the_call() -> None:
    run = a_run().say("llm.tool_args", tool_call_id="c1", tool="search", path="$.q", value="x")
    assert types(told(run)) == ["RUN_STARTED"]
    (args,) = of_type(told(run.call(q="x")), "TOOL_CALL_ARGS")
    assert args["delta"] == '{"q":"x"}'


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    run = a_run().say("llm.tool_call", tool_call_id="c1", tool="t", args={}, args_text="{bro")
    assert of_type(told(run), "TOOL_CALL_ARGS")[0]["delta"] == "{bro"


def test_a_result_has_an_id_of_its_own_even_where_the_upstream_gives_it_the_calls() -> None:
    run = Run().start().call().result(message_id="c1").complete()
    events = encoded(STRICT_1, run.events)
    (call,) = of_type(events, "TOOL_CALL_START")
    (result,) = of_type(events, "TOOL_CALL_RESULT")
    assert result["toolCallId"] == call["toolCallId"] != result["messageId"]


def test_a_refused_call_says_so_in_its_metadata() -> None:
    result = last(a_run().call().result(None, outcome="rejected", error="no"))
    assert result["content"] == "no"
    assert result["metadata"] == {"penstock": {"outcome": "rejected", "error": "no"}}


def test_a_result_in_parts_is_for_clients_that_take_it() -> None:
    parts = [{"type": "text", "text": "found"}]
    run = a_run().call().result("found", content=parts)
    assert last(run)["content"] == parts
    assert last(run, STRICT_059)["content"] == "found"


def test_parts_that_no_client_would_take_are_sent_as_text() -> None:
    run = a_run().call().result("found", content=[{"type": "text", "text": "x", "more": 1}])
    assert last(run)["content"] == "found"


# pauses


def test_a_pause_is_an_interrupt_with_what_is_asked() -> None:
    item = {
        "tool_call_id": "c1",
        "tool": "delete_file",
        "args": {"path": "/x"},
        "editable": True,
        "subrun": {"id": "s"},
    }
    run = a_run().call().pause(item, expires_at="2026-11-21T00:00:00.000Z")
    assert bare(last(run)) == {
        "type": "RUN_FINISHED",
        "threadId": THREAD,
        "runId": "run-1",
        "outcome": {
            "type": "interrupt",
            "interrupts": [
                {
                    "id": "a1/i1",
                    "reason": "tool_call",
                    "message": "The tool delete_file waits: confirmation.",
                    "toolCallId": f"{ID}c1",
                    "responseSchema": {
                        "type": "object",
                        "properties": {
                            "approved": {"type": "boolean"},
                            "reason": {"type": "string"},
                            "editedArgs": {"type": "object"},
                        },
                        "required": ["approved"],
                    },
                    "expiresAt": "2026-11-21T00:00:00.000Z",
                    "subagentRunId": "s",
                    "metadata": {
                        "penstock": {
                            "approval_id": "a1",
                            "item_id": "i1",
                            "kind": "confirmation",
                            "digest": "d",
                            "tool": "delete_file",
                            "args": {"path": "/x"},
                            "editable": True,
                        }
                    },
                }
            ],
        },
        "metadata": {"penstock": {"approval_id": "a1"}},
    }


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("confirmation", "confirmation"),
        ("input", "input_required"),
        ("feedback", "input_required"),
        ("credential", "penstock:credential"),
        ("selection", "penstock:selection"),
    ],
)
def test_an_interrupts_reason_is_the_conventional_one(kind: str, reason: str) -> None:
    schema = {"type": "string"}
    outcome = last(a_run().pause({"kind": kind, "input_schema": schema}))["outcome"]
    (interrupt,) = outcome["interrupts"]
    assert interrupt["reason"] == reason
    assert (interrupt["responseSchema"] == schema) == (kind != "confirmation")


@pytest.mark.parametrize("kind", ["external", "long_running"])
def test_a_frontends_tools_end_the_run_as_a_success_with_pending_calls(kind: str) -> None:
    items = [{"item_id": id, "kind": kind, "tool_call_id": id} for id in ("c1", "c2")]
    run = a_run().call("c1").call("c2").pause(*items)
    assert last(run)["outcome"] == {
        "type": "success",
        "pendingToolCallIds": [f"{ID}c1", f"{ID}c2"],
    }
    assert last(run, STRICT_059)["outcome"] == {"type": "success"}


def test_a_frontends_tool_beside_a_confirmation_is_an_interrupt_with_both() -> None:
    items = [{"kind": "external", "tool_call_id": "c1"}, {"item_id": "i2"}]
    outcome = last(a_run().pause(*items))["outcome"]
    assert [each["id"] for each in outcome["interrupts"]] == ["a1/i1", "a1/i2"]


def test_a_pause_of_which_the_request_is_gone_is_one_interrupt_for_all() -> None:
    run = a_run().say("lifecycle.paused", reason="approval_required", approval_id="a9")
    (interrupt,) = last(run)["outcome"]["interrupts"]
    assert parse_question_id(interrupt["id"]) == ("a9", None)


def test_a_decision_continues_in_the_next_legs_run_and_nothing_falls_between() -> None:
    run = a_run().call().pause().say("automation.triggered", automation="a").resume()
    events = told(run.result().complete())
    at = types(events).index("RUN_FINISHED")
    assert types(events)[at + 1 :] == ["RUN_STARTED", "TOOL_CALL_RESULT", "RUN_FINISHED"]
    assert [event["runId"] for event in events if "runId" in event] == [
        "run-1",
        "run-1",
        "run-2",
        "run-2",
    ]


def test_a_run_that_ends_while_it_waits_is_a_run_of_its_end_alone() -> None:
    run = a_run().pause().say("lifecycle.cancelled", reason="user_stop", confirmed=True)
    started, finished = told(run)[-2:]
    assert (started["type"], started["runId"]) == ("RUN_STARTED", "run-2")
    assert (finished["outcome"], finished["runId"]) == ({"type": "cancelled"}, "run-2")


def test_a_decision_by_policy_is_seen_in_a_run_that_never_waited() -> None:
    run = a_run().say(
        "approval.requested", approval_id="a1", digest="d", deciders_required=1, items=[]
    )
    run.say("approval.decided", approval_id="a1", outcome="approved", by="policy", automatic=True)
    assert [event.get("name") for event in told(run)] == [None, "penstock.approval.decided"]


def test_steps_and_inner_runs_that_are_open_at_a_pause_continue_after_it() -> None:
    run = a_run().say("dispatch.worker", worker_name="w", task="t", subrun_id="s")
    run.say("workflow.step_started", run_id="w", step_id="s1", description="one")
    run.pause().resume()
    run.say("workflow.step_completed", run_id="w", step_id="s1", output=None)
    run.say("dispatch.finished", subrun_id="s", status="completed")
    events = told(run.complete())
    (suspended, done) = of_type(events, "SUBAGENT_FINISHED")
    assert suspended["outcome"] == {"type": "suspended", "interruptIds": ["a1/i1"]}
    assert "outcome" not in done
    again = types(events)[types(events).index("RUN_FINISHED") + 1 :]
    assert again == [
        "RUN_STARTED",
        "SUBAGENT_STARTED",
        "STEP_STARTED",
        "STEP_FINISHED",
        "SUBAGENT_FINISHED",
        "RUN_FINISHED",
    ]


# answers


def confirmation(**fields: Any) -> Event:
    return {"item_id": "i1", "kind": "confirmation", **fields}


@pytest.mark.parametrize("item_id", ["i1", "a/b/c", "", "ü"])
def test_an_interrupts_id_gives_back_approval_and_item(item_id: str) -> None:
    assert parse_question_id(question_id("a1", item_id)) == ("a1", item_id)


@pytest.mark.parametrize(
    ("entry", "decision"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, "approve"),
        ({"status": "resolved", "payload": {"accepted": True}}, "approve"),
        ({"status": "resolved", "payload": True}, "approve"),
        ({"status": "resolved", "payload": {"approved": False}}, "reject"),
        ({"status": "resolved", "payload": {"approved": True, "accepted": False}}, "reject"),
        ({"status": "cancelled", "payload": {"approved": True}}, "reject"),
        ({"status": "cancelled"}, "reject"),
    ],
)
def test_a_confirmation_is_answered_yes_or_no(entry: Event, decision: str) -> None:
    assert decided(confirmation(), entry)["decision"] == decision


@pytest.mark.parametrize("payload", [None, {}, {"approved": "yes"}, "yes", [True]])
def test_an_answer_that_is_not_clear_approves_nothing(payload: Any) -> None:
    with pytest.raises(UnclearAnswer, match="i1"):
        decided(confirmation(), {"status": "resolved", "payload": payload})


def test_an_answer_carries_its_note_and_the_changed_arguments() -> None:
    payload = {"approved": True, "reason": "fine", "editedArgs": {"path": "/y"}}
    assert decided(confirmation(), {"status": "resolved", "payload": payload}) == {
        "item_id": "i1",
        "decision": "approve",
        "note": "fine",
        "value": {"path": "/y"},
    }


def test_any_other_item_is_answered_with_the_payload_itself() -> None:
    item = {"item_id": "i1", "kind": "input"}
    answer = decided(item, {"status": "resolved", "payload": {"approved": False}})
    assert answer == {
        "item_id": "i1",
        "decision": "approve",
        "note": None,
        "value": {"approved": False},
    }


# steps and inner runs


def test_a_steps_name_is_its_description_told_apart_from_another_open_one() -> None:
    run = a_run()
    for step_id in ("s1", "s2"):
        run.say("workflow.step_started", run_id="w", step_id=step_id, description="search")
    for step_id in ("s1", "s2"):
        run.say("workflow.step_completed", run_id="w", step_id=step_id, output=step_id)
    events = told(run)[1:]
    assert [event["stepName"] for event in events] == ["search", "search (s2)"] * 2
    assert events[3]["metadata"]["penstock"]["output"] == "s2"


def test_a_step_that_failed_is_finished_with_its_error() -> None:
    run = a_run().say("workflow.step_started", run_id="w", step_id="s1", description="search")
    error = {"code": "x", "message": "no"}
    run.say("workflow.step_failed", run_id="w", step_id="s1", error=error)
    assert last(run)["type"] == "STEP_FINISHED"
    assert last(run)["metadata"]["penstock"]["error"] == error


def test_an_inner_run_is_a_subagent_and_owns_what_it_says() -> None:
    run = a_run().say("dispatch.worker", worker_name="Ann", task="look", subrun_id="s")
    run.say("llm.stream", subrun="s", message_id="m1", content="x")
    run.say("llm.message_completed", subrun="s", message_id="m1", role="assistant", content="x")
    run.say("dispatch.finished", subrun_id="s", status="completed", result="x")
    _, started, opened, *_, finished = told(run)
    assert bare(started) == {
        "type": "SUBAGENT_STARTED",
        "subagentRunId": "s",
        "name": "Ann",
        "description": "look",
    }
    assert opened["subagentRunId"] == "s"
    assert finished["result"] == "x"


def test_an_older_client_learns_of_inner_runs_by_custom_events() -> None:
    run = a_run().say("dispatch.worker", worker_name="Ann", task="look", subrun_id="s")
    run.say("llm.stream", subrun="s", message_id="m1", content="x")
    events = told(run, STRICT_059)
    assert events[1]["name"] == "penstock.dispatch.worker"
    assert not [event for event in events if "subagentRunId" in event]


def test_an_inner_run_that_failed_is_a_subagents_error() -> None:
    run = a_run().say("dispatch.worker", worker_name="Ann", task="look", subrun_id="s")
    run.say("dispatch.finished", subrun_id="s", status="failed", error="no")
    assert bare(last(run))["message"] == "no"
    assert last(run)["type"] == "SUBAGENT_ERROR"


def a_child_whose_parent_ended() -> Run:
    run = a_run().say("dispatch.worker", worker_name="p", task="", subrun_id="p")
    run.say("dispatch.worker", worker_name="c", task="", subrun_id="c", parent_subrun_id="p")
    return run.say("dispatch.finished", subrun_id="p", status="completed")


def test_a_subagent_names_no_parent_that_the_run_does_not_know() -> None:
    """A client rejects such a parent, because each AG-UI run has its own subagents."""
    run = a_child_whose_parent_ended().pause().resume()
    run.say("dispatch.worker", worker_name="d", task="", subrun_id="d", parent_subrun_id="p")
    events = of_type(told(run), "SUBAGENT_STARTED")
    assert [event.get("parentSubagentRunId") for event in events] == [None, "p", None, None]
    assert faults(told(run.complete())) == []


def test_a_joining_client_gets_no_parent_that_has_ended() -> None:
    run = a_child_whose_parent_ended()
    assert bare(joined(run, len(run.events))[-1]) == {
        "type": "SUBAGENT_STARTED",
        "subagentRunId": "c",
        "name": "c",
    }


# state and the rest


def test_state_is_sent_as_it_is() -> None:
    patch = [{"op": "add", "path": "/a", "value": 1}]
    run = a_run().say("state.snapshot", snapshot=None).say("state.delta", delta=patch)
    _, snapshot, delta = map(bare, told(run))
    assert snapshot == {"type": "STATE_SNAPSHOT", "snapshot": None}
    assert delta == {"type": "STATE_DELTA", "delta": patch}


@pytest.mark.parametrize(
    "patch",
    [
        [{"op": "frobnicate", "path": "/a"}],
        [{"op": "add", "path": "a", "value": 1}],
        [{"op": "add", "path": "/a"}],
        [{"op": "move", "path": "/a"}],
        [1],
    ],
)
def test_a_patch_that_no_client_would_take_is_sent_as_a_custom_event(patch: list[Any]) -> None:
    assert last(a_run().say("state.delta", delta=patch))["name"] == "penstock.state.delta"


def test_a_history_that_would_drop_what_is_open_is_sent_as_a_custom_event() -> None:
    run = a_run().say("llm.stream", message_id="m1", content="x").say("state.messages", messages=[])
    assert last(run)["name"] == "penstock.state.messages"


def test_what_has_no_type_of_its_own_is_a_custom_event_with_its_data() -> None:
    run = a_run().say("retrieval.started", retrieval_id="r", query="q")
    assert bare(last(run)) == {
        "type": "CUSTOM",
        "name": "penstock.retrieval.started",
        "value": {"retrieval_id": "r", "query": "q"},
    }


def test_ids_in_a_custom_event_are_those_that_the_client_knows() -> None:
    run = a_run().say("llm.tool_progress", tool_call_id="c1", status="running")
    assert last(run)["value"]["tool_call_id"] == f"{ID}c1"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RAW", {"type": "RAW", "event": None, "source": "x"}, {"event": None, "source": "x"}),
        ("CUSTOM", {"name": "mine", "value": 1}, {"name": "mine", "value": 1}),
        ("mine", [1], {"type": "CUSTOM", "name": "mine", "value": [1]}),
        (
            "ACTIVITY_SNAPSHOT",
            {"messageId": "a", "activityType": "PLAN", "content": {}},
            {"messageId": f"{ID}a", "activityType": "PLAN", "content": {}},
        ),
        (
            "REASONING_ENCRYPTED_VALUE",
            {"subtype": "message", "entityId": "m", "encryptedValue": "zz"},
            {"subtype": "message", "entityId": f"{ID}m", "encryptedValue": "zz"},
        ),
    ],
)
def test_an_agui_upstreams_own_events_are_emitted_again_as_they_were(
    name: str, value: Any, said: Event
) -> None:
    run = a_run().say("custom.event", protocol="agui", name=name, value=value)
    assert bare(last(run)) == {"type": name, **said}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RAW", {"type": "RAW"}),
        ("RAW", "text"),
        ("ACTIVITY_DELTA", {"messageId": "a", "activityType": "P", "patch": [{"op": "x"}]}),
        ("ACTIVITY_SNAPSHOT", {"messageId": "a", "activityType": "P", "content": []}),
        ("RUN_STARTED", {"upstream_run_id": "r"}),
        ("RUN_ERROR", {"message": "x"}),
    ],
)
def test_an_upstreams_event_that_a_client_would_not_take_travels_inside_another(
    name: str, value: Any
) -> None:
    run = a_run().say("custom.event", protocol="agui", name=name, value=value)
    assert last(run)["name"] == "penstock.custom.event"


# reconnects


def joined(run: Run, cut: int) -> list[Event]:
    encoder = STRICT_1.encoder()
    return decoded(prelude(encoder, run.events[:cut]))


def test_a_reconnecting_client_gets_the_messages_and_the_start_of_the_open_one() -> None:
    run = a_run().text("one").say("state.snapshot", snapshot={"a": 1})
    run.say("llm.stream", message_id="m2", content="Hel")
    started, messages, state, reopened = joined(run, len(run.events))
    assert started["type"] == "RUN_STARTED"
    assert messages["messages"] == [
        {"id": f"{RUN_ID}-user", "role": "user", "content": "hello"},
        {"id": f"{ID}m1", "role": "assistant", "content": "one"},
        {"id": f"{ID}m2", "role": "assistant", "content": "Hel"},
    ]
    assert state["snapshot"] == {"a": 1}
    assert (reopened["type"], reopened["messageId"]) == ("TEXT_MESSAGE_START", f"{ID}m2")


def test_a_client_that_reconnects_to_a_paused_run_gets_the_pause() -> None:
    run = a_run().call().pause({"tool_call_id": "c1"})
    assert joined(run, len(run.events))[-1] == last(run)


def test_state_that_nobody_told_is_not_restated() -> None:
    run = a_run().text("one")
    assert types(joined(run, len(run.events))) == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]


def test_the_runs_before_it_in_the_thread_are_restated_too() -> None:
    first, second = a_run().text("one").complete(), a_run().text("two")
    for event in second.events:
        event["run_id"] = f"{RUN_ID[:-1]}f"
    memory = Memory()
    remember(memory, STRICT_1.encoder(), first.events)
    encoder = STRICT_1.encoder()
    _, messages = decoded(prelude(encoder, second.events, memory))
    assert [each["content"] for each in messages["messages"]] == ["hello", "one", "hello", "two"]
    assert encoder.phase is Phase.RUNNING
    assert encoder.profile is STRICT


def test_nothing_is_restated_of_a_run_that_has_not_begun() -> None:
    assert joined(a_run(), 0) == []


def test_a_value_as_deep_as_an_event_can_hold_is_written() -> None:
    deep: Any = 0
    for _ in range(250):
        deep = [deep]
    run = a_run().text("one", value=deep)
    (end,) = of_type(encoded(STRICT_1, run.events), "TEXT_MESSAGE_END")
    assert end["metadata"]["penstock"]["value"] == deep
