"""AG-UI's recorded streams give their golden drafts in any chunking."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.dialects.base import Draft, Pause
from penstock.events import CATALOGUE, TERMINAL, typed_data
from penstock.sse import Frame, Parser
from support.drive.for_each import for_each
from support.recorded.agui import (
    GOLDEN,
    decoder,
    decoder_for,
    event,
    feed,
    only,
    pause_of,
    scenarios,
    types,
)
from support.recorded.goldens import Scenario, check, replay, stream

each_scenario = for_each("scenario", scenarios(), lambda each: each.name)


def replayed(scenario: Scenario, *, chunk_bytes: int = 1 << 16, restart: bool = False) -> list[str]:
    return replay(lambda: decoder_for(scenario), scenario, chunk_bytes=chunk_bytes, restart=restart)


def drafts_of(scenario: Scenario) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in replayed(scenario)]
    return [line for line in lines if "type" in line]


@each_scenario
def test_a_recorded_stream_gives_its_golden_drafts(scenario: Scenario) -> None:
    check(GOLDEN / f"{scenario.name}.golden.jsonl", replayed(scenario))


@each_scenario
@for_each("chunk_bytes", [1, 7, 997])
def test_the_chunking_changes_nothing(scenario: Scenario, chunk_bytes: int) -> None:
    assert replayed(scenario, chunk_bytes=chunk_bytes) == replayed(scenario)


@each_scenario
def test_a_new_decoder_for_each_leg_continues_from_the_snapshot(scenario: Scenario) -> None:
    assert replayed(scenario, restart=True) == replayed(scenario)


@each_scenario
def test_every_draft_is_an_event_of_the_contract_and_the_end_is_one_and_last(
    scenario: Scenario,
) -> None:
    drafts = drafts_of(scenario)
    for draft in drafts:
        assert draft["type"] in CATALOGUE
        typed_data(draft["type"], draft["data"])
    ends = [draft["type"] for draft in drafts if draft["type"] in TERMINAL]
    assert ends == ([] if scenario.cut else [drafts[-1]["type"]])


@each_scenario
def test_an_event_of_unknown_type_or_raw_is_kept_whole(scenario: Scenario) -> None:
    made = decoder()
    kept = [
        draft.data["value"]
        for draft in stream(made, scenario.legs[0].read_bytes())
        if isinstance(draft, Draft) and draft.data.get("name") == "RAW"
    ]
    sent = [json.loads(f.data) for f in Parser().feed(scenario.legs[0].read_bytes())]
    assert kept == [
        {key: value for key, value in body.items() if key != "type"}
        for body in sent
        if body["type"] == "RAW"
    ]


def run(*frames: Frame, **given: Any) -> list[Draft | Pause]:
    made = decoder(**given)
    return [*feed(made, event("RUN_STARTED", threadId="t", runId="r"), *frames), *made.end()][1:]


def finished(**fields: Any) -> Frame:
    return event("RUN_FINISHED", threadId="t", runId="r", **fields)


def call(id: str = "c1", name: str = "search", args: str = '{"q":1}', **fields: Any) -> list[Frame]:
    return [
        event("TOOL_CALL_START", toolCallId=id, toolCallName=name, **fields),
        event("TOOL_CALL_ARGS", toolCallId=id, delta=args, **fields),
        event("TOOL_CALL_END", toolCallId=id, **fields),
    ]


def said(text: str, id: str = "m1", **fields: Any) -> list[Frame]:
    return [
        event("TEXT_MESSAGE_START", messageId=id, role="assistant", **fields),
        event("TEXT_MESSAGE_CONTENT", messageId=id, delta=text, **fields),
        event("TEXT_MESSAGE_END", messageId=id, **fields),
    ]


# messages and thoughts


def test_a_message_without_text_is_not_emitted() -> None:
    start, _, end = said("x")
    empty = event("TEXT_MESSAGE_CONTENT", messageId="m1", delta="")
    assert types(run(start, empty, end, finished())) == ["lifecycle.completed"]


def test_messages_may_be_interleaved() -> None:
    one, two = said("one", "m1"), said("two", "m2")
    drafts = run(one[0], two[0], one[1], two[1], two[2], one[2], finished())
    completed = [
        (draft.data["message_id"], draft.data["content"])
        for draft in drafts
        if isinstance(draft, Draft) and draft.type == "llm.message_completed"
    ]
    assert completed == [("m2", "two"), ("m1", "one")]


def test_a_message_id_that_comes_again_is_made_unique() -> None:
    drafts = run(*said("a"), event("STATE_SNAPSHOT", snapshot=1), *said("b"), finished())
    ids = [d.data["message_id"] for d in drafts if isinstance(d, Draft) and "role" in d.data]
    assert ids == ["m1", "m1", "m1#2", "m1#2"]


def test_text_emitted_twice_is_emitted_twice_unless_a_call_hangs_on_the_second() -> None:
    twice = run(*said("ok", "m1"), *said("ok", "m2"), finished())
    assert types(twice).count("llm.stream") == 2
    hung = call(parentMessageId="m2")
    once = run(*said("ok", "m1"), *said("ok", "m2"), *hung, finished())
    assert types(once).count("llm.stream") == 1
    assert only(once, "llm.tool_call")["message_id"] == "m1"


def test_what_is_open_at_an_error_ends_before_it() -> None:
    start, content, _ = said("half")
    step = event("STEP_STARTED", stepName="think")
    failed = event("RUN_ERROR", message="boom", code="E1", rawEvent={"x": 1})
    drafts = run(step, start, content, failed, *said("late"))
    assert types(drafts) == [
        "workflow.step_started",
        "llm.message_started",
        "llm.stream",
        "llm.message_completed",
        "workflow.step_failed",
        "lifecycle.failed",
    ]
    assert only(drafts, "lifecycle.failed") == {
        "error": "boom",
        "code": "upstream_error",
        "error_type": "E1",
        "detail": {"raw_event": {"x": 1}},
    }


def test_a_stream_without_a_terminal_event_is_lost() -> None:
    drafts = run(*said("hi"))
    assert types(drafts)[-1] == "lifecycle.failed"
    assert only(drafts, "lifecycle.failed")["code"] == "upstream_lost"


def test_the_outcome_cancelled_cancels() -> None:
    drafts = run(*said("hi"), finished(outcome={"type": "cancelled"}))
    assert only(drafts, "lifecycle.cancelled") == {"reason": "user_stop", "confirmed": True}


def test_an_unknown_outcome_is_a_success_with_a_warning() -> None:
    drafts = run(finished(outcome={"type": "later"}, result={"n": 1}))
    assert types(drafts) == ["system.warning", "lifecycle.completed"]
    assert only(drafts, "lifecycle.completed")["value"] == {"n": 1}


# chunks


def test_chunks_are_what_they_stand_for() -> None:
    drafts = run(
        event("TEXT_MESSAGE_CHUNK", messageId="m1", delta="a"),
        event("RAW", event={}),
        event("TEXT_MESSAGE_CHUNK", delta="b"),
        event("TOOL_CALL_CHUNK", toolCallId="c1", toolCallName="search", delta='{"q"'),
        event("TOOL_CALL_CHUNK", delta=":1}"),
        event("TOOL_CALL_RESULT", messageId="t1", toolCallId="c1", content="[2]"),
        event("REASONING_MESSAGE_CHUNK", messageId="r1", delta="hm"),
        finished(),
        drop=frozenset({"RAW"}),
    )
    assert types(drafts) == [
        "llm.message_started",
        "llm.stream",
        "llm.stream",
        "llm.message_completed",
        "llm.tool_args",
        "llm.tool_args",
        "llm.tool_call",
        "llm.tool_result",
        "llm.reasoning",
        "llm.reasoning",
        "lifecycle.completed",
    ]
    assert only(drafts, "llm.message_completed")["content"] == "ab"
    assert only(drafts, "llm.tool_call")["args"] == {"q": 1}
    assert only(drafts, "llm.tool_result")["result"] == [2]


def test_a_chunk_that_nobody_can_place_is_kept() -> None:
    drafts = run(event("TEXT_MESSAGE_CHUNK", delta="b"), finished())
    assert only(drafts, "custom.event")["value"] == {"delta": "b"}


# tools


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    drafts = run(*call(args='{"q'), event("TOOL_CALL_RESULT", toolCallId="c1", content="x"))
    called = only(drafts, "llm.tool_call")
    assert (called["args"], called["args_text"]) == ({}, '{"q')


def test_a_result_without_a_call_gets_one_and_a_second_result_is_the_upstreams_own() -> None:
    result = event("TOOL_CALL_RESULT", messageId="t1", toolCallId="c9", content="x")
    drafts = run(result, result, finished())
    assert types(drafts) == [
        "llm.tool_call",
        "llm.tool_result",
        "custom.event",
        "lifecycle.completed",
    ]


def test_a_result_in_parts_keeps_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    drafts = run(*call(), event("TOOL_CALL_RESULT", toolCallId="c1", content=parts), finished())
    result = only(drafts, "llm.tool_result")
    assert (result["result"], result["content"]) == ("ab", parts)


def test_metadata_stays_with_its_message() -> None:
    drafts = run(*said("hi", metadata={"k": 1}), *call(metadata={"k": 2}), finished())
    assert only(drafts, "llm.message_started")["metadata"] == {"k": 1}
    assert only(drafts, "llm.tool_call")["metadata"] == {"k": 2}


# pauses


def test_calls_named_as_pending_are_the_clients_to_run() -> None:
    outcome = {"type": "success", "pendingToolCallIds": ["c1"]}
    (item,) = pause_of(run(*call(), finished(outcome=outcome))).items
    assert (item.kind, item.tool, item.args) == ("external", "search", {"q": 1})


def test_a_call_left_unanswered_is_a_confirmation_unless_the_client_has_the_tool() -> None:
    (item,) = pause_of(run(*call(), finished())).items
    assert item.kind == "confirmation"
    (item,) = pause_of(run(*call(), finished(), tools="search")).items
    assert item.kind == "external"


def test_a_call_over_which_the_agent_went_on_waits_for_nothing() -> None:
    drafts = run(*call(), *said("I know it anyway."), finished())
    assert types(drafts)[-1] == "lifecycle.completed"


@pytest.mark.parametrize(
    ("interrupt", "kind"),
    [
        ({"reason": "tool_call"}, "confirmation"),
        ({"reason": "confirmation"}, "confirmation"),
        ({"reason": "input_required"}, "input"),
        ({"reason": "graph:ask"}, "input"),
        ({"reason": "x", "responseSchema": {"properties": {"approved": {}}}}, "confirmation"),
        ({"reason": "tool_call", "responseSchema": {"properties": {"city": {}}}}, "input"),
    ],
)
def test_what_an_interrupt_asks_for(interrupt: dict[str, Any], kind: str) -> None:
    outcome = {"type": "interrupt", "interrupts": [{"id": "i1", **interrupt}]}
    pause = pause_of(run(finished(outcome=outcome)))
    (item,) = pause.items
    assert (item.item_id, item.kind) == ("i1", kind)
    assert pause.resume["items"]["i1"]["style"] == "resume"


def test_an_interrupt_without_anything_to_decide_fails_the_run() -> None:
    drafts = run(finished(outcome={"type": "interrupt", "interrupts": []}))
    assert only(drafts, "lifecycle.failed")["code"] == "upstream_error"


def test_an_interrupt_of_a_graph_takes_anything() -> None:
    asked = event("CUSTOM", name="on_interrupt", value='{"question": "Which city?"}')
    pause = pause_of(run(asked, finished()))
    (item,) = pause.items
    assert (item.kind, item.description) == ("input", "Which city?")
    assert pause.resume["items"] == {"interrupt": {"style": "command"}}


def test_a_refused_call_of_which_nothing_is_emitted_gets_its_result_at_the_end() -> None:
    made = decoder()
    interrupts = [{"id": "i1", "reason": "tool_call", "toolCallId": "c1"}]
    outcome = {"type": "interrupt", "interrupts": interrupts}
    feed(made, event("RUN_STARTED"), *call(), finished(outcome=outcome))
    made.open(2)
    assert made.decided({"i1": {"decision": "reject", "note": "no"}}) == []
    drafts = feed(made, event("RUN_STARTED"), *said("Not done."), finished())
    result = only(drafts, "llm.tool_result")
    assert (result["outcome"], result["error"]) == ("rejected", "no")


# subagents, steps, state, and the rest


def test_a_subagent_works_in_an_inner_run() -> None:
    drafts = run(
        event("SUBAGENT_STARTED", subagentRunId="s1", name="Ann", description="look it up"),
        *said("found", subagentRunId="s1"),
        event("SUBAGENT_FINISHED", subagentRunId="s1", result={"n": 1}),
        *said("done", "m2"),
        finished(),
    )
    worker = only(drafts, "dispatch.worker")
    assert worker == {"worker_name": "Ann", "task": "look it up", "subrun_id": "s1"}
    inner = [d for d in drafts if isinstance(d, Draft) and d.subrun == {"id": "s1", "name": "Ann"}]
    assert types(list(inner)) == [
        "llm.message_started",
        "llm.stream",
        "llm.message_completed",
        "dispatch.finished",
    ]
    assert only(drafts, "lifecycle.completed")["summary"] == "done"


def test_a_subagent_whose_start_was_not_seen_has_one_and_one_left_open_ends() -> None:
    drafts = run(*said("found", subagentRunId="s1"), event("RUN_ERROR", message="x"))
    assert types(drafts)[0] == "dispatch.worker"
    assert only(drafts, "dispatch.finished")["status"] == "failed"


@pytest.mark.parametrize(
    ("end", "step_end"),
    [
        (event("SUBAGENT_FINISHED", subagentRunId="s1"), "workflow.step_completed"),
        (event("SUBAGENT_ERROR", subagentRunId="s1", message="x"), "workflow.step_failed"),
    ],
)
def test_a_step_that_a_subagent_leaves_open_ends_with_it(end: Frame, step_end: str) -> None:
    step = event("STEP_STARTED", stepName="search", subagentRunId="s1")
    drafts = run(event("SUBAGENT_STARTED", subagentRunId="s1", name="Ann"), step, end, finished())
    assert types(drafts)[1:4] == ["workflow.step_started", step_end, "dispatch.finished"]


def test_a_step_that_comes_again_has_an_id_of_its_own() -> None:
    step = [event("STEP_STARTED", stepName="a"), event("STEP_FINISHED", stepName="a")]
    drafts = run(*step, *step, finished())
    ids = [d.data["step_id"] for d in drafts if isinstance(d, Draft) and "step_id" in d.data]
    assert ids == ["a", "a", "a#2", "a#2"]
    assert all(isinstance(d, Draft) and d.step_id for d in drafts[:-1])


def test_a_custom_event_named_like_ours_is_ours_and_any_other_is_kept() -> None:
    documents = {"documents": [{"id": "d", "content": "x"}]}
    ours = run(event("CUSTOM", name="retrieval.result", value=documents), finished())
    assert only(ours, "retrieval.result") == documents
    theirs = run(event("CUSTOM", name="progress", value=1), finished())
    assert only(theirs, "custom.event") == {"protocol": "agui", "name": "progress", "value": 1}
    disguised = run(event("CUSTOM", name="RUN_FINISHED", value=1), finished())
    assert only(disguised, "custom.event")["name"] == "CUSTOM"


@pytest.mark.parametrize(
    "body",
    [b"[DONE]", b"null", b"[1]", b"{}", b'{"type": 3}', b'{"type":"NEW","x":1}', b"\xff"],
)
def test_what_is_no_event_is_kept(body: bytes) -> None:
    assert types(run(Frame(body), finished())) == ["custom.event", "lifecycle.completed"]


@pytest.mark.parametrize(
    "body",
    [
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": {"a": 1}},
        {"type": "TEXT_MESSAGE_END", "messageId": "m1"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": "{}"},
        {"type": "STATE_SNAPSHOT"},
        {"type": "STATE_DELTA", "delta": "x"},
        {"type": "MESSAGES_SNAPSHOT", "messages": None},
        {"type": "STEP_FINISHED", "stepName": "never started"},
        {"type": "SUBAGENT_FINISHED", "subagentRunId": "never started"},
        {"type": "CUSTOM", "value": 1},
    ],
)
def test_an_event_that_is_not_as_it_should_be_is_kept(body: dict[str, Any]) -> None:
    drafts = run(event(**{"type_": body.pop("type")}, **body), finished())
    assert only(drafts, "custom.event")["value"] == body


def test_tokens_are_counted_over_models_and_legs() -> None:
    made = decoder()
    usage = [{"model": "a", "inputTokens": 1, "outputTokens": 2}, {"inputTokens": 3}]
    feed(made, event("RUN_STARTED"), *call(), finished(usage=usage))
    made.open(2)
    made.decided({"c1": {"decision": "approve"}})
    drafts = feed(made, event("RUN_STARTED"), finished(usage=[{"totalTokens": 9}]))
    completed = only(drafts, "lifecycle.completed")
    assert completed["usage"] == {"input_tokens": 4, "output_tokens": 2, "total_tokens": 9}
