"""OpenAI's streams: the grammar of a response, its numbers, and the same content in a chat."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.openai import ChatEncoder, RequestId, ResponsesEncoder
from penstock.events import TERMINAL
from penstock.sse import Frame
from support.drive.for_each import for_each
from support.recorded import workflow_runs
from support.recorded.canonical import Recorded, event, recorded, recorded_runs, run, type_of
from support.recorded.goldens import check

GOLDEN = Path(__file__).parents[2] / "golden" / "encoded"
SHOWN = [
    "agno/3.1.10/auto_tool",
    "agno/3.1.10/confirm_reject_note",
    "agno/3.1.10/external_execution",
    "agno/3.1.10/team_delegate",
    "agno/3.1.10/wf_hitl",
    "agno/3.1.10/model_error_midstream",
    "agno/3.1.10/cancel_midrun",
    "adk/2.13.0/think_stream",
    "adk/2.13.0/streamargs_stream",
]
WORKFLOWS = {"code_review": workflow_runs.code_review(), "diagnosis": workflow_runs.diagnosis()}
each_run = for_each("recorded_run", recorded_runs(), lambda each: each.name)
Body = dict[str, Any]


def leg_of(
    events: Iterable[Body], leg: int, encoder: ResponsesEncoder | ChatEncoder
) -> list[Frame]:
    """Return the frames of a leg, up to its pause or the run's end, as the edge cuts them."""
    frames: list[Frame] = []
    for each in events:
        frames += encoder.feed(each)
        name = type_of(each)
        if name in TERMINAL or (name == "lifecycle.paused" and each["leg"] >= leg):
            break
    return frames


def legs(recorded_run: Recorded) -> range:
    return range(1, max(each["leg"] for each in recorded_run.events) + 1)


def bodies(frames: Iterable[Frame]) -> list[Body]:
    return [orjson.loads(frame.data) for frame in frames]


def response(events: list[Body], leg: int = 1) -> list[Body]:
    return bodies(leg_of(events, leg, ResponsesEncoder(f"resp_{leg}", leg)))


def built(stream: list[Body]) -> list[Body]:
    """Build the output as OpenAI's clients do, from the pieces alone."""
    output: list[Body] = []
    for each in stream:
        match each["type"].removeprefix("response."):
            case "output_item.added":
                assert each["output_index"] == len(output)
                output.append(each["item"])
            case "output_item.done":
                output[each["output_index"]] = each["item"]
            case "content_part.added":
                output[each["output_index"]]["content"].append(each["part"])
            case "reasoning_summary_part.added":
                output[each["output_index"]]["summary"].append(each["part"])
            case "output_text.delta":
                output[each["output_index"]]["content"][0]["text"] += each["delta"]
            case "reasoning_summary_text.delta":
                output[each["output_index"]]["summary"][0]["text"] += each["delta"]
    return output


@each_run
def test_a_response_is_numbered_begins_and_ends_once_and_is_built_from_its_pieces(
    recorded_run: Recorded,
) -> None:
    for leg in legs(recorded_run):
        stream = response(recorded_run.events, leg)
        assert [each["sequence_number"] for each in stream] == [*range(len(stream))]
        kinds = [each["type"].removeprefix("response.") for each in stream]
        assert kinds[:2] == ["created", "in_progress"]
        assert kinds[-1] in ("completed", "failed", "incomplete")
        assert sum(kind in ("completed", "failed", "incomplete") for kind in kinds) == 1
        final = stream[-1]["response"]
        assert built(stream) == final["output"]
        assert "in_progress" not in [item.get("status") for item in final["output"]]
        ids = [item["id"] for item in final["output"]]
        assert len({*ids}) == len(ids)


@each_run
def test_a_response_that_was_read_so_far_is_what_its_pieces_give(recorded_run: Recorded) -> None:
    encoder, stream = ResponsesEncoder("resp"), list[Frame]()
    for at, each in enumerate(recorded_run.events):
        stream += encoder.feed(each)
        if at % 7:
            continue
        so_far = encoder.response()["output"]
        shown = [{**item, "arguments": ""} for item in built(bodies(stream))]
        assert [{**item, "arguments": ""} for item in so_far] == shown


@each_run
def test_a_chat_says_what_the_response_says(recorded_run: Recorded) -> None:
    for leg in legs(recorded_run):
        final = response(recorded_run.events, leg)[-1]["response"]
        made = ChatEncoder("resp", leg)
        chunks = bodies(leg_of(recorded_run.events, leg, made))
        deltas = [each["choices"][0]["delta"] for each in chunks if each.get("choices")]
        said = "".join(delta.get("content") or "" for delta in deltas)
        texts = [
            item["content"][0]["text"] for item in final["output"] if item["type"] == "message"
        ]
        assert said.startswith("\n\n".join(texts))
        if final["status"] != "completed":
            assert chunks[-1]["error"]["code"] == final["status"]
            continue
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        whole = ChatEncoder("resp", leg, streaming=False)
        [completion] = bodies(leg_of(recorded_run.events, leg, whole))
        assert completion["choices"][0]["message"]["content"] == said
        ids = [item.get("call_id") or item["id"] for item in final["output"]]
        assert ("This waits for a decision" in said) is any(map(RequestId.parse, ids))


