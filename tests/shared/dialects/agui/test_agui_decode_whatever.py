"""For any upstream frames, the AG-UI decoder neither raises nor breaks the contract."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dialects.agui.vocabulary import EventType
from penstock.dialects.base import Draft, Pause
from penstock.events import TERMINAL, typed_data
from penstock.sse import Frame
from support.recorded.agui import decoder, feed

_ENDS = ["RUN_FINISHED", "RUN_ERROR"]
_THINKING = ["START", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "END"]
_COURSE = [
    *sorted({each.value for each in EventType} - set(_ENDS)),
    *(f"THINKING_{name}" for name in _THINKING),
    "WHATEVER",
]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_ID = st.sampled_from(["m1", "m1", "m2", "c1", "c2", "", None, 5])
_DELTA = st.sampled_from(["a", "b", "", "{}", '{"q":1}', None])


def usually(expected: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw the expected value, and in a fourth of the cases any JSON value."""
    return st.one_of(expected, expected, expected, _JSON)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw an object with any subset of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


_INTERRUPT = some(
    id=usually(st.sampled_from(["i1", "i2"])),
    reason=usually(st.sampled_from(["tool_call", "input_required"])),
    toolCallId=_ID,
    message=_JSON,
    responseSchema=usually(some(properties=usually(some(approved=_JSON, editedArgs=_JSON)))),
    subagentRunId=_ID,
)
_OUTCOME = some(
    type=usually(st.sampled_from(["success", "interrupt", "interrupt", "cancelled"])),
    interrupts=usually(st.lists(_INTERRUPT, max_size=3)),
    pendingToolCallIds=usually(st.lists(_ID, max_size=3)),
)
_OPERATION = some(op=usually(st.just("add")), path=usually(st.just("/a")), value=_JSON)
_MESSAGE = some(id=_ID, role=usually(st.just("tool")), toolCallId=_ID, toolCalls=_JSON)
_BODY = some(
    threadId=_ID,
    runId=_ID,
    messageId=_ID,
    toolCallId=_ID,
    toolCallName=usually(st.sampled_from(["search", "pick_color"])),
    parentMessageId=_ID,
    subagentRunId=st.none() | st.sampled_from(["s1", "s2"]) | _ID,
    parentSubagentRunId=_ID,
    stepName=_ID,
    role=usually(st.just("assistant")),
    name=usually(st.sampled_from(["on_interrupt", "retrieval.started", "RAW"])),
    delta=usually(_DELTA | st.lists(_OPERATION, max_size=2)),
    content=usually(_DELTA),
    snapshot=_JSON,
    messages=usually(st.lists(_MESSAGE, max_size=2)),
    value=_JSON,
    event=_JSON,
    entityId=_ID,
    encryptedValue=_JSON,
    title=_JSON,
    description=_JSON,
    result=_JSON,
    message=_JSON,
    code=_JSON,
    metadata=_JSON,
    rawEvent=_JSON,
    usage=usually(st.lists(some(inputTokens=_JSON), max_size=2)),
    outcome=usually(_OUTCOME),
)


def frames(names: list[str], max_size: int) -> st.SearchStrategy[list[Frame]]:
    """Draw events of these types that resemble AG-UI's."""
    made = st.builds(
        lambda name, body: Frame(orjson.dumps({**body, "type": name})),
        st.sampled_from(names),
        _BODY,
    )
    return st.lists(made, max_size=max_size)


_DECIDED = st.dictionaries(
    st.sampled_from(["c1", "c2", "i1", "i1#2", "interrupt"]),
    some(decision=st.sampled_from(["approve", "reject"]), value=_JSON, note=_JSON),
)


@settings(max_examples=20)
@given(
    first=frames(_COURSE, 15),
    pause=frames(["RUN_FINISHED"], 1),
    decided=_DECIDED,
    second=frames(_COURSE, 15),
    ends=frames(_ENDS, 2),
)
def test_whatever_comes_is_events_of_the_contract_with_one_end(
    first: list[Frame],
    pause: list[Frame],
    decided: dict[str, dict[str, Any]],
    second: list[Frame],
    ends: list[Frame],
) -> None:
    made = decoder()
    drafts = feed(made, *first, *pause)
    restored = made
    if any(isinstance(draft, Pause) for draft in drafts):
        restored = decoder()
        restored.restore(json.loads(json.dumps(made.snapshot())))
        assert restored.snapshot() == made.snapshot()
        restored.open(2)
        drafts += restored.decided(decided)
    drafts += [*feed(restored, *second, *ends), *restored.end()]
    for draft in drafts:
        orjson.dumps(draft)
        if isinstance(draft, Draft):
            typed_data(draft.type, draft.data)
        else:
            assert len({item.item_id for item in draft.items}) == len(draft.items) > 0
    assert_once(drafts)


def assert_once(drafts: list[Draft | Pause]) -> None:
    """Check that the run's end is last and that nothing starts or ends twice."""
    said = [draft for draft in drafts if isinstance(draft, Draft)]
    assert [draft.type for draft in said[:-1] if draft.type in TERMINAL] == []

    def ids(event_type: str, key: str) -> Counter[str]:
        return Counter(draft.data[key] for draft in said if draft.type == event_type)

    begun = ids("llm.message_started", "message_id")
    ended = ids("llm.message_completed", "message_id")
    asked = ids("llm.tool_call", "tool_call_id")
    answered = ids("llm.tool_result", "tool_call_id")
    sent = ids("dispatch.worker", "subrun_id")
    back = ids("dispatch.finished", "subrun_id")
    steps = ids("workflow.step_started", "step_id")
    done = ids("workflow.step_completed", "step_id") + ids("workflow.step_failed", "step_id")
    for count in (begun, ended, asked, answered, sent, back, steps, done):
        assert max(count.values(), default=1) == 1
    assert answered.keys() <= asked.keys()
    if said and said[-1].type in TERMINAL:
        assert (begun, sent, steps) == (ended, back, done)


@given(st.binary(max_size=60))
def test_no_bytes_raise(body: bytes) -> None:
    decoder().feed(Frame(body))


def test_no_depth_raises() -> None:
    deep = b'{"type":"CUSTOM","name":"x","value":' + b"[" * 240 + b"]" * 240 + b"}"
    (draft,) = decoder().feed(Frame(deep))
    assert isinstance(draft, Draft)
    orjson.dumps(draft.data)
