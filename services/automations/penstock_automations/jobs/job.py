"""Defines jobs. A job asks for one attempt of a delivery. Pure.

A delivery is the action of a rule for one event or trigger, or a call: a webhook that a step of a
workflow sends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, Self

import orjson

from penstock.bus import subjects
from penstock.events.catalogue import TERMINAL
from penstock.runs.calls import CALLS, CallJob

TriggerKind = Literal["schedule", "hook"]
SourceKind = Literal["event", "call", TriggerKind]
FailureCode = Literal["condition", "depth", "queue_full"]

# The TTL in seconds of a job that is due and waits in SCHEDULES for a process. By default, records
# of deliveries are kept for the same time. If a process ends before it deletes the job's message,
# the server deletes the message after this time.
DUE_TTL_S: Final = 30 * 86_400.0

_TRIGGER_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True)
class EventSource:
    """An event that matched a rule.

    `sequence` is the event's number in its run, and `event` is the event's sequence in the stream
    of events. `raw` is the sequence in RAW of the event's source frame. The source frames that this
    service writes about the delivery have higher sequences.
    """

    kind: ClassVar[SourceKind] = "event"

    run_id: str
    sequence: int
    event: int
    raw: int
    leg: int = 1

    @property
    def token(self) -> str:
        return f"{self.run_id}-{self.sequence}"

    @property
    def id(self) -> str:
        return f"{self.run_id}.{self.sequence}"

    def fields(self) -> dict[str, Any]:
        return {"source": self.kind, **_without_defaults(self)}


@dataclass(frozen=True, slots=True)
class TriggerSource:
    """A time of a schedule, or a request to an inbound webhook. A trigger belongs to no run.

    `id` is unique within the rule. If a trigger is handled more than once, its `id` is the same
    each time. `body` is a small JSON object in the form of an event, with the fields `timestamp`,
    `event` and `data`.
    """

    kind: TriggerKind
    id: str
    body: dict[str, Any]

    @property
    def token(self) -> str:
        return self.id

    def fields(self) -> dict[str, Any]:
        return {"source": self.kind, "id": self.id, "body": self.body}


@dataclass(frozen=True, slots=True)
class CallSource:
    """A step of a workflow that calls a webhook. No rule is involved."""

    kind: ClassVar[SourceKind] = "call"

    call: CallJob

    @property
    def token(self) -> str:
        return self.call.token

    @property
    def id(self) -> str:
        return self.call.call_id

    def fields(self) -> dict[str, Any]:
        return {"source": self.kind, "call": self.call.model_dump(exclude_none=True)}


Source = EventSource | TriggerSource | CallSource
CALL_TYPE: Final = "workflow.call"  # the type of all jobs of calls


@dataclass(frozen=True, slots=True)
class Job:
    """An attempt to make of one delivery, as DELIVERIES, SCHEDULES and dead letters carry it."""

    rule: str  # the rule's id, or `CALLS`
    version: int
    uid: str  # the rule's `uid`; a later rule with the same id has another `uid`
    type: str  # the event's type, or `<category>.<action>` of the trigger's body
    source: Source
    ordered: bool = False  # whether the run's deliveries of this rule are made one after another
    depth: int = 0  # how many rules led to the event
    attempt: int = 1  # the number of the attempt to make
    deferrals: int = 0  # how often the delivery was put off without an attempt
    replay: int = 0  # how often the delivery was replayed by a person
    since: float = 0.0  # when the delivery was begun or last paused, Unix seconds; 0: not yet
    woken_at: float = 0.0  # when it was found that the receiver works
    is_asked_for: bool = False  # whether a person asked for this attempt, past an open breaker
    failure: str | None = None  # the reason why the delivery fails at once, without an attempt
    failure_code: FailureCode = "condition"
    # Whether receivers know the delivery by its dotted id, as they did before ids had another form.
    # A receiver that has recorded an id must get the same id again. So jobs of that time, which
    # lack this field, keep the form.
    dotted: bool = True

    @property
    def run_id(self) -> str | None:
        match self.source:
            case EventSource(run_id=run_id):
                return run_id
            case CallSource(call=call):
                return call.run_id
            case _:
                return None

    @property
    def is_last(self) -> bool:
        """Whether no event of the run's lifecycle follows."""
        return self.type in TERMINAL

    @property
    def on_behalf(self) -> str:
        """The rule or the workflow's step that wants the delivery, for log lines."""
        if isinstance(self.source, CallSource):
            return f"workflow {self.source.call.workflow}, {self.source.call.step_id}"
        return f"rule {self.rule}"

    @property
    def about(self) -> str:
        """The run or the trigger that the job is about, for log lines."""
        what = "run" if self.run_id is not None else self.source.kind
        return f"{what} {self.run_id or self.source.id}"

    @property
    def can_be_repeated(self) -> bool:
        """Whether a replay may succeed, so that a failure becomes a dead letter. A call is never
        replayed: its workflow gets the failure, and decides what to do."""
        if isinstance(self.source, CallSource):
            return False
        return self.failure is None or self.failure_code == "queue_full"

    @property
    def key(self) -> str:
        """The delivery's key in KV: the rule's id, and the token of the event or trigger."""
        return f"{self.rule}.{self.source.token}"

    @property
    def delivery_id(self) -> str:
        """The delivery's id, the same for all attempts and replays."""
        if isinstance(self.source, CallSource):
            return self.source.call.delivery_id
        return f"{self.rule}.{self.source.id}"

    @property
    def webhook_id(self) -> str:
        """The id by which receivers know the delivery. A signature covers the id, a dot, the time,
        a dot and the body. So the id has no dots and no part that a user chooses."""
        return self.delivery_id if self.dotted else f"msg_{self.uid.strip('_')}_{self.source.token}"

    @property
    def message_id(self) -> str:
        """The `Nats-Msg-Id` of this job, by which DELIVERIES discards a repeated job."""
        return f"{self.delivery_id}.{self.attempt}.{self.deferrals}.{self.replay}"

    @property
    def subject(self) -> str:
        return subjects.delivery_of(self.key)

    @property
    def schedule_subject(self) -> str:
        step = f"{self.attempt}-{self.deferrals}-{self.replay}"
        return subjects.schedule("automations", f"{self.key}.{step}")

    @property
    def due_subject(self) -> str:
        return subjects.due("automations", self.key)

    @property
    def order_key(self) -> str:
        """The KV key of the queue that an ordered rule has for this run."""
        return f"order.{self.rule}.{self.run_id}"

    def attempt_after(self, made: int, since: float) -> Job:
        return replace(self, attempt=made + 1, deferrals=0, since=since, is_asked_for=False)

    def deferred(self, since: float) -> Job:
        return replace(self, deferrals=self.deferrals + 1, since=since)

    def replayed(self) -> Job:
        """Return the job of a replay, which a person asks for. It begins with the first attempt."""
        again = replace(self, attempt=1, deferrals=0, replay=self.replay + 1)
        return replace(again, since=0.0, woken_at=0.0, is_asked_for=True)

    def dump(self) -> bytes:
        """Return the job as JSON; fields with their default value are left out."""
        return orjson.dumps({**_without_defaults(self), **self.source.fields()})

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Return the job that `dump` wrote, without unknown fields. Raises ValueError."""
        try:
            fields: dict[str, Any] = orjson.loads(payload)
            source = _SOURCES[fields["source"]](fields)
            known = {name: fields[name] for name in cls.__slots__ if name in fields}
            if isinstance(source, CallSource):
                known |= {"rule": CALLS, "version": 1, "uid": CALLS, "type": CALL_TYPE}
                known |= {"depth": source.call.depth}
            job = cls(**{**known, "source": source})
            if not isinstance(job.attempt, int):
                raise ValueError("attempt is no number")
            return job
        except (TypeError, AttributeError, LookupError, ValueError) as error:
            raise ValueError(f"not a job of automations: {error!r}") from error


def _event_source(fields: dict[str, Any]) -> EventSource:
    source = EventSource(**{n: fields[n] for n in EventSource.__slots__ if n in fields})
    numbers = (source.sequence, source.event, source.raw, source.leg)
    if not subjects.is_run_id(source.run_id) or not all(isinstance(n, int) for n in numbers):
        raise ValueError("a field of the event has another type")
    return source


def _trigger_source(fields: dict[str, Any]) -> TriggerSource:
    source = TriggerSource(fields["source"], fields["id"], fields["body"])
    if not _TRIGGER_ID.fullmatch(source.id) or not isinstance(source.body, dict):
        raise ValueError("a field of the trigger has another type")
    return source


def _call_source(fields: dict[str, Any]) -> CallSource:
    source = CallSource(CallJob.model_validate(fields["call"]))
    if not subjects.is_run_id(source.call.run_id):
        raise ValueError("the run's id has another form")
    return source


_SOURCES: Final = {
    "event": _event_source,
    "schedule": _trigger_source,
    "hook": _trigger_source,
    "call": _call_source,
}


def _without_defaults(value: Job | EventSource) -> dict[str, Any]:
    return {
        name: each
        for name, field in value.__dataclass_fields__.items()
        if (each := getattr(value, name)) != field.default
    }
