"""Finds what a fork takes over from the run before it, the first run. Pure.

A step of a fork that ended in the first run before the fork's point is not done again: the fork
takes its end over. This holds only if every step before it has ended in the fork as in the first
run. Otherwise its output could rest on something that is not so in the fork. An `approve` step is
never taken over, since a decision allows one run: people are asked again. So a nested workflow in
which people were asked is forked at its end, too. Nor is an `always` step taken over: each run that
begins something cleans up itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import orjson

from penstock_workflows.definition import Step
from penstock_workflows.engine import records
from penstock_workflows.engine.ids import step_id
from penstock_workflows.engine.records import Ended, Json, JsonObject, Record
from penstock_workflows.engine.state import Key, Result, State


def asks(journal: Iterable[Record]) -> bool:
    """Return whether people were asked in a step of the workflow itself."""
    return any(isinstance(each, records.Waiting) and each.kind == "approve" for each in journal)


def completed_children(
    journal: Iterable[Record], step_ids: Collection[str] | None = None
) -> list[records.Scheduled]:
    """Return the starts of the children that steps and items have completed with. `step_ids` are as
    in `ends_of`; None for all."""
    started: dict[Key, records.Scheduled] = {}
    found: list[records.Scheduled] = []
    for record in journal:
        if isinstance(record, records.Scheduled):
            started[record.step, record.index] = record
        elif isinstance(record, Ended) and record.outcome == "completed":
            start = started.get((record.step, record.index))
            known = step_ids is None or step_id(record.step, record.index) in step_ids
            if start is not None and known:
                found.append(start)
    return found


def fork_at_end(journal: Iterable[Record], sequence: int) -> JsonObject:
    """Return how a completed run of a nested workflow is forked, as JSON (`Scheduled.fork`).
    `sequence` is that of its last event."""
    steps: list[str] = []
    fork: JsonObject = {"sequence": sequence, "steps": steps}
    for record in journal:
        if isinstance(record, records.Started):
            assert record.definition is not None, "the run has completed"
            fork |= {"run_id": record.run_id, "version": record.definition["version"]}
        elif isinstance(record, Ended) and record.outcome == "completed":
            steps.append(step_id(record.step, record.index))
    return fork


def ends_of(
    journal: Iterable[Record],
    step_ids: Collection[str],
    asking: Mapping[str, JsonObject] | None = None,
) -> JsonObject:
    """Return what a fork must know of the first run, as JSON (`records.Started.first`).

    `journal` has the records of the first run. `step_ids` are the steps and items whose ends come
    before the fork's point. `ends` has their records, and those of skipped steps, each with
    `taken_from`. `items` has a digest of each loop's items. `asking` has the forks (`fork_at_end`)
    of the nested workflows in which people were asked, by their runs; `forks` has them by steps.
    """
    ends: list[JsonObject] = []
    items: dict[str, list[str]] = {}
    children: dict[Key, str] = {}
    forks: dict[str, JsonObject] = {}
    run_id = ""
    for record in journal:
        match record:
            case records.Started():
                run_id = record.run_id
            case records.ForEachStarted():
                items[record.step] = [_digest(item) for item in record.items]
            case records.Scheduled():
                children[record.step, record.index] = record.child
            case Ended(outcome="skipped"):
                ends.append(records.as_json(record))
            case Ended(outcome="completed") if step_id(record.step, record.index) in step_ids:
                key = record.step, record.index
                if record.index is None and record.step in items:
                    continue  # the end of a loop follows from those of its items
                child = children.get(key)
                if child is not None and asking is not None and child in asking:
                    forks[step_id(*key)] = asking[child]
                taken_from = record.taken_from or _origin(run_id, child)
                end = records.as_json(record) | {"taken_from": taken_from}
                ends.append({name: end[name] for name in end.keys() - {"child", "usage"}})
    return {"ends": ends, "items": items, "forks": forks}


def references(first: JsonObject) -> list[str]:
    """Return the digests of the large outputs among the ends that a fork may take over."""
    return [end["ref"]["digest"] for end in first["ends"] if end.get("ref")]


def end_to_take_over(state: State, step: Step, index: int | None) -> Ended | None:
    """Return the end that the step, or the item, has in the first run; None if the fork must do
    it again, or the run is no fork."""
    return None if step_id(step.name, index) in _forks(state) else _end_before(state, step, index)


def fork_of_child(state: State, step: Step, index: int | None) -> JsonObject | None:
    """Return how the child of the step, or of the item, forks the child of the first run
    (`fork_at_end`); None if it must begin anew."""
    fork = _forks(state).get(step_id(step.name, index))
    return None if fork is None or _end_before(state, step, index) is None else fork


def _forks(state: State) -> JsonObject:
    forks: JsonObject = (state.started.first or {}).get("forks") or {}
    return forks


def _end_before(state: State, step: Step, index: int | None) -> Ended | None:
    end = state.first_ends.get((step.name, index))
    if end is None or end.outcome != "completed" or step.kind == "approve" or step.always:
        return None
    if index is not None:
        known = (state.started.first or {})["items"].get(step.name, ())
        loop = state.loops[step.name]
        if index >= len(known) or known[index] != _digest(loop.items[index]):
            return None
        if step.for_each is not None and step.for_each.until is not None:
            # A round may read the output of the round before it.
            rounds = enumerate(loop.results[:index])
            if not all(one and _is_as_before(state, step, at, one) for at, one in rounds):
                return None
    return end if all(_ended_as_before(state, name) for name in step.ancestors) else None


def _ended_as_before(state: State, name: str) -> bool:
    assert state.plan is not None
    step = state.plan.step(name)
    parts = _parts(state.results[name])
    return all(_is_as_before(state, step, index, result) for index, result in parts)


def _is_as_before(state: State, step: Step, index: int | None, result: Result) -> bool:
    key = step.name, index
    return (
        (end := state.first_ends.get(key)) is not None
        and end.outcome == result.outcome
        and end.ref == result.ref
        and _compared(state, step, key, end.output) == _compared(state, step, key, result.output)
    )


def _parts(result: Result) -> Iterator[tuple[int | None, Result]]:
    if result.items is None:
        yield None, result
        return
    yield from enumerate(result.items)


def _compared(state: State, step: Step, key: Key, output: Json) -> Json:
    """Return the output without what may differ although the step has ended as before: the person
    who has decided, or the run of a child that is a fork."""
    differing: Collection[str] = ()
    if step.kind == "approve":
        differing = ("by",)
    elif step.output is None and step_id(*key) in _forks(state):
        differing = ("run_id", "usage")
    if differing and isinstance(output, dict):
        return {field: value for field, value in output.items() if field not in differing}
    return output


def _origin(run_id: str, child: str | None) -> dict[str, Any]:
    return {"run_id": run_id} if child is None else {"run_id": run_id, "child_run_id": child}


def _digest(item: Json) -> str:
    return hashlib.sha256(orjson.dumps(item, option=orjson.OPT_SORT_KEYS)).hexdigest()
