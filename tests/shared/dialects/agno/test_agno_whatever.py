"""For any upstream frames, the Agno decoder neither raises nor breaks the contract."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dialects.agno.decode import AgnoDecoder
from penstock.dialects.agno.decode.decoder import _HANDLERS
from penstock.dialects.base import AgentFacts, AgentKind, Draft, Pause
from penstock.events import TERMINAL, typed_data
from penstock.sse import Frame
from support.recorded.agno import decoder, feed

_ENDS = {"RunCompleted", "RunError", "RunCancelled", "RunPaused"}
_ENDS |= {f"Team{name}" for name in _ENDS}
_ENDS |= {"WorkflowCompleted", "WorkflowError", "WorkflowCancelled", "WorkflowPaused"}
_ENDS |= {"WorkflowRunOutput", "error"}
_COURSE = [*sorted(_HANDLERS.keys() - _ENDS), "Whatever", "metrics_update", "message"]
_PAUSES = ["RunPaused", "TeamRunPaused", "WorkflowPaused"]

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_ID = st.sampled_from(["r1", "r1", "m1", "m2", "", None, 5])
_STEP_ID = st.sampled_from(["s1", "s2", None, 7])


def usually(expected: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw the expected value, and in a fourth of the cases any JSON value."""
    return st.one_of(expected, expected, expected, _JSON)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw an object with any subset of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


_TOOL = some(
    tool_call_id=usually(st.sampled_from(["c1", "c2"])),
    tool_name=usually(st.sampled_from(["search", "get_user_input"])),
    tool_args=usually(some(task=st.text(), member_id=_ID)),
    result=usually(st.none() | st.text()),
    tool_call_error=usually(st.booleans()),
    metrics=usually(some(duration=usually(st.floats(0, 9)))),
    requires_confirmation=usually(st.booleans()),
    confirmed=usually(st.none()),
    requires_user_input=usually(st.booleans()),
    user_input_schema=usually(st.lists(some(name=usually(st.text()), value=_JSON), max_size=2)),
    user_feedback_schema=usually(st.lists(some(question=usually(st.text())), max_size=2)),
    external_execution_required=usually(st.booleans()),
)
_REQUIREMENT = some(
    tool_execution=usually(_TOOL), member_run_id=_ID, confirmation=usually(st.none())
)
_GATE = some(
    step_id=_STEP_ID,
    requires_confirmation=usually(st.booleans()),
    requires_route_selection=usually(st.booleans()),
    requires_output_review=usually(st.booleans()),
    requires_user_input=usually(st.booleans()),
    requires_executor_input=usually(st.booleans()),
    executor_requirements=usually(st.lists(_REQUIREMENT, max_size=2)),
    available_choices=_JSON,
)
_RESULT = some(step_name=_STEP_ID, success=usually(st.booleans()), error=_JSON, steps=_JSON)
_BODY = some(
    run_id=_ID,
    parent_run_id=st.none() | _ID,
    workflow_run_id=st.none() | _ID,
    agent_id=_ID,
    agent_name=_ID,
    team_id=_ID,
    workflow_id=_ID,
    session_id=_ID,
    step_id=_STEP_ID,
    step_name=_STEP_ID,
    parent_step_id=_STEP_ID,
    nested_depth=usually(st.just(0)),
    workflow_agent=usually(st.just(False)),
    content=usually(st.text()),
    content_type=usually(st.just("str")),
    reasoning_content=usually(st.text()),
    citations=usually(some(urls=_JSON)),
    metrics=usually(some(input_tokens=_JSON, duration=_JSON)),
    session_state=_JSON,
    error=usually(st.text()),
    error_type=_JSON,
    additional_data=_JSON,
    status=usually(st.none()),
    iteration=usually(st.integers(0, 3)),
    condition_result=usually(st.booleans()),
    selected_steps=usually(st.lists(st.text(), max_size=2)),
    step_results=usually(st.lists(_RESULT, max_size=2)),
    step_response=usually(_RESULT),
    member_responses=usually(st.lists(some(tools=st.lists(_TOOL, max_size=1)), max_size=2)),
    name=_JSON,
    value=_JSON,
    tool=usually(_TOOL),
    tools=usually(st.lists(_TOOL, max_size=2)),
    requirements=usually(st.lists(_REQUIREMENT, max_size=2)),
    step_requirements=usually(st.lists(_GATE, max_size=2)),
)


