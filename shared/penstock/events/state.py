"""state.*: the state that an agent shares."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data
from penstock.events.note import Note


class Snapshot(Data, title="State snapshot"):
    """The whole state, which replaces all earlier state."""

    TYPE: ClassVar[str] = "state.snapshot"
    NOTE: ClassVar[Note] = Note(
        when="When an agent shares its whole state.",
        times="any number; each replaces what was known",
        sequence=3,
        example={"snapshot": {"documents": 2}},
    )
    snapshot: Any = Field(description="The whole state.")


class Delta(Data, title="State changed"):
    """A change of the state."""

    TYPE: ClassVar[str] = "state.delta"
    NOTE: ClassVar[Note] = Note(
        when="When an agent changes its state.",
        times="any number, to be applied in order",
        sequence=4,
        example={"delta": [{"op": "replace", "path": "/documents", "value": 1}]},
    )
    delta: list[Any] = Field(
        description="A JSON Patch (RFC 6902) of the state; the first state is `{}`."
    )


class Messages(Data, title="Message history"):
    """The whole conversation, as the agent knows it."""

    TYPE: ClassVar[str] = "state.messages"
    NOTE: ClassVar[Note] = Note(
        when="When an upstream sends its whole conversation.",
        times="any number; each replaces what was known",
        sequence=3,
        example={"messages": [{"id": "u1", "role": "user", "content": "Delete the old report."}]},
    )
    messages: list[Any] = Field(description="The messages, the oldest first.")
