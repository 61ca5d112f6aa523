"""What a handler is given, and how it may answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from penstock.events import Data, Event

D_co = TypeVar("D_co", bound=Data, covariant=True)


@dataclass(frozen=True, slots=True)
class Received(Generic[D_co]):
    """An event as a subscriber gets it.

    `event` is the canonical event, and `data` its typed data. `delivered` is 1 at the first
    delivery, and larger when the event comes again. `stored_at` is the time by NATS's clock.
    """

    event: Event
    data: D_co
    delivered: int
    stored_at: datetime

    @property
    def id(self) -> str:
        """`<run_id>.<sequence>`, the same at each delivery: the key to recognize repetitions."""
        return f"{self.event.run_id}.{self.event.sequence}"

    @property
    def run_id(self) -> str:
        """The run of the event."""
        return self.event.run_id


class Reject(Exception):
    """A handler raises this for an event that it can never handle: the event is given up at once.

    The event becomes a dead letter with the exception's text.
    """


class Later(Exception):
    """A handler raises this for an event that it cannot handle yet: the event comes again.

    Each delivery counts: after the durable's limit of deliveries, the event is given up.
    """

    def __init__(self, delay_s: float) -> None:
        super().__init__(f"again in {delay_s:g} s")
        self.delay_s = delay_s
