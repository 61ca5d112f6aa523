"""ADK's recorded streams, 1.16 and 2.13, give the drafts of their golden files.

A person reads a golden file before it is committed. The tests name what each file must show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.dialects.adk.decode import AdkDecoder
from penstock.dialects.base import AgentFacts, Draft
from penstock.events import CATALOGUE, TERMINAL, typed_data
from support.drive.for_each import for_each
from support.recorded.goldens import Decisions, Scenario, check, render, replay, stream

GOLDEN = Path(__file__).parents[3] / "golden" / "adk"

# Runs of two legs: the stream that requested an approval, and the stream after the decision.
PAIRS = {
    "1.16.0/confirm_stream": ("1_request", "2_answer"),
    "2.13.0/ask": ("1_request", "2_answer"),
    "2.13.0/bigconfirm": ("1_request", "2_answer_both"),
    "2.13.0/confirm": ("1_request", "2_answer"),
    "2.13.0/confirm_reject_stream": ("1_request", "2_answer"),
    "2.13.0/confirm_stream": ("1_request", "2_answer"),
    "2.13.0/dynconfirm_stream": ("1_request", "2_answer"),
    "2.13.0/resumable_confirm_stream": ("1_request", "2_answer"),
    "2.13.0/seqconfirm_r": ("1_request", "2_answer"),
    "2.13.0/teamconfirm": ("1_request", "2_answer"),
    "2.13.0/wfhitl": ("1_request", "2_answer"),
}
ANSWERED_TWICE = Path("2.13.0/confirm_stream_3_answer_again.sse")


def agent() -> AdkDecoder:
    return AdkDecoder(AgentFacts(id="assistant"))


def decisions(request: Path) -> Decisions:
    """Return what the recorded answer decided, by item id."""
    message = json.loads(request.read_text("utf-8"))["newMessage"]
    return dict(_decision(part["functionResponse"]) for part in message["parts"])


def _decision(answer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    response = answer["response"]
    is_input = "confirmed" not in response
    decided = {
        "decision": "approve" if is_input or response["confirmed"] else "reject",
        "note": None,
        "value": response if is_input else response.get("payload"),
    }
    return answer["id"], decided


def of_two_legs(name: str, first: Path, second: Path) -> Scenario:
    return Scenario(name, [first, second], [decisions(second.with_suffix(".req.json"))])


def scenarios() -> list[Scenario]:
    """Return every recorded stream, each in one scenario."""
    found = [
        of_two_legs(name, GOLDEN / f"{name}_{ask}.sse", GOLDEN / f"{name}_{answer}.sse")
        for name, (ask, answer) in PAIRS.items()
    ]
    again = GOLDEN / ANSWERED_TWICE
    asked = again.with_name("confirm_stream_1_request.sse")
    found.append(of_two_legs("2.13.0/confirm_stream_again", asked, again))
    told = {path for scenario in found for path in scenario.legs}
    alone = sorted(path for path in GOLDEN.glob("*/*.sse") if path not in told)
    return found + [Scenario(f"{path.parent.name}/{path.stem}", [path]) for path in alone]


SCENARIOS = {scenario.name: scenario for scenario in scenarios()}
each_scenario = for_each("scenario", SCENARIOS.values(), list(SCENARIOS))


def drafts(name: str) -> list[dict[str, Any]]:
    """Return the drafts of a recorded run in the form of the golden lines."""
    return [json.loads(line) for line in replay(agent, SCENARIOS[name])]


def data_of(name: str, event_type: str) -> list[dict[str, Any]]:
    return [draft["data"] for draft in drafts(name) if draft.get("type") == event_type]


@each_scenario
def test_a_recorded_run_gives_its_golden_drafts(scenario: Scenario) -> None:
    check(GOLDEN / f"{scenario.name}.golden.jsonl", replay(agent, scenario))


@each_scenario
def test_the_chunking_changes_nothing(scenario: Scenario) -> None:
    whole = replay(agent, scenario)
    for chunk_bytes in (1, 7, 100):
        assert replay(agent, scenario, chunk_bytes=chunk_bytes) == whole


@each_scenario
def test_a_restart_between_legs_changes_nothing(scenario: Scenario) -> None:
    assert replay(agent, scenario, restart=True) == replay(agent, scenario)


@each_scenario
def test_every_draft_is_of_the_contract(scenario: Scenario) -> None:
    for line in replay(agent, scenario):
        draft = json.loads(line)
        if "type" in draft:
            assert draft["type"] in CATALOGUE
            typed_data(draft["type"], draft["data"])


@each_scenario
def test_a_run_ends_once_and_last(scenario: Scenario) -> None:
    types = [json.loads(line).get("type") for line in replay(agent, scenario)]
    ends = [index for index, name in enumerate(types) if name in TERMINAL]
    if types[-1] is None:  # the run ends in a pause
        assert not ends
    else:
        assert ends == [len(types) - 1]


@each_scenario
def test_the_stream_of_a_message_is_its_text_and_it_is_closed(scenario: Scenario) -> None:
    said: dict[str, str] = {}
    opened: set[str] = set()
    for line in replay(agent, scenario):
        draft = json.loads(line)
        data = draft.get("data", {})
        match draft.get("type"):
            case "llm.message_started":
                assert data["message_id"] not in said
                said[data["message_id"]] = ""
                opened.add(data["message_id"])
            case "llm.stream":
                assert data["message_id"] in opened
                said[data["message_id"]] += data["content"]
            case "llm.message_completed":
                opened.remove(data["message_id"])
                assert said[data["message_id"]] == data["content"]
    assert not opened


@each_scenario
def test_a_call_is_announced_once_and_answered_once_at_most(scenario: Scenario) -> None:
    answered: set[str] = set()
    announced: set[str] = set()
    for line in replay(agent, scenario):
        draft = json.loads(line)
        data = draft.get("data", {})
        if draft.get("type") == "llm.tool_call":
            assert data["tool_call_id"] not in announced
            assert not data["tool"].startswith("adk_request_")
            announced.add(data["tool_call_id"])
        if draft.get("type") == "llm.tool_result":
            assert data["tool_call_id"] in announced - answered
            answered.add(data["tool_call_id"])


@each_scenario
def test_no_secret_gets_into_a_draft(scenario: Scenario) -> None:
    assert "not-a-real-secret" not in "".join(replay(agent, scenario))


def test_the_secret_is_in_the_recording() -> None:
    assert "not-a-real-secret" in (GOLDEN / "1.16.0/needauth_stream.sse").read_text("utf-8")


def test_a_cut_stream_gives_the_same_drafts_up_to_the_cut_and_closes_its_message() -> None:
    body = (GOLDEN / "2.13.0/plain_stream.sse").read_bytes()
    cut = body[: body.index(b"demo_agent.")]
    decoder = agent()
    decoder.open(1)
    lines = [render(draft) for draft in [*stream(decoder, cut), *decoder.abort()]]
    whole = replay(agent, SCENARIOS["2.13.0/plain_stream"])
    assert lines[:-2] == whole[: len(lines) - 2]
    used, closed = map(json.loads, lines[-2:])
    assert closed["type"] == "llm.message_completed"
    assert closed["data"]["content"] == "Hello from "
    assert used["type"] == "llm.usage"
    assert used["data"]["estimated"]


def test_nothing_follows_a_failure() -> None:
    decoder = agent()
    decoder.open(1)
    body = (GOLDEN / "2.13.0/explode_stream.sse").read_bytes()
    plain = (GOLDEN / "2.13.0/plain_stream.sse").read_bytes()
    types = [draft.type for draft in stream(decoder, body) if isinstance(draft, Draft)]
    assert types[-1] == "lifecycle.failed"
    assert [*stream(decoder, plain), *decoder.end(), *decoder.abort()] == []


def test_the_unescaped_error_of_1_16_is_one_failure_with_its_raw_text() -> None:
    [failed] = data_of("1.16.0/explode", "lifecycle.failed")
    assert failed["error"] == 'tool exploded: he said "no"'
    assert failed["detail"] == {"raw": '{"error": "tool exploded: he said "no"'}


def test_an_error_event_and_its_error_frame_are_one_failure() -> None:
    [failed] = data_of("2.13.0/midstream_stream", "lifecycle.failed")
    assert failed["code"] == "upstream_error"
    assert failed["error_type"] == "Boom"
    assert failed["error"].startswith("Boom: model backend died")
    assert not data_of("2.13.0/midstream_stream", "system.warning")


def test_what_was_emitted_before_an_error_is_closed_before_it() -> None:
    types = [draft["type"] for draft in drafts("2.13.0/midstream_stream")]
    assert types[-3:] == ["llm.usage", "llm.message_completed", "lifecycle.failed"]


def test_a_model_that_stopped_early_is_a_warning_and_the_run_completes() -> None:
    for name, code in (("maxtokens_stream", "max_tokens"), ("errorcode_stream", "safety")):
        [warning] = data_of(f"2.13.0/{name}", "system.warning")
        assert warning["code"] == code
        assert drafts(f"2.13.0/{name}")[-1]["type"] == "lifecycle.completed"


def test_the_interim_response_of_a_confirmation_is_no_result() -> None:
    for name in ("1.16.0/confirm_stream", "2.13.0/confirm_stream", "2.13.0/dynconfirm_stream"):
        [result] = data_of(name, "llm.tool_result")
        assert result["outcome"] == "ok"


def test_a_refused_call_gets_a_result_with_outcome_rejected() -> None:
    [result] = data_of("2.13.0/confirm_reject_stream", "llm.tool_result")
    assert result["outcome"] == "rejected"
    outcomes = [data["outcome"] for data in data_of("2.13.0/bigconfirm", "llm.tool_result")]
    assert outcomes == ["ok", "rejected"]


def test_a_sample_payload_becomes_a_schema_with_defaults() -> None:
    [pause] = [draft["pause"] for draft in drafts("2.13.0/dynconfirm_stream") if "pause" in draft]
    assert pause["items"][0]["description"] == "Approve wiring 2500 to ACME?"
    assert pause["items"][0]["input_schema"] == {
        "type": "object",
        "default": {"approved_amount": 0},
        "properties": {"approved_amount": {"type": "number", "default": 0}},
    }


def test_a_long_running_tool_progresses_and_the_run_completes() -> None:
    [progress] = data_of("2.13.0/longrun_stream", "llm.tool_progress")
    assert progress["status"] == "pending"
    assert json.loads(progress["delta"])["ticket"] == "exp-001"
    assert not data_of("2.13.0/longrun_stream", "llm.tool_result")
    assert drafts("2.13.0/longrun_stream")[-1]["type"] == "lifecycle.completed"


def test_an_answer_that_the_server_had_before_has_an_unknown_outcome() -> None:
    [failed] = data_of("2.13.0/confirm_stream_again", "lifecycle.failed")
    assert failed["code"] == "outcome_unknown"


def test_state_that_the_last_partial_and_the_final_both_have_changes_once() -> None:
    [delta] = data_of("2.13.0/plain_stream", "state.delta")
    assert delta["delta"] == [
        {"op": "add", "path": "/last_answer", "value": "Hello from demo_agent."}
    ]


def test_a_transfer_is_recognized_by_its_action_alone() -> None:
    assert data_of("2.13.0/transfer_stream", "dispatch.transfer") == [
        {"to": "billing_agent", "from": "coordinator"}
    ]
    assert not data_of("2.13.0/transfer_stream", "llm.tool_call")
    assert not data_of("2.13.0/transfer_stream", "llm.tool_result")


def test_the_root_is_an_agent_and_those_it_transfers_to_are_workers() -> None:
    types = {
        draft["source"]["agent_id"]: draft["source"]["agent_type"]
        for draft in drafts("2.13.0/transfer_stream")
    }
    assert types == {"coordinator": "agent", "billing_agent": "worker"}


def test_binary_data_is_standard_base64() -> None:
    [message] = data_of("2.13.0/image_stream", "llm.message_completed")
    assert message["parts"] == [
        {"type": "data", "media_type": "image/png", "data": "iVBORw0KGgr//gA="}
    ]


def test_streamed_arguments_precede_their_call() -> None:
    pieces = data_of("2.13.0/streamargs_stream", "llm.tool_args")
    assert [(piece["path"], piece["value"]) for piece in pieces] == [
        ("$.city", "Pa"),
        ("$.city", "ris"),
    ]
    [call] = data_of("2.13.0/streamargs_stream", "llm.tool_call")
    assert {piece["tool_call_id"] for piece in pieces} == {call["tool_call_id"]}
    assert call["args"] == {"city": "Paris"}


def test_thoughts_are_streamed_once_and_end_before_the_answer() -> None:
    thoughts = data_of("2.13.0/think_stream", "llm.reasoning")
    whole = "".join(thought["thought"] for thought in thoughts)
    assert whole == "First I consider the question. Then I decide."
    assert [thought.get("final") for thought in thoughts] == [None, None, True]


def test_branches_that_interleave_are_messages_of_their_own() -> None:
    messages = {
        draft["source"]["agent_id"]: draft["data"]["content"]
        for draft in drafts("2.13.0/par_stream")
        if draft["type"] == "llm.message_completed"
    }
    assert messages == {
        "branch_a": "tick 0 tick 1 tick 2 tick 3 ",
        "branch_b": "tick 0 tick 1 tick 2 tick 3 ",
        "branch_c": "Hello from branch_c.",
    }


def test_children_of_a_loop_are_steps_and_their_turns_are_counted() -> None:
    steps = data_of("2.13.0/loop_stream", "workflow.step_started")
    assert [(step["step_id"], step.get("iteration")) for step in steps] == [
        ("writer", None),
        ("critic", None),
        ("writer#2", 2),
        ("critic#2", 2),
    ]


def test_a_person_is_not_shown_adks_own_hint_for_programs() -> None:
    for name in ("2.13.0/confirm_stream", "1.16.0/confirm_stream"):
        line = next(line for line in drafts(name) if "pause" in line)
        (item,) = line["pause"]["items"]
        assert "description" not in item
        assert item["tool"] == "delete_file"


def test_a_graph_gives_steps_a_transition_and_its_result() -> None:
    name = "2.13.0/wf_stream"
    steps = [step["description"] for step in data_of(name, "workflow.step_started")]
    assert steps == ["classify", "upper", "count", "join", "answer", "finish"]
    assert len(data_of(name, "workflow.step_completed")) == len(steps)
    moves = [
        (move["from_step"].rpartition("/")[2], move["to_step"].rpartition("/")[2], move["reason"])
        for move in data_of(name, "workflow.transition")
    ]
    # `upper` and `count` run in parallel, so the stream does not say which of them `count` and
    # `join` follow.
    assert moves == [
        ("classify@1", "upper@1", "ok"),
        ("join@1", "answer@1", "sequence"),
        ("answer@1", "finish@1", "sequence"),
    ]
    [completed] = data_of(name, "workflow.completed")
    assert completed["result"] == {"result": "Hello from answer."}
    [end] = data_of(name, "lifecycle.completed")
    assert end["value"] == completed["result"]
    assert end["summary"] == "Workflow finished."


def test_a_node_that_raises_is_a_failed_step_of_a_failed_run() -> None:
    [step] = data_of("2.13.0/wf_boom", "workflow.step_failed")
    assert step["step_id"] == "wf@1/fail@1"
    assert step["error"]["code"] == "RuntimeError"
    [failed] = data_of("2.13.0/wf_boom", "lifecycle.failed")
    assert failed["step"] == "wf@1/fail@1"


def test_tokens_are_counted_by_finals_over_all_legs() -> None:
    [end] = data_of("2.13.0/confirm", "lifecycle.completed")
    assert end["usage"] == {"input_tokens": 22, "output_tokens": 14, "total_tokens": 36}


def test_raw_line_separators_are_text() -> None:
    [message] = data_of("2.13.0/tricky_stream", "llm.message_completed")
    assert "LS\u2028" in message["content"]
    assert "data: not-a-frame\n\nid: 7" in message["content"]