@pytest.mark.parametrize("name", SHOWN)
def test_a_run_gives_its_golden_frames(name: str) -> None:
    shown = recorded(name)
    stream = [each for leg in legs(shown) for each in response(shown.events, leg)]
    lines = [orjson.dumps(each).decode() for each in stream]
    check(GOLDEN / "openai" / f"{name.replace('/', '_')}.jsonl", lines)


@pytest.mark.parametrize("name", SHOWN[1::3])
def test_a_chat_gives_its_golden_chunks(name: str) -> None:
    shown = recorded(name)
    lines = [
        frame.data.decode()
        for leg in legs(shown)
        for frame in leg_of(shown.events, leg, ChatEncoder("resp", leg, include_usage=True))
    ]
    check(GOLDEN / "openai" / f"chat_{name.replace('/', '_')}.jsonl", lines)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflows_run_gives_its_golden_frames(name: str) -> None:
    lines = [orjson.dumps(each).decode() for each in response(WORKFLOWS[name])]
    check(GOLDEN / "openai" / f"workflow_{name}.jsonl", lines)


@given(st.sampled_from(recorded_runs()), st.data())
def test_the_rest_after_any_number_continues_what_was_read(each: Recorded, data: Any) -> None:
    leg = data.draw(st.sampled_from(legs(each)))
    whole = leg_of(each.events, leg, ResponsesEncoder("resp", leg))
    again = leg_of(each.events, leg, ResponsesEncoder("resp", leg))
    after = data.draw(st.integers(-1, len(whole)))
    read = [frame for frame in whole if int(frame.id or 0) <= after]
    assert read + [frame for frame in again if int(frame.id or 0) > after] == whole


def test_what_inner_agents_say_is_no_part_of_the_answer() -> None:
    inner = {"subrun": {"id": "s"}}
    said = [
        *run(("dispatch.worker", {"worker_name": "Ada", "task": "Look.", "subrun_id": "s"})),
        event("llm.stream", {"message_id": "m", "content": "Inner."}, 3, **inner),
        event("llm.message_completed", {"message_id": "m", "content": "Inner."}, 4, **inner),
        event("lifecycle.completed", {"summary": "Done."}, 5),
    ]
    output = response(said)[-1]["response"]["output"]
    texts = [(item.get("summary") or item["content"])[0]["text"] for item in output]
    assert [*zip([item["type"] for item in output], texts, strict=True)] == [
        ("reasoning", "Ada: Look."),
        ("reasoning", "Inner."),
        ("message", "Done."),
    ]


def test_a_call_that_a_policy_allows_is_no_request() -> None:
    call = {"tool": "t", "tool_call_id": "c", "args": {"a": 1}}
    item = {"item_id": "i", "kind": "confirmation", "digest": 64 * "a", **call}
    said = run(
        ("llm.tool_call", {**call, "pending": True}),
        ("approval.requested", {"approval_id": "p", "items": [item]}),
        ("approval.decided", {"approval_id": "p", "items": []}),
        ("llm.tool_result", {"tool": "t", "tool_call_id": "c", "result": None, "outcome": "ok"}),
        ("lifecycle.completed", {"summary": ""}),
    )
    [only] = response(said)[-1]["response"]["output"]
    assert (only["type"], only["status"], only["arguments"]) == ("mcp_call", "completed", '{"a":1}')
    assert only["approval_request_id"] == f"mcpr_p.{32 * 'a'}"


def test_a_pause_asks_only_for_what_is_open() -> None:
    def asked(name: str) -> tuple[str, Body]:
        item = {"item_id": "i", "kind": "confirmation", "digest": 64 * "a", "tool": name}
        return "approval.requested", {"approval_id": name, "items": [item]}

    decided = {"approval_id": "first", "items": [{"item_id": "i", "decision": "approve"}]}
    paused = ("lifecycle.paused", {"reason": "approval_required", "approval_id": "second"})
    said = run(asked("first"), ("approval.decided", decided), asked("second"), paused)
    [only] = response(said)[-1]["response"]["output"]
    assert (only["type"], only["name"]) == ("mcp_approval_request", "second")


@pytest.mark.parametrize(
    ("kind", "type"),
    [
        ("confirmation", "mcp_approval_request"),
        ("review", "mcp_approval_request"),
        ("budget", "mcp_approval_request"),
        ("input", "function_call"),
        ("external", "function_call"),
    ],
)
def test_a_question_is_of_yes_or_no_or_for_a_value(kind: str, type: str) -> None:
    item = {"item_id": "i", "kind": kind, "digest": 64 * "a"}
    paused = ("lifecycle.paused", {"reason": "approval_required", "approval_id": "p"})
    said = run(("approval.requested", {"approval_id": "p", "items": [item]}), paused)
    [only] = response(said)[-1]["response"]["output"]
    assert (only["type"], only["name"]) == (type, kind)


def test_a_run_that_is_cancelled_ends_as_incomplete_with_its_status() -> None:
    said = run(
        ("llm.stream", {"message_id": "m", "content": "Hel"}),
        ("lifecycle.cancelled", {"reason": "user_stop", "confirmed": False}),
    )
    last = response(said)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert "did not confirm" in last["response"]["error"]["message"]


@pytest.mark.parametrize(
    "text", ["", "mcpr_", "mcpr_a", "mcpr_a.b", f"mcpr_.{32 * 'a'}", f"a.{32 * 'a'}", "a.b.c"]
)
def test_an_id_without_a_whole_digest_names_no_request(text: str) -> None:
    assert RequestId.parse(text) is None
