"""Makes the source frames of a run's records, by the rules in docs/workflow-events.md. Pure.

The frames of a record depend only on the record and on the state before the record. So a process
that does not know which frames were written can make the same frames again, with the same
positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from penstock.digests import item_digest, request_digest
from penstock_workflows.definition import Step, compiled
from penstock_workflows.engine import records
from penstock_workflows.engine.effects import Frame
from penstock_workflows.engine.ids import step_id
from penstock_workflows.engine.records import Json, JsonObject, Record
from penstock_workflows.engine.state import Key, Open, State
from penstock_workflows.engine.values import all_loaded, loaded

MAX_TASK_CHARACTERS: Final = 1000
# The greatest size in bytes of the list of outputs in a loop's event. A larger list is left out;
# the events of the items have the outputs.
MAX_LOOP_BYTES: Final = 256 * 1024
_NONE: Final[Mapping[str, Json]] = {}

_Event = tuple[str, JsonObject, str | None]  # type, data, step_id


def projection(
    before: State | None, record: Record, values: Mapping[str, Json] = _NONE
) -> list[Frame]:
    """Return the source frames of a record; `before` is the state before it.

    Raises:
        ValuesNeeded: an event has an output that was stored by reference and is not among `values`.
    """
    if isinstance(record, records.Started):
        return _started(record)
    assert before is not None, "the first record of a journal is of a start"
    make = _EVENTS.get(type(record))
    if make is None:
        return []
    number, source = before.length + 1, _source(before.started)
    return [
        Frame(number, part, record.at, "event", _payload(event, source))
        for part, event in enumerate(make(before, record, values))
    ]


def _payload(event: _Event, source: JsonObject) -> JsonObject:
    type_, data, step = event
    payload = {"type": type_, "data": data, "source": source}
    return payload if step is None else {**payload, "step_id": step}


def _source(started: records.Started) -> JsonObject:
    definition = started.definition or {}
    agent = started.open.get("agent") or definition.get("name", "")
    name = definition.get("title") or definition.get("name") or agent
    return {
        "agent_id": agent,
        "agent_type": "global_supervisor",
        "agent_name": name,
        "team_name": None,
    }


def _started(record: records.Started) -> list[Frame]:
    frames = [Frame(1, 0, record.at, "open", record.open)]
    if record.definition is not None and record.definition.get("exclusive") is None:
        event = _workflow_started(record)
        frames.append(Frame(1, 1, record.at, "event", _payload(event, _source(record))))
    return frames


def _workflow_started(started: records.Started) -> _Event:
    definition = started.definition or {}
    data = {
        "workflow": definition["name"],
        "run_id": started.run_id,
        "version": definition["version"],
        "input": started.input,
    }
    return "workflow.started", data, None


def _on_turn_taken(
    before: State, record: records.TurnTaken, values: Mapping[str, Json]
) -> Iterator[_Event]:
    yield _workflow_started(before.started)


def _on_for_each_started(
    before: State, record: records.ForEachStarted, values: Mapping[str, Json]
) -> Iterator[_Event]:
    yield from _begin(before, record.step, None)


def _on_scheduled(
    before: State, record: records.Scheduled, values: Mapping[str, Json]
) -> Iterator[_Event]:
    key = record.step, record.index
    if key not in before.open:
        yield from _transitions(before, key)
    id_ = step_id(*key)
    task = record.task or record.message or _step(before, record.step).description
    task = task[:MAX_TASK_CHARACTERS]
    if record.team is not None:
        data = {"team_name": record.team, "task": task}
        if record.worker is None:
            data["subrun_id"] = record.child
        yield "dispatch.team", data, id_
    if record.team is None or record.worker is not None:
        data = {
            "worker_name": record.worker or record.name,
            "task": task,
            "subrun_id": record.child,
        }
        yield "dispatch.worker", data, id_
    yield _step_started(before, key, record.attempt, record)


def _on_waiting(
    before: State, record: records.Waiting, values: Mapping[str, Json]
) -> Iterator[_Event]:
    yield from _begin(before, record.step, record.index, record.attempt)
    if record.kind == "approve":
        yield _approval_requested(before, record)


def _on_approval_reported(
    before: State, record: records.ApprovalReported, values: Mapping[str, Json]
) -> Iterator[_Event]:
    event = record.event
    # A pause is not announced here, because other steps may continue. The record `Paused` announces
    # the pause when no step can continue.
    if event is not None and event["type"] != "lifecycle.paused":
        yield event["type"], event.get("data", {}), None


def _on_retry(before: State, record: records.Retry, values: Mapping[str, Json]) -> Iterator[_Event]:
    entry = before.open[record.step, record.index]
    yield from _finished(entry, record)
    retry = _step(before, record.step).retry
    assert retry is not None
    data = {
        "retry_count": record.attempt,
        "max_retries": retry.attempts - 1,
        "reason": record.error["message"],
        "step": record.step,
    }
    yield "lifecycle.retrying", data, step_id(*entry.key)


def _on_ended(before: State, record: records.Ended, values: Mapping[str, Json]) -> Iterator[_Event]:
    if record.outcome == "skipped":
        return
    key = record.step, record.index
    entry = before.open.get(key)
    is_loop = record.index is None and record.step in before.loops
    if entry is not None:
        yield from _finished(entry, record)
    elif not is_loop:
        yield from _begin(before, *key)
    id_ = step_id(*key)
    data: JsonObject = {"run_id": before.run_id, "step_id": id_}
    if record.outcome == "failed":
        data["error"] = record.error
    elif is_loop:
        data["output"] = _loop_output(before, record.step, values)
    else:
        data["output"] = loaded(record.output, record.ref, values)
    if entry is not None and isinstance(entry.waits, records.Scheduled):
        data["child_run_id"] = entry.waits.child
    if record.taken_from is not None:
        data["taken_from"] = record.taken_from
    type_ = "workflow.step_failed" if record.outcome == "failed" else "workflow.step_completed"
    yield type_, data, id_


def _loop_output(before: State, step: str, values: Mapping[str, Json]) -> Json:
    """Return the list of the items' outputs; None if it is too large for an event."""
    results = [item for item in before.loops[step].results if item is not None]
    sizes = sum(item.ref["size"] if item.ref is not None else item.size for item in results)
    if sizes > MAX_LOOP_BYTES:
        return None
    return all_loaded([(item.output, item.ref) for item in results], values)


