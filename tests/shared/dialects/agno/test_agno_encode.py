"""Agno's frames for agents of other protocols: the document's sequences, and the way back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from penstock.dialects.agno.decode import AgnoDecoder
from penstock.dialects.agno.encode.complete import run_output
from penstock.dialects.agno.encode.encoder import _HANDLERS, _INSTEAD, OMITTED, AgnoEncoder
from penstock.dialects.base import AgentFacts, Draft, Pause
from penstock.events import CATALOGUE, TERMINAL
from penstock.sse import Frame, Parser, encode
from support.drive.for_each import for_each
from support.fakes.raw import RUN_ID
from support.recorded.canonical import Recorded, event, recorded, recorded_runs, run, type_of
from support.recorded.goldens import check

GOLDEN = Path(__file__).parents[3] / "golden" / "encoded" / "agno"

each_run = for_each("recorded_run", recorded_runs(), lambda each: each.name)

SHOWN = [
    "adk/2.13.0/weather_stream",
    "adk/2.13.0/confirm_stream",
    "adk/2.13.0/confirm_reject_stream",
    "adk/2.13.0/ask",
    "adk/2.13.0/explode_stream",
    "agno/3.1.10/team_member_confirm",
    "agno/3.1.10/wf_hitl",
    "agno/3.1.10/wf_complex",
]

TEXT = {"type": "string"}
SOME = {"type": "string", "minLength": 1}
OBJECT = {"type": "object"}
COUNT = {"type": "integer"}
NUMBER = {"type": "number"}
TRUTH_OR_NULL = {"type": ["boolean", "null"]}
ANY: dict[str, Any] = {}


def an_object(**required: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": required, "required": list(required)}


# The fields of the document's examples, copied by hand.
CITATIONS = an_object(documents={"type": "array"}, raw={"type": "array"}, urls={"type": "array"})
ALWAYS: dict[str, dict[str, Any]] = {
    "event": SOME,
    "run_id": SOME,
    "session_id": TEXT,
    "created_at": COUNT,
}
TOOL = an_object(
    tool_call_id=SOME,
    tool_name=SOME,
    tool_args=OBJECT,
    requires_confirmation=TRUTH_OR_NULL,
    confirmed=TRUTH_OR_NULL,
    result={"type": ["string", "null"]},
    tool_call_error=TRUTH_OR_NULL,
    metrics={"type": ["object", "null"]},
    stop_after_tool_call={"const": False},
)
DONE: dict[str, Any] = {
    "properties": {
        "result": {"type": ["string", "null"]},
        "tool_call_error": {"type": "boolean"},
        "metrics": {"anyOf": [an_object(duration=NUMBER), {"type": "null"}]},
    }
}
REQUIREMENT = an_object(
    id=SOME,
    confirmation={"type": "null"},
    confirmation_note={"type": "null"},
    tool_execution=TOOL,
    created_at={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT[\d:.]+\+00:00$"},
)
FIELDS: dict[str, dict[str, Any]] = {
    "RunStarted": {"model": TEXT, "model_provider": TEXT},
    "RunContent": {
        "content_type": SOME,
        "reasoning_content": TEXT,
        "workflow_agent": {"type": "boolean"},
    },
    "RunContentCompleted": {},
    "ToolCallStarted": {"tool": TOOL},
    "ToolCallCompleted": {"content": SOME, "tool": {"allOf": [TOOL, DONE]}},
    "RunPaused": {
        "content": SOME,
        "tools": {"type": "array", "items": TOOL},
        "requirements": {"type": "array", "items": REQUIREMENT},
    },
    "RunContinued": {},
    "RunCompleted": {"content": ANY, "content_type": SOME},
    "RunError": {"content": TEXT},
    "RunCancelled": {"reason": SOME},
    "WorkflowStarted": {},
    "WorkflowPaused": {"status": {"const": "PAUSED"}, "step_requirements": {"type": "array"}},
    "WorkflowCompleted": {"content": ANY},
    "WorkflowError": {"error": TEXT},
    "WorkflowCancelled": {"reason": SOME},
    "StepContinued": {},
    "StepStarted": {"step_id": SOME, "step_name": SOME, "step_index": COUNT},
}
SCHEMAS = {
    name: Draft202012Validator(an_object(**ALWAYS, **fields)) for name, fields in FIELDS.items()
}
WHOLE = Draft202012Validator(
    an_object(citations=CITATIONS, session_state=OBJECT, metrics=an_object(duration=NUMBER))
)


def frames(events: Iterable[dict[str, Any]], kind: str = "agent") -> list[Frame]:
    encoder = AgnoEncoder(kind)
    return [frame for each in events for frame in encoder.feed(each)]


def encoded(events: Iterable[dict[str, Any]], kind: str = "agent") -> list[dict[str, Any]]:
    return [orjson.loads(frame.data) for frame in frames(events, kind)]


def names(bodies: Iterable[dict[str, Any]]) -> list[str]:
    """Return the frames' names, as the document lists them.

    Adjacent RunContent frames give one name, and an empty frame has the document's mark behind its
    name.
    """
    shown: list[str] = []
    for body in bodies:
        name = body["event"]
        if name == "RunContent" and body.get("content") == "":
            name += "(empty+citations)" if "citations" in body else "(empty)"
        if not shown or shown[-1] != name or name != "RunContent":
            shown.append(name)
    return shown


def of(bodies: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [body for body in bodies if body["event"] == name]


# --- the document's sequences


SAID = ("llm.stream", {"message_id": "m", "content": "Hello"})
MORE = ("llm.stream", {"message_id": "m", "content": " there"})
MESSAGE = (
    "llm.message_completed",
    {"message_id": "m", "role": "assistant", "content": "Hello there"},
)
DONE_WELL = ("lifecycle.completed", {"summary": "Hello there"})
NAMED = {"tool": "create_document", "tool_call_id": "t1"}
CALL = ("llm.tool_call", {**NAMED, "args": {"title": "Spike Test"}})
HELD = ("llm.tool_call", {**NAMED, "args": {"title": "Spike Test"}, "pending": True})
RUNS = ("llm.tool_progress", {"tool_call_id": "t1", "status": "running"})
RESULT = ("llm.tool_result", {**NAMED, "result": {"ok": True, "n": None}, "outcome": "ok"})
REFUSED = (
    "llm.tool_result",
    {**NAMED, "result": None, "outcome": "rejected", "error": "not now"},
)
ITEM = {
    "item_id": "i1",
    "kind": "confirmation",
    "digest": "d",
    "tool_call_id": "t1",
    "tool": "create_document",
    "args": {"title": "Spike Test"},
    "editable": True,
}
ANSWERED = [SAID, MORE, MESSAGE, DONE_WELL]
TEXT_TO_END = ["RunContent", "RunContent(empty+citations)", "RunContentCompleted", "RunCompleted"]

Said = tuple[str, dict[str, Any]]


def request(*items: dict[str, Any]) -> Said:
    data = {"approval_id": "a", "digest": "d", "deciders_required": 1, "items": list(items)}
    return "approval.requested", data


PAUSED: Said = ("lifecycle.paused", {"reason": "approval_required", "approval_id": "a"})
RESUMED: Said = ("lifecycle.resumed", {"approval_id": "a"})


def decided(decision: str) -> Said:
    items = [{"item_id": "i1", "decision": decision, "note": None}]
    data = {"approval_id": "a", "outcome": decision, "by": "u", "automatic": False, "items": items}
    return "approval.decided", data


def test_the_sequence_of_a_simple_text() -> None:
    assert names(encoded(run(*ANSWERED))) == ["RunStarted", *TEXT_TO_END]


def test_the_sequence_of_a_tool_that_runs_by_itself() -> None:
    assert names(encoded(run(CALL, RESULT, *ANSWERED))) == [
        "RunStarted",
        "RunContent(empty)",
        "ToolCallStarted",
        "ToolCallCompleted",
        *TEXT_TO_END,
    ]


ASKED_FOR = ["RunStarted", "RunContent(empty)", "RunContentCompleted", "RunPaused"]


@pytest.mark.parametrize("call", [HELD, CALL], ids=["announced as pending", "not announced so"])
def test_the_sequence_of_a_confirmation_that_is_approved(call: Said) -> None:
    said = [call, request(ITEM), PAUSED, decided("approve"), RESUMED, RUNS, RESULT, *ANSWERED]
    assert names(encoded(run(*said))) == [
        *ASKED_FOR,
        "RunContinued",
        "ToolCallStarted",
        "ToolCallCompleted",
        *TEXT_TO_END,
    ]


@pytest.mark.parametrize("call", [HELD, CALL], ids=["announced as pending", "not announced so"])
def test_the_sequence_of_a_confirmation_that_is_refused(call: Said) -> None:
    said = [call, request(ITEM), PAUSED, decided("reject"), RESUMED, REFUSED, *ANSWERED]
    assert names(encoded(run(*said))) == [*ASKED_FOR, "RunContinued", *TEXT_TO_END]


def test_what_a_policy_approves_reads_like_a_tool_that_runs_by_itself() -> None:
    said = [HELD, request(ITEM), decided("approve"), RUNS, RESULT, *ANSWERED]
    assert names(encoded(run(*said))) == names(encoded(run(CALL, RESULT, *ANSWERED)))


def test_an_error_ends_what_is_emitted_and_comes_last() -> None:
    error = ("lifecycle.failed", {"error": "no", "code": "upstream_error", "error_type": "E"})
    bodies = encoded(run(SAID, error))
    assert names(bodies)[-3:] == [
        "RunContent(empty+citations)",
        "RunContentCompleted",
        "RunError",
    ]
    assert (bodies[-1]["content"], bodies[-1]["error_type"]) == ("no", "E")


def test_a_call_that_was_still_running_is_shown_before_the_run_is_cancelled() -> None:
    stopped = ("lifecycle.cancelled", {"reason": "user_stop", "confirmed": True})
    assert names(encoded(run(CALL, stopped)))[-2:] == ["ToolCallStarted", "RunCancelled"]


def test_a_cancel_that_the_agent_server_did_not_confirm_says_so() -> None:
    stopped = ("lifecycle.cancelled", {"reason": "user_stop", "confirmed": False})
    assert "did not confirm" in encoded(run(stopped))[-1]["reason"]


# --- the document's payloads


def test_the_first_frame_says_which_run_it_is() -> None:
    encoder = AgnoEncoder("agent", "Mindrian Agent", "claude-sonnet-4-5", "Anthropic")
    [frame] = encoder.feed(run()[0])
    assert frame.event == "RunStarted"
    assert orjson.loads(frame.data) == {
        "event": "RunStarted",
        "agent_id": "writer",
        "agent_name": "Mindrian Agent",
        "model": "claude-sonnet-4-5",
        "model_provider": "Anthropic",
        "run_id": RUN_ID,
        "session_id": "s-1",
        "created_at": 1767323041,
    }


def test_the_last_chunk_has_the_citations() -> None:
    cited = {"raw": [], "urls": [{"url": "https://example.com"}], "documents": []}
    message = ("llm.message_completed", {**MESSAGE[1], "citations": cited})
    bodies = encoded(run(SAID, message, DONE_WELL))
    last = of(bodies, "RunContent")[-1]
    assert (last["content"], last["content_type"], last["citations"]) == ("", "str", cited)
    assert of(bodies, "RunCompleted")[0]["citations"] == cited
    assert (last["reasoning_content"], last["workflow_agent"]) == ("", False)


def test_a_tool_is_shown_with_its_result_as_a_python_literal() -> None:
    bodies = encoded(run(CALL, RESULT, DONE_WELL))
    [started], [done] = of(bodies, "ToolCallStarted"), of(bodies, "ToolCallCompleted")
    assert started["tool"]["tool_args"] == {"title": "Spike Test"}
    assert started["tool"]["result"] is None
    assert done["tool"]["result"] == "{'ok': True, 'n': None}"
    assert done["tool"]["tool_call_error"] is False
    assert done["content"] == "create_document(title=Spike Test) completed in 1.0000s. "


def test_a_tools_time_is_measured_from_when_it_began() -> None:
    said = [HELD, request(ITEM), PAUSED, decided("approve"), RESUMED]
    told = of(encoded(run(*said, RUNS, RESULT)), "ToolCallCompleted")
    assert [each["tool"]["metrics"] for each in told] == [{"duration": 1.0}]
    untold = of(encoded(run(*said, RESULT)), "ToolCallCompleted")
    assert [each["tool"]["metrics"] for each in untold] == [None]
    exact = ("llm.tool_result", {**RESULT[1], "duration_s": 0.25})
    known = of(encoded(run(CALL, exact)), "ToolCallCompleted")
    assert known[0]["tool"]["metrics"] == {"duration": 0.25}


def test_a_failed_tool_has_the_error_as_its_result() -> None:
    failed = ("llm.tool_result", {**NAMED, "result": "x", "outcome": "error", "error": "boom"})
    [done] = of(encoded(run(CALL, failed)), "ToolCallCompleted")
    assert (done["tool"]["result"], done["tool"]["tool_call_error"]) == ("boom", True)


def test_a_pause_has_the_tools_and_their_requirements() -> None:
    *_, paused = encoded(run(HELD, request(ITEM), PAUSED))
    assert paused["content"] == "I have tools to execute, but I need confirmation."
    assert paused["run_id"] == RUN_ID
    [waiting], [requirement] = paused["tools"], paused["requirements"]
    assert (waiting["tool_call_id"], waiting["tool_name"]) == ("t1", "create_document")
    assert waiting["requires_confirmation"] is True
    assert waiting["confirmed"] is None
    assert waiting["approval_id"] == "a"
    assert requirement["id"] == "i1"
    assert requirement["tool_execution"] == waiting


@pytest.mark.parametrize(
    ("item", "needs", "words"),
    [
        (
            {
                "kind": "input",
                "input_schema": {
                    "type": "object",
                    "properties": {
                        "to": {"type": "string", "description": "who"},
                        "n": {"type": "integer", "default": 3},
                    },
                },
            },
            {
                "requires_user_input": True,
                "user_input_schema": [
                    {"name": "to", "field_type": "str", "description": "who", "value": None},
                    {"name": "n", "field_type": "int", "description": None, "value": 3},
                ],
            },
            "I have tools to execute, but I need user input.",
        ),
        (
            {"kind": "external"},
            {"external_execution_required": True},
            "I have tools to execute, but it needs external execution.",
        ),
        (
            {"kind": "feedback", "options": [{"question": "Which city?", "options": []}]},
            {
                "requires_user_input": True,
                "user_feedback_schema": [{"question": "Which city?", "options": []}],
            },
            "I have tools to execute, but I need user input.",
        ),
    ],
    ids=["input", "external", "feedback"],
)
def test_each_kind_of_pause_is_marked_as_agno_marks_it(
    item: dict[str, Any], needs: dict[str, Any], words: str
) -> None:
    *_, paused = encoded(run(HELD, request({**ITEM, **item}), PAUSED))
    [waiting] = paused["tools"]
    assert {key: waiting[key] for key in needs} == needs
    assert waiting["requires_confirmation"] is None
    assert paused["content"] == words


def test_what_is_asked_without_a_tool_is_answered_under_the_items_id() -> None:
    item = {"item_id": "i1", "kind": "input", "digest": "d", "input_schema": {"type": "string"}}
    *_, paused = encoded(run(request(item), PAUSED))
    [waiting] = paused["tools"]
    assert (waiting["tool_call_id"], waiting["tool_name"]) == ("i1", "get_user_input")
    assert [field["name"] for field in waiting["user_input_schema"]] == ["value"]


GATE = {"item_id": "gate", "digest": "d", "editable": False, "description": "Go on?"}


@pytest.mark.parametrize(
    ("item", "needs"),
    [
        ({"kind": "confirmation"}, {"requires_confirmation": True, "confirmed": None}),
        ({"kind": "review"}, {"requires_output_review": True, "confirmed": None}),
        (
            {"kind": "selection", "options": ["a", "b"]},
            {"requires_route_selection": True, "available_choices": ["a", "b"]},
        ),
        ({"kind": "input", "input_schema": {"type": "integer"}}, {"requires_user_input": True}),
    ],
    ids=["confirmation", "review", "selection", "input"],
)
def test_a_workflows_gate_is_marked_as_agno_marks_it(
    item: dict[str, Any], needs: dict[str, Any]
) -> None:
    *_, paused = encoded(run(request({**GATE, **item}), PAUSED), "workflow")
    assert (paused["event"], paused["status"]) == ("WorkflowPaused", "PAUSED")
    [step] = paused["step_requirements"]
    assert (step["step_id"], step["step_name"]) == ("gate", "Go on?")
    assert {key: step[key] for key in needs} == needs


def test_a_choice_outside_a_workflow_is_a_question_with_options() -> None:
    item = {**GATE, "kind": "selection", "options": ["a", 2]}
    *_, paused = encoded(run(request(item), PAUSED))
    [question] = paused["tools"][0]["user_feedback_schema"]
    assert question["question"] == "Go on?"
    assert question["options"] == [{"label": "a"}, {"label": "2"}]


def test_a_members_pause_is_its_teams_requirement() -> None:
    member = {**ITEM, "subrun": {"id": "m1", "name": "Researcher"}}
    *_, paused = encoded(run(HELD, request(member), PAUSED), "team")
    assert paused["event"] == "TeamRunPaused"
    assert paused["tools"] == []
    [requirement] = paused["requirements"]
    assert requirement["member_run_id"] == "m1"
    assert requirement["member_agent_name"] == "Researcher"


STEP = {"run_id": "w", "step_id": "s1"}
STEPS: list[Said] = [
    ("workflow.step_started", {**STEP, "description": "scan", "kind": "step"}),
    ("workflow.step_progress", {"step_id": "s1", "message": "half"}),
    ("workflow.step_failed", {**STEP, "error": {"code": "c", "message": "no disk"}}),
]


def test_steps_are_a_workflows_alone() -> None:
    _, started, progressed, failed = encoded(run(*STEPS), "workflow")
    assert (started["event"], started["step_name"]) == ("StepStarted", "scan")
    assert (progressed["event"], progressed["content"]) == ("StepProgress", "half")
    assert (failed["event"], failed["error"]) == ("StepError", "no disk")
    assert names(encoded(run(*STEPS))) == ["RunStarted"]


def test_runs_inside_the_run_say_whose_they_are() -> None:
    worker = {
        "agent_id": "r",
        "agent_type": "worker",
        "agent_name": "Researcher",
        "team_name": None,
    }
    inner = {"id": "m1", "name": "Researcher"}
    deeper = {**inner, "id": "m2", "parent_id": "m1"}
    said = [
        run()[0],
        event(*SAID, 2, source=worker, subrun=inner),
        event(*SAID, 3, source=worker, subrun=deeper),
        event(*SAID, 4, source=worker),
    ]
    _, member, below, other = encoded(said)
    assert (member["run_id"], member["parent_run_id"]) == ("m1", RUN_ID)
    assert (below["run_id"], below["parent_run_id"]) == ("m2", "m1")
    assert (other["run_id"], other["agent_id"]) == (RUN_ID, "r")
    assert "parent_run_id" not in other
    step = event(*SAID, 2, source=worker, subrun=inner, step_id="s1")
    *_, within = encoded([*run(STEPS[0]), step], "workflow")
    assert (within["workflow_run_id"], within["step_name"]) == (RUN_ID, "scan")


@pytest.mark.parametrize(
    ("status", "name"),
    [("completed", "RunCompleted"), ("failed", "RunError"), ("cancelled", "RunCancelled")],
)
def test_an_inner_run_ends_as_it_ended(status: str, name: str) -> None:
    started: Said = ("dispatch.worker", {"worker_name": "R", "task": "t", "subrun_id": "m1"})
    ended: Said = ("dispatch.finished", {"subrun_id": "m1", "status": status, "error": "x"})
    bodies = encoded(run(started, ended), "team")
    assert names(bodies) == ["TeamRunStarted", "RunStarted", name]
    assert {body["run_id"] for body in bodies[1:]} == {"m1"}


def test_citations_of_another_framework_are_urls() -> None:
    cited = {"citations": [{"uri": "https://example.com", "title": "E"}]}
    message = ("llm.message_completed", {**MESSAGE[1], "citations": cited})
    *_, completed = encoded(run(message, DONE_WELL))
    urls = [{"url": "https://example.com", "title": "E"}]
    assert completed["citations"] == {"documents": [], "raw": [], "urls": urls}


def test_thoughts_are_content_of_their_own_and_stand_at_the_end() -> None:
    thinks = ("llm.reasoning", {"reasoning_id": "r", "thought": "hm"})
    over = ("llm.reasoning", {"reasoning_id": "r", "thought": "", "final": True})
    bodies = encoded(run(thinks, over, *ANSWERED))
    assert bodies[1]["reasoning_content"] == "hm"
    assert "content" not in bodies[1]
    assert bodies[-1]["reasoning_content"] == "hm"


def test_a_completed_run_has_its_figures() -> None:
    usage = {"input_tokens": 2798, "output_tokens": 31, "total_tokens": 2829}
    metrics = {"time_to_first_token": 0.0044, "provider_metrics": {"service_tier": "standard"}}
    done = ("lifecycle.completed", {"summary": "Hello", "usage": usage, "metrics": metrics})
    state = ("state.delta", {"delta": [{"op": "add", "path": "/a", "value": 1}]})
    *_, completed = encoded(run(SAID, state, done))
    assert completed["content"] == "Hello"
    assert completed["session_state"] == {"a": 1}
    assert completed["metrics"] == {**usage, "duration": 3.0, **metrics}


# --- every recording


@each_run
def test_a_recorded_run_is_of_the_document_in_every_frame(recorded_run: Recorded) -> None:
    for frame in frames(recorded_run.events, recorded_run.kind):
        body = orjson.loads(frame.data)
        assert frame.event == body["event"]
        assert b"\n" not in frame.data
        name = body["event"].removeprefix("Team")
        if name in SCHEMAS:
            SCHEMAS[name].validate(body)
        else:
            assert name.startswith(("Step", "Loop", "Parallel", "Condition", "Router"))
        if body["run_id"] == RUN_ID and name == "RunCompleted":
            WHOLE.validate(body)


def test_a_workflows_metrics_have_a_place_for_its_steps() -> None:
    """Agno's own client fails on a WorkflowCompleted without `steps`."""
    *_, completed = encoded(recorded("agno/3.1.10/wf_simple").events, "workflow")
    assert completed["event"] == "WorkflowCompleted"
    assert isinstance(completed["metrics"]["steps"], dict)


