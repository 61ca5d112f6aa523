"""The inputs of a workflow's run: what the service has learnt from the bus. Pure.

Each input may come several times, late, and in any order. `decide` returns no records for an input
that changes nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock_workflows.engine.records import ApprovalChange, JsonObject


@dataclass(frozen=True, slots=True)
class StartInput:
    """A command `command.workflows.start.<run>`, with the definition that the command names.

    `command` is the command as JSON, and `open` is the payload of the run's first source frame.
    `refused` (`code`, `message`) is set if the run cannot start, for example because the workflow
    is unknown; the run then fails at once. `cancelled` is set if the run was cancelled before its
    start was handled; the run then ends as cancelled at once. `first` is as in `records.Started`.
    """

    run_id: str
    command: JsonObject
    open: JsonObject
    definition: JsonObject | None
    input: JsonObject
    refused: JsonObject | None = None
    cancelled: CancelInput | None = None
    first: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class ChildInput:
    """A lifecycle event of a child.

    `type` is `lifecycle.completed`, `failed`, `cancelled`, `paused` or `resumed`; `data` is the
    event's data, and `sequence` is the event's number in the child's run. The service itself makes
    the `lifecycle.failed` of a child that could not be started, and the `lifecycle.cancelled` of a
    child that was cancelled before its start.
    """

    child: str
    type: str
    data: JsonObject
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class TimerInput:
    """A timer that the effect `StartTimer` has started is due."""

    timer: str


@dataclass(frozen=True, slots=True)
class ApprovalInput:
    """A command `command.workflows.continue.<run>`, which reports a change of an approval."""

    approval_id: str
    news: ApprovalChange
    event: JsonObject | None = None
    items: Sequence[JsonObject] | None = None


@dataclass(frozen=True, slots=True)
class CancelInput:
    """A command `command.workflows.cancel.<run>`, which cancels the run."""

    by: str
    reason: str = "user_stop"
    budget: JsonObject | None = None  # the numbers of a budget that is used up


@dataclass(frozen=True, slots=True)
class FailInput:
    """An input of the run could not be processed and is a dead letter, or a child of the run would
    be one run too many below the run's root.

    `error` (`code`, `message`) is the error with which the run fails. If the input was the end of a
    child, `ended` has the child's run id and the type of the event. The run then does not wait for
    this child any longer. A run that is already stopping keeps its outcome. Such a run ends at once
    if the input was not the end of a child, because the run may have waited for the input.
    """

    error: JsonObject
    ended: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class EventInput:
    """An event of the type that a step listens for. `event` is the whole event.

    The service gives every event of the type to each step that listens for the type; `decide`
    evaluates the step's `where`.
    """

    step: str
    index: int | None
    attempt: int
    event: JsonObject


@dataclass(frozen=True, slots=True)
class CalledInput:
    """A command `command.workflows.called.<run>`, which reports the outcome of a call."""

    call_id: str
    outcome: Literal["delivered", "failed"]
    status: int | None = None
    answer: str | None = None
    error: JsonObject | None = None
    headers: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class StepStartedSeen:
    """EVENTS has the `workflow.step_started` that names this child, so the child may start."""

    child: str


@dataclass(frozen=True, slots=True)
class TurnInput:
    """No run with the same key is under way, so this one may begin. If the run is not to wait,
    `refused` is the error (`code`, `message`) with which it fails."""

    refused: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class ProceedInput:
    """The last decision about the run was partial, so steps and items may be left to begin."""


Input: TypeAlias = (
    StartInput
    | ChildInput
    | TimerInput
    | ApprovalInput
    | CancelInput
    | FailInput
    | EventInput
    | CalledInput
    | StepStartedSeen
    | TurnInput
    | ProceedInput
)
