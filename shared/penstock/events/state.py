"""state.*: what an agent shares of its memory."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data


class Snapshot(Data, title="State snapshot"):
    """The whole state, in place of what was known."""

    TYPE: ClassVar[str] = "state.snapshot"
    snapshot: Any = Field(description="The state.")


class Delta(Data, title="State changed"):
    """A change of the state."""

    TYPE: ClassVar[str] = "state.delta"
    delta: list[Any] = Field(description="A JSON Patch (RFC 6902); the state begins as {}.")


class Messages(Data, title="Message history"):
    """The whole conversation, as the agent knows it."""

    TYPE: ClassVar[str] = "state.messages"
    messages: list[Any] = Field(description="The messages, oldest first.")


EVENTS: tuple[type[Data], ...] = (Snapshot, Delta, Messages)