@each_run
def test_a_recorded_run_has_one_start_and_one_end(recorded_run: Recorded) -> None:
    bodies = [b for b in encoded(recorded_run.events, recorded_run.kind) if b["run_id"] == RUN_ID]
    ends = ("Completed", "Error", "Cancelled")
    prefix = {"agent": "Run", "team": "TeamRun", "workflow": "Workflow"}[recorded_run.kind]
    named = [body["event"] for body in bodies]
    assert named[0] == f"{prefix}Started"
    last = [at for at, name in enumerate(named) if name in {f"{prefix}{end}" for end in ends}]
    ended = recorded_run.types[-1] in TERMINAL
    assert last == ([len(named) - 1] if ended else [])
    if not ended:
        assert named[-1] == f"{prefix}Paused"


@each_run
def test_a_tool_is_shown_once_and_a_refused_one_never(recorded_run: Recorded) -> None:
    bodies = encoded(recorded_run.events, recorded_run.kind)
    shown: dict[str, list[str]] = {"Started": [], "Completed": []}
    for body in bodies:
        name = body["event"].removeprefix("Team")
        if name in ("ToolCallStarted", "ToolCallCompleted"):
            shown[name.removeprefix("ToolCall")].append(body["tool"]["tool_call_id"])
    assert len(set(shown["Started"])) == len(shown["Started"])
    assert len(set(shown["Completed"])) == len(shown["Completed"])
    assert set(shown["Completed"]) <= set(shown["Started"])
    for data in recorded_run.data("llm.tool_result"):
        call_id, refused = data["tool_call_id"], data["outcome"] in ("rejected", "expired")
        silent = call_id in answered_by_their_decision(recorded_run)
        assert (call_id in shown["Completed"]) is not (refused or silent)


