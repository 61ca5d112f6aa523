"""How the Agno decoder maps runs, text, tools and workflows; each test's name is one rule."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from penstock.dialects.base import Draft
from penstock.sse import Frame
from support.recorded.agno import (
    APPROVE,
    CONFIRM,
    REJECT,
    data,
    decoder,
    feed,
    frame,
    member,
    only,
    paused_agent,
    team,
    tool,
    types,
    workflow,
)

# --- who ends the run


def test_only_the_outer_run_ends_the_run() -> None:
    made = decoder("team")
    drafts = feed(
        made,
        team("RunStarted"),
        member("RunStarted"),
        member("RunError", content="boom"),
        team("RunCompleted", content="anyway"),
    )
    (finished,) = only(drafts, "dispatch.finished")
    assert finished.data == {"subrun_id": "m1", "status": "failed", "error": "boom"}
    assert types(drafts)[-1] == "lifecycle.completed"


def test_a_frame_without_a_run_id_is_the_outer_runs() -> None:
    drafts = feed(decoder(), frame("RunError", None, agent_id="", content="No runs found"))
    (failed,) = only(drafts, "lifecycle.failed")
    assert failed.data == {"error": "No runs found", "code": "upstream_error"}
    assert failed.source == {
        "agent_id": "assistant",
        "agent_type": "agent",
        "agent_name": "Assistant",
        "team_name": None,
    }


def test_a_second_start_without_a_run_around_it_is_no_outer_run() -> None:
    drafts = feed(
        decoder(), frame("RunStarted"), frame("RunStarted", "r2"), frame("RunCompleted", "r2")
    )
    assert types(drafts) == ["custom.event", "dispatch.worker", "dispatch.finished"]


def test_an_agent_inside_a_workflow_is_never_its_outer_run() -> None:
    made = decoder("workflow")
    drafts = feed(made, frame("RunStarted", workflow_run_id="w1"), frame("RunCompleted"))
    assert types(drafts) == ["dispatch.worker", "dispatch.finished"]


def test_a_continue_under_a_new_run_id_is_still_the_outer_run() -> None:
    made, _ = paused_agent(tool(**CONFIRM))
    made.decided({"c1": REJECT})
    drafts = feed(made, frame("RunContinued", "fork"), frame("RunCompleted", "fork", content="x"))
    assert types(drafts)[0] == "lifecycle.resumed"
    assert data(drafts[0]) == {"upstream_run_id": "fork"}
    assert types(drafts)[-1] == "lifecycle.completed"


def test_the_members_source_names_its_team() -> None:
    drafts = feed(decoder("team"), team("RunStarted"), member("RunContent", content="hi"))
    (said,) = only(drafts, "llm.stream")
    assert said.source == {
        "agent_id": "a1",
        "agent_type": "worker",
        "agent_name": "Ann",
        "team_name": "Crew",
    }
    assert said.subrun == {"id": "m1", "name": "Ann"}


def test_a_run_inside_an_inner_run_names_it() -> None:
    drafts = feed(
        decoder("team"),
        team("RunStarted"),
        team("RunStarted", "t2", parent_run_id="t1", team_id="squad", team_name="Squad"),
        frame("RunStarted", "m1", parent_run_id="t2"),
        frame("RunContent", "m1", parent_run_id="t2", content="hi"),
    )
    inner, innermost = only(drafts, "dispatch.worker")
    assert inner.source is not None
    assert inner.source["agent_id"] == "crew"
    assert innermost.data["parent_subrun_id"] == "t2"
    (said,) = only(drafts, "llm.stream")
    assert said.source is not None
    assert said.source["team_name"] == "Squad"
    assert said.subrun == {"id": "m1", "name": "Ann", "parent_id": "t2"}


def test_a_members_task_is_what_the_team_told_it() -> None:
    call = {"member_id": "a1", "task": "look it up"}
    drafts = feed(
        decoder("team"),
        team("RunStarted"),
        team("ToolCallStarted", tool=tool(name="delegate_task_to_member", tool_args=call)),
        member("RunStarted"),
    )
    (worker,) = only(drafts, "dispatch.worker")
    assert worker.data == {"worker_name": "Ann", "task": "look it up", "subrun_id": "m1"}


def test_the_same_inner_run_again_is_a_run_of_its_own() -> None:
    ends = member("RunError", content="x")
    drafts = feed(
        decoder("team"), team("RunStarted"), *(member("RunStarted"), ends, member("RunStarted"))
    )
    assert [draft.data["subrun_id"] for draft in only(drafts, "dispatch.worker")] == ["m1", "m1#2"]


def test_an_inner_run_whose_start_was_not_seen_is_dispatched_by_its_first_word() -> None:
    drafts = feed(decoder("team"), team("RunStarted"), member("RunCompleted", content=None))
    assert types(drafts)[1:] == ["dispatch.worker", "dispatch.finished"]


def test_what_an_ended_run_still_says_is_closed_at_the_end() -> None:
    drafts = feed(
        decoder("team"),
        team("RunStarted"),
        member("RunError", content="x"),
        member("RunContent", content="late"),
        team("RunCompleted"),
    )
    assert types(drafts)[-2:] == ["llm.message_completed", "lifecycle.completed"]
    assert len(only(drafts, "dispatch.finished")) == 1


def test_a_start_that_is_emitted_again_is_no_second_worker() -> None:
    drafts = feed(
        decoder("team"), team("RunStarted"), member("RunStarted"), member("RunStarted", model="m")
    )
    assert types(drafts) == ["custom.event", "dispatch.worker", "custom.event"]


def test_a_workflows_own_agent_is_a_worker() -> None:
    drafts = feed(
        decoder("workflow"),
        workflow("WorkflowAgentStarted", None),
        frame("RunContent", "x9", content="hi", workflow_agent=True),
        workflow("WorkflowAgentCompleted", "x9", content="hi"),
        workflow("WorkflowCompleted", content="hi"),
    )
    assert types(drafts) == [
        "dispatch.worker",
        "llm.message_started",
        "llm.stream",
        "llm.message_completed",
        "dispatch.finished",
        "workflow.completed",
        "lifecycle.completed",
    ]


# --- ends


def test_after_a_terminal_event_nothing_is_emitted() -> None:
    made = decoder()
    drafts = feed(made, frame("RunStarted"), frame("RunCancelled"), frame("RunCompleted"))
    assert types(drafts) == ["custom.event", "lifecycle.cancelled"]
    assert data(drafts[-1]) == {"reason": "user_stop", "confirmed": True}
    assert [*made.end(), *made.abort()] == []


def test_a_stream_that_just_ends_is_lost() -> None:
    made = decoder()
    feed(made, frame("RunStarted"), frame("RunContent", content="half"))
    drafts = list(made.end())
    assert types(drafts) == ["llm.message_completed", "lifecycle.failed"]
    assert data(drafts[-1])["code"] == "upstream_lost"


def test_a_stream_that_is_cut_closes_what_is_open_and_no_more() -> None:
    made = decoder("team")
    feed(made, team("RunStarted"), member("RunStarted"), member("RunContent", content="half"))
    feed(made, team("RunContent", content="too"))
    assert types(list(made.abort())) == [
        "llm.message_completed",
        "dispatch.finished",
        "llm.message_completed",
    ]


def test_a_failure_keeps_the_upstreams_words_and_closes_the_message() -> None:
    drafts = feed(
        decoder(),
        frame("RunStarted"),
        frame("RunContent", content="half"),
        frame("RunError", content="blocked", error_type="input_check_error", error_id="e7"),
    )
    assert types(drafts)[-2:] == ["llm.message_completed", "lifecycle.failed"]
    assert data(drafts[-1]) == {
        "error": "blocked",
        "code": "upstream_error",
        "error_type": "input_check_error",
        "detail": {"error_id": "e7"},
    }


def test_a_session_state_that_holds_something_is_a_snapshot_before_the_end() -> None:
    drafts = feed(decoder(), frame("RunCompleted", content="x", session_state={"n": 1}))
    assert types(drafts)[-2:] == ["state.snapshot", "lifecycle.completed"]
    assert "state.snapshot" not in types(feed(decoder(), frame("RunCompleted", session_state={})))


def test_tokens_are_usage_and_the_rest_metrics() -> None:
    metrics = {"input_tokens": 3, "cache_read_tokens": 2, "duration": 0.5, "steps": {}}
    (done,) = only(feed(decoder(), frame("RunCompleted", metrics=metrics)), "lifecycle.completed")
    assert done.data["usage"] == {"input_tokens": 3, "cached_input_tokens": 2}
    assert done.data["metrics"] == {"duration": 0.5}


def test_a_resume_that_does_not_know_the_run_is_a_lost_upstream() -> None:
    body = {"event": "error", "error": "Run not found"}
    (failed,) = decoder().feed(Frame(orjson.dumps(body), "error"))
    assert isinstance(failed, Draft)
    assert failed.data == {"error": "Run not found", "code": "upstream_lost"}


@pytest.mark.parametrize("name", ["replay", "catch_up", "subscribed", "heartbeat"])
def test_frames_about_the_connection_are_not_emitted(name: str) -> None:
    assert feed(decoder(), frame(name, "r1", agent_id=None)) == []


# --- text and thoughts


def test_the_empty_last_piece_is_no_delta_and_its_citations_are_kept() -> None:
    cited = {"raw": [], "urls": [{"url": "u"}], "documents": []}
    drafts = feed(
        decoder(),
        frame("RunContent", content="hi", reasoning_content=""),
        frame("RunContent", content="", citations=cited),
        frame("RunContentCompleted"),
    )
    assert types(drafts) == ["llm.message_started", "llm.stream", "llm.message_completed"]
    assert data(drafts[-1]) == {
        "message_id": "msg-1-1",
        "role": "assistant",
        "content": "hi",
        "citations": cited,
    }


def test_the_end_of_a_message_that_never_began_is_not_emitted() -> None:
    empty: dict[str, Any] = {"raw": [], "urls": [], "documents": []}
    drafts = feed(
        decoder(), frame("RunContent", content="", citations=empty), frame("RunContentCompleted")
    )
    assert drafts == []


def test_structured_output_is_a_value_and_its_text() -> None:
    drafts = feed(
        decoder(),
        frame("RunContent", content={"title": "Alien"}, content_type="Movie"),
        frame("RunContentCompleted"),
        frame("RunCompleted", content={"title": "Alien"}, content_type="Movie"),
    )
    assert types(drafts) == ["llm.message_started", "llm.message_completed", "lifecycle.completed"]
    assert data(drafts[1]) == {
        "message_id": "msg-1-1",
        "role": "assistant",
        "content": '{"title":"Alien"}',
        "value": {"title": "Alien"},
        "content_type": "Movie",
    }
    assert data(drafts[2]) == {
        "summary": '{"title":"Alien"}',
        "value": {"title": "Alien"},
        "content_type": "Movie",
    }


def test_interleaved_members_have_a_message_each() -> None:
    drafts = feed(
        decoder("team"),
        team("RunStarted"),
        member("RunContent", "m1", content="a"),
        member("RunContent", "m2", content="b"),
        member("RunContent", "m1", content="c"),
        member("RunContentCompleted", "m1"),
        member("RunContentCompleted", "m2"),
    )
    assert [draft.data["content"] for draft in only(drafts, "llm.message_completed")] == ["ac", "b"]


def test_a_tool_call_ends_the_message_before_it() -> None:
    drafts = feed(
        decoder(),
        frame("RunContent", content="I look. "),
        frame("ToolCallStarted", tool=tool()),
        frame("ToolCallCompleted", tool=tool(result="3")),
        frame("RunContent", content="Three."),
        frame("RunContentCompleted"),
    )
    ends = only(drafts, "llm.message_completed")
    assert [(draft.data["message_id"], draft.data["content"]) for draft in ends] == [
        ("msg-1-1", "I look. "),
        ("msg-1-2", "Three."),
    ]
    assert types(drafts).index("llm.tool_call") > types(drafts).index("llm.message_completed")


def test_text_that_only_the_last_frame_has_is_emitted() -> None:
    drafts = feed(decoder(), frame("RunStarted"), frame("RunCompleted", content="from the store"))
    assert [draft.data["content"] for draft in only(drafts, "llm.stream")] == ["from the store"]


def test_the_text_of_the_last_frame_is_not_emitted_twice() -> None:
    drafts = feed(
        decoder(),
        frame("RunContent", content="hi"),
        frame("RunContentCompleted"),
        frame("RunCompleted", content="hi"),
    )
    assert len(only(drafts, "llm.stream")) == 1


def test_thoughts_are_deltas_and_end_when_text_begins() -> None:
    drafts = feed(
        decoder(),
        frame("RunContent", reasoning_content="Let me"),
        frame("RunContent", reasoning_content=" think."),
        frame("RunContent", content="42", reasoning_content=""),
    )
    thoughts = [draft.data for draft in only(drafts, "llm.reasoning")]
    assert thoughts == [
        {"thought": "Let me", "reasoning_id": "think-1-1"},
        {"thought": " think.", "reasoning_id": "think-1-1"},
        {"thought": "", "reasoning_id": "think-1-1", "final": True},
    ]
    assert types(drafts)[3] == "llm.message_started"


def test_of_the_cumulative_text_of_a_step_only_the_new_part_is_emitted() -> None:
    drafts = feed(
        decoder(),
        frame("ReasoningStarted"),
        frame("ReasoningStep", reasoning_content="one. ", content={"title": "First"}),
        frame("ToolCallStarted", tool=tool()),
        frame("ReasoningStep", reasoning_content="one. two.", content={"title": "Second"}),
        frame("ReasoningCompleted"),
    )
    assert [draft.data for draft in only(drafts, "llm.reasoning")] == [
        {"thought": "one. ", "reasoning_id": "think-1-1", "title": "First"},
        {"thought": "two.", "reasoning_id": "think-1-1", "title": "Second"},
        {"thought": "", "reasoning_id": "think-1-1", "final": True},
    ]


def test_thoughts_that_came_as_deltas_are_not_emitted_again_by_the_step() -> None:
    drafts = feed(
        decoder(),
        frame("ReasoningStarted"),
        frame("ReasoningContentDelta", reasoning_content="one. "),
        frame("ReasoningContentDelta", reasoning_content=""),
        frame("ReasoningStep", reasoning_content="one. two."),
        frame("ReasoningStep", reasoning_content="one. two."),
        frame("ReasoningStep", content={"reasoning": "three."}),
    )
    thoughts = [draft.data["thought"] for draft in only(drafts, "llm.reasoning")]
    assert thoughts == ["one. ", "two.", "three."]


# --- tools


def test_a_failed_call_that_is_reported_twice_is_emitted_once() -> None:
    failed = tool(result="boom", tool_call_error=True, metrics={"duration": 0.25})
    drafts = feed(
        decoder(),
        frame("ToolCallStarted", tool=tool()),
        frame("ToolCallCompleted", tool=failed),
        frame("ToolCallError", tool=failed, error="boom"),
    )
    (result,) = only(drafts, "llm.tool_result")
    assert result.data == {
        "tool": "search",
        "result": "boom",
        "tool_call_id": "c1",
        "outcome": "error",
        "error": "boom",
        "duration_s": 0.25,
    }


def test_a_repeated_call_id_is_made_unique_also_across_legs() -> None:
    made, _ = paused_agent(tool(**CONFIRM))
    made.decided({"c1": APPROVE})
    drafts = feed(
        made,
        frame("RunContinued"),
        frame("ToolCallStarted", tool=tool()),
        frame("ToolCallCompleted", tool=tool(result="1")),
        frame("ToolCallStarted", tool=tool(tool_args={"q": 2})),
        frame("ToolCallCompleted", tool=tool(tool_args={"q": 2}, result="2")),
    )
    (again,) = only(drafts, "llm.tool_call")
    assert again.data["tool_call_id"] == "c1#2"
    results = {
        draft.data["tool_call_id"]: draft.data["result"]
        for draft in only(drafts, "llm.tool_result")
    }
    assert results == {"c1": 1, "c1#2": 2}


def test_of_two_calls_under_one_id_each_gets_its_own_result() -> None:
    first, second = tool(tool_args={"q": 1}), tool(tool_args={"q": 2})
    drafts = feed(
        decoder(),
        frame("ToolCallStarted", tool=first),
        frame("ToolCallStarted", tool=second),
        frame("ToolCallCompleted", tool={**second, "result": "two"}),
        frame("ToolCallCompleted", tool={**first, "result": "one"}),
    )
    results = {
        draft.data["tool_call_id"]: draft.data["result"]
        for draft in only(drafts, "llm.tool_result")
    }
    assert results == {"c1": "one", "c1#2": "two"}


def test_two_members_may_use_the_same_call_id() -> None:
    drafts = feed(
        decoder("team"),
        team("RunStarted"),
        member("ToolCallStarted", "m1", tool=tool()),
        member("ToolCallStarted", "m2", tool=tool()),
        member("ToolCallCompleted", "m2", tool=tool(result="of m2")),
        member("ToolCallCompleted", "m1", tool=tool(result="of m1")),
    )
    results = {
        draft.data["tool_call_id"]: draft.data["result"]
        for draft in only(drafts, "llm.tool_result")
    }
    assert results == {"c1": "of m1", "c1#2": "of m2"}


def test_a_result_whose_call_was_not_seen_gets_its_call_first() -> None:
    drafts = feed(decoder(), frame("ToolCallCompleted", tool=tool(result="3")))
    assert types(drafts) == ["llm.tool_call", "llm.tool_result"]


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    (call,) = feed(decoder(), frame("ToolCallStarted", tool=tool(tool_args=["x"])))
    assert isinstance(call, Draft)
    assert (call.data["args"], call.data["args_text"]) == ({}, '["x"]')


# --- workflows


def test_a_step_that_runs_again_has_an_id_of_its_own() -> None:
    drafts = feed(
        decoder("workflow"),
        workflow("WorkflowStarted"),
        workflow("LoopExecutionStarted", step_id="L", step_name="loop"),
        workflow("LoopIterationStarted", step_id="L", step_name="loop", iteration=1),
        workflow("StepStarted", step_id="x", step_name="work", parent_step_id="L"),
        workflow("StepCompleted", step_id="x", content="1"),
        workflow("LoopIterationCompleted", step_id="L", iteration=1, iteration_results=[]),
        workflow("LoopIterationStarted", step_id="L", step_name="loop", iteration=2),
        workflow("StepStarted", step_id="x", step_name="work", parent_step_id="L"),
    )
    started = [draft.data for draft in only(drafts, "workflow.step_started")]
    assert [data["step_id"] for data in started] == ["L", "L/1", "x", "L/2", "x#2"]
    assert [data.get("parent_step_id") for data in started] == [None, "L", "L/1", "L", "L/2"]
    assert [data.get("iteration") for data in started] == [None, 1, 1, 2, 2]
    done = [draft.data["step_id"] for draft in only(drafts, "workflow.step_completed")]
    assert done == ["x", "L/1"]


def test_a_step_that_failed_without_an_event_is_reported_at_the_end() -> None:
    result = {"step_name": "work", "success": False, "error": "boom"}
    drafts = feed(
        decoder("workflow"),
        workflow("WorkflowStarted"),
        workflow("StepStarted", step_id="x", step_name="work"),
        workflow("WorkflowCompleted", content="skipped", step_results=[result]),
    )
    assert types(drafts)[-3:] == [
        "workflow.step_failed",
        "workflow.completed",
        "lifecycle.completed",
    ]
    (failed,) = only(drafts, "workflow.step_failed")
    assert failed.data["error"] == {"code": "upstream_error", "message": "boom"}


def test_a_failed_workflow_is_also_a_failed_run_and_emitted_once() -> None:
    drafts = feed(
        decoder("workflow"),
        workflow("WorkflowStarted"),
        workflow("WorkflowError", error="boom"),
        workflow("WorkflowError", None, error="boom"),
    )
    assert types(drafts)[2:] == ["workflow.failed", "lifecycle.failed"]


@pytest.mark.parametrize(
    "event",
    [
        workflow("StepError", step_id="x", error="boom"),
        workflow("StepCompleted", step_id="x", step_response={"success": False, "error": "boom"}),
    ],
)
def test_a_step_that_says_that_it_failed_has_failed(event: Frame) -> None:
    drafts = feed(decoder("workflow"), workflow("StepStarted", step_id="x"), event)
    assert data(drafts[-1]) == {
        "run_id": "w1",
        "step_id": "x",
        "error": {"code": "upstream_error", "message": "boom"},
    }


def test_a_step_tells_how_far_it_is() -> None:
    drafts = feed(decoder("workflow"), workflow("StepProgress", step_id="x", content="half"))
    assert types(drafts) == ["workflow.step_progress"]
    assert data(drafts[0]) == {"step_id": "x", "message": "half"}


def test_a_workflow_inside_a_workflow_does_not_end_the_run() -> None:
    drafts = feed(
        decoder("workflow"),
        workflow("WorkflowStarted"),
        workflow("WorkflowStarted", "w2", nested_depth=1, workflow_id="sub", workflow_name="Sub"),
        workflow("WorkflowCompleted", "w2", nested_depth=1, content="x"),
    )
    assert types(drafts)[2:] == [
        "dispatch.worker",
        "workflow.started",
        "workflow.completed",
        "dispatch.finished",
    ]


def test_a_router_tells_where_it_goes() -> None:
    drafts = feed(
        decoder("workflow"),
        workflow("RouterExecutionStarted", step_id="R", step_name="route", selected_steps=["r1"]),
        workflow("StepStarted", step_id="x", step_name="r1", parent_step_id="R"),
    )
    (went,) = only(drafts, "workflow.transition")
    assert went.data == {
        "run_id": "w1",
        "from_step": "R",
        "to_step": "x",
        "reason": "selected",
    }


def test_a_workflow_does_not_repeat_what_its_last_agent_has_just_said() -> None:
    inner = {"workflow_run_id": "w1", "step_id": "x", "step_name": "work"}
    drafts = feed(
        decoder("workflow"),
        workflow("WorkflowStarted"),
        workflow("StepStarted", step_id="x", step_name="work"),
        frame("RunStarted", "m1", **inner),
        frame("RunContent", "m1", content="42", **inner),
        frame("RunCompleted", "m1", content="42", **inner),
        workflow("WorkflowCompleted", content="42"),
    )
    (message,) = only(drafts, "llm.message_completed")
    assert message.data["content"] == "42"


def test_the_steps_of_a_parallel_do_not_follow_one_another() -> None:
    inside = {"step_name": "p", "parent_step_id": "P"}
    drafts = feed(
        decoder("workflow"),
        workflow("ParallelExecutionStarted", step_id="P", step_name="par"),
        workflow("StepStarted", step_id="a", **inside),
        workflow("StepCompleted", step_id="a", **inside),
        workflow("StepStarted", step_id="b", **inside),
        workflow("StepCompleted", step_id="b", **inside),
        workflow("ParallelExecutionCompleted", step_id="P", step_name="par"),
        workflow("StepStarted", step_id="c", step_name="last"),
    )
    (went,) = only(drafts, "workflow.transition")
    assert (went.data["from_step"], went.data["to_step"]) == ("P", "c")


def test_the_run_of_a_steps_agent_belongs_to_the_step() -> None:
    drafts = feed(
        decoder("workflow"),
        workflow("WorkflowStarted"),
        workflow("StepStarted", step_id="x", step_name="work"),
        frame("RunStarted", "m1", workflow_run_id="w1", step_id="x", step_name="work"),
        frame("RunContent", "m1", workflow_run_id="w1", content="hi"),
    )
    (worker,) = only(drafts, "dispatch.worker")
    (said,) = only(drafts, "llm.stream")
    assert (worker.data["task"], worker.step_id, said.step_id) == ("work", "x", "x")


# --- events without a word of ours


def test_an_unknown_event_is_kept_whole_unless_it_is_to_be_dropped() -> None:
    hook = frame("PostHookStarted", post_hook_name="x")
    (kept,) = feed(decoder(), hook)
    assert isinstance(kept, Draft)
    assert kept.data == {
        "protocol": "agno",
        "name": "agno.PostHookStarted",
        "value": json.loads(hook.data),
    }
    assert feed(decoder(drop=frozenset({"PostHookStarted"})), hook) == []


def test_an_event_without_a_name_of_its_own_has_the_name_in_its_data() -> None:
    body = orjson.dumps({"event": "RunContent", "content": "hi"})
    drafts = feed(decoder(), Frame(body, "message"), Frame(body, None))
    assert types(drafts) == ["llm.message_started", "llm.stream", "llm.stream"]


def test_what_carries_the_runs_course_cannot_be_dropped() -> None:
    made = decoder(drop=frozenset({"RunCompleted"}))
    assert types(feed(made, frame("RunCompleted", content="x")))[-1] == "lifecycle.completed"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[1]", b"null", b"[" * 600 + b"]" * 600])
def test_data_that_is_no_object_is_a_custom_event(data: bytes) -> None:
    (draft,) = decoder().feed(Frame(data, "RunContent"))
    assert isinstance(draft, Draft)
    assert (draft.type, draft.data["name"]) == ("custom.event", "agno.RunContent")


@pytest.mark.parametrize(
    "event",
    [
        frame("CustomEvent", name="retrieval.started", retrieval_id="k", query="why"),
        frame("CustomEvent", type="retrieval.started", value={"retrieval_id": "k", "query": "why"}),
        frame("retrieval.started", retrieval_id="k", query="why"),
    ],
)
def test_a_custom_event_named_as_ours_is_ours(event: Frame) -> None:
    (draft,) = feed(decoder(), event)
    assert isinstance(draft, Draft)
    assert draft.type == "retrieval.started"
    assert (draft.data["retrieval_id"], draft.data["query"]) == ("k", "why")


def test_a_team_that_is_given_work_is_announced_by_a_custom_event_of_that_name() -> None:
    """Agno has no event for this, so the server sends a custom event."""
    task = {"team_name": "Payment Gateway", "task": "Check the connection pool"}
    (draft,) = feed(decoder(), frame("CustomEvent", name="dispatch.team", value=task))
    assert isinstance(draft, Draft)
    assert (draft.type, draft.data) == ("dispatch.team", task)


@pytest.mark.parametrize("name", ["lifecycle.completed", "session_ended", "approval.decided"])
def test_a_custom_event_can_never_end_or_decide(name: str) -> None:
    value = {"summary": "x", "approval_id": "a", "reason": "completed"}
    (draft,) = feed(decoder(), frame("CustomEvent", name=name, value=value))
    assert isinstance(draft, Draft)
    assert draft.type == "custom.event"
