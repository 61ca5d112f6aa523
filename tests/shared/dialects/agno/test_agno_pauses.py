"""How the Agno decoder reads pauses and the decisions about them."""

from __future__ import annotations

from typing import Any

import pytest

from support.recorded.agno import (
    APPROVE,
    CONFIRM,
    REJECT,
    answer,
    data,
    decoder,
    feed,
    frame,
    member,
    only,
    pause_of,
    paused_agent,
    team,
    tool,
    types,
    workflow,
)


def test_a_pause_announces_its_calls_and_then_waits_once() -> None:
    made = decoder()
    waiting = tool(**CONFIRM)
    requirement = {"id": "q1", "tool_execution": waiting}
    drafts = feed(
        made,
        frame("RunStarted", session_id="s1"),
        frame("RunPaused", tools=[waiting], requirements=[requirement]),
    )
    assert types(drafts) == ["custom.event", "llm.tool_call", "pause"]
    assert data(drafts[1])["pending"] is True
    pause = pause_of(drafts)
    (item,) = pause.items
    assert (item.item_id, item.kind, item.tool_call_id) == ("c1", "confirmation", "c1")
    assert pause.resume == {
        "run_id": "r1",
        "session_id": "s1",
        "kind": "agent",
        "items": {"c1": ["tools", 0]},
        "tools": [waiting],
        "requirements": [requirement],
    }
    assert [*made.feed(frame("RunCompleted")), *made.end()] == []


def test_a_second_pause_does_not_ask_again_for_a_requirement_whose_call_is_settled() -> None:
    done = tool("c0", requires_confirmation=True, confirmed=True, result="x")
    waiting = tool(**CONFIRM)
    drafts = feed(
        decoder(),
        frame("RunStarted", session_id="s1"),
        frame(
            "RunPaused",
            tools=[done, waiting],
            # Agno 2.3 repeats the first pause's requirement in its state before the decision.
            requirements=[
                {"id": "q0", "tool_execution": tool("c0", requires_confirmation=True)},
                {"id": "q1", "tool_execution": waiting},
            ],
        ),
    )
    assert [item.item_id for item in pause_of(drafts).items] == ["c1"]


def test_a_call_whose_id_is_no_text_breaks_no_pause() -> None:
    call = tool("c0", requires_confirmation=True)
    odd = {**call, "tool_call_id": {"a": 1}}
    drafts = feed(decoder(), frame("RunPaused", tools=[odd, call], requirements=[]))
    assert len(pause_of(drafts).items) == 2


def test_what_was_decided_before_is_not_asked_again() -> None:
    done = tool("c0", requires_confirmation=True, confirmed=True, result="x")
    _, pause = paused_agent(done, tool(**CONFIRM))
    assert [item.item_id for item in pause.items] == ["c1"]
    assert pause.resume["tools"][0] == done


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"requires_confirmation": True}, "confirmation"),
        ({"requires_user_input": True, "user_input_schema": []}, "input"),
        ({"requires_user_input": True, "user_feedback_schema": [{"question": "?"}]}, "feedback"),
        ({"external_execution_required": True}, "external"),
    ],
)
def test_the_kind_of_an_item_is_what_the_tool_waits_for(fields: dict[str, Any], kind: str) -> None:
    _, pause = paused_agent(tool(**fields))
    assert [item.kind for item in pause.items] == [kind]


