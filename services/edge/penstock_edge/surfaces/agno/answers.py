"""From the objects that an Agno client sends back, answered, to decisions. Pure.

The objects say which request is meant and what the answer is. What runs is what was asked: an
object whose call is not the one that was asked about is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.bus.records import Decided
from penstock.dialects.agno.encode.pauses import waiting_tool
from penstock_edge.surfaces.agno.request import InvalidRequest, error, named

JsonObject = dict[str, Any]
Where = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One object of the client's list. `ids` tell which request it answers, the surest first.

    `tool` has what its requirement says besides; a workflow's own step has none.
    """

    where: Where
    ids: tuple[str, ...]
    tool: JsonObject
    step: JsonObject | None = None

    def refusal(self, field: str, text: str) -> InvalidRequest:
        """What is wrong with a field of it."""
        return InvalidRequest([error("answer_invalid", (*self.where, field), text)])


def answers(section: str, given: Sequence[JsonObject]) -> list[Answer]:
    """The answers in a client's list: `tools`, `requirements` or `step_requirements`."""
    read = _SECTIONS[section]
    return [answer for index, each in enumerate(given) for answer in read((section, index), each)]


def known(items: Sequence[JsonObject], shown: Mapping[str, str], given: Iterable[Answer]) -> bool:
    """Whether every answer is about one of these items."""
    names = _names(items, shown)
    return all(_found(names, answer) or _is_done(answer) for answer in given)


def decided(
    items: Sequence[JsonObject], shown: Mapping[str, str], given: Sequence[Answer]
) -> list[Decided]:
    """The decisions. `items`: those of approval.requested; `shown`: the upstream's own ids for
    them, where it has others.

    Raises InvalidRequest for an answer to nothing that is asked, for one whose call differs from
    what was asked, and for what does not answer. Whether all is answered, approvals judge.
    """
    names = _names(items, shown)
    decisions: dict[str, Decided] = {}
    for answer in given:
        item = _found(names, answer)
        if item is None:
            if _is_done(answer):
                continue
            id = named(answer.ids[0]) if answer.ids else ""
            raise answer.refusal(_id_field(answer), f"{id!r} is not asked about in this pause")
        item_id = item["item_id"]
        if item_id in decisions:
            raise answer.refusal(_id_field(answer), "is answered more than once")
        _require_same(item, answer)
        decisions[item_id] = _DECISIONS[item["kind"]](item, answer)
    return list(decisions.values())


# --- reading the objects


def _tools(where: Where, tool: JsonObject) -> list[Answer]:
    return [Answer(where, _texts(tool.get("tool_call_id")), tool)]


def _requirements(where: Where, requirement: JsonObject) -> list[Answer]:
    execution = requirement.get("tool_execution")
    tool = dict(execution) if isinstance(execution, dict) else {}
    for theirs, ours in _OF_THE_REQUIREMENT.items():
        said, nested = requirement.get(theirs), tool.get(ours)
        if theirs == "confirmation" and None not in (said, nested) and said is not nested:
            text = "says another thing than its tool_execution"
            raise InvalidRequest([error("answer_invalid", (*where, theirs), text)])
        if nested is None:
            tool[ours] = said
    for field, key, value in _SCHEMAS:
        tool[field] = _merged(tool.get(field), requirement.get(field), key, value)
    ids = _texts(requirement.get("id"), tool.get("tool_call_id"))
    return [Answer(where, ids, tool)]


def _steps(where: Where, step: JsonObject) -> list[Answer]:
    inner = step.get("executor_requirements")
    if step.get("requires_executor_input") is True or (inner and isinstance(inner, list)):
        return [
            answer
            for index, each in enumerate(_objects(inner))
            for answer in _requirements((*where, "executor_requirements", index), each)
        ]
    return [Answer(where, _texts(step.get("step_id"), step.get("step_name")), {}, step)]


_SECTIONS: Final[Mapping[str, Callable[[Where, JsonObject], list[Answer]]]] = {
    "tools": _tools,
    "requirements": _requirements,
    "step_requirements": _steps,
}
_OF_THE_REQUIREMENT: Final = {
    "confirmation": "confirmed",
    "confirmation_note": "confirmation_note",
    "external_execution_result": "result",
}
# The field, what names its entries, and what is filled in.
_SCHEMAS: Final = (
    ("user_input_schema", "name", "value"),
    ("user_feedback_schema", "question", "selected_options"),
)


