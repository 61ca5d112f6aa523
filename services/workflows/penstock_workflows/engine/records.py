"""The records of a workflow's journal, and their form as JSON. Pure.

A run's journal is the list of its records, in order. Every value that a later decision depends on
is in a record: times, ids of children, and the results of expressions. So every process that reads
the journal gets the same state, even with a newer version of CEL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias, get_args

import orjson

VERSION: Final = 1

Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]

Outcome = Literal["completed", "failed", "skipped"]
ChildKind = Literal["run", "workflow"]
WaitKind = Literal["approve", "call", "listen", "wait"]
RunStatus = Literal["completed", "failed", "cancelled"]
ApprovalChange = Literal["asked", "escalated", "decided", "expired", "withdrawn"]


class UnknownRecord(ValueError):
    """A journal has a record that this version of Penstock does not know."""


@dataclass(frozen=True, slots=True)
class Started:
    """The run has started. Every journal begins with this record.

    `command` is the start command as JSON. `open` is the payload of the run's first source frame.
    `definition` is the whole definition as JSON, so that the run keeps its version. `definition` is
    None if the run was refused (`refused` is the reason), or was cancelled before its start.
    `first` is what a fork knows of the run from which it was forked (`forking.ends_of`).
    """

    at: int
    run_id: str
    command: JsonObject
    open: JsonObject
    definition: JsonObject | None = None
    input: JsonObject | None = None
    refused: JsonObject | None = None
    first: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class TurnAsked:
    """The run waits until no other run of the workflow with this key is under way. `when_busy` is
    as in the definition."""

    at: int
    workflow: str
    key: str
    when_busy: str


@dataclass(frozen=True, slots=True)
class TurnTaken:
    """The run no longer waits for other runs with its key."""

    at: int


@dataclass(frozen=True, slots=True)
class ForEachStarted:
    """A step with `for_each` has begun. `items` is the list of the loop's items."""

    at: int
    step: str
    items: list[Json]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step's child must be started. `child` is the id of the child's run.

    `name` is the agent or the workflow. At the time `timeout` (milliseconds since 1970), the
    attempt fails with the code `timeout`. `fork` says of which run the child is a fork
    (`forking.fork_at_end`).
    """

    at: int
    step: str
    child: str
    kind: ChildKind
    name: str
    message: str
    index: int | None = None
    attempt: int = 1
    input: JsonObject | None = None
    version: str | None = None
    session: Literal["own", "parent"] = "own"
    team: str | None = None
    worker: str | None = None
    task: str | None = None
    timeout: int | None = None
    fork: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A step waits for something other than a child.

    `id` is the approval's id or the call's id. `due` is the time at which a `wait` ends. `detail`
    has what the kind needs: `title`, `show` and `policy` of an approval; `url`, `method`,
    `headers`, `body`, `expect` and `secret` of a call; `event` of `listen`.
    """

    at: int
    step: str
    kind: WaitKind
    index: int | None = None
    attempt: int = 1
    id: str | None = None
    due: int | None = None
    detail: JsonObject | None = None
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class ChildPaused:
    """A step's child waits for a person since event number `sequence` of its run."""

    at: int
    step: str
    sequence: int
    index: int | None = None
    data: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class ChildResumed:
    """A step's child no longer waits for a person."""

    at: int
    step: str
    sequence: int
    index: int | None = None


