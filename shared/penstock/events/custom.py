"""custom.*: what an upstream says beyond the contract, kept whole."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data


class Custom(Data, title="Upstream's own event"):
    """An upstream event that has no place of its own in the contract."""

    TYPE: ClassVar[str] = "custom.event"
    protocol: str = Field(description="Whose event it is: `agno`, `adk`, `agui`.")
    name: str = Field(description="The event's name there.")
    value: Any = Field(description="The event itself.")


EVENTS: tuple[type[Data], ...] = (Custom,)
