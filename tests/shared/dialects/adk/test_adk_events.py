"""ADK events that no recording has: other versions, the contract's examples, and bad input."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.adk.decode import AdkDecoder
from penstock.dialects.base import AgentFacts, Draft, Pause
from penstock.events import typed_data
from penstock.sse import Frame

APPROVE = {"decision": "approve", "note": None, "value": None}
REJECT = {"decision": "reject", "note": "no", "value": None}


def event(*parts: Any, **fields: Any) -> dict[str, Any]:
    """Return an event of demo_agent; the keyword arguments are further keys of the event."""
    content = {"content": {"parts": list(parts), "role": "model"}} if parts else {}
    return {"author": "demo_agent", "invocationId": "e-1", "timestamp": 1.5, **content, **fields}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return event({"text": said}, **fields)


def chunk(said: str, **fields: Any) -> dict[str, Any]:
    return text(said, partial=True, **fields)


def call(name: str, args: Any, **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args, **fields}}


def response(name: str, value: Any, **fields: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": value, **fields}}


def confirmation(item_id: str, call_id: str, tool: str = "delete_file") -> dict[str, Any]:
    args = {
        "originalFunctionCall": {"id": call_id, "name": tool, "args": {"path": "/a"}},
        "toolConfirmation": {"hint": "Sure?", "confirmed": False},
    }
    return call("adk_request_confirmation", args, id=item_id)


class Run:
    """Feed events to a decoder, and keep all drafts."""

    def __init__(self, *events: Any, **facts: Any) -> None:
        self.decoder = AdkDecoder(AgentFacts(id="assistant", **facts))
        self.all: list[Draft | Pause] = [*self.decoder.open(1)]
        self.feed(*events)

    def feed(self, *events: Any) -> Run:
        for each in events:
            data = each if isinstance(each, bytes) else orjson.dumps(each)
            self.all += self.decoder.feed(Frame(data))
        return self

    def end(self) -> Run:
        self.all += self.decoder.end()
        return self

    def leg(self, number: int, decided: dict[str, Any]) -> Run:
        self.all += self.decoder.open(number)
        self.all += self.decoder.decided(decided)
        return self

    @property
    def drafts(self) -> list[Draft]:
        return [draft for draft in self.all if isinstance(draft, Draft)]

    @property
    def pauses(self) -> list[Pause]:
        return [draft for draft in self.all if isinstance(draft, Pause)]

    def of(self, event_type: str) -> list[dict[str, Any]]:
        return [draft.data for draft in self.drafts if draft.type == event_type]

    def custom(self) -> dict[str, Any]:
        found = {data["name"]: data["value"] for data in self.of("custom.event")}
        found.pop("adk.invocation", None)
        return found

    def types(self, category: str) -> list[str]:
        return [draft.type for draft in self.drafts if draft.type.startswith(category)]


# -- text ---------------------------------------------------------------------------------------


def test_a_final_alone_is_started_streamed_whole_and_completed() -> None:
    run = Run(text("Hi", id="a"))
    assert run.types("llm") == ["llm.message_started", "llm.stream", "llm.message_completed"]
    assert run.of("llm.stream") == [{"content": "Hi", "message_id": "a"}]


def test_chunks_with_ids_of_their_own_are_one_message() -> None:
    run = Run(chunk("He", id="a"), chunk("y", id="b"), text("Hey", id="c")).end()
    assert [data["message_id"] for data in run.of("llm.stream")] == ["a", "a"]
    assert run.of("llm.message_completed") == [
        {"message_id": "a", "role": "assistant", "content": "Hey"}
    ]


def test_an_event_without_an_id_gets_one_that_is_unique() -> None:
    run = Run(text("one"), text("two"))
    assert [data["message_id"] for data in run.of("llm.message_started")] == [
        "message-1",
        "message-2",
    ]


def test_an_event_id_that_comes_again_is_another_message() -> None:
    run = Run(text("one", id="a"), text("two", id="a"))
    assert [data["message_id"] for data in run.of("llm.message_started")] == ["a", "a#2"]


def test_a_chunk_without_its_final_is_closed_at_the_end() -> None:
    run = Run(chunk("half", id="a")).end()
    assert run.of("llm.message_completed")[0]["content"] == "half"
    assert run.of("lifecycle.completed") == [{"summary": "half"}]


def test_a_chunk_without_its_final_is_closed_when_another_author_speaks() -> None:
    run = Run(chunk("half"), text("whole", author="other"))
    assert [data["content"] for data in run.of("llm.message_completed")] == ["half", "whole"]


def test_a_last_chunk_without_its_final_is_closed_by_the_next_answer() -> None:
    run = Run(chunk("one", finishReason="STOP"), chunk("two"), text("two")).end()
    assert [data["content"] for data in run.of("llm.message_completed")] == ["one", "two"]


def test_a_final_with_a_call_alone_closes_what_was_streamed() -> None:
    run = Run(chunk("Let me see", id="a"), event(call("look", {}, id="F"), id="a"))
    assert run.types("llm")[-2:] == ["llm.message_completed", "llm.tool_call"]


def test_an_event_without_content_closes_nothing() -> None:
    run = Run(chunk("He", id="a"), event(actions={"stateDelta": {"k": 1}}), chunk("y", id="a"))
    assert run.types("llm") == ["llm.message_started", "llm.stream", "llm.stream"]


def test_thoughts_of_a_final_alone_are_emitted_whole() -> None:
    run = Run(event({"text": "Hm.", "thought": True}, {"text": "Yes."}, id="a"))
    assert run.of("llm.reasoning") == [
        {"thought": "Hm.", "reasoning_id": "a/reasoning", "final": True}
    ]
    assert run.of("llm.message_completed")[0]["content"] == "Yes."


def test_thoughts_that_the_stream_ends_in_are_closed() -> None:
    run = Run(event({"text": "Hm.", "thought": True}, partial=True)).end()
    assert run.of("llm.reasoning")[-1]["final"] is True
    assert not run.of("llm.message_started")


def test_citations_stand_on_the_message() -> None:
    run = Run(text("Yes.", citationMetadata={"citations": [{"uri": "https://a"}]}))
    assert run.of("llm.message_completed")[0]["citations"] == {"citations": [{"uri": "https://a"}]}


def test_grounding_becomes_documents() -> None:
    grounding = {
        "webSearchQueries": ["sky"],
        "groundingChunks": [
            {"web": {"uri": "https://a", "title": "A"}},
            {"retrievedContext": {"uri": "gs://b", "text": "The sky is blue."}},
        ],
        "groundingSupports": [
            {
                "segment": {"text": "It is blue."},
                "groundingChunkIndices": [0],
                "confidenceScores": [0.9],
            }
        ],
    }
    run = Run(text("It is blue.", groundingMetadata=grounding))
    assert run.of("retrieval.result") == [
        {
            "documents": [
                {
                    "id": "https://a",
                    "content": "It is blue.",
                    "score": 0.9,
                    "title": "A",
                    "url": "https://a",
                },
                {"id": "gs://b", "content": "The sky is blue.", "url": "gs://b"},
            ]
        }
    ]
    assert run.custom() == {"adk.groundingMetadata": {"webSearchQueries": ["sky"]}}


# -- calls --------------------------------------------------------------------------------------


def test_the_documents_call_and_response_without_ids_are_paired_by_name() -> None:
    run = Run(
        event(call("enhanced_search", {"query": "q"})),
        event(call("other", {})),
        event(response("enhanced_search", {"results": []})),
    )
    [first, _] = run.of("llm.tool_call")
    [result] = run.of("llm.tool_result")
    assert first["tool_call_id"] == result["tool_call_id"] == "call-1"
    assert result["tool"] == "enhanced_search"


def test_a_response_with_neither_id_nor_name_answers_the_oldest_call() -> None:
    run = Run(event(call("search", {})), event({"functionResponse": {"response": {"n": 1}}}))
    assert run.of("llm.tool_result") == [
        {"tool": "search", "result": {"n": 1}, "tool_call_id": "call-1", "outcome": "ok"}
    ]


def test_a_call_on_a_partial_frame_is_no_call() -> None:
    frame = event(call("look", {}, id="F"))
    run = Run({**frame, "partial": True}, frame, frame)
    assert [data["tool_call_id"] for data in run.of("llm.tool_call")] == ["F"]


def test_an_id_that_a_model_uses_again_is_made_unique() -> None:
    run = Run(
        event(call("look", {"n": 1}, id="F"), call("look", {"n": 2}, id="F")),
        event(response("look", 1, id="F"), response("look", 2, id="F")),
        event(call("look", {"n": 1}, id="F")),
    )
    assert [data["tool_call_id"] for data in run.of("llm.tool_call")] == ["F", "F#2", "F#3"]
    assert [data["tool_call_id"] for data in run.of("llm.tool_result")] == ["F", "F#2"]


def test_arguments_streamed_under_an_id_for_each_piece_belong_to_one_call() -> None:
    pieces = [
        {"id": "F1", "name": "look", "willContinue": True},
        {"id": "F2", "partialArgs": [{"jsonPath": "$.n", "numberValue": 1}], "willContinue": True},
        {"id": "F3", "partialArgs": [{"jsonPath": "$.x", "nullValue": "NULL_VALUE"}]},
    ]
    run = Run(*(event({"functionCall": piece}, partial=True) for piece in pieces))
    run.feed(event(call("look", {"n": 1, "x": None}, id="F4")), event(response("look", 1, id="F4")))
    assert run.of("llm.tool_args") == [
        {"tool_call_id": "F1", "tool": "look", "path": "$.n", "value": 1},
        {"tool_call_id": "F1", "tool": "look", "path": "$.x", "value": None},
    ]
    assert run.of("llm.tool_call")[0]["tool_call_id"] == "F1"
    assert run.of("llm.tool_result")[0]["tool_call_id"] == "F1"


def test_an_error_response_is_a_result_with_outcome_error() -> None:
    run = Run(event(call("look", {}, id="F")), event(response("look", {"error": "no"}, id="F")))
    [result] = run.of("llm.tool_result")
    assert (result["outcome"], result["error"]) == ("error", "no")


def test_the_second_response_of_a_long_running_call_is_its_result() -> None:
    run = Run(
        event(call("export", {}, id="F"), longRunningToolIds=["F"]),
        event(response("export", {"status": "queued"}, id="F")),
        event(response("export", {"status": "done"}, id="F")),
    )
    assert run.of("llm.tool_progress")[0]["status"] == "queued"
    assert run.of("llm.tool_result")[0]["result"] == {"status": "done"}


def test_a_long_running_call_that_fails_at_once_has_its_result() -> None:
    run = Run(
        event(call("export", {}, id="F"), longRunningToolIds=["F"]),
        event(response("export", {"error": "disk full"}, id="F")),
    )
    assert run.of("llm.tool_result")[0]["outcome"] == "error"


def test_both_forms_of_a_transfer_are_read() -> None:
    run = Run(
        event(actions={"transferToAgent": "billing", "transferReason": "money"}),
        event(actions={"transfer_to_agent": {"target": "research", "reason": "facts"}}),
    )
    assert run.of("dispatch.transfer") == [
        {"to": "billing", "from": "demo_agent", "reason": "money"},
        {"to": "research", "from": "demo_agent", "reason": "facts"},
    ]


# -- pauses -------------------------------------------------------------------------------------


def test_a_request_that_comes_twice_is_one_item() -> None:
    ask = event(confirmation("C", "F"))
    run = Run(event(call("delete_file", {"path": "/a"}, id="F")), ask, ask).end()
    [pause] = run.pauses
    assert [item.item_id for item in pause.items] == ["C"]
    assert pause.items[0].tool_call_id == "F"
    assert pause.resume == {
        "invocation_id": "e-1",
        "requests": [{"id": "C", "name": "adk_request_confirmation"}],
    }


def test_a_call_that_was_never_shown_is_announced_as_pending() -> None:
    run = Run(event(confirmation("C", "F"))).end()
    [announced] = run.of("llm.tool_call")
    assert announced["pending"] is True
    assert run.pauses[0].items[0].tool_call_id == announced["tool_call_id"] == "F"


def test_what_was_not_decided_pauses_the_run_again() -> None:
    run = Run(event(confirmation("C1", "F1"), confirmation("C2", "F2"))).end()
    run.leg(2, {"C1": APPROVE}).feed(event(response("delete_file", 1, id="F1"))).end()
    assert [item.item_id for item in run.pauses[1].items] == ["C2"]


def test_a_refused_call_that_the_upstream_forgets_still_gets_its_result() -> None:
    run = Run(event(confirmation("C", "F"))).end()
    run.leg(2, {"C": REJECT}).feed(text("As you wish.")).end()
    [result] = run.of("llm.tool_result")
    assert (result["tool_call_id"], result["outcome"]) == ("F", "rejected")
    assert run.types("lifecycle") == ["lifecycle.completed"]


def test_a_request_that_the_server_seals_is_no_pause() -> None:
    sealed = event(
        response("adk_request_confirmation", {"error": "Invocation was aborted"}, id="C"),
        errorCode="INVOCATION_ABORTED",
        errorMessage="Invocation was aborted by client.",
    )
    run = Run(event(confirmation("C", "F")), sealed).end()
    assert not run.pauses
    assert run.of("lifecycle.cancelled") == [{"reason": "user_stop", "confirmed": True}]


def credential(**oauth2: str) -> dict[str, Any]:
    config = {
        "authScheme": {"type": "oauth2"},
        "exchangedAuthCredential": {"authType": "oauth2", "oauth2": oauth2},
    }
    args = {"functionCallId": "F", "authConfig": config}
    return event(
        call("adk_request_credential", args, id="C"),
        actions={"requestedAuthConfigs": {"F": config, "G": config}},
    )


SECRETS = {
    "clientSecret": "s3cret-1",
    "client_secret": "s3cret-2",
    "accessToken": "s3cret-3",
    "refreshToken": "s3cret-4",
    "idToken": "s3cret-5",
    "authCode": "s3cret-6",
    "authResponseUri": "https://us/?code=s3cret-7",
    "codeVerifier": "s3cret-8",
}


def test_no_secret_of_a_credential_request_gets_into_drafts_pause_or_snapshot() -> None:
    run = Run(event(call("cal", {}, id="F")), credential(authUri="https://idp", **SECRETS)).end()
    given = repr(run.all) + repr(run.decoder.snapshot())
    assert "s3cret" not in given
    [item] = run.pauses[0].items
    assert (item.kind, item.tool, item.tool_call_id) == ("credential", "cal", "F")
    assert item.args is not None
    assert item.args["auth_uri"] == "https://idp"
    # the credential request of G, for which no pause asks
    assert "adk.requestedAuthConfigs" in run.custom()


def test_a_credential_in_the_session_state_is_redacted() -> None:
    kept = {"authType": "apiKey", "apiKey": "s3cret", "http": {"credentials": {"token": "s3cret"}}}
    run = Run(event(actions={"stateDelta": {"k": kept}}))
    [delta] = run.of("state.delta")
    assert "s3cret" not in repr(run.all)
    assert delta["delta"][0]["value"]["authType"] == "apiKey"


def test_an_error_that_repeats_a_credential_is_scrubbed() -> None:
    error = "1 validation error: input_value={'client_secret': 's3cret', 'x': 1}"
    run = Run({"error": error, "error_details": {"error_message": error}})
    assert "s3cret" not in repr(run.all)
    assert "1 validation error" in run.of("lifecycle.failed")[0]["error"]


def test_an_answered_credential_is_not_kept() -> None:
    run = Run(event(call("cal", {}, id="F")), credential(authUri="https://idp")).end()
    run.leg(2, {"C": {**APPROVE, "value": {"oauth2": {"authCode": "s3cret"}}}})
    assert "s3cret" not in repr(run.decoder.snapshot())


# -- steps --------------------------------------------------------------------------------------


def test_a_second_author_without_a_transfer_is_a_step_in_1_x() -> None:
    run = Run(text("one", author="first"), text("two", author="second"), text("x", author="first"))
    run.end()
    assert [data["step_id"] for data in run.of("workflow.step_started")] == ["second", "first#2"]
    assert len(run.of("workflow.step_completed")) == 2


def test_a_second_author_after_a_transfer_is_no_step() -> None:
    transfer = text("over to you", actions={"transferToAgent": "second"})
    run = Run(transfer, text("two", author="second")).end()
    assert not run.types("workflow")


def test_children_are_steps_from_the_first_on_where_the_configuration_says_workflow() -> None:
    run = Run(text("one", author="first"), text("two", author="second"), kind="workflow").end()
    assert [data["step_id"] for data in run.of("workflow.step_started")] == ["first", "second"]


def test_a_child_that_ended_and_speaks_again_is_another_turn() -> None:
    tree = {"nodeInfo": {"path": ""}, "author": "writer"}
    ended = event(actions={"endOfAgent": True}, **tree)
    run = Run(text("one", **tree), ended, text("two", **tree)).end()
    assert [data["output"] for data in run.of("workflow.step_completed")] == ["one", "two"]
    assert [draft.step_id for draft in run.drafts if draft.type == "llm.stream"] == [
        "writer",
        "writer#2",
    ]


def test_nodes_within_a_node_know_their_parent() -> None:
    inner = {"path": "wf@1/outer@1/inner@1", "outputFor": ["wf@1/outer@1/inner@1", "wf@1/outer@1"]}
    run = Run(event(author="wf", nodeInfo=inner, output=1)).end()
    assert [
        (data["step_id"], data.get("parent_step_id")) for data in run.of("workflow.step_started")
    ] == [("wf@1/outer@1", None), ("wf@1/outer@1/inner@1", "wf@1/outer@1")]
    assert [data["output"] for data in run.of("workflow.step_completed")] == [1, 1]


def test_the_output_of_an_agent_without_steps_is_the_runs_value() -> None:
    node = {"path": "demo_agent@1", "outputFor": ["demo_agent@1"]}
    run = Run(event(nodeInfo=node, output={"n": 1})).end()
    assert run.of("lifecycle.completed") == [{"summary": "", "value": {"n": 1}}]
    assert not run.types("workflow")


# -- what else ----------------------------------------------------------------------------------


def test_the_keys_of_a_state_delta_are_escaped() -> None:
    run = Run(event(actions={"stateDelta": {"a/b~c": 1}}))
    assert run.of("state.delta") == [{"delta": [{"op": "add", "path": "/a~1b~0c", "value": 1}]}]


def test_what_has_no_place_becomes_a_custom_event() -> None:
    run = Run(
        event(
            {"text": "x", "thoughtSignature": "c2ln"},
            turnComplete=True,
            interrupted=False,
            avgLogprobs=-0.5,
            actions={"escalate": True, "compaction": {"n": 1}, "renderUiWidgets": []},
        )
    )
    assert run.custom() == {
        "adk.turnComplete": True,
        "adk.avgLogprobs": -0.5,
        "adk.escalate": True,
        "adk.compaction": {"n": 1},
        "adk.thoughtSignature": "c2ln",
    }


def test_metadata_that_stands_on_every_event_is_emitted_once() -> None:
    run = Run(*[text("x", customMetadata={"run": "r1"}, modelVersion="m1")] * 3)
    names = [data["name"] for data in run.of("custom.event")]
    assert names == ["adk.invocation", "adk.customMetadata"]


def test_names_that_the_configuration_drops_are_left_out() -> None:
    run = Run(text("x", turnComplete=True), drop=frozenset({"turnComplete", "invocation"}))
    assert not run.of("custom.event")


def test_counts_that_1_16_gives_twice_for_text_and_call_are_added_once() -> None:
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
    run = Run(
        chunk("Let me see", usageMetadata=usage),
        text("Let me see", usageMetadata=usage),
        event(call("look", {}, id="F"), usageMetadata=usage),
        event(response("look", 1, id="F")),
        text("Done", usageMetadata=usage),
    ).end()
    assert run.of("lifecycle.completed")[0]["usage"] == {
        "input_tokens": 22,
        "output_tokens": 14,
        "total_tokens": 36,
    }


def test_equal_counts_of_two_legs_are_both_added_as_after_a_restart() -> None:
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
    run = Run(text("Let me see", usageMetadata=usage))
    run.leg(2, {}).feed(event(call("look", {}, id="F"), usageMetadata=usage))
    run.feed(event(response("look", 1, id="F"))).end()
    assert run.of("lifecycle.completed")[0]["usage"]["total_tokens"] == 36


# -- errors and ends ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (
            {"error": "Request timeout after 300 seconds", "error_code": "TIMEOUT", "timestamp": 1},
            {"error": "Request timeout after 300 seconds", "error_type": "TIMEOUT"},
        ),
        (
            {"error": "ADK upstream error: 500", "status_code": 500, "detail": "Internal"},
            {"error": "ADK upstream error: 500", "status_code": 500, "detail": "Internal"},
        ),
        ({"error": "msg"}, {"error": "msg"}),
    ],
)
def test_every_shape_of_an_error_frame_is_read(
    frame: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert Run(frame).of("lifecycle.failed") == [{"code": "upstream_error", **expected}]


def test_an_exception_event_without_its_error_frame_is_a_failure() -> None:
    run = Run(event(errorCode="Boom", errorMessage="it broke")).end()
    assert run.of("lifecycle.failed") == [
        {"error": "it broke", "code": "upstream_error", "error_type": "Boom"}
    ]


def test_an_exception_that_the_run_survives_is_a_warning() -> None:
    run = Run(event(errorCode="Boom", errorMessage="it broke"), text("went on")).end()
    assert run.of("system.warning") == [{"message": "it broke", "code": "boom"}]
    assert run.types("lifecycle") == ["lifecycle.completed"]


def test_an_answer_without_content_is_a_warning() -> None:
    run = Run(event(errorCode="MODEL_RETURNED_NO_CONTENT")).end()
    assert run.of("system.warning")[0]["code"] == "model_returned_no_content"
    assert run.types("lifecycle") == ["lifecycle.completed"]


def test_a_stop_without_an_error_code_warns_once() -> None:
    run = Run(chunk("x", finishReason="MAX_TOKENS"), text("x")).end()
    assert len(run.of("system.warning")) == 1


def test_an_aborted_invocation_that_continues_is_a_warning() -> None:
    run = Run(event(errorCode="INVOCATION_ABORTED"), text("went on")).end()
    assert run.types("lifecycle") == ["lifecycle.completed"]


@pytest.mark.parametrize("garbage", [b"hello", b"[1, 2]", b"null", b'{"author": "x"', b"\xff\xfe"])
def test_a_frame_that_is_no_event_is_kept_and_fails_the_run_at_its_end(garbage: bytes) -> None:
    run = Run(garbage, text("went on")).end()
    assert run.custom() == {"adk.frame": garbage.decode("utf-8", "replace")}
    assert run.of("llm.message_completed")[0]["content"] == "went on"
    assert run.types("lifecycle") == ["lifecycle.failed"]


def test_a_frame_nested_beyond_reason_is_no_event() -> None:
    nested = b'{"author":"a","x":' + b"[" * 400 + b"]" * 400 + b"}"
    run = Run(nested).end()
    assert run.types("lifecycle") == ["lifecycle.failed"]


def test_an_empty_first_leg_completes_with_a_warning() -> None:
    run = Run().end()
    assert run.of("system.warning")[0]["code"] == "empty_stream"
    assert run.of("lifecycle.completed") == [{"summary": ""}]


KEYS = [
    *("id", "author", "invocationId", "branch", "partial", "content", "actions", "nodeInfo"),
    *("usageMetadata", "finishReason", "errorCode", "errorMessage", "error", "error_details"),
    *("longRunningToolIds", "output", "groundingMetadata", "citationMetadata", "customMetadata"),
    *("modelVersion", "timestamp", "somethingNew"),
]
ACTIONS = [
    *("stateDelta", "artifactDelta", "transferToAgent", "transfer_to_agent", "transferReason"),
    *("requestedToolConfirmations", "requestedAuthConfigs", "route", "endOfAgent", "escalate"),
]
PARTS = [
    *("text", "thought", "functionCall", "functionResponse", "inlineData", "fileData"),
    *("executableCode", "codeExecutionResult", "thoughtSignature"),
]
CALLS = [
    *("id", "name", "args", "partialArgs", "willContinue", "response", "parts", "jsonPath"),
    *("originalFunctionCall", "toolConfirmation", "authConfig", "functionCallId", "path"),
    *("outputFor", "messageAsOutput", "groundingChunks", "groundingSupports", "data", "hint"),
]
integers = st.integers(-(2**53), 2**53)
scalars = st.none() | st.booleans() | integers | st.floats(allow_nan=False) | st.text()
names = st.sampled_from(["a", "b", "wf", "wf@1/n@1", "wf@1", "F", "Boom", "SAFETY", ""]) | (
    st.sampled_from(["transfer_to_agent", "adk_request_confirmation", "adk_request_input"])
    | st.just("adk_request_credential")
)
values = st.recursive(
    scalars | names,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(CALLS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)
parts = st.dictionaries(st.sampled_from(PARTS), values, max_size=3)
events = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(KEYS, values | names)
    | {
        "content": values | st.fixed_dictionaries({"parts": st.lists(parts | values, max_size=3)}),
        "actions": values | st.dictionaries(st.sampled_from(ACTIONS), values, max_size=4),
    },
)


@given(st.lists(events | values, max_size=6), st.dictionaries(names, st.just(REJECT)))
def test_no_json_makes_it_raise_or_leave_the_contract(
    frames: list[Any], decided: dict[str, Any]
) -> None:
    run = Run()
    for number in (1, 2):
        for frame in frames:
            run.feed(frame)
        run.end()
        state = orjson.loads(orjson.dumps(run.decoder.snapshot()))
        run.decoder = AdkDecoder(AgentFacts(id="assistant"))
        run.decoder.restore(state)
        run.leg(number + 1, decided)
    for draft in run.drafts:
        typed_data(draft.type, draft.data)
        orjson.dumps(draft.data)


@given(st.binary())
def test_no_bytes_make_it_raise(data: bytes) -> None:
    run = Run(data).end()
    assert len(run.types("lifecycle")) == 1
