"""Finds what a fork takes over from the run before it, the first run. Pure.

A step of a fork that ended in the first run before the fork's point is not done again: the fork
takes its end over. This holds only if every step before it has ended in the fork as in the first
run. Otherwise its output could rest on something that is not so in the fork. An `approve` step is
never taken over, since a decision allows one run: people are asked again. Nor is an `always` step:
each run that begins something cleans up itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import orjson

from penstock_workflows.definition import Step
from penstock_workflows.engine import records
from penstock_workflows.engine.ids import step_id
from penstock_workflows.engine.records import Ended, Json, JsonObject, Record
from penstock_workflows.engine.state import Key, Result, State


def ends_of(journal: Iterable[Record], step_ids: Collection[str]) -> JsonObject:
    """Return what a fork must know of the first run, as JSON (`records.Started.first`).

    `journal` has the records of the first run. `step_ids` are the steps and items whose ends come
    before the fork's point. `ends` has their records, and those of skipped steps, each with
    `taken_from`. `items` has a digest of each loop's items.
    """
    ends: list[JsonObject] = []
    items: dict[str, list[str]] = {}
    children: dict[Key, str] = {}
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
                taken_from = record.taken_from or _origin(run_id, children.get(key))
                end = records.as_json(record) | {"taken_from": taken_from}
                ends.append({name: end[name] for name in end.keys() - {"child", "usage"}})
    return {"ends": ends, "items": items}


def references(first: JsonObject) -> list[str]:
    """Return the digests of the large outputs among the ends that a fork may take over."""
    return [end["ref"]["digest"] for end in first["ends"] if end.get("ref")]


def end_to_take_over(state: State, step: Step, index: int | None) -> Ended | None:
    """Return the end that the step, or the item, has in the first run; None if the fork must do
    it again, or the run is no fork."""
    end = state.first_ends.get((step.name, index))
    if end is None or end.outcome != "completed" or step.kind == "approve" or step.always:
        return None
    if index is not None:
        known = (state.started.first or {})["items"].get(step.name, ())
        if index >= len(known) or known[index] != _digest(state.loops[step.name].items[index]):
            return None
    return end if all(_ended_as_before(state, name) for name in step.ancestors) else None


def _ended_as_before(state: State, name: str) -> bool:
    ends = state.first_ends
    is_approval = state.plan is not None and state.plan.step(name).kind == "approve"
    return all(
        (end := ends.get(key)) is not None
        and end.outcome == result.outcome
        and end.ref == result.ref
        and _compared(end.output, is_approval) == _compared(result.output, is_approval)
        for key, result in _parts(name, state.results[name])
    )


def _parts(name: str, result: Result) -> Iterator[tuple[Key, Result]]:
    if result.items is None:
        yield (name, None), result
        return
    for index, item in enumerate(result.items):
        yield (name, index), item


def _compared(output: Json, is_approval: bool) -> Json:
    """Return the output without the person who has decided: another one may say the same."""
    if is_approval and isinstance(output, dict):
        return {field: value for field, value in output.items() if field != "by"}
    return output


def _origin(run_id: str, child: str | None) -> dict[str, Any]:
    return {"run_id": run_id} if child is None else {"run_id": run_id, "child_run_id": child}


def _digest(item: Json) -> str:
    return hashlib.sha256(orjson.dumps(item, option=orjson.OPT_SORT_KEYS)).hexdigest()