@pytest.mark.parametrize(
    "step",
    [
        {"requires_confirmation": True, "kind": "confirmation"},
        {"requires_user_input": True, "kind": "input"},
        {"requires_route_selection": True, "available_choices": ["a"], "kind": "selection"},
        {"requires_output_review": True, "is_post_execution": True, "kind": "review"},
    ],
)
def test_a_workflows_gate_is_an_item_by_its_step(step: dict[str, Any]) -> None:
    kind = step.pop("kind")
    requirement = {"step_id": "s1", "step_name": "gate", **step}
    drafts = feed(
        decoder("workflow"),
        workflow("WorkflowStarted"),
        workflow("StepPaused", step_id="s1"),
        workflow("WorkflowPaused", status="PAUSED", step_requirements=[requirement]),
        workflow("WorkflowRunOutput", status="PAUSED", step_requirements=[requirement]),
    )
    assert types(drafts) == ["custom.event", "workflow.started", "pause"]
    pause = pause_of(drafts)
    assert [(item.item_id, item.kind) for item in pause.items] == [("s1", kind)]
    assert pause.items[0].options == step.get("available_choices")
    assert pause.resume["step_requirements"] == [requirement]
    assert pause.resume["items"] == {"s1": ["step_requirements", 0]}


def test_a_members_pause_is_asked_once_by_its_team() -> None:
    waiting = tool(**CONFIRM)
    requirement = {"tool_execution": waiting, "member_run_id": "m1", "member_agent_name": "Ann"}
    drafts = feed(
        decoder("team"),
        team("RunStarted"),
        member("RunStarted"),
        member("RunPaused", tools=[waiting], requirements=[{"tool_execution": waiting}]),
        team("RunPaused", tools=[], requirements=[requirement]),
    )
    assert types(drafts) == ["custom.event", "dispatch.worker", "llm.tool_call", "pause"]
    (item,) = pause_of(drafts).items
    assert item.subrun == {"id": "m1", "name": "Ann"}


def test_two_members_waiting_under_one_call_id_are_two_items() -> None:
    waiting = tool(**CONFIRM)
    requirements = [{"tool_execution": waiting, "member_run_id": run} for run in ("m1", "m2")]
    made = decoder("team")
    drafts = feed(made, team("RunStarted"), member("RunStarted", "m1"), member("RunStarted", "m2"))
    pause = pause_of(feed(made, team("RunPaused", requirements=requirements)))
    assert [(item.item_id, item.tool_call_id) for item in pause.items] == [
        ("c1", "c1"),
        ("c1#2", "c1#2"),
    ]
    assert pause.resume["items"] == {"c1": ["requirements", 0], "c1#2": ["requirements", 1]}
    made.open(2)
    (refused,) = made.decided({"c1#2": REJECT})
    assert refused.subrun == {"id": "m2", "name": "Ann"}
    assert drafts


def test_a_team_that_continues_over_a_members_pause_does_not_wait() -> None:
    drafts = feed(
        decoder("team"),
        team("RunStarted"),
        member("RunStarted"),
        member("RunPaused", tools=[tool(**CONFIRM)]),
        team("RunCompleted", content="cannot"),
    )
    assert "pause" not in types(drafts)
    (result,) = only(drafts, "llm.tool_result")
    assert result.data["outcome"] == "expired"
    assert only(drafts, "dispatch.finished")[0].data["status"] == "cancelled"


def test_a_pause_that_nobody_could_answer_is_a_failure() -> None:
    drafts = feed(decoder(), frame("RunStarted"), frame("RunPaused", tools=[]))
    assert types(drafts)[-1] == "lifecycle.failed"


def test_a_refused_call_gets_a_result_with_outcome_rejected() -> None:
    made, _ = paused_agent(tool(**CONFIRM))
    (result,) = made.decided({"c1": {"decision": "reject", "note": None, "value": None}})
    assert result.data == {
        "tool": "search",
        "result": None,
        "tool_call_id": "c1",
        "outcome": "rejected",
        "error": "rejected",
    }


def test_an_announced_call_that_runs_is_progress_and_no_second_call() -> None:
    made, _ = paused_agent(tool(**CONFIRM))
    assert made.decided({"c1": APPROVE}) == []
    drafts = feed(
        made,
        frame("RunContinued"),
        frame("ToolCallStarted", tool=tool()),
        frame("ToolCallCompleted", tool=tool(result="{'ok': True}")),
    )
    assert types(drafts) == ["lifecycle.resumed", "llm.tool_progress", "llm.tool_result"]
    assert data(drafts[1]) == {"tool_call_id": "c1", "status": "running"}
    assert data(drafts[2])["result"] == {"ok": True}


