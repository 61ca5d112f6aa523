"""Decides what an input changes in a workflow's run. Pure. docs/workflow-engine.md has the rules.

`decide` reads no clock and makes no ids: the time and the supplier of ids are its arguments. The
same arguments give the same decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from penstock.json_schema import with_numbers
from penstock_workflows.definition import compiled
from penstock_workflows.engine import inputs, limits, records
from penstock_workflows.engine.beginning import advance, begin, result_of
from penstock_workflows.engine.draft import Draft, StepError
from penstock_workflows.engine.effecting import start_child, started_effects
from penstock_workflows.engine.effects import Effect, Frame
from penstock_workflows.engine.ending import complete, end_stopped, fail, fail_step, stop_run
from penstock_workflows.engine.ids import Timer
from penstock_workflows.engine.plan import plan_of_json
from penstock_workflows.engine.projection import projection
from penstock_workflows.engine.records import Json, JsonObject, Record
from penstock_workflows.engine.state import Open, State, fold
from penstock_workflows.engine.values import Stored

_NONE: Final[Mapping[str, Json]] = {}


@dataclass(frozen=True, slots=True)
class Decision:
    """The changes that an input causes.

    The service stores the values of `stored`, then appends the `records`, then carries out the
    `effects` and writes the `frames`. `state` is the state after the records, and is valid only if
    the records were appended. A decision without records has no frames, but may have effects. If
    `is_partial`, decide about a `ProceedInput` after the effects.
    """

    records: list[Record]
    effects: list[Effect]
    frames: list[Frame]
    stored: list[Stored]
    state: State | None
    is_partial: bool = False


def decide(
    state: State | None,
    cause: inputs.Input,
    *,
    now_ms: int,
    new_id: Callable[[], str],
    values: Mapping[str, Json] = _NONE,
    slice_steps: int | None = None,
    run_steps: int = limits.RUN_STEPS,
) -> Decision:
    """Return what the input `cause` changes. The given state stays as it is.

    `now_ms` is the time by the clock of the bus. `new_id` returns a new run id in the parent's
    shard. `values` maps digests to outputs that were stored by reference. `slice_steps` is the
    greatest number of steps that the decision may take; None leaves it to `limits.DECISION_STEPS`,
    after which the decision is partial. `run_steps` is the greatest number for all decisions about
    the run, after which the run fails.

    Raises:
        SliceUsed: the decision takes more steps than `slice_steps`.
        ValuesNeeded: the decision needs stored values that are not among `values`; load them and
            decide again.
    """
    if state is None:
        if not isinstance(cause, inputs.StartInput):
            return Decision([], [], [], [], None)
        started = _started(cause, now_ms)
        draft = Draft(
            fold(None, started), now_ms, new_id, dict(values), slice_steps, run_steps, [started]
        )
        _start(draft, cause.cancelled)
        return _decision(draft)
    if state.end is not None:
        return Decision([], [], [], [], state)
    draft = Draft(state.copy(), now_ms, new_id, dict(values), slice_steps, run_steps)
    _HANDLERS[type(cause)](draft, cause)
    return _decision(draft)


def _decision(draft: Draft) -> Decision:
    # Something may be left to begin even if the input changes nothing: the process that made the
    # last decision may have ended before it made the rest of a partial decision.
    if draft.state.end is None:
        _announce_resumption(draft)
        advance(draft)
        if not draft.is_partial:
            _announce_pause(draft)
    if draft.steps >= limits.UNCOUNTED_STEPS and draft.state.end is None:
        draft.write(records.Spent(draft.at, draft.steps))
    return Decision(
        draft.records, draft.effects, draft.frames, draft.stored, draft.state, draft.is_partial
    )


def _started(start: inputs.StartInput, now_ms: int) -> records.Started:
    """Return the first record of a run, which also states why the run cannot start, if so."""
    refused = start.refused
    if refused is None and start.cancelled is None:
        refused = _refusal(start)
    can_run = refused is None and start.cancelled is None
    return records.Started(
        at=now_ms,
        run_id=start.run_id,
        command=start.command,
        open=start.open,
        definition=start.definition if can_run else None,
        input=start.input,
        refused=refused,
        first=start.first,
    )


def _start(draft: Draft, cancelled: inputs.CancelInput | None) -> None:
    started = draft.state.started
    draft.frames.extend(projection(None, started))
    draft.effects.extend(started_effects(draft.state))
    if cancelled is not None:
        end = records.End(
            draft.at,
            "cancelled",
            by=cancelled.by,
            reason=cancelled.reason,
            budget=cancelled.budget,
        )
        draft.write(end)
    elif started.refused is not None:
        draft.write(records.End(draft.at, "failed", error=started.refused))
    elif draft.plan.workflow.exclusive is not None:
        _ask_for_turn(draft, draft.plan.workflow.exclusive)


def _ask_for_turn(draft: Draft, exclusive: compiled.Exclusive) -> None:
    try:
        key = draft.evaluate("exclusive.key", exclusive.key, ())
    except StepError as failed:
        draft.write(records.End(draft.at, "failed", error=failed.error))
        return
    if len(key) > MAX_KEY_CHARACTERS:
        message = f"exclusive.key has {len(key)} characters; at most {MAX_KEY_CHARACTERS}"
        error = {"code": "expression_error", "message": message}
        draft.write(records.End(draft.at, "failed", error=error))
        return
    name = draft.plan.workflow.name
    draft.write(records.TurnAsked(draft.at, name, key, exclusive.when_busy))


def _on_turn(draft: Draft, turn: inputs.TurnInput) -> None:
    if draft.state.waits_for_turn and turn.refused is not None:
        draft.write(records.End(draft.at, "failed", error=turn.refused))
    elif draft.state.waits_for_turn:
        draft.write(records.TurnTaken(draft.at))


def _refusal(start: inputs.StartInput) -> JsonObject | None:
    if start.definition is None:
        return {"code": "unknown_workflow", "message": "the workflow has no definition"}
    if int(start.command.get("workflow_depth") or 0) > limits.MAX_DEPTH:
        message = f"workflows may be nested {limits.MAX_DEPTH} deep; this run is deeper"
        return {"code": "limit_exceeded", "message": message}
    try:
        plan_of_json(start.definition)
    except ValueError as error:  # InvalidDefinition or pydantic's ValidationError
        message = f"the workflow's definition is not valid: {error}"
        return {"code": "invalid_definition", "message": message}
    return None


def _announce_resumption(draft: Draft) -> None:
    """Record the end of the run's pause, if the run is paused and the pause is over: if a step can
    continue, or if the pause's approval is over. In the second case `_announce_pause` announces a
    new pause, which names an approval that can still be decided."""
    state = draft.state
    if state.paused is None or draft.is_over:
        return
    approvals = {entry.pause.get("approval_id") for entry in state.open.values() if entry.pause}
    if not state.waits_for_people or state.paused not in approvals:
        draft.write(records.Resumed(draft.at, state.paused))


def _announce_pause(draft: Draft) -> None:
    state = draft.state
    if state.paused is None and not draft.is_over and state.waits_for_people:
        pause = next(entry.pause for entry in state.open.values() if entry.pause is not None)
        data = {"reason": "approval_required", "approval_id": "", **pause}
        draft.write(records.Paused(draft.at, data["approval_id"], data))


# the handlers of the inputs


def _on_child(draft: Draft, event: inputs.ChildInput) -> None:
    state = draft.state
    key = state.keys.get(event.child)
    if key is None:
        if event.child in state.abandoned_children and event.type in _ENDED:
            confirmed = event.data.get("confirmed") is not False
            _end_abandoned_child(draft, event.child, _ENDED[event.type], confirmed=confirmed)
        return
    entry = state.open[key]
    match event.type:
        case "lifecycle.paused" if event.sequence > entry.pause_sequence:
            data = {name: value for name, value in event.data.items() if name in _PAUSE_FIELDS}
            draft.write(
                records.ChildPaused(draft.at, entry.step, event.sequence, entry.index, data)
            )
        case "lifecycle.resumed" if event.sequence > entry.pause_sequence:
            draft.write(records.ChildResumed(draft.at, entry.step, event.sequence, entry.index))
        case "lifecycle.completed":
            _complete_child(draft, entry, event)
        case "lifecycle.failed":
            error = {
                "code": str(event.data.get("code") or "upstream_error"),
                "message": str(event.data.get("error") or "the child failed")[
                    :MAX_ERROR_CHARACTERS
                ],
            }
            fail(
                draft,
                entry,
                error,
                child={"status": "failed"},
                error_type=event.data.get("error_type"),
            )
        case "lifecycle.cancelled":
            by = event.data.get("by") or event.data.get("reason") or "somebody"
            error = {"code": "cancelled", "message": f"its run was cancelled by {by}"}
            fail(draft, entry, error, child={"status": "cancelled"})


_ENDED: Final = {
    "lifecycle.completed": "completed",
    "lifecycle.failed": "failed",
    "lifecycle.cancelled": "cancelled",
}
_PAUSE_FIELDS: Final = frozenset(
    {"reason", "approval_id", "expires_at", "deciders_required", "policy"}
)
_USAGE_FIELDS: Final = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "reasoning_tokens",
    "cached_input_tokens",
)
# the greatest length of a child's error in the parent's records and events
MAX_ERROR_CHARACTERS: Final = 4000
MAX_KEY_CHARACTERS: Final = 1000  # the greatest length of a key of `exclusive`
MAX_TOKENS: Final = 2**53  # the greatest number of tokens of one child
# the greatest length of a child's answer in `dispatch.finished`
MAX_RESULT_CHARACTERS: Final = 2000


def _complete_child(draft: Draft, entry: Open, event: inputs.ChildInput) -> None:
    data = event.data
    text = str(data.get("content") or data.get("summary") or "")
    reported = data.get("usage") if isinstance(data.get("usage"), dict) else None
    usage = {
        name: reported[name]
        for name in _USAGE_FIELDS
        if reported is not None and _is_count(reported.get(name))
    }
    result = result_of(
        text=text,
        data=data["value"] if data.get("value") is not None else _parsed(text),
        run_id=event.child,
        usage=reported,
    )
    child = {"status": "completed", "text": text[:MAX_RESULT_CHARACTERS]}
    complete(draft, entry, result, child=child, usage=usage or None)


def _is_count(value: Json) -> bool:
    """Return whether a reported value can be a number of tokens: the sum of a run's tokens must
    have at most 64 bits, so that orjson can write it."""
    return isinstance(value, int) and 0 <= value <= MAX_TOKENS


def _parsed(text: str) -> Json:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _end_abandoned_child(draft: Draft, child: str, status: str, *, confirmed: bool = True) -> None:
    draft.write(records.CancelledChildEnded(draft.at, child, status, confirmed))
    end_stopped(draft)


def _on_timer(draft: Draft, due: inputs.TimerInput) -> None:
    timer = Timer.parse(due.timer)
    if timer is None:
        return
    if timer.kind == "turn":
        _on_turn(draft, inputs.TurnInput())
        return
    if timer.kind == "always":
        end_stopped(draft, now=True)
        return
    if timer.kind == "stop":
        if draft.state.stop is not None:  # the clock of the bus may be a little behind the timer
            draft.now_ms = max(draft.now_ms, draft.state.stop.due)
        return
    if timer.kind == "run":
        seconds = draft.plan.workflow.timeout_s
        message = f"the workflow took longer than its timeout of {seconds:g} s"
        stop_run(draft, "failed", error={"code": "timeout", "message": message})
        return
    entry = draft.state.open.get((timer.step, timer.index))
    if entry is None or entry.attempt != timer.attempt:
        return
    step = draft.plan.step(entry.step)
    match timer.kind, entry.waits:
        case "retry", records.Retry():
            begin(draft, step, entry.index, entry.attempt + 1)
        case "wait", records.Waiting(kind="wait"):
            complete(draft, entry, result_of())
        case "timeout", records.Waiting(kind="approve", id=str(approval)):
            reason = "the step's timeout has passed"
            data = {"approval_id": approval, "reason": reason}
            event = {"type": "approval.withdrawn", "data": data}
            draft.write(
                records.ApprovalReported(draft.at, entry.step, "withdrawn", entry.index, event)
            )
            _reject(draft, entry, "expired", reason, {})
        case "timeout", records.Scheduled() | records.Waiting():
            message = f"it took longer than its timeout of {step.timeout_s:g} s"
            fail(draft, entry, {"code": "timeout", "message": message})


def _on_approval(draft: Draft, report: inputs.ApprovalInput) -> None:
    key = draft.state.keys.get(report.approval_id)
    if key is None:
        return
    entry = draft.state.open[key]
    record = records.ApprovalReported(draft.at, entry.step, report.news, entry.index, report.event)
    data = (report.event or {}).get("data", {})
    match report.news:
        case "asked":
            if entry.pause is None:
                asked = {
                    "approval_id": report.approval_id,
                    **{name: value for name, value in data.items() if name in _PAUSE_FIELDS},
                }
                event = {"type": "lifecycle.paused", "data": asked}
                draft.write(replace(record, event=event))
        case "escalated":
            if data.get("step", 0) > entry.escalated:
                draft.write(record)
        case "withdrawn":
            draft.write(record)
            _reject(draft, entry, "withdrawn", str(data.get("reason", "it was withdrawn")), {})
        case "expired":
            # The approval's policy says what follows: `decided` comes next, or the step continues
            # to wait.
            if not entry.expired:
                draft.write(record)
        case "decided":
            draft.write(record)
            _announce_resumption(draft)
            _decide_approval(draft, draft.state.open[key], report)


def _decide_approval(draft: Draft, entry: Open, report: inputs.ApprovalInput) -> None:
    data = (report.event or {}).get("data", {})
    outcome = "approve" if data.get("outcome") == "approved" else "reject"
    item = next(iter(report.items or data.get("items") or ()), {"decision": outcome})
    note = item.get("note") or data.get("note")
    action = draft.plan.step(entry.step).action
    value = item.get("value")
    if isinstance(action, compiled.Approve) and action.form is not None:
        value = with_numbers(action.form, value)
    decision = {"value": value, "note": note, "by": data.get("by")}
    if item["decision"] == "approve":
        result = result_of(text=str(note or ""), data=value)
        complete(draft, entry, {**result, **decision, "decision": "approved"})
    elif item.get("expired"):
        _reject(draft, entry, "expired", "nobody decided in time", decision)
    else:
        reason = f"rejected by {data.get('by', 'a person')}" + (f": {note}" if note else "")
        _reject(draft, entry, "rejected", reason, decision)


def _reject(draft: Draft, entry: Open, code: str, reason: str, decision: JsonObject) -> None:
    error = {"code": code, "message": reason}
    result = {**result_of(text=reason, status=code), **decision, "decision": code}
    fail(draft, entry, error, output=result)


def _on_cancel(draft: Draft, cancel: inputs.CancelInput) -> None:
    if not draft.is_over:
        stop_run(draft, "cancelled", by=cancel.by, reason=cancel.reason, budget=cancel.budget)


def _on_failure(draft: Draft, failure: inputs.FailInput) -> None:
    child, type_ = failure.ended or (None, "")
    if draft.state.stop is None:
        stop_run(draft, "failed", error=failure.error)
    elif child is None:
        end_stopped(draft, now=True)
    if child is not None and child in draft.state.keys:  # of an `always` step
        key = draft.state.keys[child]
        ended = {"status": _ENDED[type_].removeprefix("lifecycle.")}
        fail_step(draft, key, failure.error, child=ended)
    if child is not None and child in draft.state.abandoned_children:
        _end_abandoned_child(draft, child, _ENDED[type_])


def _on_event_input(draft: Draft, received: inputs.EventInput) -> None:
    entry = draft.state.open.get((received.step, received.index))
    if entry is None or entry.attempt != received.attempt:
        return
    step = draft.plan.step(entry.step)
    match entry.waits, step.action:
        case records.Waiting(kind="listen"), compiled.Listen(where=where):
            pass
        case _:
            return
    if where is not None:
        try:
            if not draft.of_step("where", where, step, entry.index, event=received.event):
                return
        except StepError as failed:
            # If the event lacks a field that the condition reads, the event does not match.
            if not failed.is_missing_field:
                fail_step(draft, entry.key, failed.error)
            return
    run_id = received.event.get("run_id")
    complete(draft, entry, result_of(data=received.event, run_id=run_id))


def _on_called(draft: Draft, called: inputs.CalledInput) -> None:
    key = draft.state.keys.get(called.call_id)
    if key is None:
        return
    entry, answer = draft.state.open[key], called.answer or ""
    if called.outcome == "delivered":
        status = called.status or 0
        result = result_of(text=answer, data=_parsed(answer), status=status)
        complete(draft, entry, {**result, "headers": called.headers or {}})
        return
    reported = called.error or {}
    error = {
        "code": str(reported.get("code") or "call_failed"),
        "message": str(reported.get("message") or "the call failed"),
    }
    fail(draft, entry, error)


def _on_seen(draft: Draft, seen: inputs.StepStartedSeen) -> None:
    start = start_child(draft.state, seen.child)
    if start is not None:
        draft.effects.append(start)


def _proceed(draft: Draft, cause: inputs.Input) -> None:
    """Change nothing, since `_decision` begins what is left to begin."""


_HANDLERS: Final[Mapping[type, Callable[[Draft, Any], None]]] = {
    inputs.StartInput: _proceed,
    inputs.ProceedInput: _proceed,
    inputs.ChildInput: _on_child,
    inputs.TimerInput: _on_timer,
    inputs.ApprovalInput: _on_approval,
    inputs.CancelInput: _on_cancel,
    inputs.FailInput: _on_failure,
    inputs.EventInput: _on_event_input,
    inputs.CalledInput: _on_called,
    inputs.StepStartedSeen: _on_seen,
    inputs.TurnInput: _on_turn,
}
