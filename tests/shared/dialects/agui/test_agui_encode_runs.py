"""The encoder gives each example of the agent runs contract (agent-runs-sse.md), field by field."""

from __future__ import annotations

import json

import pytest

from penstock.dialects.agui.ids import unscoped
from penstock.events import TERMINAL
from support.drive.agui_out import (
    RUNS_1,
    STRICT_1,
    THREAD,
    Audience,
    Event,
    Run,
    encoded,
    frames,
    of_type,
    recorded,
    types,
)
from support.drive.for_each import for_each

HEAD = {"threadId": THREAD, "runId": "run-1"}
ID = "6f2ae3b9b92e."  # the prefix of the run's ids


def told(run: Run) -> list[Event]:
    return encoded(RUNS_1, run.events)


def one(run: Run, type: str) -> Event:
    (event,) = of_type(told(run), type)
    return event


def a_run() -> Run:
    return Run().start()


def with_a_tool() -> Run:
    return a_run().call(q="x", message_id="m1").result({"count": 2}).text("Two.").complete()


# each example of the document, with the fields that an AG-UI client also needs


def test_run_started_has_three_fields() -> None:
    assert one(a_run().complete(), "RUN_STARTED") == {"type": "RUN_STARTED", **HEAD}


def test_run_finished_has_three_fields() -> None:
    run = a_run().complete(value={"x": 1}, usage={"input_tokens": 1, "output_tokens": 2})
    assert one(run, "RUN_FINISHED") == {"type": "RUN_FINISHED", **HEAD}


def test_run_error_has_a_code_that_is_a_string() -> None:
    run = a_run().say("lifecycle.failed", error="no answer", code="timeout", detail={"x": 1})
    assert one(run, "RUN_ERROR") == {
        "type": "RUN_ERROR",
        **HEAD,
        "message": "no answer",
        "code": "timeout",
    }


def test_run_error_says_the_documents_words_instead_of_our_insides() -> None:
    run = a_run().say("lifecycle.failed", error="KeyError('secret')", code="internal", detail="x")
    for audience in (RUNS_1, STRICT_1):
        (error,) = of_type(encoded(audience, run.events), "RUN_ERROR")
        assert error["message"] == "runtime execution failed"
        assert "secret" not in json.dumps(error)


def test_a_plain_run_has_one_worker_step_around_it() -> None:
    events = told(with_a_tool())
    step = {**HEAD, "stepName": "worker"}
    assert events[1] == {"type": "STEP_STARTED", **step}
    assert events[-2] == {"type": "STEP_FINISHED", **step}
    assert len([each for each in types(events) if each.startswith("STEP")]) == 2


def steps_of(run: Run) -> list[str]:
    return [f"{each['type'][5:]} {each['stepName']}" for each in told(run) if "stepName" in each]


def a_step(run: Run, name: str, *, inside: bool = True) -> Run:
    step = {"run_id": "r", "step_id": f"{name}-1"}
    run.say("workflow.step_started", **step, description=name)
    if inside:
        run.text("Hello", id=f"in-{name}")
    return run.say("workflow.step_completed", **step, output=None)


def test_an_upstreams_own_router_and_worker_pass_as_they_are() -> None:
    run = a_step(a_step(a_run(), "router", inside=False), "worker").complete()
    router, worker = ["STARTED router", "FINISHED router"], ["STARTED worker", "FINISHED worker"]
    assert steps_of(run) == router + worker


def test_events_outside_an_upstreams_own_steps_are_the_workers() -> None:
    run = a_step(a_step(a_run().text("Hi"), "router"), "review").complete()
    worker = ["STARTED worker", "FINISHED worker"]
    # A step whose name the contract does not have becomes a CUSTOM event.
    assert steps_of(run) == [*worker, "STARTED router", "FINISHED router", *worker]


def test_a_step_of_the_upstream_continues_over_a_pause() -> None:
    run = a_run().say("workflow.step_started", run_id="r", step_id="s", description="router")
    run.call().pause({"tool_call_id": "c1"}).resume().result().complete()
    assert steps_of(run) == ["STARTED router", "FINISHED router"] * 2


def test_a_run_that_fails_ends_its_step_first() -> None:
    events = told(a_run().say("lifecycle.failed", error="e", code="timeout"))
    assert types(events)[-2:] == ["STEP_FINISHED", "RUN_ERROR"]


