"""Reads the questions of a paused run from the pause frame.

The frame of an agent lists `tools`. The frame of a team lists `requirements`, which contain the
tools of its members. The frame of a workflow lists `step_requirements`, which are gates or the
tools of a step's agent. JSON members that are null may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from penstock.dialects.agno.decode.agents import Run
from penstock.dialects.agno.decode.calls import Call, tool_args, tool_name
from penstock.dialects.agno.decode.frames import (
    AgnoFrame,
    FeedbackOption,
    FeedbackQuestion,
    InputField,
    Requirement,
    StepRequirement,
    Tool,
)
from penstock.dialects.base import Json, JsonObject, PauseItem, PauseKind, Subrun
from penstock.dialects.json import OBJECT, array, objects, string, without_none

_JSON_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}


_StepKind = Literal["input", "selection", "review", "confirmation"]
_StepMessage = Literal["user_input_message", "output_review_message", "confirmation_message"]
# Maps the kind of a question to the key under which a StepRequirement has the text for the person.
_STEP_MESSAGES: Final[Mapping[_StepKind, _StepMessage]] = {
    "input": "user_input_message",
    "selection": "user_input_message",
    "review": "output_review_message",
    "confirmation": "confirmation_message",
}


@dataclass(slots=True)
class Question:
    """A question about a tool, or without one about a workflow's step. `path` leads to it in the
    pause's `resume`, from a section and an index on."""

    kind: PauseKind
    path: list[str | int]
    tool: Tool | None = None
    run_id: str | None = None  # the inner run of the tool
    run_name: str | None = None
    step_id: str | None = None
    description: str | None = None
    input_schema: JsonObject | None = None
    options: list[Json] | None = None


def questions_of_run(body: AgnoFrame, *, team: bool) -> list[Question]:
    """Questions of a team come first from `requirements`, because a team that continues reads only
    these.

    If a run of Agno 2.3 pauses again, the frame repeats the requirements of the first pause
    unchanged, although they are settled. So a requirement whose call is settled in `tools` is left
    out.
    """
    called = array(body.get("tools"))
    tools = [
        question
        for index, tool in enumerate(called)
        for question in _question_of_tool(tool, ["tools", index], None, None)
    ]
    settled = {
        string(tool.get("tool_call_id"))
        for tool in called
        if isinstance(tool, OBJECT) and _was_asked_about(tool) and _tool_kind(tool) is None
    }
    # Two calls may have the same id. If one of them still waits, the id is not settled.
    settled -= {string(question.tool.get("tool_call_id")) for question in tools if question.tool}
    requirements = [
        question
        for question in _requirements(body.get("requirements"), ["requirements"], None, None)
        # `tools` has only the run's own calls. A member's call with the same id may still wait, so
        # a requirement of a member never counts as settled.
        if question.tool is None
        or question.run_id
        or string(question.tool.get("tool_call_id")) not in settled
    ]
    return [*requirements, *tools] if team else [*tools, *requirements]


def questions_of_workflow(body: AgnoFrame) -> list[Question]:
    return [
        question
        for index, step in enumerate(array(body.get("step_requirements")))
        if isinstance(step, OBJECT)
        for question in _questions_of_step(step, ["step_requirements", index])
    ]


def filled_in(tool: Tool) -> JsonObject:
    """Return the arguments that a person must fill in, with the model's values."""
    return {
        name: spec.get("value")
        for spec in objects(tool.get("user_input_schema"))
        if (name := string(spec.get("name"))) is not None
    }


def _requirements(
    value: Json, path: list[str | int], run_id: str | None, run_name: str | None
) -> Iterator[Question]:
    requirement: Requirement
    for index, requirement in enumerate(array(value)):
        if not isinstance(requirement, OBJECT) or requirement.get("confirmation") is not None:
            continue
        yield from _question_of_tool(
            requirement.get("tool_execution"),
            [*path, index],
            string(requirement.get("member_run_id")) or run_id,
            string(requirement.get("member_agent_name")) or run_name,
        )


def _question_of_tool(
    tool: Json, path: list[str | int], run_id: str | None, run_name: str | None
) -> Iterator[Question]:
    if not isinstance(tool, OBJECT):
        return
    kind = _tool_kind(tool)
    if kind is None:
        return
    question = Question(kind, path, tool, run_id, run_name)
    if kind == "input":
        question.input_schema = _input_schema(tool.get("user_input_schema"))
    elif kind == "feedback":
        question.options = objects(tool.get("user_feedback_schema"))
        question.input_schema = _feedback_schema(question.options)
    yield question


