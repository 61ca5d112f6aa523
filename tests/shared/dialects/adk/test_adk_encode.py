"""ADK's events for agents of other protocols: the document's shapes, and the way back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from penstock.dialects.adk.decode import AdkDecoder
from penstock.dialects.adk.encode.encoder import (
    _HANDLERS,
    _INSTEAD,
    OMITTED,
    AdkEncoder,
)
from penstock.dialects.adk.encode.legacy import LegacyEncoder
from penstock.dialects.approvals import question_id
from penstock.dialects.base import AgentFacts, Draft, Pause
from penstock.dialects.patch import Document
from penstock.events import CATALOGUE, TERMINAL
from penstock.sse import Frame, Parser, encode
from support.drive.for_each import for_each
from support.fakes.raw import RUN_ID
from support.recorded.canonical import Recorded, event, recorded, recorded_runs, run, type_of
from support.recorded.goldens import check

GOLDEN = Path(__file__).parents[3] / "golden" / "encoded"

each_run = for_each("recorded_run", recorded_runs(), lambda each: each.name)
both_ways = for_each("streaming", [True, False], ["streaming", "whole"])

SHOWN = [
    "agno/3.1.10/auto_tool",
    "agno/3.1.10/confirm_reject_note",
    "agno/3.1.10/external_execution",
    "agno/3.1.10/team_delegate",
    "agno/3.1.10/wf_hitl",
    "agno/3.1.10/model_error_midstream",
    "agno/3.1.10/cancel_midrun",
    "adk/2.13.0/think_stream",
]

TEXT = {"type": "string"}
NUMBER = {"type": "number"}


def an_object(
    required: dict[str, Any], optional: dict[str, Any] | None = None, *, more: bool = False
) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": more,
    }


# The keys of adk-streaming.md, "ADK Event Structure", and the keys that every event of a real
# server also has.
CALL = an_object(
    {"id": TEXT, "name": TEXT},
    {"args": {"type": "object"}, "partialArgs": {"type": "array"}, "willContinue": {"const": True}},
)
RESPONSE = an_object(
    {"id": TEXT, "name": TEXT, "response": {"type": "object"}}, {"parts": {"type": "array"}}
)
PART = {
    "oneOf": [
        an_object({"text": {"type": "string", "minLength": 1}}, {"thought": {"const": True}}),
        an_object({"functionCall": CALL}),
        an_object({"functionResponse": RESPONSE}),
        an_object({"inlineData": {"type": "object"}}),
        an_object({"fileData": {"type": "object"}}),
        an_object({"executableCode": {"type": "object"}}),
        an_object({"codeExecutionResult": {"type": "object"}}),
    ]
}
EVENT = Draft202012Validator(
    an_object(
        {
            "id": TEXT,
            "author": {"type": "string", "minLength": 1},
            "invocationId": {"const": RUN_ID},
            "timestamp": NUMBER,
            "actions": an_object(
                {
                    "stateDelta": {"type": "object"},
                    "artifactDelta": {"type": "object"},
                    "requestedAuthConfigs": {"type": "object"},
                    "requestedToolConfirmations": {"type": "object"},
                },
                {"transferToAgent": TEXT, "transferReason": TEXT},
            ),
        },
        {
            "content": an_object(
                {
                    "parts": {"type": "array", "items": PART, "minItems": 1},
                    "role": {"enum": ["model", "user"]},
                }
            ),
            "partial": {"type": "boolean"},
            "longRunningToolIds": {"type": "array", "items": TEXT},
            "branch": TEXT,
            "errorCode": TEXT,
            "errorMessage": TEXT,
            "citationMetadata": {"type": "object"},
            "groundingMetadata": {"type": "object"},
            "usageMetadata": {"type": "object"},
        },
    )
)
FAILURE = Draft202012Validator(
    {
        "oneOf": [
            an_object({"error": TEXT, "error_details": {"type": "object"}}),
            an_object({"error": TEXT, "error_code": TEXT, "timestamp": NUMBER}),
            an_object({"error": TEXT, "status_code": {}, "detail": {}, "timestamp": NUMBER}),
        ]
    }
)


def frames(events: Iterable[dict[str, Any]], *, streaming: bool = True) -> list[Frame]:
    encoder = AdkEncoder(streaming=streaming)
    return [frame for each in events for frame in encoder.feed(each)]


def encoded(events: Iterable[dict[str, Any]], *, streaming: bool = True) -> list[dict[str, Any]]:
    return [orjson.loads(frame.data) for frame in frames(events, streaming=streaming)]


def parts(bodies: Iterable[dict[str, Any]], kind: str) -> list[Any]:
    """Return the parts of this kind of all events that are not partial."""
    return [
        part[kind]
        for body in bodies
        if not body.get("partial")
        for part in body.get("content", {}).get("parts", ())
        if kind in part
    ]


def texts(bodies: Iterable[dict[str, Any]]) -> list[str]:
    """Return the texts of all events that are not partial, without thoughts."""
    return [
        part["text"]
        for body in bodies
        if not body.get("partial")
        for part in body.get("content", {}).get("parts", ())
        if "text" in part and "thought" not in part
    ]


def asked(recorded_run: Recorded) -> list[dict[str, Any]]:
    """Return the items of all pauses of the run."""
    requests = recorded_run.data("approval.requested")
    return [item for request in requests for item in request["items"]]


def waits_for_its_client(recorded_run: Recorded) -> bool:
    """Return whether the run has a call that its client runs.

    In ADK's protocol such a call ends the run, and the answer to it begins another run.
    """
    return any(item["kind"] == "external" for item in asked(recorded_run))


# --- every recording


@both_ways
@each_run
def test_a_recorded_run_is_of_the_document_in_every_frame(
    recorded_run: Recorded, streaming: bool
) -> None:
    for frame in frames(recorded_run.events, streaming=streaming):
        assert frame.event is None
        assert frame.id is None
        assert b"\n" not in frame.data
        body = orjson.loads(frame.data)
        (FAILURE if "error" in body else EVENT).validate(body)
        assert streaming or "partial" not in body


@both_ways
@each_run
def test_a_recorded_run_is_complete(recorded_run: Recorded, streaming: bool) -> None:
    bodies = encoded(recorded_run.events, streaming=streaming)
    assert texts(bodies) == expected_texts(recorded_run)
    # A call that its client answers has the id under which it is answered.
    names = {
        item["tool_call_id"]: question_id(request["approval_id"], item["item_id"])
        for request in recorded_run.data("approval.requested")
        for item in request["items"]
        if item["kind"] == "external"
    }
    called, answered = (
        [names.get(data["tool_call_id"], data["tool_call_id"]) for data in recorded_run.data(type)]
        for type in ("llm.tool_call", "llm.tool_result")
    )
    asked = [call for call in parts(bodies, "functionCall") if not is_request(call)]
    assert sorted(call["id"] for call in asked) == sorted(called)
    assert [each["id"] for each in parts(bodies, "functionResponse")] == answered


@each_run
def test_a_whole_message_is_the_sum_of_its_pieces_and_has_their_id(recorded_run: Recorded) -> None:
    said: dict[str, str] = {}
    for body in encoded(recorded_run.events):
        if body.get("partial") and "text" in body["content"]["parts"][0]:
            said[body["id"]] = said.get(body["id"], "") + body["content"]["parts"][0]["text"]
        elif body.get("id") in said:
            assert body["content"]["parts"][0]["text"] == said.pop(body["id"])
    assert said == {}


@each_run
def test_a_stopped_run_says_so_once_and_last(recorded_run: Recorded) -> None:
    bodies = encoded(recorded_run.events)
    ends = [at for at, body in enumerate(bodies) if "error" in body or aborted(body)]
    stopped = recorded_run.types[-1] in {"lifecycle.failed", "lifecycle.cancelled"}
    assert ends == ([len(bodies) - 1] if stopped else [])


@each_run
def test_a_reconnecting_client_gets_exactly_the_rest(recorded_run: Recorded) -> None:
    whole = frames(recorded_run.events)
    for cut in range(len(recorded_run.events) + 1):
        before = frames(recorded_run.events[:cut])
        assert whole[: len(before)] == before


@both_ways
@pytest.mark.parametrize(
    "recorded_run",
    [each for each in recorded_runs() if not waits_for_its_client(each)],
    ids=lambda each: each.name,
)
def test_our_own_decoder_reads_it_as_the_same_run(recorded_run: Recorded, streaming: bool) -> None:
    drafts = decoded(recorded_run, streaming=streaming)
    said = [d.data["content"] for d in drafts if d.type == "llm.message_completed"]
    assert sorted(filter(None, said)) == sorted(expected_texts(recorded_run))
    gates = {item["item_id"] for item in asked(recorded_run) if "tool" not in item}
    calls = [(d.data["tool_call_id"], d.data["tool"]) for d in drafts if d.type == "llm.tool_call"]
    # A workflow's gate is no call, but ADK can only ask for a confirmation of a call.
    assert sorted(call for call in calls if call[0] not in gates) == sorted(
        (data["tool_call_id"], data["tool"]) for data in recorded_run.data("llm.tool_call")
    )
    results = {
        d.data["tool_call_id"]: d.data["outcome"] == "ok"
        for d in drafts
        if d.type == "llm.tool_result" and d.data["tool_call_id"] not in gates
    }
    assert results == {
        data["tool_call_id"]: data["outcome"] == "ok"
        for data in recorded_run.data("llm.tool_result")
    }
    ends = [d.type for d in drafts if d.type in TERMINAL]
    assert ends == [type for type in recorded_run.types if type in TERMINAL]


@pytest.mark.parametrize("name", SHOWN)
def test_a_recorded_run_gives_its_golden_frames(name: str) -> None:
    lines = [frame.data.decode() for frame in frames(recorded(name).events)]
    check(GOLDEN / "adk" / f"{name.replace('/', '_')}.jsonl", lines)


def expected_texts(recorded_run: Recorded) -> list[str]:
    """Return the text of every message, and the run's answer if it is no message's text."""
    said = [data["content"] for data in recorded_run.data("llm.message_completed")]
    said = [text for text in said if text]
    for data in recorded_run.data("lifecycle.completed"):
        if data["summary"] and data["summary"] not in (*said, "".join(said)):
            said.append(data["summary"])
    return said


def decoded(recorded_run: Recorded, *, streaming: bool) -> list[Draft]:
    """Encode the run in ADK's protocol and decode it again, each leg as a response of its own."""
    decoder = AdkDecoder(AgentFacts(id="assistant"))
    encoder = AdkEncoder(streaming=streaming)
    drafts: list[Draft | Pause] = []
    for leg in range(1, recorded_run.events[-1]["leg"] + 1):
        drafts += decoder.open(leg)
        drafts += decoder.decided(answers(recorded_run, leg)) if leg > 1 else ()
        wire = b"".join(
            encode(frame.data)
            for each in recorded_run.events
            if each["leg"] == leg
            for frame in encoder.feed(each)
        )
        drafts += [draft for frame in Parser().feed(wire) for draft in decoder.feed(frame)]
        drafts += decoder.end()
    return [draft for draft in drafts if isinstance(draft, Draft)]