def _merged(nested: Any, outer: Any, key: str, value: str) -> list[JsonObject]:
    """Agno says these twice: the tool's own words win where it has some."""
    filled = {each[key]: each for each in _objects(outer) if isinstance(each.get(key), str)}
    filled |= {
        each[key]: each
        for each in _objects(nested)
        if isinstance(each.get(key), str) and each.get(value) is not None
    }
    return list(filled.values()) or _objects(nested)


# --- which item is meant


def _names(items: Sequence[JsonObject], shown: Mapping[str, str]) -> Mapping[str, list[JsonObject]]:
    """By what a client may call them. Two members of a team may ask under the same call id."""
    names: dict[str, list[JsonObject]] = {}
    by_id = {item["item_id"]: item for item in items}
    called = [(item["item_id"], item) for item in items]
    called += [
        (item["tool_call_id"], item)
        for item in items
        if item.get("tool_call_id") not in (None, item["item_id"])
    ]
    called += [(name, by_id[item_id]) for name, item_id in shown.items() if item_id in by_id]
    for name, item in called:
        if item not in names.setdefault(name, []):
            names[name].append(item)
    return names


def _found(names: Mapping[str, list[JsonObject]], answer: Answer) -> JsonObject | None:
    for id in answer.ids:
        found = names.get(id, [])
        if len(found) == 1:
            return found[0]
    return None


def _is_done(answer: Answer) -> bool:
    """Lists of tools hold also those that ran before the pause."""
    tool = answer.tool
    return tool.get("result") is not None and tool.get("external_execution_required") is not True


def _require_same(item: JsonObject, answer: Answer) -> None:
    if answer.step is not None:
        return
    asked = waiting_tool(item, None)
    for field in ("tool_name", "tool_args"):
        said = answer.tool.get(field)
        if said is not None and said != asked[field]:
            raise answer.refusal(field, "is not what was asked about; nothing has run")


# --- what is answered


def _confirmation(item: JsonObject, answer: Answer) -> Decided:
    step = answer.step
    confirmed = (answer.tool if step is None else step).get("confirmed")
    note = answer.tool.get("confirmation_note") if step is None else step.get("rejection_feedback")
    if not isinstance(confirmed, bool):
        raise answer.refusal("confirmed", "must be true or false")
    return Decided(
        item_id=item["item_id"],
        decision="approve" if confirmed else "reject",
        note=note if isinstance(note, str) and note else None,
    )


def _input(item: JsonObject, answer: Answer) -> Decided:
    said = answer.tool if answer.step is None else answer.step
    values = _filled(said.get("user_input_schema"), "name", "value")
    entered = said.get("user_input")
    if isinstance(entered, dict):
        values |= entered
    value: Any = values or ({} if said.get("answered") is True else None)
    if not _properties(item) and set(values) == {"value"}:
        value = values["value"]  # what is no object was shown as one field of this name
    return _approved(item, value)


def _choice(item: JsonObject, answer: Answer) -> Decided:
    if answer.step is not None:
        return _approved(item, answer.step.get("selected_choices"))
    chosen = _filled(answer.tool.get("user_feedback_schema"), "question", "selected_options")
    if item["kind"] == "feedback" and _objects(item.get("options")):
        return _approved(item, chosen or None)
    return _approved(item, next(iter(chosen.values()), None))


def _result(item: JsonObject, answer: Answer) -> Decided:
    tool = answer.tool
    if tool.get("result") is None and tool.get("confirmed") is False:
        note = tool.get("confirmation_note")
        said = note if isinstance(note, str) and note else None
        return Decided(item_id=item["item_id"], decision="reject", note=said)
    return _approved(item, tool.get("result"))


def _approved(item: JsonObject, value: Any) -> Decided:
    return Decided(item_id=item["item_id"], decision="approve", note=None, value=value)


_DECISIONS: Final[Mapping[str, Callable[[JsonObject, Answer], Decided]]] = {
    "confirmation": _confirmation,
    "review": _confirmation,
    "input": _input,
    "credential": _input,
    "feedback": _choice,
    "selection": _choice,
    "external": _result,
    "long_running": _result,
}


def _filled(fields: Any, key: str, value: str) -> JsonObject:
    return {
        each[key]: each[value]
        for each in _objects(fields)
        if isinstance(each.get(key), str) and each.get(value) is not None
    }


def _properties(item: JsonObject) -> bool:
    schema = item.get("input_schema")
    return isinstance(schema, dict) and bool(schema.get("properties"))


def _id_field(answer: Answer) -> str:
    return "tool_call_id" if answer.step is None else "step_id"


def _objects(value: Any) -> list[JsonObject]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(*values: Any) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str) and value)