def test_a_tool_call_is_sent_as_documented() -> None:
    events = told(with_a_tool())
    call = {**HEAD, "messageId": f"{ID}c1", "toolCallId": f"{ID}c1", "toolCallName": "search"}
    args = {"q": "x", "message_id": "m1"}
    assert of_type(events, "TOOL_CALL_START") == [
        {"type": "TOOL_CALL_START", **call, "stage": "worker"}
    ]
    assert of_type(events, "TOOL_CALL_ARGS") == [
        {
            "type": "TOOL_CALL_ARGS",
            **call,
            "args": args,
            "stage": "worker",
            "delta": '{"q":"x","message_id":"m1"}',
        }
    ]
    assert of_type(events, "TOOL_CALL_END") == [
        {"type": "TOOL_CALL_END", **call, "stage": "worker"}
    ]
    assert of_type(events, "TOOL_CALL_RESULT") == [
        {
            "type": "TOOL_CALL_RESULT",
            **HEAD,
            "messageId": f"{ID}c1.result",
            "role": "tool",
            "stage": "worker",
            "tool_name": "search",
            "tool_call_id": f"{ID}c1",
            "tool_call_args": args,
            "status": "success",
            "result": '{"count":2}',
            "error": None,
            "toolCallId": f"{ID}c1",
            "content": '{"count":2}',
        }
    ]


def test_a_tool_call_names_the_message_that_asked_for_it() -> None:
    run = a_run().say("llm.tool_call", tool_call_id="c1", tool="t", args={}, message_id="m7")
    assert {event.get("messageId") for event in told(run)[2:]} == {f"{ID}m7"}


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        ("ok", "success"),
        ("partial", "partial"),
        ("error", "failure"),
        ("rejected", "failure"),
        ("expired", "failure"),
    ],
)
def test_a_tools_status_is_one_of_three(outcome: str, status: str) -> None:
    assert one(a_run().call().result(outcome=outcome), "TOOL_CALL_RESULT")["status"] == status


@pytest.mark.parametrize(("error", "text"), [("it broke", "it broke"), (None, "error")])
def test_a_tool_that_fails_has_its_error_as_text(error: str | None, text: str) -> None:
    more: Event = {"error": error} if error else {}
    result = one(a_run().call().result(None, outcome="error", **more), "TOOL_CALL_RESULT")
    assert result["error"] == text
    assert result["result"] == (error or "")


@pytest.mark.parametrize(
    ("value", "text"), [("plain", "plain"), ({"a": 1}, '{"a":1}'), ([1], "[1]"), (7, "7")]
)
def test_a_tools_result_is_text_whatever_it_was(value: object, text: str) -> None:
    assert one(a_run().call().result(value), "TOOL_CALL_RESULT")["result"] == text


def test_a_tools_result_has_no_ui_schema() -> None:
    assert "ui_schema" not in one(a_run().call().result(ui_schema={}), "TOOL_CALL_RESULT")


def test_the_arguments_are_sent_once_however_they_came() -> None:
    run = a_run()
    for delta in ('{"q":', "1}"):
        run.say("llm.tool_args", tool_call_id="c1", tool="search", delta=delta)
    assert len(of_type(told(run.call(q=1)), "TOOL_CALL_ARGS")) == 1


def test_the_end_of_a_message_is_sent_as_documented() -> None:
    run = a_run().text("Hel", "lo").complete()
    assert one(run, "TEXT_MESSAGE_END") == {
        "type": "TEXT_MESSAGE_END",
        **HEAD,
        "messageId": f"{ID}m1",
        "role": "assistant",
        "stage": "worker",
        "status": "success",
        "answer": "Hello",
        "key_points": [],
        "result_type": "unknown",
        "suggested_actions": [],
        "error": None,
        "ui_schema": {},
    }


def test_what_an_upstream_tells_of_its_answer_comes_through() -> None:
    more: Event = {
        "status": "partial_success",
        "result_type": "clarification",
        "key_points": ["a"],
        "suggested_actions": [{"do": "x"}],
        "ui_schema": {"form": 1},
    }
    end = one(a_run().text("Hello", **more), "TEXT_MESSAGE_END")
    assert {name: end[name] for name in more} == more


def test_a_message_that_failed_says_why() -> None:
    end = one(a_run().text("Hel", error="cut off"), "TEXT_MESSAGE_END")
    assert (end["status"], end["result_type"], end["error"]) == (
        "failed",
        "error_report",
        "cut off",
    )


def test_a_message_that_was_under_way_when_the_run_failed_ends_as_failed() -> None:
    run = a_run().say("llm.message_started", message_id="m1", role="assistant")
    run.say("llm.stream", message_id="m1", content="Hel")
    run.say("lifecycle.failed", error="no answer", code="timeout")
    end = one(run, "TEXT_MESSAGE_END")
    assert (end["answer"], end["status"], end["error"]) == ("Hel", "failed", "no answer")