def answers(recorded_run: Recorded, leg: int) -> dict[str, Any]:
    """Return what was decided before the leg, by the ids that the requests had."""
    decisions = recorded_run.decisions.get(leg, {})
    return {
        question_id(request["approval_id"], item["item_id"]): decisions[item["item_id"]]
        for request in recorded_run.data("approval.requested")
        for item in request["items"]
        if item["item_id"] in decisions
    }


def is_request(call: dict[str, Any]) -> bool:
    return str(call["name"]).startswith("adk_request_")


def aborted(body: dict[str, Any]) -> bool:
    return body.get("errorCode") == "INVOCATION_ABORTED"


def test_every_type_that_it_names_is_a_canonical_one() -> None:
    assert _HANDLERS.keys() - {"lifecycle.started"} | OMITTED.keys() == CATALOGUE.keys()
    assert _INSTEAD.keys() <= OMITTED.keys()


@for_each("type", OMITTED)
def test_what_has_no_event_of_adk_makes_no_frame(type: str) -> None:
    assert encoded([event(type, {})]) == []


# --- the document's examples


def test_text_a_call_and_its_result_are_the_documents_examples() -> None:
    call = {"query": "quantum computing applications 2025", "num_results": 10}
    results = {"results": [{"title": "...", "url": "...", "snippet": "..."}]}
    words = "I will research quantum computing applications for you."
    named = {"tool": "enhanced_search", "tool_call_id": "c1"}
    bodies = encoded(
        run(
            ("llm.message_completed", {"message_id": "m", "role": "assistant", "content": words}),
            ("llm.tool_call", {**named, "args": call}),
            ("llm.tool_result", {**named, "result": results, "outcome": "ok"}),
        ),
        streaming=False,
    )
    assert texts(bodies) == [words]
    assert parts(bodies, "functionCall") == [{"name": "enhanced_search", "args": call, "id": "c1"}]
    assert parts(bodies, "functionResponse") == [
        {"name": "enhanced_search", "response": results, "id": "c1"}
    ]
    assert {body["author"] for body in bodies} == {"writer"}
    assert [body["timestamp"] % 1 for body in bodies] == [0.5, 0.5, 0.5]