@each_run
def test_a_reconnecting_client_gets_exactly_the_rest(recorded_run: Recorded) -> None:
    whole = frames(recorded_run.events, recorded_run.kind)
    for cut in range(len(recorded_run.events) + 1):
        before = frames(recorded_run.events[:cut], recorded_run.kind)
        assert whole[: len(before)] == before


@each_run
def test_our_own_decoder_reads_it_as_the_same_run(recorded_run: Recorded) -> None:
    drafts = decode(recorded_run)
    said = [(draft.type, draft.data, draft.subrun) for draft in drafts]
    canonical = [(type_of(each), each["data"], each.get("subrun")) for each in recorded_run.events]
    answer = "".join(data["summary"] for data in recorded_run.data("lifecycle.completed"))
    expected = texts(canonical)
    if recorded_run.kind != "workflow" and answer:
        expected.setdefault("", answer)
    assert texts(said) == expected
    never_shown = not_shown(recorded_run)
    assert outcomes(said, never_shown) == outcomes(canonical, never_shown)
    ends = [(type, data.get("summary")) for type, data, _ in said if type in TERMINAL]
    assert ends == [(type, data.get("summary")) for type, data, _ in canonical if type in TERMINAL]


@pytest.mark.parametrize("name", SHOWN)
def test_a_recorded_run_gives_its_golden_frames(name: str) -> None:
    shown = recorded(name)
    lines = [frame.data.decode() for frame in frames(shown.events, shown.kind)]
    check(GOLDEN / f"{name.replace('/', '_')}.jsonl", lines)