# Recorded streams that break off in the middle of an answer.
CUT_OFF = {
    "agno/2.3.18/model_error_midstream": ("failed", "model backend exploded mid-stream"),
    "agno/3.1.10/model_error_midstream": ("failed", "model backend exploded mid-stream"),
    "agno/3.1.10/cancel_midrun": ("failed", "the run was cancelled"),
    "agno/3.1.10/team_member_fails": ("failed", "model backend exploded mid-stream"),
    "adk/2.13.0/midstream_stream": ("failed", 'model backend died: {"code": 503}\nsecond line'),
    "adk/2.13.0/errorcode_stream": ("failed", "the model stopped early: SAFETY"),
    "adk/2.13.0/maxtokens_stream": ("partial_success", "the model stopped early: MAX_TOKENS"),
    "agui/pydantic_ai/abort": ("failed", "the upstream's stream ended without a final event"),
}


@pytest.mark.parametrize("name", CUT_OFF)
def test_an_answer_that_was_cut_off_is_no_success(name: str) -> None:
    status, error = CUT_OFF[name]
    end = of_type(encoded(RUNS_1, recorded()[name]), "TEXT_MESSAGE_END")[0]
    assert (end["status"], end["error"]) == (status, error)
    assert end["result_type"] == ("error_report" if status == "failed" else "unknown")


@pytest.mark.parametrize("field", ["status", "result_type"])
def test_a_word_that_the_document_does_not_have_is_not_emitted(field: str) -> None:
    end = one(a_run().text("Hello", **{field: "fine"}), "TEXT_MESSAGE_END")
    assert end[field] in ("success", "unknown")


def test_the_whole_answer_comes_in_one_piece_directly_before_its_end() -> None:
    events = told(a_run().text("Hel", "lo").complete())
    at = types(events).index("TEXT_MESSAGE_END")
    assert types(events)[at - 2 : at] == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT"]
    assert events[at - 1]["delta"] == "Hello"


def test_snapshots_of_state_and_messages_are_sent() -> None:
    messages = [{"id": "x", "role": "assistant", "content": "hi"}]
    run = a_run().say("state.snapshot", snapshot={"a": 1}).say("state.messages", messages=messages)
    events = told(run)
    assert of_type(events, "STATE_SNAPSHOT")[0]["snapshot"] == {"a": 1}
    assert of_type(events, "MESSAGES_SNAPSHOT")[0]["messages"] == messages


# over all recordings


@for_each("name", recorded())
def test_every_recorded_run_has_the_documents_shape(name: str) -> None:
    events = encoded(RUNS_1, recorded()[name])
    for event in events:
        assert event["threadId"] == THREAD
        assert event["runId"].startswith("run-")
        assert not {"thread_id", "run_id"} & event.keys()
        if event["type"].startswith("STEP"):
            assert event["stepName"] == "worker"
    started = {each["toolCallId"] for each in of_type(events, "TOOL_CALL_START")}
    assert len(started) == len(of_type(events, "TOOL_CALL_START"))
    for result in of_type(events, "TOOL_CALL_RESULT"):
        assert result["tool_call_id"] in started
        assert isinstance(result["result"], str)
    texts = [each["messageId"] for each in of_type(events, "TEXT_MESSAGE_CONTENT")]
    assert len(texts) == len(set(texts))
    for error in of_type(events, "RUN_ERROR"):
        assert isinstance(error["code"], str)


@for_each("name", recorded())
def test_every_answer_of_a_recorded_run_is_sent_whole(name: str) -> None:
    events = recorded()[name]
    said = {
        event["data"]["message_id"]: event["data"]["content"]
        for event in events
        if (event["event"]["category"], event["event"]["action"]) == ("llm", "message_completed")
    }
    ends = of_type(encoded(RUNS_1, events), "TEXT_MESSAGE_END")
    assert {unscoped(end["messageId"]): end["answer"] for end in ends} == said


@pytest.mark.parametrize("name", [name for name in recorded() if "/wf_" in name])
def test_a_workflows_answer_is_the_last_message_of_its_run(name: str) -> None:
    events = recorded()[name]
    *_, end = events
    if end["event"]["action"] == "completed":
        answers = [each["answer"] for each in of_type(encoded(RUNS_1, events), "TEXT_MESSAGE_END")]
        assert answers[-1] == end["data"]["summary"]
        assert answers.count(answers[-1]) == 1


