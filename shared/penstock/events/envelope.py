"""The envelope that every canonical event travels in: parse, dump, subject.

The six fields of executions-sse.md, exactly as there, and additive ones. Readers accept what they
do not know: an unknown category, action or field survives parse and dump unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from penstock.events.base import Data, InvalidEvent, Model, Subrun
from penstock.events.catalogue import typed_data

# Run id, category and action are tokens of the event's subject: no dots, blanks or wildcards.
Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")]
# Kept as text: a parsed time would come out in another precision than it went in.
Timestamp = Annotated[
    str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$")
]


class Source(Model):
    """Who said it."""

    agent_id: str = Field(description="The agent's id in Penstock's configuration, or upstream's.")
    agent_type: str = Field(
        description="`agent`, `team` or `workflow` for the outer run, `worker` for one inside it."
    )
    agent_name: str = Field(description="The agent's name, to show to people.")
    team_name: str | None = Field(description="The team that the agent works in, or null.")


class EventName(Model):
    """What happened, in two words."""

    category: Token = Field(description="The family of the event: lifecycle, llm, approval, …")
    action: Token = Field(description="What happened, within the category.")


class Event(Model):
    """One canonical event. `data` stays as it came; `data_model()` gives it typed."""

    run_id: Token = Field(description="The run's id, a UUIDv7 that Penstock made.")
    timestamp: Timestamp = Field(
        description="When the connector received it: RFC 3339, UTC, milliseconds. Never decreases."
    )
    sequence: int = Field(ge=1, description="The event's place in its run: 1, 2, 3 … no gaps.")
    source: Source | None = Field(description="Who said it; null when Penstock itself did.")
    event: EventName = Field(description="Category and action.")
    data: dict[str, Any] = Field(description="The fields of the event's type.")
    session_id: str | None = Field(
        default=None,
        description="The conversation (thread) of the run. Always on the bus; the executions "
        "dialect has the fields above only.",
    )
    leg: int | None = Field(
        default=None,
        ge=1,
        description="The upstream request that it came from: 1 is the start, each continue one "
        "more. Always on the bus.",
    )
    attempt: int | None = Field(
        default=None, ge=1, description="Above 1 when it was produced again after a failure."
    )
    parent_run_id: str | None = Field(default=None, description="The run that started this one.")
    step_id: str | None = Field(default=None, description="The workflow step it belongs to.")
    subrun: Subrun | None = Field(default=None, description="The inner run it belongs to.")

    @property
    def type(self) -> str:
        """`category.action`."""
        return f"{self.event.category}.{self.event.action}"

    def data_model(self) -> Data | None:
        """`data` as the model of its type; None for a type that this version does not know.

        Raises `InvalidEvent` with the field (`data.content`) where `data` is not what its type
        asks for: the executions dialect leaves fields out.
        """
        return typed_data(self.type, self.data)

    def dump(self) -> bytes:
        """The body as JSON: what was given and nothing else, so that a round trip is exact."""
        return self.model_dump_json(exclude_unset=True).encode()


def parse(body: bytes | Mapping[str, Any]) -> Event:
    """JSON bytes, or a JSON object, to an event; raises `InvalidEvent` that names the field.

    `data` is not checked against its type here: see `Event.data_model`.
    """
    try:
        if isinstance(body, bytes):
            return Event.model_validate_json(body)
        return Event.model_validate(body)
    except ValidationError as error:
        raise InvalidEvent.from_validation(error) from error


def subject_of(event: Event) -> str:
    """The NATS subject: `category.action.run_id`."""
    return f"{event.type}.{event.run_id}"


def timestamp(epoch_ms: int) -> str:
    """Milliseconds since 1970 (UTC) as the contract writes time: `2025-12-31T10:00:00.000Z`."""
    seconds, ms = divmod(epoch_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"