def _was_asked_about(tool: Tool) -> bool:
    """Return whether the call has an id and waits, or has waited, for a decision. One that has run
    after it still has `confirmed` or `answered`, but has `requires_confirmation: false`."""
    keys = (
        "external_execution_required",
        "requires_user_input",
        "requires_confirmation",
        "answered",
    )
    was_asked = any(tool.get(key) for key in keys) or tool.get("confirmed") is not None
    return was_asked and string(tool.get("tool_call_id")) is not None


def _tool_kind(tool: Tool) -> PauseKind | None:
    """Return the most specific kind, as Agno's `pause_type`; None if the call does not wait."""
    if tool.get("external_execution_required") is True and tool.get("result") is None:
        return "external"
    if tool.get("requires_user_input") is True and not tool.get("answered"):
        return "feedback" if tool.get("user_feedback_schema") else "input"
    if tool.get("requires_confirmation") is True and tool.get("confirmed") is None:
        return "confirmation"
    return None


def _questions_of_step(step: StepRequirement, path: list[str | int]) -> Iterator[Question]:
    if step.get("requires_executor_input") is True:
        yield from _requirements(
            step.get("executor_requirements"),
            [*path, "executor_requirements"],
            string(step.get("executor_run_id")),
            string(step.get("executor_name")),
        )
        return
    kind = _step_kind(step)
    if kind is None:
        return
    name = string(step.get("step_name"))
    yield Question(
        kind,
        path,
        step_id=string(step.get("step_id")) or name or "step",
        description=string(step.get(_STEP_MESSAGES[kind])) or name,
        input_schema=_input_schema(step.get("user_input_schema")) if kind == "input" else None,
        options=array(step.get("available_choices")) or None,
    )


def _step_kind(step: StepRequirement) -> _StepKind | None:
    if step.get("requires_route_selection") is True and step.get("selected_choices") is None:
        return "selection"
    if step.get("requires_user_input") is True and step.get("user_input") is None:
        return "input"
    if step.get("confirmed") is not None:
        return None
    if step.get("requires_output_review") is True:
        return "review"
    return "confirmation" if step.get("requires_confirmation") is True else None


def _input_schema(fields: Json) -> JsonObject | None:
    # The model's values become the defaults.
    properties: JsonObject = {}
    required: list[str] = []
    spec: InputField
    for spec in objects(fields):
        name = string(spec.get("name"))
        if name is None:
            continue
        value = spec.get("value")
        properties[name] = without_none(
            {
                "type": _JSON_TYPES.get(string(spec.get("field_type")) or ""),
                "description": string(spec.get("description")),
                "default": value,
                "enum": array(spec.get("allowed_values")) or None,
            }
        )
        if value is None and spec.get("required") is not False:
            required.append(name)
    return _object_schema(properties, required) if properties else None


def _feedback_schema(questions: list[FeedbackQuestion]) -> JsonObject | None:
    """Each question becomes a property, a list of option labels."""
    properties: JsonObject = {}
    for question in questions:
        name = string(question.get("question"))
        if name is None:
            continue
        options: list[FeedbackOption] = objects(question.get("options"))
        labels = [label for option in options if (label := option.get("label"))]
        properties[name] = without_none(
            {
                "type": "array",
                "description": string(question.get("header")),
                "items": {"enum": labels} if labels else None,
                "maxItems": None if question.get("multi_select") is True else 1,
            }
        )
    return _object_schema(properties, list(properties)) if properties else None


def _object_schema(properties: JsonObject, required: list[str]) -> JsonObject:
    return {"type": "object", "properties": properties, "required": required}


_OF_TEAMS: Final = "requirements"  # the section of a pause that has a team's questions


def pause_item(item_id: str, question: Question, call: Call | None, run: Run) -> PauseItem:
    subrun = run.subrun
    # the run is a member's, and no earlier frame has named it
    if subrun is None and question.run_id not in (None, run.id):
        subrun = Subrun(id=str(question.run_id), name=question.run_name or str(question.run_id))
    return PauseItem(
        item_id=item_id,
        kind=question.kind,
        tool_call_id=call.id if call else None,
        tool=tool_name(question.tool) if question.tool else None,
        args=tool_args(question.tool) if question.tool else None,
        description=question.description,
        input_schema=question.input_schema,
        options=question.options,
        # A person may edit the arguments of a confirmed call of an agent or a workflow, because
        # Agno runs the call with the arguments in the continue request. A team ignores these
        # arguments, and runs the call with the stored arguments. So the person would approve
        # arguments with which no call runs.
        editable=call is not None
        and question.kind == "confirmation"
        and question.path[0] != _OF_TEAMS,
        subrun=subrun,
    )