Told = tuple[str, dict[str, Any], Any]


def texts(told: Iterable[Told]) -> dict[str, str]:
    """Return each run's texts in their order, by the inner run's id."""
    said: dict[str, str] = {}
    streamed: set[str] = set()
    for type, data, subrun in told:
        key = subrun["id"] if subrun else ""
        if type == "llm.stream":
            streamed.add(data["message_id"])
            said[key] = said.get(key, "") + data["content"]
        elif type == "llm.message_completed" and data["message_id"] not in streamed:
            said[key] = said.get(key, "") + data["content"]
    return {key: text for key, text in said.items() if text}


def outcomes(told: Iterable[Told], left_out: set[str]) -> dict[str, bool | None]:
    """Return whether each call succeeded, by its id; None for a call without a result."""
    found: dict[str, bool | None] = {}
    for type, data, _ in told:
        call_id = str(data.get("tool_call_id"))
        if type == "llm.tool_call" and call_id not in left_out:
            assert call_id not in found
            found[call_id] = None
        elif type == "llm.tool_result" and call_id not in left_out:
            found[call_id] = data["outcome"] == "ok"
    return found


def items(recorded_run: Recorded) -> list[dict[str, Any]]:
    requests = recorded_run.data("approval.requested")
    return [item for request in requests for item in request["items"]]


