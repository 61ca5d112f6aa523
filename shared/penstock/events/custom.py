"""custom.*: upstream events beyond the contract, kept unchanged."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data
from penstock.events.note import Note


class Custom(Data, title="Upstream's own event"):
    """An upstream event without a type of its own in the contract."""

    TYPE: ClassVar[str] = "custom.event"
    NOTE: ClassVar[Note] = Note(
        when="When an upstream sends an event that has no type in the contract.",
        times="any number",
        sequence=2,
        example={
            "protocol": "agno",
            "name": "agno.MemoryUpdateStarted",
            "value": {"user_id": "ada"},
        },
    )
    protocol: str = Field(description="The protocol of the event: `agno`, `adk` or `agui`.")
    name: str = Field(description="The name of the event in that protocol.")
    value: Any = Field(description="The event as the upstream sent it.")
