"""Checks the fields that a rule reads against the fields that the catalogue names. Pure.

Without this check, a condition with a misspelt field would be accepted, and never hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from penstock.events import CATALOGUE, Event, EventName
from penstock.expressions import ELEMENT, ExpressionError, FieldRead, Template
from penstock.validation import did_you_mean, fields_of, types_inside
from penstock_automations.rules.actions import BODY_VARIABLES, Place

MAX_READS: Final = 300
_DATA: Final = "data"


class _Trigger(BaseModel):
    timestamp: str
    event: EventName


class _FiredData(BaseModel):
    scheduled_at: str
    local_time: str
    cron: str
    timezone: str


class _Fired(_Trigger):
    data: _FiredData


class _Received(_Trigger):
    id: str
    name: str
    data: Any  # the body of the request


TRIGGERS: Final[Mapping[str, type[BaseModel]]] = {
    "schedule.fired": _Fired,
    "hook.received": _Received,
}
_FURTHER: Final = ("type",)  # the field that `event_of` adds


def unknown_field(path: tuple[str, ...], types: Collection[str]) -> str | None:
    """Return why no event of these types has the field at a path such as ("event", "data", "tool");
    None if one of them may have the field."""
    parts: list[Any] = [TRIGGERS.get(type_, Event) for type_ in types]
    for number, step in enumerate(path[1:], 1):
        known = [fields_of(part) for part in parts]
        names = [name for each in known for name in each or ()]
        if number == 1:
            names += _FURTHER
        # Only a part whose fields are known can lack a field: a text or any JSON is no such part.
        if step != ELEMENT and known and None not in known and step not in names:
            place = ".".join(path[:number]).replace(f".{ELEMENT}", ELEMENT)
            return f"{_named(types)} no {place}.{step}{did_you_mean(step, names)}"
        if (number, step) == (1, _DATA):
            parts = [_data_of(type_) for type_ in types]
        else:
            parts = [inner for part in parts for inner in types_inside(part, step)]
        parts = [part for part in parts if part is not type(None)]
    return None


def _data_of(type_: str) -> Any:
    trigger = TRIGGERS.get(type_)
    return CATALOGUE[type_].model if trigger is None else trigger.model_fields[_DATA].annotation


def _named(types: Collection[str]) -> str:
    return f"{next(iter(types))} has" if len(types) == 1 else "the rule's events have"


def unknown_reads(
    reads: Collection[FieldRead], types: Collection[str]
) -> Iterator[tuple[ExpressionError, bool]]:
    """Yield a mistake for each unknown field of a condition, and whether it is only a warning. It
    is if the condition tests whether the field is there: agent servers may send more fields than
    the catalogue names."""
    tested = {read.path for read in reads if read.is_tested}
    for read in reads:
        begins = {read.path[:size] for size in range(1, len(read.path) + 1)}
        if (reason := unknown_field(read.path, types)) is not None:
            yield ExpressionError(reason, read.position), bool(tested & begins)


def unknown_in_templates(
    value: Any, types: Collection[str]
) -> Iterator[tuple[Place, ExpressionError]]:
    """Yield the unknown fields of the placeholders in the texts of a JSON value, with the places of
    the texts. Of very many different fields, the first `MAX_READS` are checked: without this limit,
    a rule that is refused for its size would first keep the process busy for seconds."""
    reasons: dict[tuple[str, ...], str | None] = {}
    for place, text in _templates(value):
        for path in _paths(text):
            if path not in reasons:
                if len(reasons) == MAX_READS:
                    return
                reasons[path] = unknown_field(path, types)
            if (reason := reasons[path]) is not None:
                yield place, ExpressionError(reason)


def _templates(value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    match value:
        case dict():
            for name, each in value.items():
                yield from _templates(each, (*place, str(name)))
        case list():
            for number, each in enumerate(value):
                yield from _templates(each, (*place, number))
        case str() if "{{" in value:
            yield place, value


def _paths(text: str) -> list[tuple[str, ...]]:
    try:
        paths = Template.compile(text, BODY_VARIABLES).paths
    except ExpressionError:
        return []  # no template, or one whose mistake its own field names
    return [
        tuple(ELEMENT if isinstance(each, int) else each for each in path)
        for path in paths
        if path[0] == "event"
    ]