def test_a_transfer_is_an_action_as_real_servers_have_it() -> None:
    data = {"to": "research_agent", "from": "writer", "reason": "Specialized research required"}
    [body] = encoded(run(("dispatch.transfer", data)))
    assert body["actions"]["transferToAgent"] == "research_agent"
    assert body["actions"]["transferReason"] == "Specialized research required"


AT_S = event("lifecycle.failed", {}, 2)["timestamp"]


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        (
            {"code": "timeout", "error": "too slow"},
            {"error": "Request timeout after 300 seconds", "error_code": "TIMEOUT"},
        ),
        (
            {
                "code": "upstream_http",
                "error": "answered 500",
                "status_code": 500,
                "detail": "Internal Server Error",
            },
            {
                "error": "ADK upstream error: 500",
                "status_code": 500,
                "detail": "Internal Server Error",
            },
        ),
        (
            {"code": "upstream_lost", "error": "Stream error description"},
            {"error": "Stream error description", "error_code": "STREAM_ERROR"},
        ),
    ],
    ids=["timeout", "status", "stream"],
)
def test_our_own_failures_are_the_documents_frames(
    data: dict[str, Any], frame: dict[str, Any]
) -> None:
    [body] = encoded(run(("lifecycle.failed", data)))
    assert isinstance(body.pop("timestamp"), float)
    assert body == frame