def answered_by_their_decision(recorded_run: Recorded) -> set[str]:
    """Return the calls for which Agno sends no result: the client's answer is their result."""
    silent = {"get_user_input", "ask_user"}
    return {
        item["tool_call_id"]
        for item in items(recorded_run)
        if item["kind"] in ("external", "feedback") or item.get("tool") in silent
    }


def not_shown(recorded_run: Recorded) -> set[str]:
    """Return the calls that Agno's frames cannot show in the same way.

    These are calls that ended undecided without a pause, and requests without a call, for which the
    encoder makes a call.
    """
    paused = {item.get("tool_call_id") for item in items(recorded_run)}
    ended = recorded_run.data("llm.tool_result")
    undecided = {
        data["tool_call_id"] for data in ended if data["outcome"] in ("rejected", "expired")
    }
    return (undecided - paused) | {
        item["item_id"] for item in items(recorded_run) if not item.get("tool_call_id")
    }


def decode(recorded_run: Recorded) -> list[Draft]:
    """Encode the run in Agno's protocol and decode it again, each leg as a response of its own."""
    decoder = AgnoDecoder(AgentFacts(id="assistant", kind=recorded_run.kind))
    encoder = AgnoEncoder(recorded_run.kind)
    known_as = {
        item["item_id"]: item.get("tool_call_id") or item["item_id"] for item in items(recorded_run)
    }
    drafts: list[Draft | Pause] = []
    for leg in range(1, recorded_run.events[-1]["leg"] + 1):
        drafts += decoder.open(leg)
        if leg > 1:
            made = recorded_run.decisions.get(leg, {})
            drafts += decoder.decided({known_as.get(key, key): made[key] for key in made})
        wire = b"".join(
            encode(frame.data, event=frame.event)
            for each in recorded_run.events
            if each["leg"] == leg
            for frame in encoder.feed(each)
        )
        drafts += [draft for frame in Parser().feed(wire) for draft in decoder.feed(frame)]
        drafts += decoder.end()
    return [draft for draft in drafts if isinstance(draft, Draft)]


