"""Every encoder accepts any canonical events, in any order and at any depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.a2a import A2aEncoder
from penstock.dialects.adk.encode import AdkEncoder
from penstock.dialects.adk.encode.legacy import LegacyEncoder
from penstock.dialects.agno.encode import AgnoEncoder
from penstock.dialects.agno.encode.complete import run_output
from penstock.dialects.base import Encoder
from penstock.dialects.openai import ChatEncoder, ResponsesEncoder
from penstock.dialects.unified import UnifiedEncoder
from penstock.dialects.vercel import SDKS, VercelEncoder
from penstock.events import parse, typed_data
from support.recorded import vercel_rules
from support.recorded.canonical import event, recorded_runs, run, samples

ENCODERS: dict[str, Callable[[], Encoder]] = {
    "unified": UnifiedEncoder,
    "adk": AdkEncoder,
    "adk streaming": lambda: AdkEncoder(streaming=True),
    "adk legacy": LegacyEncoder,
    "vercel": VercelEncoder,
    "openai responses": ResponsesEncoder,
    "openai chat": ChatEncoder,
    "agno agent": AgnoEncoder,
    "agno team": lambda: AgnoEncoder("team"),
    "agno workflow": lambda: AgnoEncoder("workflow"),
    "a2a": A2aEncoder,
    "a2a, not extended": lambda: A2aEncoder(extended=False),
    "a2a 0.3": lambda: A2aEncoder(older=True),
}

each_encoder = pytest.mark.parametrize("make", ENCODERS.values(), ids=list(ENCODERS))

_seen: dict[bytes, dict[str, Any]] = {}
for _recorded in recorded_runs():
    for _event in _recorded.events:
        _seen[
            orjson.dumps((_event["event"], sorted(_event["data"]), _event.get("subrun") is None))
        ] = _event
EVENTS = [*_seen.values(), *samples()]


def test_the_events_to_choose_from_are_valid() -> None:
    for each in EVENTS:
        parsed = parse(each)
        typed_data(parsed.type, parsed.data)


@each_encoder
@given(events=st.lists(st.sampled_from(EVENTS), max_size=30))
def test_events_in_any_order_give_json_and_the_same_again(
    make: Callable[[], Encoder], events: list[dict[str, Any]]
) -> None:
    one, other = make(), make()
    for each in events:
        frames = one.feed(each)
        assert list(other.feed(each)) == list(frames)
        for frame in frames:
            assert b"\n" not in frame.data
            assert isinstance(orjson.loads(frame.data), dict)


@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_unified_messages_are_well_formed_whatever_comes(events: list[dict[str, Any]]) -> None:
    encoder = UnifiedEncoder()
    opened: dict[str, str] = {}
    ended: set[str] = set()
    for each in events:
        for frame in encoder.feed(each):
            body = orjson.loads(frame.data)
            payload = body["payload"]
            match body["type"]:
                case "agent_message_start":
                    assert payload["message_id"] not in opened.keys() | ended
                    opened[payload["message_id"]] = ""
                case "agent_message_delta":
                    assert payload["message_id"] in opened
                case "agent_message_end":
                    del opened[payload["message_id"]]
                    ended.add(payload["message_id"])
                case "run_error" | "run_interrupted" | "session_ended":
                    assert not opened


@pytest.mark.parametrize("sdk", SDKS)
@given(events=st.lists(st.sampled_from(EVENTS), max_size=30))
def test_the_ai_sdks_client_accepts_the_stream_whatever_comes(
    sdk: str, events: list[dict[str, Any]]
) -> None:
    encoder = VercelEncoder(sdk)
    end = event("lifecycle.completed", {"summary": "x"})
    chunks = [orjson.loads(frame.data) for each in [*events, end] for frame in encoder.feed(each)]
    assert vercel_rules.faults(chunks, sdk) == []


@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_a_run_as_one_object_is_an_object_whatever_comes(events: list[dict[str, Any]]) -> None:
    orjson.dumps(run_output(events))


@each_encoder
def test_what_was_as_deep_as_an_event_can_be_is_still_written(make: Callable[[], Encoder]) -> None:
    deep: Any = 0
    for _ in range(251):
        deep = [deep]
    call = {"tool": "t", "tool_call_id": "c", "args": {}}
    result = {"tool": "t", "tool_call_id": "c", "result": deep, "outcome": "ok"}
    events = run(("llm.tool_call", call), ("llm.tool_result", result))
    orjson.dumps(events[-1])  # the event can be written, so it can be on the bus
    encoder = make()
    written = [frame.data for each in events for frame in encoder.feed(each)]
    assert written
    assert all(isinstance(orjson.loads(data), dict) for data in written)