def test_an_agents_failure_is_sent_as_adk_2_13_sends_it() -> None:
    data = {"code": "upstream_error", "error": "no disk", "error_type": "OSError"}
    told, failed = encoded(run(("lifecycle.failed", data)))
    assert (told["errorCode"], told["errorMessage"]) == ("OSError", "no disk")
    assert failed["error"] == "OSError: no disk"
    details = failed["error_details"]
    assert (details["error_type"], details["error_message"]) == ("OSError", "no disk")


# --- pauses


CALL_DATA = {"tool": "delete_file", "args": {"path": "/x"}, "tool_call_id": "t1", "pending": True}
ITEM = {
    "item_id": "i1",
    "kind": "confirmation",
    "digest": "d",
    "tool_call_id": "t1",
    "tool": "delete_file",
    "args": {"path": "/x"},
    "editable": True,
}


def paused(*items: dict[str, Any], asked: bool = True) -> list[dict[str, Any]]:
    requested = {"approval_id": "a", "digest": "d", "deciders_required": 1, "items": list(items)}
    said = [("llm.tool_call", CALL_DATA), ("approval.requested", requested)]
    if asked:
        said.append(("lifecycle.paused", {"reason": "approval_required", "approval_id": "a"}))
    return encoded(run(*said))


def test_a_confirmation_is_requested_under_the_items_id() -> None:
    call, request = paused(ITEM)
    assert parts([call], "functionCall")[0]["id"] == "t1"
    assert call["longRunningToolIds"] == []
    assert request["longRunningToolIds"] == ["a/i1"]
    [asked] = parts([request], "functionCall")
    assert (asked["id"], asked["name"]) == ("a/i1", "adk_request_confirmation")
    original = {"id": "t1", "name": "delete_file", "args": {"path": "/x"}}
    assert asked["args"]["originalFunctionCall"] == original
    assert asked["args"]["toolConfirmation"]["confirmed"] is False


def test_a_request_is_never_said_under_the_id_of_the_call_that_it_is_for() -> None:
    item = {**ITEM, "item_id": "t1"}
    call, request = paused(item)
    [asked] = parts([request], "functionCall")
    assert asked["id"] != parts([call], "functionCall")[0]["id"] == "t1"
    assert request["longRunningToolIds"] == [asked["id"]]
    assert asked["id"] == "a/t1"


