"""Jobs: one event for one rule, on its way to a receiver. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import orjson

from penstock.bus import subjects


@dataclass(frozen=True, slots=True)
class Job:
    """A delivery of one event for one rule, as DELIVERIES, SCHEDULES and dead letters carry it.

    The event is named by its stream sequence in the stream of its run. `raw` is the position in RAW
    of the event's source frame: what this service writes about the delivery comes after it.
    """

    rule: str
    version: int
    run_id: str
    sequence: int
    type: str
    event: int
    raw: int
    uid: str  # of the rule: a later rule with the same id has another one
    leg: int = 1
    ordered: bool = False  # the run's deliveries of this rule are made one after another
    depth: int = 0  # how many rules led to the event
    attempt: int = 1  # the next attempt
    deferrals: int = 0  # how often the delivery was put off without an attempt
    replay: int = 0  # how often a person had the delivery made again
    failure: str | None = None  # why the rule failed while it was matched; nothing is sent then

    @property
    def key(self) -> str:
        """The key of the delivery: rule, run and sequence."""
        return f"{self.rule}.{self.run_id}-{self.sequence}"

    @property
    def webhook_id(self) -> str:
        """The id that receivers see, the same for all attempts and replays."""
        return f"{self.rule}.{self.run_id}.{self.sequence}"

    @property
    def message_id(self) -> str:
        """The `Nats-Msg-Id` of this job: DELIVERIES takes a job once."""
        return f"{self.webhook_id}.{self.attempt}.{self.deferrals}.{self.replay}"

    @property
    def subject(self) -> str:
        """The subject of the job in DELIVERIES."""
        return subjects.delivery(self.rule, self.run_id, self.sequence)

    @property
    def schedule_subject(self) -> str:
        """The subject of the scheduled message that brings this job back."""
        step = f"{self.attempt}-{self.deferrals}-{self.replay}"
        return subjects.schedule("automations", f"{self.key}.{step}")

    @property
    def due_subject(self) -> str:
        """The subject to which the server publishes the job when it is due."""
        return subjects.due("automations", self.key)

    @property
    def order_key(self) -> str:
        """The key of the queue of the run's deliveries for an ordered rule."""
        return f"order.{self.rule}.{self.run_id}"

    def next_attempt(self) -> Job:
        """Return the job of the next attempt."""
        return replace(self, attempt=self.attempt + 1, deferrals=0)

    def deferred(self) -> Job:
        """Return the same attempt's job, put off once more."""
        return replace(self, deferrals=self.deferrals + 1)

    def again(self) -> Job:
        """Return the job of a replay, which begins with the first attempt."""
        return replace(self, attempt=1, deferrals=0, replay=self.replay + 1)

    def dump(self) -> bytes:
        """Return the job as JSON, without fields that have their default."""
        return orjson.dumps({k: v for k, v in asdict(self).items() if v != _DEFAULTS.get(k, _NONE)})

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Parse a job that `dump` wrote; unknown fields of later versions are left out.

        Raises:
            ValueError: the payload is no job.
        """
        try:
            fields: dict[str, Any] = orjson.loads(payload)
            job = cls(**{name: fields[name] for name in cls.__slots__ if name in fields})
        except (TypeError, AttributeError, orjson.JSONDecodeError) as error:
            raise ValueError(f"not a job of automations: {error}") from error
        numbers = (job.sequence, job.event, job.attempt)
        if not subjects.is_run_id(job.run_id) or not all(isinstance(n, int) for n in numbers):
            raise ValueError("not a job of automations: a field has another type")
        return job


_NONE = object()
_DEFAULTS: dict[str, Any] = {
    name: field.default for name, field in Job.__dataclass_fields__.items()
}
