"""custom.*: what an upstream says beyond the contract, kept whole."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data
from penstock.events.note import Note


class Custom(Data, title="Upstream's own event"):
    """An upstream event that has no place of its own in the contract."""

    TYPE: ClassVar[str] = "custom.event"
    NOTE: ClassVar[Note] = Note(
        when="When an upstream says something that has no type of its own here.",
        times="any number",
        sequence=2,
        example={
            "protocol": "agno",
            "name": "agno.MemoryUpdateStarted",
            "value": {"user_id": "ada"},
        },
    )
    protocol: str = Field(description="Whose event it is: `agno`, `adk`, `agui`.")
    name: str = Field(description="The event's name there.")
    value: Any = Field(description="The event itself.")
