"""The documents' own examples pass the decoders and encoders unchanged.

`documents/` holds the examples word for word, except that the placeholders `{ ... }` and `[...]`
for JSON are empty there. The tests of the endpoints use the examples of HTTP requests and
responses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.dialects.adk.decode import AdkDecoder
from penstock.dialects.base import AgentFacts, Draft
from penstock.dialects.custom_events import from_custom
from penstock.dialects.executions import ExecutionsEncoder
from penstock.dialects.unified import CATEGORY_OF, UnifiedEncoder
from penstock.events import parse, typed_data
from penstock.sse import Frame, Parser
from support.fakes.raw import RUN_ID
from support.recorded.agno import APPROVE, REJECT, decoder, feed, types
from support.recorded.canonical import event

DOCUMENTS = Path(__file__).parent / "documents"


def examples(document: str) -> dict[str, Any]:
    """Return the document's examples by their headings."""
    found: dict[str, Any] = json.loads((DOCUMENTS / f"{document}.json").read_text("utf-8"))
    return found


# executions-sse.md

EXECUTIONS = examples("executions")


@pytest.mark.parametrize("name", EXECUTIONS)
def test_an_event_of_the_executions_document_comes_out_as_it_stands_there(name: str) -> None:
    example = EXECUTIONS[name]
    [frame] = ExecutionsEncoder().feed(example)
    assert frame.event == name
    assert orjson.loads(frame.data) == example
    assert list(orjson.loads(frame.data)) == list(example)
    assert parse(example).type == name


def test_the_executions_document_has_twelve_events() -> None:
    assert len(EXECUTIONS) == 12


# unified-events.md

UNIFIED = examples("unified")
# The events that begin, end or stop a run are never taken from a custom event.
OURS_ALONE = {"session_started", "session_ended", "run_retry", "run_interrupted"}


def test_the_unified_document_has_all_its_types() -> None:
    assert UNIFIED.keys() == CATEGORY_OF.keys()


@pytest.mark.parametrize("name", sorted(UNIFIED.keys() - OURS_ALONE))
def test_a_payload_of_the_unified_document_is_an_event_of_ours_and_back(name: str) -> None:
    """An agent sends the payload in a custom event; a client of the dialect gets it unchanged."""
    payload = UNIFIED[name]
    draft = from_custom(name, payload)
    assert draft is not None
    typed_data(draft.type, draft.data)
    # The payload names the agent, and not the event's source.
    source = {
        "agent_id": "another agent",
        "agent_type": "agent",
        "agent_name": "A",
        "team_name": None,
    }
    frames = UnifiedEncoder().feed(event(draft.type, draft.data, source=source))
    told = {frame.event: orjson.loads(frame.data)["payload"] for frame in frames}[name]
    if "message_id" in payload:
        assert told["message_id"] == f"{RUN_ID}/{payload['message_id']}"
        told["message_id"] = payload["message_id"]
    if "run_id" in payload:
        payload = {**payload, "run_id": RUN_ID}  # every payload carries the run's own id
    assert {field: told[field] for field in payload} == payload
    assert told.keys() - payload.keys() <= {"run_id", "is_error"}


@pytest.mark.parametrize("name", sorted(OURS_ALONE))
def test_a_custom_event_that_would_begin_or_end_a_run_stays_one(name: str) -> None:
    assert from_custom(name, UNIFIED[name]) is None


# agno-events.md

AGNO = examples("agno")
CHUNK = "RunContent (streaming chunk)"
CITED = "RunContent (final chunk with citations)"
ASKED = "toolu_014NwbC34YUX8CFu1fzMSzur"


def agno(name: str, **fields: Any) -> Frame:
    """Return a frame of that name in run `r1`, with the body of the document's example if any."""
    body = {"event": name, **AGNO.get(name, {}), "run_id": "r1", "session_id": "s1", **fields}
    return Frame(orjson.dumps(body), body["event"])


TEXT = [agno(CHUNK), agno(CITED), agno("RunContentCompleted"), agno("RunCompleted")]
BEFORE = [agno("RunStarted"), agno(CHUNK, content="")]
TOOL = [agno("ToolCallStarted"), agno("ToolCallCompleted")]
ENDS = [
    *("llm.message_started", "llm.stream", "llm.message_completed"),
    *("llm.usage", "lifecycle.completed"),
]
# The frames of the paused tool after its confirmation. They are the examples' tool call, with the
# id, name and arguments of the call in `RunPaused`.
[PAUSED] = [tool for tool in AGNO["RunPaused"]["tools"] if tool["tool_call_id"] == ASKED]
APPROVED = {key: PAUSED[key] for key in ("tool_call_id", "tool_name", "tool_args")}
CONFIRMED = [
    agno(each, tool={**AGNO[each]["tool"], **APPROVED})
    for each in ("ToolCallStarted", "ToolCallCompleted")
]
SEQUENCES: dict[str, tuple[list[list[Frame]], dict[str, Any], list[str]]] = {
    "simple text": ([[agno("RunStarted"), *TEXT]], {}, ["custom.event", *ENDS]),
    "auto-execute tool": (
        [[*BEFORE, *TOOL, *TEXT]],
        {},
        ["custom.event", "llm.tool_call", "llm.tool_result", *ENDS],
    ),
    "approved": (
        [
            [*BEFORE, agno("RunContentCompleted"), agno("RunPaused")],
            [agno("RunContinued"), *CONFIRMED, *TEXT],
        ],
        APPROVE,
        [
            *("custom.event", "llm.tool_call", "pause"),
            *("lifecycle.resumed", "llm.tool_progress", "llm.tool_result", *ENDS),
        ],
    ),
    "rejected": (
        [
            [*BEFORE, agno("RunContentCompleted"), agno("RunPaused")],
            [agno("RunContinued"), *TEXT],
        ],
        REJECT,
        [
            *("custom.event", "llm.tool_call", "pause"),
            *("llm.tool_result", "lifecycle.resumed", *ENDS),
        ],
    ),
}