def test_several_items_are_requested_in_one_event() -> None:
    *_, request = paused(ITEM, {**ITEM, "item_id": "i2", "tool_call_id": "t2"})
    assert request["longRunningToolIds"] == ["a/i1", "a/i2"]
    assert len(parts([request], "functionCall")) == 2


def test_what_a_policy_decides_is_not_asked_of_the_client() -> None:
    assert [body["longRunningToolIds"] for body in paused(ITEM, asked=False)] == [[]]


def test_an_external_call_is_a_long_running_call_under_the_items_id() -> None:
    [call] = paused({**ITEM, "kind": "external"})
    assert call["longRunningToolIds"] == ["a/i1"]
    assert parts([call], "functionCall")[0]["id"] == "a/i1"


def test_a_call_that_was_emitted_before_is_asked_for_when_its_client_is_waited_for() -> None:
    _, request = paused({**ITEM, "kind": "external", "item_id": "t9", "tool_call_id": "t9"})
    [asked] = parts([request], "functionCall")
    assert (asked["id"], asked["name"]) == ("a/t9", "adk_request_input")
    assert request["longRunningToolIds"] == ["a/t9"]


def test_an_input_is_requested_with_its_schema() -> None:
    schema = {"type": "object", "properties": {"who": {"type": "string"}}}
    item = {**ITEM, "kind": "input", "input_schema": schema, "description": "Who?"}
    *_, request = paused(item)
    [asked] = parts([request], "functionCall")
    assert (asked["id"], asked["name"]) == ("a/i1", "adk_request_input")
    assert asked["args"]["message"] == "Who?"
    assert asked["args"]["response_schema"] == schema
    assert asked["args"]["interruptId"] == "a/i1"


def test_a_credential_is_requested_where_to_sign_in() -> None:
    args = {"auth_type": "oauth2", "auth_uri": "https://example.com/in"}
    *_, request = paused({**ITEM, "kind": "credential", "args": args})
    [asked] = parts([request], "functionCall")
    assert asked["name"] == "adk_request_credential"
    assert asked["args"]["functionCallId"] == "t1"
    credential = asked["args"]["authConfig"]["exchangedAuthCredential"]
    assert credential == {"authType": "oauth2", "oauth2": {"authUri": "https://example.com/in"}}


# --- state, tools and what is open


def test_state_changes_are_whole_values_of_the_outermost_keys() -> None:
    bodies = encoded(
        run(
            ("state.snapshot", {"snapshot": {"a": {"b": [1]}, "c": 1}}),
            ("state.delta", {"delta": [{"op": "add", "path": "/a/b/-", "value": 2}]}),
            ("state.delta", {"delta": [{"op": "remove", "path": "/c"}]}),
            ("state.delta", {"delta": [{"op": "replace", "path": "/a/b/0", "value": 1}]}),
        )
    )
    deltas = [body["actions"]["stateDelta"] for body in bodies]
    assert deltas == [{"a": {"b": [1]}, "c": 1}, {"a": {"b": [1, 2]}}, {"c": None}]


@pytest.mark.parametrize(
    "change",
    [
        {"op": "add", "path": "/items/9", "value": 1},
        {"op": "replace", "path": "/items/1", "value": 1},
        {"op": "replace", "path": "/items/x", "value": 1},
        {"op": "remove", "path": "/gone"},
        {"op": "test", "path": "/items", "value": 1},
        {"path": "/items"},
        "no change",
    ],
)
def test_a_change_that_does_not_fit_changes_nothing(change: Any) -> None:
    assert patched({"items": ["a"]}, [change]) == {"items": ["a"]}


def patched(state: Any, changes: list[Any]) -> Any:
    held = Document(state)
    held.apply_each(changes)
    return held.value


def test_patching_leaves_the_given_state_as_it_was() -> None:
    state = {"a~/": {"list": [1]}}
    ops = [
        {"op": "add", "path": "/a~0~1/list/0", "value": 0},
        {"op": "remove", "path": "/a~0~1/list/1"},
    ]
    assert patched(state, ops) == {"a~/": {"list": [0]}}
    assert state == {"a~/": {"list": [1]}}
    assert patched(state, [{"op": "replace", "path": "", "value": 7}]) == 7


