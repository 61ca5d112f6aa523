"""Every event type of the contract in one table: the schemas and documents are made from it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
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

CATEGORIES = {
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


@dataclass(frozen=True, slots=True)
class EventType:
    """One row of the contract. `name` is `category.action`, `model` what its `data` must be."""

    name: str
    model: type[Data]
    title: str
    description: str
    terminal: bool


def _row(model: type[Data]) -> EventType:
    return EventType(
        name=model.TYPE,
        model=model,
        title=model.model_config["title"] or model.__name__,
        description=inspect.cleandoc(model.__doc__ or ""),
        terminal=model.TYPE in TERMINAL,
    )


CATALOGUE: dict[str, EventType] = {
    model.TYPE: _row(model) for category in CATEGORIES.values() for model in category.EVENTS
}


def is_epilogue(event_type: str) -> bool:
    """True for the only types that may follow a run's terminal event."""
    return event_type == "approval.withdrawn" or event_type.startswith("automation.")


def typed_data(event_type: str, data: dict[str, Any]) -> Data | None:
    """`data` as the model of its type; None for a type that this version does not know.

    Raises `InvalidEvent` with the field (`data.content`) where it is not what the type asks for.
    """
    row = CATALOGUE.get(event_type)
    if row is None:
        return None
    try:
        return row.model.model_validate(data)
    except ValidationError as error:
        raise InvalidEvent.from_validation(error, ("data",)) from error
