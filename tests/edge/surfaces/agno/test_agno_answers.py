"""The answers of an Agno client to a pause are read as decisions."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus.records.approvals import Decided
from penstock.dialects.agno.encode import pauses
from penstock.web.problems import Problem
from penstock_edge.surfaces.agno import answers
from penstock_edge.surfaces.agno.request import (
    ContinueRequest,
    RunRequest,
    answers_of,
    parse,
)
from penstock_edge.surfaces.errors import InvalidBody

NOW = "2026-11-20T10:00:00.000Z"
DELETE: dict[str, Any] = {
    "item_id": "t1",
    "tool_call_id": "t1",
    "kind": "confirmation",
    "tool": "delete_file",
    "args": {"path": "/x", "deep": {"n": [1, 2]}},
}
OTHER = {**DELETE, "item_id": "t2", "tool_call_id": "t2", "args": {"path": "/y"}}
SEND: dict[str, Any] = {
    "item_id": "t3",
    "tool_call_id": "t3",
    "kind": "input",
    "tool": "send",
    "args": {},
    "input_schema": {
        "type": "object",
        "properties": {"to": {"type": "string"}, "copies": {"type": "integer", "default": 1}},
        "required": ["to"],
    },
}
QUESTION = {"question": "Which city?", "options": [{"label": "Paris"}, {"label": "Rome"}]}
ASK: dict[str, Any] = {
    "item_id": "t4",
    "tool_call_id": "t4",
    "kind": "feedback",
    "tool": "ask_user",
    "args": {},
    "options": [{**QUESTION, "selected_options": None}],
}
SHELL: dict[str, Any] = {**DELETE, "kind": "external", "tool": "run_shell"}
GATE: dict[str, Any] = {"item_id": "s1", "kind": "confirmation", "description": "Run the gate?"}


def shown(item: dict[str, Any], **filled: Any) -> dict[str, Any]:
    """Return the tool object that the client was given, with the filled-in fields."""
    return {**copy.deepcopy(pauses.waiting_tool(item, "a1")), **filled}


def required(item: dict[str, Any], **filled: Any) -> dict[str, Any]:
    """Return the requirement that the client was given, with the filled-in fields."""
    return {**copy.deepcopy(pauses.requirement(item, shown(item), NOW)), **filled}


def stepped(item: dict[str, Any], **filled: Any) -> dict[str, Any]:
    """Return the step requirement that the client was given, with the filled-in fields."""
    return {**copy.deepcopy(pauses.step_requirement(item, shown(item), NOW)), **filled}


def decide(
    items: list[dict[str, Any]],
    section: str,
    *given: dict[str, Any],
    ids: dict[str, str] | None = None,
) -> list[Decided]:
    return answers.decided(items, ids or {}, answers.answers(section, list(given)))


def one(item: dict[str, Any], section: str, given: dict[str, Any]) -> Decided:
    (decision,) = decide([item], section, given)
    assert decision.item_id == item["item_id"]
    return decision


def refused(items: list[dict[str, Any]], section: str, *given: dict[str, Any]) -> dict[str, Any]:
    with pytest.raises(InvalidBody) as error:
        decide(items, section, *given)
    (found,) = error.value.errors
    return found


@pytest.mark.parametrize(("confirmed", "decision"), [(True, "approve"), (False, "reject")])
def test_a_confirmed_tool_is_a_decision(confirmed: bool, decision: str) -> None:
    taken = one(DELETE, "tools", shown(DELETE, confirmed=confirmed, confirmation_note="so"))
    assert (taken.decision, taken.note, taken.value) == (decision, "so", None)


def test_the_id_alone_says_what_is_confirmed() -> None:
    assert one(DELETE, "tools", {"tool_call_id": "t1", "confirmed": True}).decision == "approve"


@pytest.mark.parametrize("confirmed", [None, "true", 1, "missing"])
def test_nothing_but_a_boolean_confirms(confirmed: Any) -> None:
    tool = shown(DELETE, confirmed=confirmed)
    if confirmed == "missing":
        del tool["confirmed"]
    assert refused([DELETE], "tools", tool)["loc"] == ["body", "tools", 0, "confirmed"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_args", {"path": "/etc", "deep": {"n": [1, 2]}}),
        ("tool_args", {"path": "/x", "deep": {"n": [1, 2, 3]}}),
        ("tool_args", {}),
        ("tool_args", "x"),
        ("tool_name", "delete_all"),
        ("tool_name", ""),
    ],
)
def test_a_changed_call_is_refused(field: str, value: Any) -> None:
    tool = shown(DELETE, confirmed=True, **{field: value})
    assert refused([DELETE], "tools", tool)["loc"] == ["body", "tools", 0, field]


@pytest.mark.parametrize("id", ["t9", "", None, 5])
def test_an_unknown_call_is_refused(id: Any) -> None:
    tool = shown(DELETE, confirmed=True, tool_call_id=id)
    assert refused([DELETE], "tools", tool)["loc"] == ["body", "tools", 0, "tool_call_id"]


def test_a_call_that_is_answered_twice_is_refused() -> None:
    yes, no = shown(DELETE, confirmed=True), shown(DELETE, confirmed=False)
    assert "more than once" in refused([DELETE], "tools", yes, no)["msg"]


def test_calls_that_ran_before_the_pause_come_along() -> None:
    ran = shown(OTHER, confirmed=True, result="deleted", requires_confirmation=False)
    (taken,) = decide([DELETE], "tools", ran, shown(DELETE, confirmed=True))
    assert taken.item_id == "t1"


def test_an_external_result_under_a_wrong_id_is_no_call_that_ran() -> None:
    wrong = shown(SHELL, tool_call_id="t9", result="done")
    assert refused([SHELL], "tools", wrong)["loc"][-1] == "tool_call_id"


def test_two_answers_in_any_order_keep_to_their_calls() -> None:
    given = [shown(OTHER, confirmed=False), shown(DELETE, confirmed=True)]
    taken = {each.item_id: each.decision for each in decide([DELETE, OTHER], "tools", *given)}
    assert taken == {"t1": "approve", "t2": "reject"}


def test_a_missing_answer_is_for_approvals_to_refuse() -> None:
    assert decide([DELETE], "tools") == []


# requirements


@pytest.mark.parametrize("where", ["requirement", "tool"])
def test_a_requirement_is_confirmed_by_itself_or_by_its_tool(where: str) -> None:
    given = required(DELETE)
    if where == "requirement":
        given |= {"confirmation": False, "confirmation_note": "no"}
    else:
        given["tool_execution"] |= {"confirmed": False, "confirmation_note": "no"}
    taken = one(DELETE, "requirements", given)
    assert (taken.decision, taken.note) == ("reject", "no")


def test_a_requirement_without_its_null_keys_is_read() -> None:
    given = {"tool_execution": {"tool_call_id": "t1"}, "confirmation": True}
    assert one(DELETE, "requirements", given).decision == "approve"


def test_a_requirement_that_contradicts_its_tool_is_refused() -> None:
    given = required(DELETE, confirmation=True)
    given["tool_execution"]["confirmed"] = False
    assert refused([DELETE], "requirements", given)["loc"][-1] == "confirmation"


def test_a_changed_call_in_a_requirement_is_refused() -> None:
    given = required(DELETE, confirmation=True)
    given["tool_execution"]["tool_args"] = {"path": "/etc"}
    assert refused([DELETE], "requirements", given)["loc"][-1] == "tool_args"


def test_members_that_ask_under_one_call_id_are_told_apart_by_their_requirements() -> None:
    second = {**DELETE, "item_id": "t1#2", "tool_call_id": "t1#2", "args": {"path": "/y"}}
    given = []
    for id, path, confirmed in (("r2", "/y", False), ("r1", "/x", True)):
        tool = {"tool_call_id": "t1", "tool_name": "delete_file", "tool_args": {"path": path}}
        given.append({"id": id, "confirmation": confirmed, "tool_execution": tool})
    first = {**DELETE, "args": {"path": "/x"}}
    taken = decide([first, second], "requirements", *given, ids={"r1": "t1", "r2": "t1#2"})
    assert {each.item_id: each.decision for each in taken} == {"t1": "approve", "t1#2": "reject"}


# values


def test_user_input_is_what_was_filled_in() -> None:
    tool = shown(SEND)
    tool["user_input_schema"][0]["value"] = "a@b.c"
    assert one(SEND, "tools", tool).value == {"to": "a@b.c", "copies": 1}


def test_user_input_of_a_requirement_may_stand_beside_its_tool() -> None:
    given = required(SEND)
    given["user_input_schema"] = [{"name": "to", "value": "a@b.c"}]
    assert one(SEND, "requirements", given).value == {"to": "a@b.c", "copies": 1}


def test_an_input_that_is_no_object_is_one_field() -> None:
    item = {**SEND, "input_schema": {"type": "string"}}
    tool = shown(item)
    assert [field["name"] for field in tool["user_input_schema"]] == ["value"]
    tool["user_input_schema"][0]["value"] = "blue"
    assert one(item, "tools", tool).value == "blue"


def test_input_that_was_not_filled_in_is_no_answer() -> None:
    item = {**SEND, "input_schema": {"type": "object", "properties": {"to": {"type": "string"}}}}
    assert one(item, "tools", shown(item)).value is None
    assert one(item, "tools", shown(item, answered=True)).value == {}


def test_feedback_is_what_was_selected() -> None:
    tool = shown(ASK)
    tool["user_feedback_schema"][0]["selected_options"] = ["Paris"]
    assert one(ASK, "tools", tool).value == {"Which city?": ["Paris"]}


def test_a_selection_by_another_framework_is_its_one_questions_answer() -> None:
    item = {**ASK, "kind": "selection", "options": ["red", "blue"], "description": "Colour?"}
    tool = shown(item)
    tool["user_feedback_schema"][0]["selected_options"] = ["red"]
    assert one(item, "tools", tool).value == ["red"]


@pytest.mark.parametrize("result", ["done", "", "{}"])
def test_an_external_result_is_the_value(result: str) -> None:
    assert one(SHELL, "tools", shown(SHELL, result=result)).value == result


def test_an_external_call_without_a_result_is_no_answer_and_can_be_refused() -> None:
    assert one(SHELL, "tools", shown(SHELL)).value is None
    taken = one(SHELL, "tools", shown(SHELL, confirmed=False, confirmation_note="no shell"))
    assert (taken.decision, taken.note) == ("reject", "no shell")


def test_the_result_of_a_requirement_may_stand_beside_its_tool() -> None:
    given = required(SHELL, external_execution_result="done")
    assert one(SHELL, "requirements", given).value == "done"


# steps


@pytest.mark.parametrize(("confirmed", "decision"), [(True, "approve"), (False, "reject")])
def test_a_gate_of_a_workflow_is_confirmed(confirmed: bool, decision: str) -> None:
    given = stepped(GATE, confirmed=confirmed, rejection_feedback="not now")
    taken = one(GATE, "step_requirements", given)
    assert (taken.decision, taken.note) == (decision, "not now")


def test_a_step_takes_its_input_from_either_place() -> None:
    item = {**SEND, "tool_call_id": None, "tool": None}
    entered = stepped(item, user_input={"to": "Ada"})
    assert one(item, "step_requirements", entered).value == {"to": "Ada", "copies": 1}
    filled = stepped(item)
    filled["user_input_schema"][0]["value"] = "Ada"
    assert one(item, "step_requirements", filled).value == {"to": "Ada", "copies": 1}


def test_a_router_is_told_its_choices() -> None:
    item = {**GATE, "kind": "selection", "options": ["a", "b"]}
    assert one(item, "step_requirements", stepped(item, selected_choices=["b"])).value == ["b"]


def test_the_call_of_a_steps_agent_is_confirmed_in_its_requirement() -> None:
    given = stepped(DELETE)
    given["executor_requirements"][0]["confirmation"] = True
    assert one(DELETE, "step_requirements", given).decision == "approve"


def test_a_step_that_is_not_asked_about_is_refused() -> None:
    given = stepped(GATE, confirmed=True, step_id="s9")
    assert refused([GATE], "step_requirements", given)["loc"][-1] == "step_id"


# the fields around


def test_an_agent_is_answered_by_tools_or_requirements_and_a_team_by_requirements() -> None:
    tools = parse({"tools": "[{}]"}, ContinueRequest)
    assert answers_of(tools, "agent") == ("tools", [{}])
    assert answers_of(parse({"requirements": [{}]}, ContinueRequest), "agent")[0] == "requirements"
    with pytest.raises(InvalidBody) as error:
        answers_of(tools, "team")
    assert error.value.errors[0]["loc"] == ["body", "requirements"]
    with pytest.raises(InvalidBody):
        answers_of(parse({"tools": "[]", "requirements": "[]"}, ContinueRequest), "agent")


@pytest.mark.parametrize("given", ["{", "nonsense", "{}", "[1]", '"x"', "null", 5, {}])
def test_answers_that_are_no_list_of_objects_are_broken(given: Any) -> None:
    with pytest.raises(Problem) as error:
        answers_of(parse({"tools": given}, ContinueRequest), "agent")
    assert error.value.status == 400


@pytest.mark.parametrize("given", ["xx", "{", "5", "[]", 5, None, ""])
def test_dependencies_that_are_no_object_are_ignored(given: Any) -> None:
    asked = parse({"message": "hi", "dependencies": given, "version": "2"}, RunRequest)
    assert asked.forwarded() == {"version": "2"}


def test_dependencies_are_passed_on_unchanged() -> None:
    text = '{"document_id": null}'
    assert parse({"message": "hi", "dependencies": text}, RunRequest).forwarded() == {
        "dependencies": text
    }
    value = {"document_id": None}
    asked = parse({"message": "hi", "dependencies": value}, RunRequest)
    assert orjson.dumps(asked.forwarded()) == orjson.dumps({"dependencies": value})


# any input

_FIELDS = (
    *("tool_call_id", "tool_name", "tool_args", "confirmed", "confirmation_note", "result"),
    *("user_input_schema", "name", "value", "user_feedback_schema", "question", "answered"),
    *("selected_options", "external_execution_required", "id", "tool_execution", "confirmation"),
    *("executor_requirements", "requires_executor_input", "step_id", "user_input"),
    *("selected_choices", "rejection_feedback", "external_execution_result"),
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["t1", "t3", "s1", "delete_file"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=5)
    ),
    max_leaves=15,
)


@given(
    section=st.sampled_from(["tools", "requirements", "step_requirements"]),
    objects=st.lists(st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=8), max_size=3),
    item=st.sampled_from([DELETE, SEND, ASK, SHELL, GATE]),
)
def test_any_object_is_a_decision_or_is_refused_by_name(
    section: str, objects: list[dict[str, Any]], item: dict[str, Any]
) -> None:
    for each in objects[:1]:  # at least one object names the item
        each |= {"tool_call_id": item["item_id"], "step_id": item["item_id"]}
    refusals: list[dict[str, Any]] = []
    taken: list[Decided] = []
    try:
        taken = decide([item], section, *objects)
    except InvalidBody as error:
        refusals = error.errors
    assert all(each["loc"][:2] == ["body", section] for each in refusals)
    assert [each.item_id for each in taken] in ([], [item["item_id"]])