def _on_cancelled_child_ended(
    before: State, record: records.CancelledChildEnded, values: Mapping[str, Json]
) -> Iterator[_Event]:
    key = before.abandoned_children[record.child]
    if key is not None:
        data = {"subrun_id": record.child, "status": record.status}
        yield "dispatch.finished", data, step_id(*key)


def _on_paused(
    before: State, record: records.Paused, values: Mapping[str, Json]
) -> Iterator[_Event]:
    yield "lifecycle.paused", record.data, None


def _on_resumed(
    before: State, record: records.Resumed, values: Mapping[str, Json]
) -> Iterator[_Event]:
    yield "lifecycle.resumed", {"approval_id": record.approval_id}, None


def _on_end(before: State, record: records.End, values: Mapping[str, Json]) -> Iterator[_Event]:
    run_id = before.run_id
    yield from _abandoned(before)
    match record.status:
        case "completed":
            summary, value = summary_of(record.output), record.output
            result = value if isinstance(value, dict) else {"summary": summary}
            yield "workflow.completed", {"run_id": run_id, "result": result}, None
            data: JsonObject = {"summary": summary}
            if value is not None and not isinstance(value, str):
                data["value"] = value
            if before.usage:
                data["usage"] = before.usage.copy()
            yield "lifecycle.completed", data, None
        case "failed":
            error = record.error or {"code": "internal", "message": "the run failed"}
            if before.plan is not None and not before.waits_for_turn:
                yield "workflow.failed", {"run_id": run_id, "error": error}, None
            data = {"error": error["message"], "code": error["code"]}
            if record.step is not None:
                data["step"] = record.step
            yield "lifecycle.failed", data, None
        case "cancelled":
            data = {"reason": record.reason or "user_stop", "confirmed": record.confirmed}
            if record.by is not None:
                data["by"] = record.by
            if record.step is not None:
                data["step"] = record.step
            if record.budget is not None:
                data["budget"] = record.budget
            yield "lifecycle.cancelled", data, None


def summary_of(output: Json) -> str:
    match output:
        case None:
            return ""
        case str():
            return output
        case {"summary": str(summary)}:
            return summary
        case _:
            return orjson.dumps(output).decode()


# helpers for the events of several kinds of records


def _begin(before: State, step: str, index: int | None, attempt: int = 1) -> Iterator[_Event]:
    if (step, index) not in before.open:
        yield from _transitions(before, (step, index))
    yield _step_started(before, (step, index), attempt, None)


