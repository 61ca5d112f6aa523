"""Every event of the contract in one table, from which the schemas and documents are made."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from penstock.events import (
    approval,
    artifact,
    automation,
    custom,
    dispatch,
    lifecycle,
    llm,
    retrieval,
    state,
    system,
    workflow,
)
from penstock.events.base import Data, InvalidEvent
from penstock.events.note import Note

# The categories in the order of the published documents. A new category is one row here.
CATEGORIES: dict[str, ModuleType] = {
    "lifecycle": lifecycle,
    "llm": llm,
    "dispatch": dispatch,
    "workflow": workflow,
    "retrieval": retrieval,
    "approval": approval,
    "automation": automation,
    "state": state,
    "artifact": artifact,
    "custom": custom,
    "system": system,
}

# A run ends at the first of these.
TERMINAL = frozenset({"lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"})
# Besides `automation.*`, what may follow a run's terminal event.
_EPILOGUE = frozenset({"approval.withdrawn", "system.erased"})


@dataclass(frozen=True, slots=True)
class EventType:
    """One event of the contract.

    `name` is `category.action`, `model` the model of its `data`, `note` says when it is published.
    """

    name: str
    model: type[Data]
    title: str
    description: str
    terminal: bool
    note: Note


def events_in(module: ModuleType) -> list[EventType]:
    """Return the events whose models a module defines, in the order of its text.

    Raises:
        TypeError: a model has no NOTE.
    """
    return [
        _row(member)
        for member in vars(module).values()
        if inspect.isclass(member)
        and issubclass(member, Data)
        and "TYPE" in vars(member)
        and member.__module__ == module.__name__
    ]


def _row(model: type[Data]) -> EventType:
    if "NOTE" not in vars(model):
        raise TypeError(f"the model of {model.TYPE} has no NOTE: say when it is published")
    return EventType(
        name=model.TYPE,
        model=model,
        title=model.model_config["title"] or model.__name__,
        description=inspect.cleandoc(model.__doc__ or ""),
        terminal=model.TYPE in TERMINAL,
        note=model.NOTE,
    )


CATALOGUE: dict[str, EventType] = {
    row.name: row for module in CATEGORIES.values() for row in events_in(module)
}


def is_epilogue(event_type: str) -> bool:
    """Return whether the type may follow a run's terminal event; no other type may."""
    return event_type in _EPILOGUE or event_type.startswith("automation.")


def typed_data(event_type: str, data: dict[str, Any]) -> Data | None:
    """Return `data` as the model of its type; None for a type that this version does not know.

    Raise `InvalidEvent` with the field (`data.content`) where it is not what the type asks for.
    """
    row = CATALOGUE.get(event_type)
    if row is None:
        return None
    try:
        return row.model.model_validate(data)
    except ValidationError as error:
        raise InvalidEvent.from_validation(error, ("data",)) from error