def frames(names: list[str], max_size: int) -> st.SearchStrategy[list[Frame]]:
    """Draw frames of these names, with bodies that resemble Agno's."""
    made = st.builds(
        lambda name, body: Frame(orjson.dumps(body), name), st.sampled_from(names), usually(_BODY)
    )
    return st.lists(made, max_size=max_size)


_DECIDED = st.dictionaries(
    st.sampled_from(["c1", "c2", "c1#2", "s1", "step", "call"]),
    some(decision=st.sampled_from(["approve", "reject"]), value=_JSON, note=_JSON),
)


@settings(max_examples=20)
@given(
    kind=st.sampled_from(["agent", "team", "workflow"]),
    first=frames(_COURSE, 12),
    pauses=frames(_PAUSES, 2),
    decided=_DECIDED,
    second=frames(_COURSE, 12),
    ends=frames(sorted(_ENDS), 3),
)
def test_whatever_comes_is_events_of_the_contract_with_one_end(
    kind: AgentKind,
    first: list[Frame],
    pauses: list[Frame],
    decided: dict[str, dict[str, Any]],
    second: list[Frame],
    ends: list[Frame],
) -> None:
    made = decoder(kind)
    drafts = feed(made, *first, *pauses)
    if any(draft.type in TERMINAL for draft in drafts if isinstance(draft, Draft)):
        assert_once(drafts)  # a run that has ended has no second leg
        return
    restored = AgnoDecoder(AgentFacts(id="assistant", kind=kind))
    restored.restore(json.loads(json.dumps(made.snapshot())))
    assert restored.snapshot() == made.snapshot()
    restored.open(2)
    drafts += [*restored.decided(decided), *feed(restored, *second, *ends), *restored.end()]
    for draft in drafts:
        orjson.dumps(draft)
        if isinstance(draft, Draft):
            typed_data(draft.type, draft.data)
        else:
            assert len({item.item_id for item in draft.items}) == len(draft.items) > 0
    assert_once(drafts)


def assert_once(drafts: list[Draft | Pause]) -> None:
    """Check that the run's end is last and that nothing starts or ends twice.

    No result may come without its call, and no end of an inner run without its start.
    """
    said = [draft for draft in drafts if isinstance(draft, Draft)]
    assert [draft.type for draft in said[:-1] if draft.type in TERMINAL] == []
    begun = Counter(d.data["message_id"] for d in said if d.type == "llm.message_started")
    ended = Counter(d.data["message_id"] for d in said if d.type == "llm.message_completed")
    asked = Counter(d.data["tool_call_id"] for d in said if d.type == "llm.tool_call")
    answered = Counter(d.data["tool_call_id"] for d in said if d.type == "llm.tool_result")
    sent = Counter(d.data["subrun_id"] for d in said if d.type == "dispatch.worker")
    back = Counter(d.data["subrun_id"] for d in said if d.type == "dispatch.finished")
    for count in (begun, ended, asked, answered, sent, back):
        assert max(count.values(), default=1) == 1
    assert answered.keys() <= asked.keys()
    assert back.keys() <= sent.keys()
    if said and said[-1].type in TERMINAL:
        assert begun == ended


@given(st.sampled_from([*_COURSE, *sorted(_ENDS)]), st.binary(max_size=60))
def test_no_bytes_raise(name: str, body: bytes) -> None:
    decoder().feed(Frame(body, name))
