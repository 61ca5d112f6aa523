"""The envelope of every canonical event: parse, dump, subject.

It has the six fields of executions-sse.md, unchanged, and further ones. Readers accept what they
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
# The time stays text, because a parsed time would be written with another precision.
Timestamp = Annotated[
    str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$")
]


class Source(Model):
    """The agent that an event comes from."""

    agent_id: str = Field(
        description="The agent's id in Penstock's configuration, or the upstream's id of it."
    )
    agent_type: str = Field(
        description="`agent`, `team` or `workflow` for the outer run, `worker` for an agent "
        "inside it. In Penstock's workflows also `global_supervisor` and `team_supervisor`."
    )
    agent_name: str = Field(description="The agent's name for people.")
    team_name: str | None = Field(description="The team that the agent works in, or null.")


class EventName(Model):
    """The type of an event, as category and action."""

    category: Token = Field(
        description="The category of the event, such as `lifecycle`, `llm` or `approval`."
    )
    action: Token = Field(description="What happened, within the category.")


class Redacted(Model):
    """What redactions took out of a field."""

    field: str = Field(description="The field of `data`, such as `content`.")
    kind: str = Field(description="`email`, `card`, …, or `pattern` for one of the operator's own.")
    count: int = Field(ge=1, description="How many matches were taken out.")


class Event(Model):
    """One canonical event. `data` is unchanged; `data_model()` returns it as a model."""

    run_id: Token = Field(
        description="The run's id, a UUIDv7 that Penstock made (a UUIDv8 in further shards)."
    )
    timestamp: Timestamp = Field(
        description="When the connector received the event: RFC 3339, UTC, with milliseconds. It "
        "never decreases within a run."
    )
    sequence: int = Field(
        ge=1, description="The number of the event in its run: 1, 2, 3 … without gaps."
    )
    source: Source | None = Field(
        description="The agent that the event comes from; null for an event of Penstock itself."
    )
    event: EventName = Field(description="The category and the action of the event.")
    data: dict[str, Any] = Field(description="The fields of the event's type.")
    session_id: str | None = Field(
        default=None,
        description="The session (conversation, thread) of the run. It is always there on the "
        "bus; the executions dialect has the fields above only.",
    )
    leg: int | None = Field(
        default=None,
        ge=1,
        description="The number of the upstream request that the event comes from: 1 is the "
        "start, and each continue is one more. It is always there on the bus.",
    )
    attempt: int | None = Field(
        default=None,
        ge=1,
        description="The number of the attempt, above 1 where the event was produced again after "
        "a failure.",
    )
    parent_run_id: str | None = Field(
        default=None,
        description="The id of the run that started this one: a workflow's run of which this run "
        "is a step, or the run whose event led to this run.",
    )
    step_id: str | None = Field(
        default=None,
        description="The id of the workflow step that the event belongs to: a step of the agent "
        "server's own workflow, else the step of the parent's workflow that this run carries out.",
    )
    workflow_depth: int | None = Field(
        default=None,
        ge=1,
        description="How many workflows of Penstock the run is inside of: 1 for a step of an outer "
        "workflow. Other runs have none.",
    )
    subrun: Subrun | None = Field(
        default=None, description="The inner run that the event belongs to."
    )
    redactions: list[Redacted] | None = Field(
        default=None,
        description="What the operator's redactions took out of `data`, where they did.",
    )

    @property
    def type(self) -> str:
        return f"{self.event.category}.{self.event.action}"

    def data_model(self) -> Data | None:
        """Return `data` as the model of its type; None for a type that this version does not know.

        Raise `InvalidEvent` with the field (`data.content`) where `data` is not what its type
        asks for: the executions dialect leaves fields out. On the bus it may be sealed.
        """
        if self.model_extra and "sealed" in self.model_extra:
            raise InvalidEvent("data", "it is sealed, and this reader has no key")
        return typed_data(self.type, self.data)

    def dump(self) -> bytes:
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
    """Return the NATS subject: `category.action.run_id`."""
    return f"{event.type}.{event.run_id}"


def timestamp(epoch_ms: int) -> str:
    """Milliseconds since 1970 (UTC) as the contract writes time: `2025-12-31T10:00:00.000Z`."""
    seconds, ms = divmod(epoch_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"
