"""Defines the argument of a handler, and the exceptions with which a handler answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Never, TypeVar

from pydantic import Field

from penstock.events import Data, Event

D_co = TypeVar("D_co", bound=Data, covariant=True)


class Sealed(Data):
    """Stands for the data of an event whose content this subscriber does not get. It has no field
    of the event's type, so nobody takes it for empty content."""

    reason: str = Field(
        description="`no_grant`: the subscriber gets envelopes only; `other_tenant`: its grant is "
        "for other tenants; `erased`: nobody gets this content any more."
    )


class ContentNeeded(LookupError):
    """A handler asks for a field of `data` that is sealed. The event waits until the durable has
    the grant `content`."""


class SealedFields(dict[str, Any]):
    """The `data` of such an event in a handler that takes `Event`. Who asks for a field of the
    event's type gets ContentNeeded, also from `get`, `pop`, `setdefault` and `in`: with a default,
    or a False, the event would be handled as one that has no such field."""

    def __missing__(self, name: str) -> Never:
        raise ContentNeeded(f"data.{name} is sealed, and this subscriber gets no content")

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field that is there; the default is never used."""
        return self[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self.__missing__(str(name))

    def setdefault(self, name: str, default: Any = None) -> Any:
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        self[name]
        return super().pop(name)


@dataclass(frozen=True, slots=True)
class Received(Generic[D_co]):
    """An event with the facts of its delivery.

    `event` is the canonical event, and `data` is the event's typed data. `delivered` counts the
    deliveries of the event, beginning with 1. `stored_at` is the time at which NATS stored the
    event.
    """

    event: Event
    data: D_co
    delivered: int
    stored_at: datetime

    @property
    def id(self) -> str:
        """The event's id, `<run_id>.<sequence>`. A repeated delivery has the same id."""
        return f"{self.event.run_id}.{self.event.sequence}"

    @property
    def run_id(self) -> str:
        return self.event.run_id


class Reject(Exception):
    """A handler raises `Reject` for an event that the handler can never handle. The event is not
    delivered again, and becomes a dead letter with the exception's text."""


class Later(Exception):
    """A handler raises `Later` to have the event delivered again after `delay_s` seconds.

    The durable has a limit for the deliveries of an event, and this delivery counts, too. After the
    last delivery, the event is given up.
    """

    def __init__(self, delay_s: float) -> None:
        super().__init__(f"again in {delay_s:g} s")
        self.delay_s = delay_s