def test_every_type_that_it_names_is_a_canonical_one() -> None:
    assert _HANDLERS.keys() | OMITTED.keys() == CATALOGUE.keys()
    assert _INSTEAD.keys() <= OMITTED.keys()


@for_each("type", OMITTED)
def test_what_has_no_event_of_agno_makes_no_frame(type: str) -> None:
    assert encoded([event(type, {})]) == []


# --- the whole run as one object


@each_run
def test_a_run_without_a_stream_is_one_object(recorded_run: Recorded) -> None:
    output = run_output(recorded_run.events, AgnoEncoder(recorded_run.kind))
    assert output["run_id"] == RUN_ID
    assert output["session_id"] == "s-1"
    assert output["user_id"] == "u-1"
    status = {
        "lifecycle.completed": "COMPLETED",
        "lifecycle.failed": "ERROR",
        "lifecycle.cancelled": "CANCELLED",
        "lifecycle.paused": "PAUSED",
    }[recorded_run.types[-1]]
    assert output["status"] == status
    for data in recorded_run.data("lifecycle.completed"):
        assert output["content"] in (data["summary"], data.get("value"))
    for data in recorded_run.data("lifecycle.failed"):
        assert output["content"] == data["error"]


def test_a_paused_run_without_a_stream_has_what_it_waits_for() -> None:
    output = run_output(run(HELD, request(ITEM), PAUSED))
    assert output["status"] == "PAUSED"
    assert [tool["tool_call_id"] for tool in output["tools"]] == ["t1"]
    assert output["requirements"][0]["id"] == "i1"


