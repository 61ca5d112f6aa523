"""The base classes of the contract."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.events.note import Note


class InvalidEvent(ValueError):
    """The input is not a canonical event. `field` is the dotted path of the first error."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason

    @classmethod
    def from_validation(cls, error: ValidationError, prefix: tuple[str, ...] = ()) -> Self:
        """Return the first error that pydantic found; `prefix` is put before its path."""
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return cls(".".join(map(str, (*prefix, *first["loc"]))), first["msg"])


class Model(BaseModel):
    """A part of the contract. No value is coerced, and no unknown field is lost."""

    # Models are strict, because a coerced value ("1" to 1) would change in a round trip.
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
        return self.model_dump(mode="json", exclude_unset=True)


class Subrun(Model):
    """The inner run that an event belongs to, such as that of a team's member."""

    id: str = Field(description="The inner run's id, as the upstream gives it.")
    parent_id: str | None = Field(
        default=None,
        description="The id of the run that contains it, where that is not the outer run.",
    )
    name: str | None = Field(default=None, description="The name of the agent that works in it.")