@dataclass(frozen=True, slots=True)
class ApprovalReported:
    """The approvals service has reported a change of a step's approval.

    `event` is the event of the run that tells clients of the change; it has `type` and `data`. If
    the step's timeout has passed and the approvals service has reported nothing, the engine itself
    makes this record, with the change `withdrawn`.
    """

    at: int
    step: str
    news: ApprovalChange
    index: int | None = None
    event: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """An attempt of a step has failed, and the step is tried again at `due`.

    `attempt` is the number of the attempt that has failed. `child` tells how the attempt's child
    has ended (`status`, `text`). `child` is None if there is no child, or if the child has not
    ended yet. `abandoned` is True in the second case: the run no longer waits for this child.
    Earlier journals lack `abandoned`; there, the record of the child's end reports it.
    """

    at: int
    step: str
    attempt: int
    due: int
    error: JsonObject
    index: int | None = None
    child: JsonObject | None = None
    abandoned: bool | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A step, or an item of a step with `for_each`, is done.

    For a large output, the record has only `ref`, the reference to the output. A loop's own record
    has no output, because the records of the items have the outputs. `size` is the size of `output`
    as JSON, in bytes. `child` and `abandoned` have the same meaning as in `Retry`. `taken_from`
    names the run, and the run of its step (`child_run_id`), whose output a fork has taken over.
    """

    at: int
    step: str
    outcome: Outcome
    index: int | None = None
    output: Json = None
    ref: JsonObject | None = None
    size: int = 0
    error: JsonObject | None = None
    child: JsonObject | None = None
    usage: dict[str, int] | None = None
    taken_from: JsonObject | None = None
    abandoned: bool | None = None


@dataclass(frozen=True, slots=True)
class CancelledChildEnded:
    """A child that had to be cancelled has ended, or was never started. `confirmed` is False if its
    agent server may go on with it."""

    at: int
    child: str
    status: str
    confirmed: bool = True


@dataclass(frozen=True, slots=True)
class Paused:
    """No step can continue until a person has decided. `data` is the data of `lifecycle.paused`."""

    at: int
    approval_id: str
    data: JsonObject


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run can continue after a pause."""

    at: int
    approval_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """No further step begins but those with `always`, and all other children must be cancelled.

    The `always` steps begin when the cancelled children have ended, at the latest at `due`. The run
    ends with `status` after them, at the latest at `always_due`; None if none of them is left.
    `step` is the step that failed, or the first step that was open.
    """

    at: int
    status: Literal["failed", "cancelled"]
    due: int
    step: str | None = None
    index: int | None = None
    error: JsonObject | None = None
    by: str | None = None
    reason: str | None = None
    budget: JsonObject | None = None  # the numbers of a budget that is used up
    always_due: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """The decision to which this record belongs has taken `steps` steps (`limits.RUN_STEPS`)."""

    at: int
    steps: int


@dataclass(frozen=True, slots=True)
class End:
    """The run has ended. No record follows this one in the journal.

    `confirmed` is False if the run did not wait for the end of a cancelled child, or if the agent
    server of such a child may go on with it.
    """

    at: int
    status: RunStatus
    output: Json = None
    error: JsonObject | None = None
    step: str | None = None
    by: str | None = None
    reason: str | None = None
    confirmed: bool = True
    budget: JsonObject | None = None  # as in `Stop`


Record: TypeAlias = (
    Started
    | TurnAsked
    | TurnTaken
    | ForEachStarted
    | Scheduled
    | Waiting
    | ChildPaused
    | ChildResumed
    | ApprovalReported
    | Retry
    | Ended
    | CancelledChildEnded
    | Paused
    | Resumed
    | Stop
    | Spent
    | End
)

# the names in the journal that differ from the names of the classes
_NAMES_IN_JOURNAL: Final[Mapping[type[Any], str]] = {
    ForEachStarted: "looped",
    ChildPaused: "held",
    ChildResumed: "released",
    ApprovalReported: "news",
    CancelledChildEnded: "left",
}
_TYPES: Final[Mapping[str, type[Any]]] = {
    _NAMES_IN_JOURNAL.get(cls, cls.__name__.lower()): cls for cls in get_args(Record)
}
_FIELDS: Final = {cls: tuple(field.name for field in fields(cls)) for cls in get_args(Record)}
_NAMES: Final = {cls: name for name, cls in _TYPES.items()}


def as_json(record: Record) -> JsonObject:
    """Return the record as JSON, without the fields that are None."""
    members: JsonObject = {"record": _NAMES[type(record)]}
    for name in _FIELDS[type(record)]:
        value = getattr(record, name)
        if value is not None:
            members[name] = value
    return members


def from_json(members: Mapping[str, Any]) -> Record:
    """Return the record of a JSON object. Unknown fields are ignored.

    Raises:
        UnknownRecord: the record has an unknown type or lacks a field.
    """
    cls = _TYPES.get(str(members.get("record")))
    if cls is None:
        raise UnknownRecord(
            f"the journal has a record of the unknown type {members.get('record')!r}; "
            "a newer version of Penstock may have written it"
        )
    try:
        record: Record = cls(**{name: members[name] for name in _FIELDS[cls] if name in members})
    except TypeError as error:
        raise UnknownRecord(f"a record of the journal cannot be read: {error}") from None
    return record


def encode(records: Sequence[Record]) -> bytes:
    """Return the records of one decision as JSON, the payload of one message of the journal."""
    return orjson.dumps({"v": VERSION, "records": [as_json(record) for record in records]})


def decode(payload: bytes) -> list[Record]:
    """Return the records of one message of the journal. Raises UnknownRecord."""
    members = orjson.loads(payload)
    if not isinstance(members, dict) or members.get("v") != VERSION:
        raise UnknownRecord("a message of the journal has another version than 1")
    listed: Iterable[Mapping[str, Any]] = members["records"]
    return [from_json(each) for each in listed]