def test_patching_leaves_the_given_changes_as_they_were() -> None:
    given: list[Any] = [
        {"op": "add", "path": "/a", "value": {"b": [{}]}},
        {"op": "add", "path": "/a/b/0/c", "value": 1},
    ]
    assert patched({}, given) == {"a": {"b": [{"c": 1}]}}
    assert given[0]["value"] == {"b": [{}]}


@pytest.mark.parametrize(
    ("data", "response"),
    [
        ({"result": "sunny", "outcome": "ok"}, {"result": "sunny"}),
        ({"result": None, "outcome": "ok"}, {"result": None}),
        ({"result": "boom", "outcome": "error", "error": "boom"}, {"error": "boom"}),
        ({"result": {"a": 1}, "outcome": "error", "error": "boom"}, {"a": 1, "error": "boom"}),
        ({"result": None, "outcome": "rejected", "error": "not now"}, {"error": "not now"}),
    ],
)
def test_a_response_is_an_object(data: dict[str, Any], response: dict[str, Any]) -> None:
    result = {"tool": "t", "tool_call_id": "c", **data}
    [said] = parts(encoded(run(("llm.tool_result", result))), "functionResponse")
    assert said["response"] == response


def test_arguments_under_way_are_partial_where_adk_has_a_form_for_them() -> None:
    piece = {"tool": "t", "tool_call_id": "c"}
    said: list[tuple[str, dict[str, Any]]] = [
        ("llm.tool_args", {**piece, "path": "$.city", "value": "Par"}),
        ("llm.tool_args", {**piece, "path": "$.n", "value": True}),
        ("llm.tool_args", {**piece, "delta": '{"city"'}),
    ]
    bodies = encoded(run(*said))
    calls = [body["content"]["parts"][0]["functionCall"]["partialArgs"] for body in bodies]
    assert calls == [
        [{"jsonPath": "$.city", "stringValue": "Par"}],
        [{"jsonPath": "$.n", "boolValue": True}],
    ]
    assert encoded(run(*said), streaming=False) == []


HALF = ("llm.stream", {"message_id": "m", "content": "half"})
THINKS = ("llm.reasoning", {"reasoning_id": "r", "thought": "hm"})
LOST = ("lifecycle.failed", {"code": "upstream_lost", "error": "gone"})
STOPPED = ("lifecycle.cancelled", {"reason": "user_stop", "confirmed": True})


@pytest.mark.parametrize("end", [LOST, STOPPED], ids=["failed", "cancelled"])
def test_what_is_open_is_emitted_whole_before_the_end(end: tuple[str, dict[str, Any]]) -> None:
    call = ("llm.tool_call", CALL_DATA)
    bodies = encoded(run(THINKS, HALF, call, end), streaming=False)
    assert bodies[0]["content"]["parts"] == [{"text": "hm", "thought": True}]
    assert texts(bodies) == ["half"]
    assert len(parts(bodies, "functionCall")) == 1
    assert "error" in bodies[-1] or aborted(bodies[-1])


def test_a_cancel_that_the_agent_server_did_not_confirm_says_so() -> None:
    stopped = ("lifecycle.cancelled", {"reason": "user_stop", "confirmed": False})
    assert "did not confirm" in encoded(run(stopped))[-1]["errorMessage"]


def test_media_sources_and_tokens_find_their_places() -> None:
    image = {"type": "data", "media_type": "image/png", "data": "+/+/", "name": "a.png"}
    message = {
        "message_id": "m",
        "role": "assistant",
        "content": "see",
        "parts": [image, {"type": "code", "language": "PYTHON", "code": "1"}],
        "citations": {"urls": [{"url": "https://example.com", "title": "E"}], "raw": []},
    }
    found = {"documents": [{"id": "d", "content": "text", "score": 0.5, "title": "T"}]}
    done = {"summary": "see", "usage": {"input_tokens": 3, "total_tokens": 5}}
    bodies = encoded(
        run(
            ("retrieval.result", found),
            ("llm.message_completed", message),
            ("artifact.updated", {"name": "a.png", "version": 2}),
            ("lifecycle.completed", done),
        )
    )
    grounding = bodies[0]["groundingMetadata"]
    chunk = {"documentName": "d", "text": "text", "title": "T"}
    assert grounding["groundingChunks"] == [{"retrievedContext": chunk}]
    assert grounding["groundingSupports"][0]["confidenceScores"] == [0.5]
    blob = {"mimeType": "image/png", "data": "-_-_", "displayName": "a.png"}
    assert bodies[1]["content"]["parts"][1] == {"inlineData": blob}
    assert bodies[1]["citationMetadata"]["citations"][0]["uri"] == "https://example.com"
    assert bodies[2]["actions"]["artifactDelta"] == {"a.png": 2}
    assert bodies[3]["usageMetadata"] == {"promptTokenCount": 3, "totalTokenCount": 5}


