"""Events survive a round trip unchanged, and the error for an invalid event names what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.events import InvalidEvent, parse, subject_of, timestamp, typed_data
from penstock.events.llm import Stream

# The example of executions-sse.md.
STREAM: dict[str, Any] = {
    "run_id": "uuid-string",
    "timestamp": "2025-12-31T10:01:00Z",
    "sequence": 10,
    "source": {
        "agent_id": "10",
        "agent_type": "global_supervisor",
        "agent_name": "Global Supervisor",
        "team_name": None,
    },
    "event": {"category": "llm", "action": "stream"},
    "data": {"content": "Analyzing topology structure...", "message_id": "m1"},
}

text = st.text(st.characters(exclude_categories=["Cs"]))
token = st.from_regex(r"\A[A-Za-z0-9_-]{1,36}\Z")
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
unknown_fields = st.dictionaries(text.map("x-{}".format), json_values, max_size=3)


def with_unknown(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda known, more: known | more, st.fixed_dictionaries(fields), unknown_fields
    )


sources = with_unknown(agent_id=text, agent_type=text, agent_name=text, team_name=st.none() | text)
additive = st.fixed_dictionaries(
    {},
    optional={
        "session_id": text,
        "leg": st.integers(min_value=1),
        "attempt": st.none() | st.integers(min_value=1),
        "parent_run_id": st.none() | text,
        "step_id": text,
        "workflow_depth": st.none() | st.integers(min_value=1),
        "subrun": with_unknown(id=text, parent_id=st.none() | text),
    },
)
events = st.builds(
    lambda known, more: known | more,
    with_unknown(
        run_id=token,
        timestamp=st.sampled_from(["2025-12-31T10:00:00Z", "2026-01-01T00:00:00.120Z"]),
        sequence=st.integers(min_value=1),
        source=st.none() | sources,
        event=with_unknown(category=token, action=token),
        data=st.dictionaries(text, json_values, max_size=4),
    ),
    additive,
)


@given(events)
def test_any_event_survives_parse_and_dump(body: dict[str, Any]) -> None:
    assert json.loads(parse(json.dumps(body).encode()).dump()) == body
    assert json.loads(parse(body).dump()) == body


def test_the_documents_example_comes_out_byte_for_byte() -> None:
    body = json.dumps(STREAM, separators=(",", ":")).encode()
    assert parse(body).dump() == body


def test_an_event_knows_its_type_its_subject_and_its_typed_data() -> None:
    event = parse(STREAM)
    assert event.type == "llm.stream"
    assert subject_of(event) == "llm.stream.uuid-string"
    assert event.data_model() == Stream(content="Analyzing topology structure...", message_id="m1")


def test_an_unknown_type_has_no_typed_data() -> None:
    event = parse(STREAM | {"event": {"category": "weather", "action": "rained"}})
    assert event.type == "weather.rained"
    assert event.data_model() is None


def test_typed_data_keeps_unknown_fields_and_leaves_absent_ones_out() -> None:
    data = {"from": "a", "to": "b", "mood": [1]}
    typed = typed_data("dispatch.transfer", data)
    assert typed is not None
    assert typed.dump() == data


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"run_id": "has.dot"}, "run_id"),
        ({"run_id": ""}, "run_id"),
        ({"run_id": "end\n"}, "run_id"),
        ({"sequence": 0}, "sequence"),
        ({"sequence": "1"}, "sequence"),
        ({"sequence": True}, "sequence"),
        ({"timestamp": "2025-12-31T10:00:00+01:00"}, "timestamp"),
        ({"timestamp": "2025-12-31 10:00:00Z"}, "timestamp"),
        ({"source": {"agent_id": "1"}}, "source.agent_type"),
        ({"event": {"category": "llm", "action": "*"}}, "event.action"),
        ({"event": "llm.stream"}, "event"),
        ({"data": []}, "data"),
        ({"leg": 0}, "leg"),
        ({"subrun": {"name": "x"}}, "subrun.id"),
    ],
)
def test_a_bad_field_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        parse(STREAM | change)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize("field", ["run_id", "timestamp", "sequence", "source", "event", "data"])
def test_each_of_the_six_fields_must_be_there(field: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        parse({name: value for name, value in STREAM.items() if name != field})
    assert caught.value.field == field


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff"])
def test_bytes_that_are_no_object_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidEvent):
        parse(body)


def test_data_that_its_type_does_not_allow_is_named() -> None:
    with pytest.raises(InvalidEvent, match=r"^data\.message_id: Field required"):
        parse(STREAM | {"data": {"content": "x"}}).data_model()
    with pytest.raises(InvalidEvent, match=r"^data\.items\.0\.editable: "):
        typed_data(
            "approval.requested",
            {
                "approval_id": "a",
                "digest": "d",
                "deciders_required": 1,
                "items": [{"item_id": "i", "kind": "confirmation", "digest": "d"}],
            },
        )


@pytest.mark.parametrize(
    ("epoch_ms", "written"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1767175200000, "2025-12-31T10:00:00.000Z"),
        (1767175200120, "2025-12-31T10:00:00.120Z"),
    ],
)
def test_time_is_written_in_utc_with_milliseconds(epoch_ms: int, written: str) -> None:
    assert timestamp(epoch_ms) == written
