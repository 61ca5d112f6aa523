"""The effects of decisions: what the service does on the bus for a run. Pure data.

Every effect is harmless when it is repeated. The service repeats the effects of all open steps
(`open_effects`) whenever it cannot know whether they were done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock_workflows.definition.compiled import Method
from penstock_workflows.engine.records import ChildKind, Json, JsonObject


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start a step's child: a run of the agent or the workflow `name`, as `kind` says.

    The service starts the child only after EVENTS has the `workflow.step_started` of the step.
    `places` is how many runs below the child may be under way at once. With `always`, the child
    begins although a workflow around it has stopped. `fork` is as in `records.Scheduled`.
    """

    child: str
    kind: ChildKind
    name: str
    version: str | None
    message: str
    input: JsonObject | None
    session_id: str
    step_id: str
    workflow_depth: int
    places: int
    always: bool = False
    fork: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class CancelChild:
    """Cancel a child. If the child has not been started yet, it must not start later. For such a
    child, the service itself makes the input `lifecycle.cancelled`."""

    child: str
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Give the run the input `TimerInput(timer)` at the time `due`, in milliseconds since 1970.
    `timer` is unique in the run, and is one token of a subject."""

    timer: str
    due: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Remove a timer. If it fires nevertheless, nothing changes."""

    timer: str


@dataclass(frozen=True, slots=True)
class Call:
    """Send a request through the automations service.

    `expect` has the statuses of a good answer; None for every 2xx. `one_attempt` is True if the
    step itself has a `retry`. The automations service then makes no second attempt. After
    `give_up_at` (milliseconds since 1970), the service makes no attempt.
    """

    call_id: str
    step_id: str
    url: str
    method: Method
    headers: Mapping[str, str]
    body: Json
    expect: Sequence[int] | None
    secret: str | None
    one_attempt: bool
    give_up_at: int | None


@dataclass(frozen=True, slots=True)
class Listen:
    """Give the step every event of this type that is stored at `since` (ms since 1970) or later."""

    step: str
    index: int | None
    attempt: int
    event: str
    since: int


@dataclass(frozen=True, slots=True)
class Unlisten:
    """Ends a `Listen`."""

    step: str
    index: int | None
    attempt: int
    event: str


@dataclass(frozen=True, slots=True)
class TakeTurn:
    """Put the run into the queue of runs of the workflow with this key. When the run is first, the
    service makes the input `TurnInput`, or the timer `turn`. `when_busy` is as in a definition."""

    workflow: str
    key: str
    when_busy: str


@dataclass(frozen=True, slots=True)
class LeaveTurn:
    """Take the run out of the queue of `TakeTurn`, so that the next run begins."""

    workflow: str
    key: str


Effect: TypeAlias = (
    StartChild
    | CancelChild
    | StartTimer
    | CancelTimer
    | Call
    | Listen
    | Unlisten
    | TakeTurn
    | LeaveTurn
)

FrameKind = Literal["open", "event"]


@dataclass(frozen=True, slots=True)
class Frame:
    """A source frame of the run, which the service writes to `raw.<run>.workflows`.

    `record` is the number of the record in the journal, from 1, and `part` is the number of the
    frame among the frames of this record, from 0. Frames are written in the order of (`record`,
    `part`). `at` is the time of the record, in milliseconds since 1970. The payload of an `event`
    has `type`, `data` and `source`. If the event belongs to a step, the payload also has `step_id`.
    """

    record: int
    part: int
    at: int
    kind: FrameKind
    payload: JsonObject

    @property
    def position(self) -> tuple[int, int]:
        return self.record, self.part
