"""Reads the decisions from the objects that an Agno client sends back after a pause (decision
0105). Pure.

Only the tool calls of the pause may run, so an object whose tool call differs is refused. An item
is one question of the pause, as the event `approval.requested` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.bus.records.approvals import Decided
from penstock.dialects.agno.encode.pauses import waiting_tool
from penstock.dialects.json import objects
from penstock_edge.surfaces.agno.request import error
from penstock_edge.surfaces.errors import InvalidBody, shortened

Json = Any
JsonObject = dict[str, Any]
Where = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """The answer's fields that tools and steps have in common."""

    confirmed: Json
    note: str | None
    entered: JsonObject  # the values in `user_input_schema` and `user_input`, by field name
    answered: bool


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A tool call with a client's answer, maybe of a requirement. Each of `ids` may be the id of
    the item that it answers; the most specific comes first."""

    where: Where
    ids: tuple[str, ...]
    filled: Filled
    tool_name: Json
    tool_args: Json
    result: Json
    runs_at_client: bool
    chosen: JsonObject  # the options that were selected in `user_feedback_schema`, by question

    id_field = "tool_call_id"

    @property
    def ran_before(self) -> bool:
        """Clients send tools that ran before the pause back, too."""
        return self.result is not None and not self.runs_at_client


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """A step of a workflow, with a client's answer."""

    where: Where
    ids: tuple[str, ...]
    filled: Filled
    choices: Json

    id_field = "step_id"
    ran_before = False


Answer = ToolAnswer | StepAnswer


def answers(section: str, given: Sequence[JsonObject]) -> list[Answer]:
    """Read the list `tools`, `requirements` or `step_requirements`."""
    read = _SECTIONS[section]
    return [answer for index, each in enumerate(given) for answer in read((section, index), each)]


def are_known(
    items: Sequence[JsonObject], shown: Mapping[str, str], given: Iterable[Answer]
) -> bool:
    names = _names(items, shown)
    return all(_found(names, answer) or answer.ran_before for answer in given)


def decided(
    items: Sequence[JsonObject], shown: Mapping[str, str], given: Sequence[Answer]
) -> list[Decided]:
    """Return the decisions on the items of the event `approval.requested`. `shown` maps the agent
    server's ids to item ids, where these differ. The approvals service checks that every item is
    decided.

    Raise InvalidBody for an answer that belongs to no item, or to an item that another answer
    decides, that has no decision, or whose tool call differs from the call of the item.
    """
    names = _names(items, shown)
    decisions: dict[str, Decided] = {}
    for answer in given:
        item = _found(names, answer)
        if item is None:
            if answer.ran_before:
                continue
            id = shortened(answer.ids[0]) if answer.ids else ""
            raise _refusal(answer, answer.id_field, f"{id!r} is not asked about in this pause")
        item_id = item["item_id"]
        if item_id in decisions:
            raise _refusal(answer, answer.id_field, "is answered more than once")
        _require_same_call(item, answer)
        decisions[item_id] = _DECISIONS[item["kind"]](item, answer)
    return list(decisions.values())


# --- Reading the objects


def _tools(where: Where, tool: JsonObject) -> list[Answer]:
    return [_tool_answer(where, _texts(tool.get("tool_call_id")), tool)]


def _requirements(where: Where, requirement: JsonObject) -> list[Answer]:
    execution = requirement.get("tool_execution")
    tool = dict(execution) if isinstance(execution, dict) else {}
    for outer_name, name in _OF_REQUIREMENT.items():
        outer, nested = requirement.get(outer_name), tool.get(name)
        if outer_name == "confirmation" and None not in (outer, nested) and outer is not nested:
            text = "differs from `confirmed` in its tool_execution"
            raise InvalidBody([error("answer_invalid", (*where, outer_name), text)])
        if nested is None:
            tool[name] = outer
    for field, key, value in _SCHEMAS:
        tool[field] = _merged(tool.get(field), requirement.get(field), key, value)
    ids = _texts(requirement.get("id"), tool.get("tool_call_id"))
    return [_tool_answer(where, ids, tool)]


def _steps(where: Where, step: JsonObject) -> list[Answer]:
    inner = step.get("executor_requirements")
    if step.get("requires_executor_input") is True or (inner and isinstance(inner, list)):
        return [
            answer
            for index, each in enumerate(objects(inner))
            for answer in _requirements((*where, "executor_requirements", index), each)
        ]
    return [
        StepAnswer(
            where,
            _texts(step.get("step_id"), step.get("step_name")),
            _filled(step, note=step.get("rejection_feedback")),
            choices=step.get("selected_choices"),
        )
    ]


_SECTIONS: Final[Mapping[str, Callable[[Where, JsonObject], list[Answer]]]] = {
    "tools": _tools,
    "requirements": _requirements,
    "step_requirements": _steps,
}
# Maps each field of a requirement to the field of its `tool_execution` that means the same.
_OF_REQUIREMENT: Final = {
    "confirmation": "confirmed",
    "confirmation_note": "confirmation_note",
    "external_execution_result": "result",
}
_INPUT: Final = ("user_input_schema", "name", "value")
_FEEDBACK: Final = ("user_feedback_schema", "question", "selected_options")
# Each tuple has the name of a schema, the key that names one of its entries, and the key that the
# client fills in.
_SCHEMAS: Final = (_INPUT, _FEEDBACK)


