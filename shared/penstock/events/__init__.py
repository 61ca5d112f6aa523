"""The contract: defines every canonical event completely. This package needs only pydantic.

`parse` reads an event, `Event.dump` writes it, and `CATALOGUE` lists all types.
"""

from __future__ import annotations

from penstock.events.base import Data, InvalidEvent, Model, Subrun
from penstock.events.catalogue import CATALOGUE, TERMINAL, EventType, is_epilogue, typed_data
from penstock.events.envelope import Event, EventName, Source, parse, subject_of, timestamp

__all__ = [
    "CATALOGUE",
    "TERMINAL",
    "Data",
    "Event",
    "EventName",
    "EventType",
    "InvalidEvent",
    "Model",
    "Source",
    "Subrun",
    "is_epilogue",
    "parse",
    "subject_of",
    "timestamp",
    "typed_data",
]