def test_a_run_that_continues_without_a_stream_says_so() -> None:
    output = run_output(run(SAID))
    assert (output["status"], output["content"]) == ("RUNNING", "Hello")


def test_a_completed_run_without_a_stream_has_its_tools_with_their_results() -> None:
    output = run_output(run(CALL, RESULT, *ANSWERED))
    assert [tool["result"] for tool in output["tools"]] == ["{'ok': True, 'n': None}"]
    assert output["content"] == "Hello there"


def test_a_run_without_a_stream_has_its_input_and_its_messages() -> None:
    events = run(CALL, RESULT, *ANSWERED)
    events[0]["data"]["message"] = "Hi"
    output = run_output(events)
    assert output["input"] == {"input_content": "Hi"}
    told = [(each["role"], each["content"]) for each in output["messages"]]
    assert told == [
        ("user", "Hi"),
        ("assistant", ""),
        ("tool", "{'ok': True, 'n': None}"),
        ("assistant", "Hello there"),
    ]
    [call] = output["messages"][1]["tool_calls"]
    assert call["id"] == output["messages"][2]["tool_call_id"] == output["tools"][0]["tool_call_id"]
    assert output["messages"][2]["tool_call_error"] is False
    assert all(isinstance(each["created_at"], int) for each in output["messages"])


def test_a_workflow_without_a_stream_has_its_input_as_it_was_emitted_and_no_messages() -> None:
    events = run(*ANSWERED)
    events[0]["data"]["message"] = "Hi"
    output = run_output(events, AgnoEncoder("workflow"))
    assert output["input"] == "Hi"
    assert "messages" not in output