def _tool_answer(where: Where, ids: tuple[str, ...], tool: JsonObject) -> ToolAnswer:
    return ToolAnswer(
        where,
        ids,
        _filled(tool, note=tool.get("confirmation_note")),
        tool_name=tool.get("tool_name"),
        tool_args=tool.get("tool_args"),
        result=tool.get("result"),
        runs_at_client=tool.get("external_execution_required") is True,
        chosen=_values(tool, *_FEEDBACK),
    )


def _filled(given: JsonObject, note: Json) -> Filled:
    entered = _values(given, *_INPUT)
    more = given.get("user_input")
    if isinstance(more, dict):
        entered |= more
    return Filled(
        confirmed=given.get("confirmed"),
        note=note if isinstance(note, str) and note else None,
        entered=entered,
        answered=given.get("answered") is True,
    )


def _values(given: JsonObject, field: str, key: str, value: str) -> JsonObject:
    return {
        each[key]: each[value]
        for each in objects(given.get(field))
        if isinstance(each.get(key), str) and each.get(value) is not None
    }


def _merged(nested: Json, outer: Json, key: str, value: str) -> list[JsonObject]:
    """Join a schema's entries in a requirement (`outer`) and its tool (`nested`); filled-in ones
    win."""
    filled = {each[key]: each for each in objects(outer) if isinstance(each.get(key), str)}
    filled |= {
        each[key]: each
        for each in objects(nested)
        if isinstance(each.get(key), str) and each.get(value) is not None
    }
    return list(filled.values()) or objects(nested)


# --- Finding the item of an answer


def _names(items: Sequence[JsonObject], shown: Mapping[str, str]) -> Mapping[str, list[JsonObject]]:
    """Several items may have the same id: two members of a team may use the same call id."""
    names: dict[str, list[JsonObject]] = {}
    by_id = {item["item_id"]: item for item in items}
    named = [(item["item_id"], item) for item in items]
    named += [
        (item["tool_call_id"], item)
        for item in items
        if item.get("tool_call_id") not in (None, item["item_id"])
    ]
    named += [(name, by_id[item_id]) for name, item_id in shown.items() if item_id in by_id]
    for name, item in named:
        if item not in names.setdefault(name, []):
            names[name].append(item)
    return names


def _found(names: Mapping[str, list[JsonObject]], answer: Answer) -> JsonObject | None:
    for item_id in answer.ids:
        found = names.get(item_id, [])
        if len(found) == 1:
            return found[0]
    return None


def _require_same_call(item: JsonObject, answer: Answer) -> None:
    # A person has approved only the item's call, so no other call may run.
    if isinstance(answer, StepAnswer):
        return
    asked = waiting_tool(item, None)
    for field, given in (("tool_name", answer.tool_name), ("tool_args", answer.tool_args)):
        if given is not None and given != asked[field]:
            raise _refusal(answer, field, "differs from the call of the pause; nothing has run")


# --- Making the decision of an answer


def _confirmation(item: JsonObject, answer: Answer) -> Decided:
    confirmed = answer.filled.confirmed
    if not isinstance(confirmed, bool):
        raise _refusal(answer, "confirmed", "must be true or false")
    if confirmed:
        return Decided(item_id=item["item_id"], decision="approve", note=answer.filled.note)
    return _rejected(item, answer)


def _input(item: JsonObject, answer: Answer) -> Decided:
    entered = answer.filled.entered
    value: Json = entered or ({} if answer.filled.answered else None)
    if not _has_properties(item) and set(entered) == {"value"}:
        # If the input is not an object, clients see it as one field with the name `value`.
        value = entered["value"]
    return _approved(item, value)


def _choice(item: JsonObject, answer: Answer) -> Decided:
    if isinstance(answer, StepAnswer):
        return _approved(item, answer.choices)
    if item["kind"] == "feedback" and objects(item.get("options")):
        return _approved(item, answer.chosen or None)
    return _approved(item, next(iter(answer.chosen.values()), None))


def _result(item: JsonObject, answer: Answer) -> Decided:
    if isinstance(answer, StepAnswer):
        return _approved(item, None)
    if answer.result is None and answer.filled.confirmed is False:
        return _rejected(item, answer)
    return _approved(item, answer.result)


def _approved(item: JsonObject, value: Json) -> Decided:
    return Decided(item_id=item["item_id"], decision="approve", note=None, value=value)


def _rejected(item: JsonObject, answer: Answer) -> Decided:
    return Decided(item_id=item["item_id"], decision="reject", note=answer.filled.note)


_DECISIONS: Final[Mapping[str, Callable[[JsonObject, Answer], Decided]]] = {
    "confirmation": _confirmation,
    "review": _confirmation,
    "budget": _confirmation,
    "input": _input,
    "credential": _input,
    "feedback": _choice,
    "selection": _choice,
    "external": _result,
    "long_running": _result,
}


def _refusal(answer: Answer, field: str, text: str) -> InvalidBody:
    return InvalidBody([error("answer_invalid", (*answer.where, field), text)])


def _has_properties(item: JsonObject) -> bool:
    schema = item.get("input_schema")
    return isinstance(schema, dict) and bool(schema.get("properties"))


def _texts(*values: Json) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str) and value)
