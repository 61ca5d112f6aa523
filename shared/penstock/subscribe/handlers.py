"""Finds out from a handler's annotation which events the handler wants, and in which form. Pure."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Union, get_args, get_origin, get_type_hints

from penstock.bus import subjects
from penstock.events import CATALOGUE, Data, Event
from penstock.subscribe.received import Received, Sealed

_FORMS = (
    "one of the models of penstock.events such as ToolCall, several of them joined by |, also with "
    "Sealed, Received[…] of these, or Event"
)


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler, with the events that the handler wants and the form of the handler's argument.

    `events` are types such as `llm.tool_call`, in which each part may be `*`. `models` has the
    models of `data` that the handler accepts. If `models` is empty, the handler accepts any data.
    With `takes_sealed`, it is also called with events whose content the subscriber does not get.
    """

    call: Callable[[Any], Awaitable[object]]
    events: tuple[str, ...]
    models: tuple[type[Data], ...]
    form: type[Data] | type[Event] | type[Received[Any]]
    takes_sealed: bool

    @property
    def name(self) -> str:
        return getattr(self.call, "__qualname__", repr(self.call))

    def matches(self, subject: str) -> bool:
        return any(subjects.covers(each, subject) for each in subjects.event_patterns(self.events))

    def argument(
        self, event: Event, sealed: Sealed | None, delivered: int, stored_at: datetime
    ) -> Any:
        """Return the event in the form that the handler takes, with `sealed` in place of its data.
        Raises InvalidEvent if the event's `data` does not fit the event's type."""
        if self.form is Event:
            return event
        # If this version does not know the event's type, there is no model. `Data` then keeps all
        # fields.
        data = sealed or event.data_model() or Data.model_validate(event.data)
        if self.form is Received:
            return Received(event, data, delivered, stored_at)
        return data


def handler_of(call: Callable[[Any], Awaitable[object]], events: Sequence[str]) -> Handler:
    """Return the handler for a function.

    Without `events`, the annotation of the function's parameter says which events it wants. Raises
    TypeError if the function cannot be called with one event, its annotation is missing or unknown,
    or it does not accept one of the types in `events`. The text says what to write.
    """
    name = getattr(call, "__qualname__", repr(call))
    if not inspect.iscoroutinefunction(call):
        raise TypeError(f"{name} must be a function with `async def`")
    parameters = list(inspect.signature(call).parameters.values())
    if len([each for each in parameters if each.default is each.empty]) != 1:
        raise TypeError(f"{name} must have one parameter, the event")
    hints = get_type_hints(call)
    if parameters[0].name not in hints:
        raise TypeError(f"{name}: annotate the parameter {parameters[0].name} with {_FORMS}")
    form, models, takes_sealed = _form(name, hints[parameters[0].name])
    own = tuple(model.TYPE for model in models)
    if not events and not own:
        raise TypeError(
            f"{name}: name the events that it wants, such as @on('approval.*'), or annotate its "
            "parameter with the model of one event"
        )
    for each in events:
        _check(name, each, own)
    return Handler(call, tuple(events) or own, models, form, takes_sealed)


def _form(
    name: str, annotation: Any
) -> tuple[type[Data] | type[Event] | type[Received[Any]], tuple[type[Data], ...], bool]:
    """Return the form, the models, and whether the handler takes sealed events."""
    if annotation is Event:
        return Event, (), True
    form: type[Data] | type[Received[Any]] = Data
    if annotation is Received:
        return Received, (), True
    if get_origin(annotation) is Received:
        form, (annotation,) = Received, get_args(annotation)
    choices = (annotation,)
    if get_origin(annotation) in (Union, types.UnionType):
        choices = get_args(annotation)
    models = []
    for choice in choices:
        if not (inspect.isclass(choice) and issubclass(choice, Data)):
            raise TypeError(f"{name}: the annotation must be {_FORMS}, and not {annotation!r}")
        if choice is Data:
            return form, (), True  # `Data` accepts the data of any event
        if choice is Sealed:
            continue
        if choice.__dict__.get("TYPE") not in CATALOGUE:
            raise TypeError(f"{name}: {choice.__name__} is not the model of an event")
        models.append(choice)
    if not models:
        raise TypeError(
            f"{name}: join Sealed with the model of an event, such as ToolCall | Sealed"
        )
    return form, tuple(models), Sealed in choices


def _check(name: str, wanted: str, own: Sequence[str]) -> None:
    tokens = wanted.split(".")
    if not 1 <= len(tokens) <= 3 or not all(tokens) or ">" in tokens[:-1]:
        raise TypeError(
            f"{name}: {wanted!r} is no subject: write `category.action`, in which each part may be "
            "`*`, or `category.action.<run id>`"
        )
    (pattern,) = subjects.event_patterns([wanted])
    types = ".".join(pattern.split(".")[:2])
    reached = [each for each in CATALOGUE if subjects.covers(types, each)]
    if own and not reached:
        raise TypeError(f"{name}: there is no event {wanted}")
    others = [each for each in reached if own and each not in own]
    if others:
        raise TypeError(
            f"{name}: {wanted} has events that its annotation does not accept ({others[0]}); "
            "annotate the parameter with Data, Received[Data] or Event"
        )