# counters


COUNTED: Event = {
    "inputTokens": 1,
    "outputTokens": 2,
    "cost": 0.1,
    "latencyMs": 3,
    "model": "m",
    "input_tokens": 1,
}


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("custom.event", {"protocol": "agno", "name": "agno.Followups", "value": COUNTED}),
        ("custom.event", {"protocol": "adk", "name": "adk.groundings", "value": [{"x": COUNTED}]}),
        ("custom.event", {"protocol": "agui", "name": "RAW", "value": {"event": COUNTED}}),
        ("system.metrics", {**COUNTED, "cpu": 1.0}),
        ("lifecycle.completed", {"summary": "", "usage": COUNTED, "metrics": COUNTED}),
    ],
)
def test_no_counter_leaves_where_a_protocol_puts_it(type: str, data: Event) -> None:
    run = a_run().say(type, **data)
    assert len(told(run)) > 2
    for frame in frames(RUNS_1, run.events):
        assert not [name for name in COUNTED if f'"{name}":'.encode() in frame.data], frame.data


def test_data_of_the_agent_keeps_its_keys_whatever_they_are_called() -> None:
    patch = [{"op": "add", "path": "/cart/cost", "value": 1}]
    run = (
        a_run()
        .say("custom.event", protocol="agno", name="agno.CustomEvent", value=COUNTED)
        .say("custom.event", protocol="agui", name="mine", value=COUNTED)
        .say("state.snapshot", snapshot={"cars": [COUNTED]})
        .say("state.delta", delta=patch)
        .text("Hello", ui_schema=COUNTED, key_points=[COUNTED])
        .call(**COUNTED)
        .result(COUNTED)
        .complete()
    )
    events = told(run)
    framework, mine = of_type(events, "CUSTOM")
    assert (framework["value"]["value"], mine["value"]) == (COUNTED, COUNTED)
    assert of_type(events, "STATE_SNAPSHOT")[0]["snapshot"] == {"cars": [COUNTED]}
    assert of_type(events, "STATE_DELTA")[0]["delta"] == patch
    (answer,) = of_type(events, "TEXT_MESSAGE_END")
    assert (answer["ui_schema"], answer["key_points"]) == (COUNTED, [COUNTED])
    assert of_type(events, "TOOL_CALL_ARGS")[0]["args"] == COUNTED
    (result,) = of_type(events, "TOOL_CALL_RESULT")
    assert (result["tool_call_args"], json.loads(result["result"])) == (COUNTED, COUNTED)


@pytest.mark.parametrize("audience", [RUNS_1, STRICT_1], ids=str)
def test_no_client_gets_the_machinery_of_a_recorded_upstream(audience: Audience) -> None:
    inside = ("ModelRequest", "RunStarted", "PreHook", "adk.invocation", "adk.modelVersion")
    for name, events in recorded().items():
        for event in of_type(encoded(audience, events), "CUSTOM"):
            if isinstance(event["value"], dict):
                assert not any(each in str(event["value"].get("name")) for each in inside), name


def test_the_strict_profile_tells_usage_where_the_protocol_has_it() -> None:
    run = a_run().complete(usage={"input_tokens": 1, "output_tokens": 2, "total_tokens": True})
    (finished,) = of_type(encoded(STRICT_1, run.events), "RUN_FINISHED")
    assert finished["usage"] == [{"inputTokens": 1, "outputTokens": 2}]


# pauses


def test_a_pause_ends_the_step_and_the_run_and_a_decision_begins_both_again() -> None:
    events = told(a_run().call().pause({"tool_call_id": "c1"}).resume().result().complete())
    at = types(events).index("RUN_FINISHED")
    assert types(events)[at - 1] == "STEP_FINISHED"
    assert events[at]["outcome"]["type"] == "interrupt"
    assert types(events)[at + 1 : at + 3] == ["RUN_STARTED", "STEP_STARTED"]
    assert {event["runId"] for event in events[at + 1 :]} == {"run-2"}
    assert of_type(events, "TOOL_CALL_RESULT")[0]["tool_call_args"] == {}


def test_only_a_terminal_event_ends_a_recorded_run() -> None:
    for name, events in recorded().items():
        last = events[-1]["event"]
        ended = f"{last['category']}.{last['action']}" in TERMINAL
        finished = [each for each in encoded(RUNS_1, events) if each["type"] == "RUN_FINISHED"]
        waits = [each for each in finished if "outcome" in each]
        assert ended or waits, name