def _transitions(before: State, key: Key) -> Iterator[_Event]:
    """Yield an event for each step that this step needs; none for an item of a loop."""
    if key[1] is not None:
        return
    step = _step(before, key[0])
    for needed in step.needs:
        result = before.results.get(needed)
        outcome = result.outcome if result is not None else "cancelled"
        reason = f"{needed}_{_REASONS.get(outcome, outcome)}"
        data = {
            "run_id": before.run_id,
            "from_step": needed,
            "to_step": step.name,
            "reason": reason if step.when is None else "when",
        }
        yield "workflow.transition", data, None


_REASONS: Final = {"completed": "complete"}


def _step_started(before: State, key: Key, attempt: int, child: records.Scheduled | None) -> _Event:
    name, index = key
    step = _step(before, name)
    data: JsonObject = {
        "run_id": before.run_id,
        "step_id": step_id(name, index),
        "description": step.description or name,
        "kind": _kind(step, index),
    }
    if index is not None:
        data |= {"parent_step_id": step_id(name, None), "iteration": index + 1}
    if attempt > 1:
        data["attempt"] = attempt
    if child is not None:
        role = "worker" if child.team is None or child.worker is not None else "team_supervisor"
        data |= {"child_run_id": child.child, "role": step.role or role}
        if child.team is not None:
            data["team_name"] = child.team
    return "workflow.step_started", data, data["step_id"]


def _kind(step: Step, index: int | None) -> str:
    if step.for_each is not None and index is None:
        return "loop" if step.for_each.limit == 1 else "parallel"
    return "step" if step.kind == "run" else step.kind


def _finished(entry: Open, record: records.Ended | records.Retry) -> Iterator[_Event]:
    child = {"status": "cancelled"} if record.abandoned else record.child
    if child is None or not isinstance(entry.waits, records.Scheduled):
        return
    data = {"subrun_id": entry.waits.child, "status": child["status"]}
    if child["status"] == "completed":
        data["result"] = child.get("text", "")
    elif record.error is not None:
        data["error"] = record.error["message"]
    yield "dispatch.finished", data, step_id(*entry.key)


def _abandoned(before: State) -> Iterator[_Event]:
    """Yield the ends of children for whose end a run that ends has not waited."""
    children = [(child, key) for child, key in before.abandoned_children.items() if key is not None]
    children += [
        (entry.waits.child, entry.key)
        for entry in before.open.values()
        if isinstance(entry.waits, records.Scheduled)
    ]
    for child, key in children:
        data = {"subrun_id": child, "status": "cancelled", "error": "its end is not known"}
        yield "dispatch.finished", data, step_id(*key)


def _approval_requested(before: State, record: records.Waiting) -> _Event:
    assert record.id is not None
    detail = record.detail or {}
    action = _step(before, record.step).action
    assert isinstance(action, compiled.Approve)
    item = {
        # The id must be unique in the session, because two runs of the session may ask at once, and
        # an answer may name only the item.
        "item_id": record.id,
        "kind": "confirmation" if action.form is None else "input",
        "tool": detail["policy"],
        "args": detail.get("show") or {},
        "description": detail["title"],
    }
    item["digest"] = item_digest(record.id, item)
    item["editable"] = False
    if action.form is not None:
        item["input_schema"] = dict(action.form)
    data = {
        "approval_id": record.id,
        "digest": request_digest([item["digest"]]),
        "deciders_required": action.need,
        "items": [item],
    }
    if action.deciders is not None:
        data["deciders"] = dict(action.deciders)
    if record.timeout is not None:
        at = datetime.fromtimestamp(record.timeout / 1000, UTC)
        data["expires_at"] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return "approval.requested", data, step_id(record.step, record.index)


def _step(state: State, name: str) -> Step:
    assert state.plan is not None
    return state.plan.step(name)


_EVENTS: Final[Mapping[type, Callable[[State, Any, Mapping[str, Json]], Iterator[_Event]]]] = {
    records.TurnTaken: _on_turn_taken,
    records.ForEachStarted: _on_for_each_started,
    records.Scheduled: _on_scheduled,
    records.Waiting: _on_waiting,
    records.ApprovalReported: _on_approval_reported,
    records.Retry: _on_retry,
    records.Ended: _on_ended,
    records.CancelledChildEnded: _on_cancelled_child_ended,
    records.Paused: _on_paused,
    records.Resumed: _on_resumed,
    records.End: _on_end,
}