@pytest.mark.parametrize(("legs", "decision", "said"), SEQUENCES.values(), ids=SEQUENCES)
def test_a_sequence_of_the_agno_document_is_told_to_the_end(
    legs: list[list[Frame]], decision: dict[str, Any], said: list[str]
) -> None:
    made = decoder()
    drafts = feed(made, *legs[0])
    for number, leg in enumerate(legs[1:], 2):
        made.open(number)
        drafts += made.decided({ASKED: decision})
        drafts += feed(made, *leg)
    drafts += made.end()
    assert types(drafts) == said


def test_the_events_of_the_agno_document_mean_what_they_say() -> None:
    drafts = feed(decoder(), agno("RunStarted"), *TOOL, *TEXT)
    told = {draft.type: draft.data for draft in drafts if isinstance(draft, Draft)}
    assert told["custom.event"]["value"]["model"] == "claude-sonnet-4-5"
    assert told["custom.event"]["value"]["model_provider"] == "Anthropic"
    call = {"tool": "list_documents", "tool_call_id": "toolu_01QBYB8QZvTAGRMZSeMeNcHT"}
    assert told["llm.tool_call"] == {**call, "args": {}}
    assert told["llm.tool_result"] == {
        **call,
        # The example's `[...]` is no literal.
        "result": AGNO["ToolCallCompleted"]["tool"]["result"],
        "outcome": "ok",
        "duration_s": 0.07380591600667685,
    }
    assert told["llm.stream"]["content"] == "Hello! I'm here to help you"
    assert told["llm.message_completed"]["content"] == "Hello! I'm here to help you"
    assert told["lifecycle.completed"]["summary"] == AGNO["RunCompleted"]["content"]
    assert told["lifecycle.completed"]["usage"] == {
        "input_tokens": 2798,
        "output_tokens": 31,
        "total_tokens": 2829,
    }
    assert told["lifecycle.completed"]["metrics"] == {
        "duration": 2.074189707986079,
        "time_to_first_token": 0.0044944160035811365,
        "provider_metrics": {"service_tier": "standard"},
    }


# adk-streaming.md

ADK = examples("adk")
WIRE = (DOCUMENTS / "adk.sse").read_bytes()


def of_adk(frames: list[Frame]) -> list[Draft]:
    """Return the canonical events of a run of these frames."""
    made = AdkDecoder(AgentFacts(id="vana"))
    drafts = [*made.open(1), *(draft for each in frames for draft in made.feed(each)), *made.end()]
    return [draft for draft in drafts if isinstance(draft, Draft)]


def test_the_events_of_the_adk_document_mean_what_they_say() -> None:
    for each in ADK.values():
        assert isinstance(each["author"], str)
        assert isinstance(each["invocationId"], str)
        assert isinstance(each["timestamp"], float)
    drafts = of_adk([Frame(orjson.dumps(each)) for each in ADK.values()])
    told = {draft.type: draft.data for draft in drafts}
    named = {"tool": "enhanced_search", "tool_call_id": "call-1"}
    results = {"results": [{"title": "...", "url": "...", "snippet": "..."}]}
    asked = {"query": "quantum computing applications 2025", "num_results": 10}
    words = "I will research quantum computing applications for you."
    assert told["llm.message_completed"]["content"] == words
    assert told["llm.tool_call"] == {**named, "args": asked}
    assert told["llm.tool_result"] == {**named, "result": results, "outcome": "ok"}
    assert told["dispatch.transfer"] == {
        "from": "coordinator_agent",
        "to": "research_agent",
        "reason": "Specialized research required",
    }


def test_the_stream_of_the_adk_document_is_read_and_passes_unchanged() -> None:
    frames = Parser().feed(WIRE)
    # This is the document's own client: it splits on blank lines and takes the text after `data: `.
    split = [each.removeprefix(b"data: ") for each in WIRE.split(b"\n\n") if each]
    assert [frame.data for frame in frames] == split
    assert [draft.type for draft in of_adk(frames)][1:] == [
        "llm.message_started",
        "llm.stream",
        "llm.message_completed",
        "llm.tool_call",
        "llm.tool_result",
        "lifecycle.completed",
    ]
