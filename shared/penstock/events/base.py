"""What every part of the contract is made of."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.events.note import Note


class InvalidEvent(ValueError):
    """What was given is no canonical event; `field` is the dotted path of the first fault."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason

    @classmethod
    def from_validation(cls, error: ValidationError, prefix: tuple[str, ...] = ()) -> Self:
        """The first fault that pydantic found, its place under `prefix`."""
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return cls(".".join(map(str, (*prefix, *first["loc"]))), first["msg"])


class Model(BaseModel):
    """A part of the contract: nothing is coerced, nothing unknown is lost."""

    # Strict, because a coerced value ("1" to 1) would not survive a round trip.
    model_config = ConfigDict(
        extra="allow",
        strict=True,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
    )


class Data(Model):
    """The `data` of one event: `TYPE` is its `category.action`, `NOTE` says when it comes."""

    TYPE: ClassVar[str]
    NOTE: ClassVar[Note]

    def dump(self) -> dict[str, Any]:
        """The fields that were given, as JSON values by their names on the wire."""
        return self.model_dump(mode="json", exclude_unset=True)


class Subrun(Model):
    """The inner run that an event belongs to: a team's member, a workflow's agent."""

    id: str = Field(description="The inner run's id, as the upstream says it.")
    parent_id: str | None = Field(default=None, description="The run around it, if not the outer.")
    name: str | None = Field(default=None, description="Who works in it.")
