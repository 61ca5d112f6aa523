"""The AG-UI clients' rules accept every stream of the encoder: recordings and generated events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dialects.agui.encode import STRICT, Phase, prelude
from penstock.dialects.agui.encode.profiles import COUNTERS
from penstock.events import TERMINAL
from penstock_conformance.protocols.agui_rules import faults, remarks, wire_faults
from support.drive.agui_out import (
    AUDIENCES,
    Audience,
    Event,
    decoded,
    encoded,
    frames,
    recorded,
    wire,
)
from support.drive.for_each import for_each
from support.drive.short import in_short
from support.fakes.raw import RUN_ID
from support.real.agui_client import SCRIPTS
from support.recorded.canonical import samples

CASES = json.loads((SCRIPTS / "rules_cases.json").read_text())
each_audience = pytest.mark.parametrize("audience", AUDIENCES, ids=str)
# What has examples of Hypothesis: `make test` tries one version of each profile.
two_audiences = pytest.mark.parametrize("audience", in_short(AUDIENCES, AUDIENCES[::3]), ids=str)


def is_old(audience: Audience) -> bool:
    return audience.declares is None


def case_faults(case: dict[str, Any], *, old: bool = False) -> list[str]:
    if "wire" in case:
        return wire_faults(case["wire"].encode())
    return faults(case["events"], old=old)


@for_each("case", CASES, lambda case: case["id"])
def test_the_checker_rejects_what_the_real_clients_reject(case: dict[str, Any]) -> None:
    rejected = case["verdict"]["1.0.0"] == "reject"
    if not any("CHUNK" in each.get("type", "") for each in case.get("events", ())):
        assert bool(case_faults(case)) == rejected
    elif rejected:
        assert case_faults(case)
    if case["verdict"]["0.0.59"] == "reject" and "events" in case:
        assert case_faults(case, old=True)


@each_audience
def test_every_recorded_run_keeps_the_clients_rules(audience: Audience) -> None:
    for name, events in recorded().items():
        told = frames(audience, events)
        assert faults(decoded(told), old=is_old(audience)) == [], name
        assert wire_faults(wire(told)) == [], name
        assert told[-1].event in ("RUN_FINISHED", "RUN_ERROR"), name
        if audience.profile is STRICT:
            assert remarks(decoded(told)) == [], name
        else:
            assert not counters(decoded(told)), name


def counters(value: Any) -> set[str]:
    """Return the counters that are keys of any object in the value."""
    if isinstance(value, dict):
        inner = [counters(each) for each in value.values()]
        return set(COUNTERS.intersection(value)).union(*inner)
    if isinstance(value, list):
        return set().union(*map(counters, value))
    return set()


# generated events

_ID = st.sampled_from(["a", "b", "c"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["x", "model", "cost", "type", "id"]), inner, max_size=2)
    ),
    max_leaves=4,
)
_OBJECT = st.dictionaries(st.sampled_from(["x", "model", "inputTokens"]), _JSON, max_size=2)
_TEXT = st.sampled_from(["", "one", "two\r\nlines", "\u2028", "\0"])
_ITEM = st.fixed_dictionaries(
    {
        "item_id": _ID,
        "kind": st.sampled_from(["confirmation", "external", "long_running", "input", "x"]),
        "digest": st.just("d"),
        "editable": st.booleans(),
    },
    optional={
        "tool_call_id": _ID,
        "tool": _TEXT,
        "args": _OBJECT,
        "input_schema": _OBJECT,
        "options": st.lists(_JSON, max_size=2),
        "subrun": st.fixed_dictionaries({"id": _ID}),
    },
)
_PATCH = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["add", "remove", "replace", "frob"]),
            "path": st.sampled_from(["", "/x", "/model", "x", "/~2"]),
        },
        optional={"value": _JSON},
    ),
    max_size=2,
)
_MESSAGE = st.fixed_dictionaries(
    {"id": _ID, "role": st.sampled_from(["user", "assistant", "tool", "alien"])},
    optional={
        "content": st.one_of(_TEXT, st.none(), st.just([{"type": "text", "text": "t"}])),
        "toolCallId": _ID,
        "extra": _JSON,
    },
)
_NATIVE = st.fixed_dictionaries(
    {"protocol": st.sampled_from(["agui", "agno"])},
).flatmap(
    lambda head: st.fixed_dictionaries(
        {
            "protocol": st.just(head["protocol"]),
            "name": st.sampled_from(
                [
                    "RAW",
                    "CUSTOM",
                    "ACTIVITY_SNAPSHOT",
                    "ACTIVITY_DELTA",
                    "REASONING_ENCRYPTED_VALUE",
                    "mine",
                    "RUN_ERROR",
                ]
            ),
            "value": st.one_of(
                _JSON,
                st.fixed_dictionaries({"type": st.just("RAW"), "event": _JSON}),
                st.fixed_dictionaries({"name": _TEXT, "value": _JSON}),
                st.fixed_dictionaries(
                    {"messageId": _ID, "activityType": _TEXT, "content": _OBJECT},
                    optional={"metadata": st.one_of(st.none(), _OBJECT)},
                ),
                st.fixed_dictionaries({"messageId": _ID, "activityType": _TEXT, "patch": _PATCH}),
                st.fixed_dictionaries(
                    {"subtype": st.just("message"), "entityId": _ID, "encryptedValue": _TEXT}
                ),
            ),
        }
    )
)
_MAYBE = {"metadata": st.one_of(st.none(), _JSON)}


def _data(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


_ROLE = st.sampled_from(["assistant", "tool", "nobody", "user"])
_SAMPLES = st.sampled_from(list(samples()))
# Data for the types that the encoder handles in a way of its own. All others come from `_SAMPLES`.
_EVENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "lifecycle.resumed": _data({}),
    "lifecycle.paused": _data({"reason": st.just("approval_required"), "approval_id": _ID}),
    "lifecycle.completed": _data(
        {"summary": _TEXT}, value=_JSON, usage=_data({}, input_tokens=st.integers(-1, 3))
    ),
    "lifecycle.failed": _data(
        {"error": _TEXT, "code": st.sampled_from(["internal", "timeout"])}, detail=_JSON
    ),
    "lifecycle.cancelled": _data({"reason": st.just("user_stop"), "confirmed": st.booleans()}),
    "llm.message_started": _data({"message_id": _ID, "role": _ROLE}, name=_TEXT, **_MAYBE),
    "llm.stream": _data({"message_id": _ID, "content": _TEXT}),
    "llm.message_completed": _data(
        {"message_id": _ID, "role": _ROLE, "content": _TEXT}, value=_JSON, status=_TEXT, error=_TEXT
    ),
    "llm.reasoning": _data(
        {"reasoning_id": _ID, "thought": _TEXT}, final=st.booleans(), title=_TEXT
    ),
    "llm.tool_args": st.one_of(
        _data({"tool_call_id": _ID, "tool": _TEXT, "delta": _TEXT}),
        _data({"tool_call_id": _ID, "tool": _TEXT, "path": _TEXT, "value": _JSON}),
    ),
    "llm.tool_call": _data(
        {"tool_call_id": _ID, "tool": _TEXT, "args": _OBJECT}, message_id=_ID, args_text=_TEXT
    ),
    "llm.tool_result": _data(
        {
            "tool_call_id": _ID,
            "tool": _TEXT,
            "result": _JSON,
            "outcome": st.sampled_from(["ok", "error", "rejected", "partial"]),
        },
        content=st.lists(st.one_of(_JSON, st.just({"type": "text", "text": "t"})), max_size=2),
        error=_TEXT,
    ),
    "workflow.step_started": _data({"run_id": _ID, "step_id": _ID, "description": _ID}),
    "workflow.step_completed": _data({"run_id": _ID, "step_id": _ID, "output": _JSON}),
    "dispatch.worker": _data(
        {"worker_name": _TEXT, "task": _TEXT, "subrun_id": _ID}, parent_subrun_id=_ID
    ),
    "dispatch.finished": _data(
        {"subrun_id": _ID, "status": st.sampled_from(["completed", "failed"])}, result=_JSON
    ),
    "approval.requested": _data(
        {
            "approval_id": _ID,
            "digest": st.just("d"),
            "deciders_required": st.just(1),
            "items": st.lists(_ITEM, max_size=2),
        }
    ),
    "approval.decided": _data({"approval_id": _ID}),
    "state.snapshot": _data({"snapshot": _JSON}),
    "state.delta": _data({"delta": _PATCH}),
    "state.messages": _data({"messages": st.lists(_MESSAGE, max_size=2)}),
    "custom.event": _NATIVE,
    "category.unknown": _data({}),
}
# Most events are no end, so that runs have a middle.
_TYPES = st.sampled_from([*_EVENTS, *(name for name in _EVENTS if name not in TERMINAL)])


def _event(type: str, data: dict[str, Any], subrun: str | None) -> Event:
    category, action = type.split(".")
    event: Event = {
        "run_id": RUN_ID,
        "timestamp": "2026-11-20T10:00:00.001Z",
        "sequence": 1,
        "source": None,
        "event": {"category": category, "action": action},
        "data": data,
        "leg": 1,
    }
    return event | {"subrun": {"id": subrun}} if subrun else event


_made = _TYPES.flatmap(
    lambda type: st.builds(_event, st.just(type), _EVENTS[type], st.sampled_from([None, "a", "b"]))
)
# Mostly events of the first kind, whose ids meet those of other events.
any_event = st.one_of(_made, _made, _made, _SAMPLES)
any_run = st.lists(any_event, max_size=25)


@two_audiences
@settings(max_examples=40, deadline=None)
@given(events=any_run)
def test_whatever_comes_the_stream_keeps_the_clients_rules(
    audience: Audience, events: list[Event]
) -> None:
    told = encoded(audience, events)
    assert faults(told, old=is_old(audience)) == []
    if audience.profile is STRICT:
        assert remarks(told) == []
    else:
        assert not [each for each in told if COUNTERS.intersection(each)]


@two_audiences
@settings(max_examples=40, deadline=None)
@given(before=any_run, after=any_run)
def test_a_client_that_joins_at_any_event_gets_a_valid_stream(
    audience: Audience, before: list[Event], after: list[Event]
) -> None:
    encoder = audience.encoder()
    joined = prelude(encoder, before)
    joined += [frame for event in after for frame in encoder.feed(event)]
    assert faults(decoded(joined), old=is_old(audience)) == []


@two_audiences
@settings(max_examples=40, deadline=None)
@given(events=any_run)
def test_a_stream_that_must_stop_ends_with_an_error(
    audience: Audience, events: list[Event]
) -> None:
    encoder = audience.encoder()
    told = [frame for event in events for frame in encoder.feed(event)]
    told += encoder.cut("the server goes away", "shutdown")
    assert faults(decoded(told), old=is_old(audience)) == []
    assert encoder.phase is not Phase.RUNNING
    if told:
        assert told[-1].event in ("RUN_FINISHED", "RUN_ERROR")


@each_audience
def test_a_run_that_is_encoded_again_gives_the_same_frames(
    audience: Audience,
) -> None:
    for events in recorded().values():
        assert frames(audience, events) == frames(audience, events)