@pytest.mark.parametrize(
    "fields",
    [
        {"external_execution_required": True},
        {"requires_user_input": True, "user_feedback_schema": [{"question": "?"}]},
        {"requires_user_input": True, "tool_name": "get_user_input"},
    ],
)
def test_an_answer_that_agno_takes_as_the_result_is_the_result(fields: dict[str, Any]) -> None:
    made, _ = paused_agent(tool() | fields)
    (result,) = made.decided({"c1": answer({"a": 1})})
    assert (result.data["result"], result.data["outcome"]) == ({"a": 1}, "ok")


def test_a_tool_that_waited_for_input_tells_its_own_result() -> None:
    made, _ = paused_agent(tool(requires_user_input=True))
    assert made.decided({"c1": answer({"to": "x"})}) == []
    drafts = feed(made, frame("RunContinued"), frame("ToolCallStarted", tool=tool()))
    assert types(drafts) == ["lifecycle.resumed", "llm.tool_progress"]


def test_an_approved_call_that_never_ran_is_an_error() -> None:
    made, _ = paused_agent(tool(**CONFIRM))
    made.decided({"c1": APPROVE})
    drafts = feed(made, frame("RunContinued"), frame("RunCompleted", content="x"))
    (result,) = only(drafts, "llm.tool_result")
    assert result.data["outcome"] == "error"


def test_an_input_that_agno_took_without_a_word_is_the_result() -> None:
    made, _ = paused_agent(tool(requires_user_input=True))
    made.decided({"c1": answer({"to": "x"})})
    drafts = feed(made, frame("RunContinued"), frame("RunCompleted", content="done"))
    (result,) = only(drafts, "llm.tool_result")
    assert (result.data["result"], result.data["outcome"]) == ({"to": "x"}, "ok")


def test_the_result_of_a_member_that_does_not_stream_is_in_the_last_frame() -> None:
    made = decoder("team")
    requirement = {"tool_execution": tool(**CONFIRM), "member_run_id": "m1"}
    feed(made, team("RunStarted"), team("RunPaused", requirements=[requirement]))
    made.open(2)
    made.decided({"c1": APPROVE})
    odd: dict[str, Any] = {"tool_call_id": []}
    ran = {"run_id": "m1", "tools": [tool(result="done"), odd, 5]}
    drafts = feed(made, team("RunContinued"), team("RunCompleted", member_responses=[ran]))
    (result,) = only(drafts, "llm.tool_result")
    assert (result.data["result"], result.data["outcome"]) == ("done", "ok")


def test_a_continued_run_is_announced_once_a_leg() -> None:
    made = decoder("team")
    requirement = {"tool_execution": tool(**CONFIRM), "member_run_id": "m1"}
    feed(made, team("RunStarted"), member("RunStarted"))
    feed(made, team("RunPaused", requirements=[requirement]))
    made.open(2)
    drafts = feed(made, member("RunContinued"), team("RunContinued"))
    assert types(drafts) == ["lifecycle.resumed"]
    assert data(drafts[0]) == {"upstream_run_id": "t1"}


def test_input_fields_become_a_json_schema() -> None:
    fields = [
        {"name": "to", "field_type": "str", "description": "who", "value": None},
        {"name": "n", "field_type": "int", "description": None, "value": 3},
    ]
    _, pause = paused_agent(tool(requires_user_input=True, user_input_schema=fields))
    assert pause.items[0].input_schema == {
        "type": "object",
        "properties": {
            "to": {"type": "string", "description": "who"},
            "n": {"type": "integer", "default": 3},
        },
        "required": ["to"],
    }