def test_other_parts_have_their_adk_form_and_unknown_ones_are_left_out() -> None:
    parts_said = [
        {"type": "file", "media_type": "text/plain", "uri": "gs://x"},
        {"type": "code_result", "outcome": "OUTCOME_OK", "output": "1"},
        {"type": "hologram"},
    ]
    message = {"message_id": "m", "role": "user", "content": "", "parts": parts_said}
    own = {"citations": [{"uri": "u"}]}
    [body] = encoded(run(("llm.message_completed", {**message, "citations": own})))
    assert body["content"] == {
        "role": "user",
        "parts": [
            {"fileData": {"fileUri": "gs://x", "mimeType": "text/plain"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        ],
    }
    assert body["citationMetadata"] == own


def test_a_choice_is_an_input_of_one_of_its_options() -> None:
    item = {"item_id": "i1", "kind": "selection", "digest": "d", "options": ["a", "b"]}
    *_, request = paused(item)
    [asked] = parts([request], "functionCall")
    assert asked["args"]["response_schema"] == {"enum": ["a", "b"]}


def test_an_answer_that_nobody_said_is_the_last_text() -> None:
    done = {"summary": "42"}
    assert texts(encoded(run(HALF, ("lifecycle.completed", done)))) == ["half", "42"]
    assert texts(encoded(run(HALF, ("lifecycle.completed", {"summary": "half"})))) == ["half"]


def test_a_list_of_events_has_no_partial_ones() -> None:
    events = recorded("agno/3.1.10/auto_tool").events
    listed = encoded(events, streaming=False)
    assert not any(event.get("partial") for event in listed)
    assert texts(listed) == expected_texts(recorded("agno/3.1.10/auto_tool"))


# --- the legacy pair


LEGACY = Draft202012Validator(
    an_object(
        {
            "type": {"enum": ["research_update", "agent_status", "research_complete"]},
            "sessionId": {"const": "s-1"},
            "runId": {"const": RUN_ID},
            "author": {"type": "string", "minLength": 1},
            "content": TEXT,
            "timestamp": NUMBER,
        }
    )
)


def legacy(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    encoder = LegacyEncoder()
    bodies = []
    for each in events:
        for frame in encoder.feed(each):
            body = orjson.loads(frame.data)
            assert frame.event == body["type"]
            bodies.append(body)
    return bodies


@each_run
def test_the_legacy_pair_has_its_three_types_and_the_whole_text(recorded_run: Recorded) -> None:
    bodies = legacy(recorded_run.events)
    for body in bodies:
        LEGACY.validate(body)
    updates = [body["content"] for body in bodies if body["type"] == "research_update"]
    messages = [data["content"] for data in recorded_run.data("llm.message_completed")]
    assert updates == [content for content in messages if content]
    reports = [body["content"] for body in bodies if body["type"] == "research_complete"]
    assert reports == [data["summary"] for data in recorded_run.data("lifecycle.completed")]
    assert bodies[0]["content"] == "started"
    if type_of(recorded_run.events[-1]) == "lifecycle.failed":
        assert bodies[-1]["content"].startswith("failed: ")


@pytest.mark.parametrize("name", SHOWN[:2])
def test_a_recorded_run_gives_its_golden_legacy_frames(name: str) -> None:
    lines = [orjson.dumps(body).decode() for body in legacy(recorded(name).events)]
    check(GOLDEN / "adk_legacy" / f"{name.replace('/', '_')}.jsonl", lines)
