"""The state of a workflow's run, folded from its records. Pure.

`fold` changes the state in place, in time that does not depend on the length of the journal.
`decide` works on a copy, so a decision whose records could not be stored has not changed the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from penstock_workflows.definition import Step
from penstock_workflows.engine import limits, records
from penstock_workflows.engine.plan import Plan, plan_of_json
from penstock_workflows.engine.records import Json, JsonObject, Record
from penstock_workflows.engine.values import all_loaded, loaded

Key: TypeAlias = tuple[str, int | None]  # a step's name, and the item's index in `for_each`
Waits = records.Scheduled | records.Waiting | records.Retry

# The kinds of steps that count towards a workflow's `concurrency`. Such a step waits for the work
# of an agent, of another workflow, or of the receiver of a webhook.
WORKING: Final = frozenset({"run", "workflow", "call"})


@dataclass(frozen=True, slots=True)
class Result:
    """How a step, or an item of a step, has ended."""

    outcome: records.Outcome
    output: Json = None
    ref: JsonObject | None = None
    size: int = 0
    error: JsonObject | None = None
    items: tuple[Result, ...] | None = None

    def value(self, values: Mapping[str, Json]) -> Json:
        """Return the step's output; that of a loop is the list of its items' outputs. Raises
        ValuesNeeded."""
        if self.items is None:
            return loaded(self.output, self.ref, values)
        return all_loaded([(item.output, item.ref) for item in self.items], values)


@dataclass(slots=True)
class Loop:
    """A step with `for_each` that has begun and is not done."""

    items: list[Json]
    results: list[Result | None]
    begun: int = 0  # the items before this index have begun
    ended: int = 0
    failed: int = 0

    def copy(self) -> Loop:
        return Loop(self.items, self.results.copy(), self.begun, self.ended, self.failed)


@dataclass(frozen=True, slots=True)
class Open:
    """A step, or an item of a step, that has begun and is not done.

    `waits` is the record of what the step waits for. While the step waits for a person, `pause` has
    the data of the `lifecycle.paused`; otherwise `pause` is None. `pause_sequence` is the number of
    the child's last event that began or ended such a pause. If `is_working` is True, the step
    counts towards the workflow's `concurrency`, also between two attempts.
    """

    step: str
    index: int | None
    attempt: int
    waits: Waits
    is_working: bool
    pause: JsonObject | None = None
    pause_sequence: int = 0
    escalated: int = 0  # the number of the approval's last escalation
    expired: bool = False  # the approval's deadline has passed

    @property
    def key(self) -> Key:
        return self.step, self.index

    @property
    def id(self) -> str | None:
        """The id of the child, the approval or the call for which the step waits."""
        match self.waits:
            case records.Scheduled(child=child):
                return child
            case records.Waiting(id=id_):
                return id_
            case _:
                return None


@dataclass(slots=True)
class State:
    """The state of a run after `length` records.

    - `ready`: steps that have not begun, although all their needs are done.
    - `open`: steps and items that have begun and are not done. `loops`: steps with `for_each` that
      have begun and are not done.
    - `results`: the steps that are done.
    - `abandoned_children`: cancelled children whose end is not known yet, with their steps; None
      for a child whose end was reported when its attempt failed.
    - `turn`: the key for which other runs may be under way. While the run `waits_for_turn`, it
      begins nothing.
    - `stop`: if it is set, only steps with `always` begin. `end`: if it is set, the run has ended.
    """

    started: records.Started
    plan: Plan | None
    at: int
    began: int = 0  # when the run began, or took its turn; the workflow's timeout counts from then
    length: int = 1  # how many records the journal has
    begun: int = 0  # how many steps, items and further attempts have begun
    busy: int = 0  # how many of `open` count towards the concurrency
    people_waiting: int = 0  # how many of `open` wait for a person
    inline_bytes: int = 0  # the total size of the outputs inside the records
    steps: int = 0  # the steps that decisions have taken (`Spent`)
    ready: dict[str, None] = field(default_factory=dict)
    open: dict[Key, Open] = field(default_factory=dict)
    loops: dict[str, Loop] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    # the keys of open steps, by the id of the child, the approval or the call for which they wait
    keys: dict[str, Key] = field(default_factory=dict)
    abandoned_children: dict[str, Key | None] = field(default_factory=dict)
    unconfirmed: bool = False  # whether the agent server of a cancelled child may go on with it
    usage: dict[str, int] = field(default_factory=dict)
    paused: str | None = None  # the approval that the announced pause names
    # how steps and items have ended in the run from which this one was forked
    first_ends: Mapping[Key, records.Ended] = field(default_factory=dict)
    waits_for_turn: bool = False
    turn: records.TurnAsked | None = None
    stop: records.Stop | None = None
    end: records.End | None = None

    @property
    def run_id(self) -> str:
        return self.started.run_id

    @property
    def depth(self) -> int:
        """The number of workflows in which this run is nested; 0 for an outermost workflow."""
        return int(self.started.command.get("workflow_depth") or 0)

    @property
    def places(self) -> int:
        """How many runs below this one may be under way at once.

        A workflow divides this number by its `concurrency`. Each nested workflow gets the quotient
        as its own `places`. Without this bound, a workflow that runs itself a hundred times would
        soon have a hundred, ten thousand, a million runs under way.
        """
        return int(self.started.command.get("workflow_places") or limits.MAX_PLACES)

    @property
    def concurrency(self) -> int:
        """How many runs and calls of this run may be under way at once."""
        assert self.plan is not None
        return min(self.plan.workflow.definition.concurrency, self.places)

    @property
    def waits_for_people(self) -> bool:
        return bool(self.open) and len(self.open) == self.people_waiting

    def copy(self) -> State:
        return replace(
            self,
            ready=self.ready.copy(),
            open=self.open.copy(),
            loops={name: loop.copy() for name, loop in self.loops.items()},
            results=self.results.copy(),
            keys=self.keys.copy(),
            abandoned_children=self.abandoned_children.copy(),
            usage=self.usage.copy(),
        )


def fold(state: State | None, record: Record) -> State:
    """Return the state after a record; an existing state is changed in place."""
    if isinstance(record, records.Started):
        if state is not None:
            raise ValueError(f"the journal of run {record.run_id} has a second start")
        return _started(record)
    if state is None:
        raise ValueError("the first record of a journal must be of a start")
    state.length += 1
    state.at = record.at
    _FOLDS[type(record)](state, record)
    return state


def folded(journal: Iterable[Record]) -> State | None:
    state: State | None = None
    for record in journal:
        state = fold(state, record)
    return state


def _started(record: records.Started) -> State:
    plan = plan_of_json(record.definition) if record.definition is not None else None
    state = State(record, plan, record.at, record.at)
    if plan is not None:
        state.waits_for_turn = plan.workflow.exclusive is not None
        state.ready = dict.fromkeys(plan.roots)
    if record.first is not None:
        ends = map(records.from_json, record.first["ends"])
        state.first_ends = {
            (end.step, end.index): end for end in ends if isinstance(end, records.Ended)
        }
    return state


def _on_turn_asked(state: State, record: records.TurnAsked) -> None:
    state.turn = record


def _on_turn_taken(state: State, record: records.TurnTaken) -> None:
    state.waits_for_turn, state.began = False, record.at


def _on_for_each_started(state: State, record: records.ForEachStarted) -> None:
    del state.ready[record.step]
    state.loops[record.step] = Loop(record.items, [None] * len(record.items))


def _on_begun(state: State, record: records.Scheduled | records.Waiting) -> None:
    key = record.step, record.index
    before = state.open.get(key)  # the entry of an earlier attempt
    is_working = record.kind in WORKING
    if before is None:
        _begin(state, key)
        state.busy += is_working
    entry = Open(record.step, record.index, record.attempt, record, is_working)
    state.begun += 1
    state.open[key] = entry
    if entry.id is not None:
        state.keys[entry.id] = key


def _begin(state: State, key: Key) -> None:
    step, index = key
    if index is None:
        state.ready.pop(step, None)
    else:
        state.loops[step].begun = index + 1


def _on_child_paused(state: State, record: records.ChildPaused) -> None:
    _wait_for_person(state, (record.step, record.index), record.data or {}, record.sequence)


def _on_child_resumed(state: State, record: records.ChildResumed) -> None:
    _wait_for_person(state, (record.step, record.index), None, record.sequence)


def _on_approval_reported(state: State, record: records.ApprovalReported) -> None:
    key = record.step, record.index
    entry = state.open[key]
    data = (record.event or {}).get("data", {})
    match record.news:
        case "asked":
            _wait_for_person(state, key, data, entry.pause_sequence)
        case "escalated":
            state.open[key] = replace(entry, escalated=data.get("step", entry.escalated + 1))
        case "expired":
            state.open[key] = replace(entry, expired=True)
        case "decided" | "withdrawn":
            _wait_for_person(state, key, None, entry.pause_sequence)


def _wait_for_person(state: State, key: Key, data: JsonObject | None, sequence: int) -> None:
    entry = state.open[key]
    if entry.pause is None and data is not None:
        state.people_waiting += 1
    elif entry.pause is not None and data is None:
        state.people_waiting -= 1
    state.open[key] = replace(entry, pause=data, pause_sequence=sequence)


def _on_retry(state: State, record: records.Retry) -> None:
    before = state.open[record.step, record.index]
    _close(state, before, child_ended=record.child is not None, is_reported=record.abandoned)
    state.busy += before.is_working
    state.open[before.key] = Open(
        record.step, record.index, record.attempt, record, before.is_working
    )


def _close(
    state: State, entry: Open, *, child_ended: bool, is_reported: bool | None = None
) -> None:
    del state.open[entry.key]
    state.busy -= entry.is_working
    state.people_waiting -= entry.pause is not None
    if entry.id is None:
        return
    del state.keys[entry.id]
    if isinstance(entry.waits, records.Scheduled) and not child_ended:
        state.abandoned_children[entry.id] = None if is_reported else entry.key


def _on_ended(state: State, record: records.Ended) -> None:
    key = record.step, record.index
    entry = state.open.get(key)
    if entry is not None:
        _close(state, entry, child_ended=record.child is not None, is_reported=record.abandoned)
    elif record.step not in state.loops or record.index is not None:
        _begin(state, key)
        state.begun += record.outcome != "skipped"
    for name, tokens in (record.usage or {}).items():
        state.usage[name] = state.usage.get(name, 0) + tokens
    state.inline_bytes += record.size
    result = Result(record.outcome, record.output, record.ref, record.size, record.error)
    if record.index is not None:
        loop = state.loops[record.step]
        loop.results[record.index] = result
        loop.ended += 1
        loop.failed += record.outcome == "failed"
        return
    done = state.loops.pop(record.step, None)
    if done is not None:
        # A repeated step may have ended before its last round.
        items = tuple(item or Result("skipped") for item in done.results[: done.begun])
        result = replace(result, items=items)
    state.results[record.step] = result
    _make_ready(state, record.step)


def _make_ready(state: State, done: str) -> None:
    assert state.plan is not None
    for name in state.plan.followers[done]:
        if _can_begin(state, state.plan.step(name)):
            state.ready[name] = None


def _can_begin(state: State, step: Step) -> bool:
    """Return whether a step that has not begun has nothing to wait for. In a stopped run, a step
    with `always` waits only for other such steps, and no other step can begin."""
    if state.stop is None:
        return all(needed in state.results for needed in step.needs)
    assert state.plan is not None
    always = (name for name in step.needs if state.plan.step(name).always)
    return step.always and all(name in state.results for name in always)


def _on_cancelled_child_ended(state: State, record: records.CancelledChildEnded) -> None:
    del state.abandoned_children[record.child]
    state.unconfirmed = state.unconfirmed or not record.confirmed


def _on_paused(state: State, record: records.Paused) -> None:
    state.paused = record.approval_id


def _on_resumed(state: State, record: records.Resumed) -> None:
    state.paused = None


def _on_stop(state: State, record: records.Stop) -> None:
    assert state.plan is not None
    state.stop = record
    for entry in list(state.open.values()):
        if not state.plan.step(entry.step).always:
            _close(state, entry, child_ended=False)
    state.loops.clear()
    begun = state.results.keys() | {name for name, _ in state.open}
    state.ready = {
        step.name: None
        for step in state.plan.steps
        if step.name not in begun and _can_begin(state, step)
    }


def _on_spent(state: State, record: records.Spent) -> None:
    state.steps += record.steps


def _on_end(state: State, record: records.End) -> None:
    state.end = record
    state.ready.clear()
    for entry in list(state.open.values()):
        _close(state, entry, child_ended=False)


_FOLDS: Final[Mapping[type, Callable[[State, Any], None]]] = {
    records.TurnAsked: _on_turn_asked,
    records.TurnTaken: _on_turn_taken,
    records.ForEachStarted: _on_for_each_started,
    records.Scheduled: _on_begun,
    records.Waiting: _on_begun,
    records.ChildPaused: _on_child_paused,
    records.ChildResumed: _on_child_resumed,
    records.ApprovalReported: _on_approval_reported,
    records.Retry: _on_retry,
    records.Ended: _on_ended,
    records.CancelledChildEnded: _on_cancelled_child_ended,
    records.Paused: _on_paused,
    records.Resumed: _on_resumed,
    records.Stop: _on_stop,
    records.Spent: _on_spent,
    records.End: _on_end,
}
