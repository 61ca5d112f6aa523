"""Decides what an input changes in a workflow's run. Pure. docs/workflow-engine.md has the rules.

`decide` reads no clock and makes no ids: the time and the supplier of ids are its arguments. The
same arguments give the same decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

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
    input: inputs.Input,
    *,
    now_ms: int,
    new_id: Callable[[], str],
    values: Mapping[str, Json] = _NONE,
    slice_steps: int | None = None,
    run_steps: int = limits.RUN_STEPS,
) -> Decision:
    """Return what an input changes. The given state stays as it is.

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
        if not isinstance(input, inputs.StartInput):
            return Decision([], [], [], [], None)
        started, refused = _started(input, now_ms)
        draft = Draft(
            fold(None, started), now_ms, new_id, dict(values), slice_steps, run_steps, [started]
        )
        _start(draft, started, refused, input.cancelled)
        return _decision(draft)
    if state.end is not None:
        return Decision([], [], [], [], state)
    draft = Draft(state.copy(), now_ms, new_id, dict(values), slice_steps, run_steps)
    _HANDLERS[type(input)](draft, input)
    return _decision(draft)


def _decision(draft: Draft) -> Decision:
    # Something may be left to begin even if the input changes nothing: the process that made the
    # last decision may have ended before it made the rest of a partial decision.
    if not draft.is_over:
        _announce_resumption(draft)
        advance(draft)
        if not draft.is_partial:
            _announce_pause(draft)
    if draft.steps >= limits.UNCOUNTED_STEPS and draft.state.end is None:
        draft.write(records.Spent(draft.at, draft.steps))
    return Decision(
        draft.records, draft.effects, draft.frames, draft.stored, draft.state, draft.is_partial
    )


def _started(input: inputs.StartInput, now_ms: int) -> tuple[records.Started, JsonObject | None]:
    """Return the first record of a run, and the reason why the run cannot start, if there is
    one."""
    refused = input.refused
    if refused is None and input.cancelled is None:
        refused = _invalid(input.definition)
    can_run = refused is None and input.cancelled is None
    definition = input.definition if can_run else None
    started = records.Started(
        now_ms, input.run_id, input.command, input.open, definition, input.input, refused
    )
    return started, refused


def _start(
    draft: Draft,
    started: records.Started,
    refused: JsonObject | None,
    cancelled: inputs.CancelInput | None,
) -> None:
    draft.frames.extend(projection(None, started))
    draft.effects.extend(started_effects(draft.state))
    if draft.state.depth > limits.MAX_DEPTH:
        message = f"workflows may be nested {limits.MAX_DEPTH} deep; this run is deeper"
        refused = {"code": "limit_exceeded", "message": message}
    if cancelled is not None:
        draft.write(records.End(draft.at, "cancelled", by=cancelled.by, reason=cancelled.reason))
    elif refused is not None:
        draft.write(records.End(draft.at, "failed", error=refused))


def _invalid(definition: JsonObject | None) -> JsonObject | None:
    """Return the reason why a definition cannot run; None if it can."""
    if definition is None:
        return {"code": "unknown_workflow", "message": "the workflow has no definition"}
    try:
        plan_of_json(definition)
    except ValueError as error:  # InvalidDefinition or pydantic's ValidationError
        message = f"the workflow's definition is not valid: {error}"
        return {"code": "invalid_definition", "message": message}
    return None


def _announce_resumption(draft: Draft) -> None:
    """Record the end of the run's pause, if the run is paused and the pause is over.

    The pause is over if a step can continue. The pause is also over if its approval is over, even
    if all other steps still wait for people. `_announce_pause` then announces a new pause, which
    names an approval that can still be decided.
    """
    state = draft.state
    if state.paused is None or draft.is_over:
        return
    asked = [entry.person for entry in state.open.values() if entry.person is not None]
    waits = 0 < len(state.open) == len(asked)
    if not waits or all(data.get("approval_id") != state.paused for data in asked):
        draft.write(records.Resumed(draft.at, state.paused))


def _announce_pause(draft: Draft) -> None:
    """Record a pause if every open step waits for a person."""
    state = draft.state
    if state.paused is None and not draft.is_over and 0 < len(state.open) == state.persons:
        asked = next(entry.person for entry in state.open.values() if entry.person is not None)
        data = {"reason": "approval_required", "approval_id": "", **asked}
        draft.write(records.Paused(draft.at, data["approval_id"], data))


# the handlers of the inputs


def _on_child(draft: Draft, input: inputs.ChildInput) -> None:
    state = draft.state
    key = state.keys.get(input.child)
    if key is None:
        if input.child in state.left and input.type in _ENDED:
            confirmed = input.data.get("confirmed") is not False
            _leave(draft, input.child, _ENDED[input.type], confirmed=confirmed)
        return
    entry = state.open[key]
    match input.type:
        case "lifecycle.paused" if input.sequence > entry.heard:
            data = {name: value for name, value in input.data.items() if name in _PAUSE_FIELDS}
            held = records.ChildPaused(draft.at, entry.step, input.sequence, entry.index, data)
            draft.write(held)
        case "lifecycle.resumed" if input.sequence > entry.heard:
            draft.write(records.ChildResumed(draft.at, entry.step, input.sequence, entry.index))
        case "lifecycle.completed":
            _complete_child(draft, entry, input)
        case "lifecycle.failed":
            error = {
                "code": str(input.data.get("code") or "upstream_error"),
                "message": str(input.data.get("error") or "the child failed")[
                    :MAX_ERROR_CHARACTERS
                ],
            }
            fail(
                draft,
                entry,
                error,
                child={"status": "failed"},
                error_type=input.data.get("error_type"),
            )
        case "lifecycle.cancelled":
            by = input.data.get("by") or input.data.get("reason") or "somebody"
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
    *("input_tokens", "output_tokens", "total_tokens"),
    *("reasoning_tokens", "cached_input_tokens"),
)
# the greatest length of a child's error in the parent's records and events
MAX_ERROR_CHARACTERS: Final = 4000
MAX_TOKENS: Final = 2**53  # the greatest number of tokens of one child
# the greatest length of a child's answer in `dispatch.finished`
MAX_RESULT_CHARACTERS: Final = 2000


def _complete_child(draft: Draft, entry: Open, input: inputs.ChildInput) -> None:
    data = input.data
    text = str(data.get("content") or data.get("summary") or "")
    given = data.get("usage")
    usage = (
        {name: given[name] for name in _USAGE_FIELDS if _is_count(given.get(name))}
        if (isinstance(given, dict))
        else None
    )
    result = result_of(
        text=text,
        data=data["value"] if data.get("value") is not None else _parsed(text),
        run_id=input.child,
        usage=given if isinstance(given, dict) else None,
    )
    child = {"status": "completed", "text": text[:MAX_RESULT_CHARACTERS]}
    complete(draft, entry, result, child=child, usage=usage or None)


def _is_count(value: Json) -> bool:
    """Return whether a value that an agent server has reported can be a number of tokens.

    With the limit, the sum of a run's tokens has at most 64 bits, so that orjson can write it.
    """
    return isinstance(value, int) and 0 <= value <= MAX_TOKENS


def _parsed(text: str) -> Json:
    """Return the value of a text that is JSON; None for any other text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _leave(draft: Draft, child: str, status: str, *, confirmed: bool = True) -> None:
    draft.write(records.CancelledChildEnded(draft.at, child, status, confirmed))
    end_stopped(draft)


def _on_timer(draft: Draft, input: inputs.TimerInput) -> None:
    timer = Timer.parse(input.timer)
    if timer is None:
        return
    if timer.kind == "stop":
        end_stopped(draft, now=True)
        return
    if draft.is_over:
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


def _on_approval(draft: Draft, input: inputs.ApprovalInput) -> None:
    key = draft.state.keys.get(input.approval_id)
    if key is None:
        return
    entry = draft.state.open[key]
    news = records.ApprovalReported(draft.at, entry.step, input.news, entry.index, input.event)
    data = (input.event or {}).get("data", {})
    match input.news:
        case "asked":
            if entry.person is None:
                asked = {
                    "approval_id": input.approval_id,
                    **{name: value for name, value in data.items() if name in _PAUSE_FIELDS},
                }
                event = {"type": "lifecycle.paused", "data": asked}
                draft.write(replace(news, event=event))
        case "escalated":
            if data.get("step", 0) > entry.escalated:
                draft.write(news)
        case "withdrawn":
            draft.write(news)
            _reject(draft, entry, "withdrawn", str(data.get("reason", "it was withdrawn")), {})
        case "expired":
            # The approval's policy says what follows: `decided` comes next, or the step continues
            # to wait.
            if not entry.expired:
                draft.write(news)
        case "decided":
            draft.write(news)
            _announce_resumption(draft)
            _decide_approval(draft, draft.state.open[key], input)


def _decide_approval(draft: Draft, entry: Open, input: inputs.ApprovalInput) -> None:
    data = (input.event or {}).get("data", {})
    outcome = "approve" if data.get("outcome") == "approved" else "reject"
    item = next(iter(input.items or data.get("items") or ()), {"decision": outcome})
    note = item.get("note") or data.get("note")
    given = {"value": item.get("value"), "note": note, "by": data.get("by")}
    if item["decision"] == "approve":
        result = result_of(text=str(note or ""), data=item.get("value"))
        complete(draft, entry, {**result, **given, "decision": "approved"})
    elif item.get("expired"):
        _reject(draft, entry, "expired", "nobody decided in time", given)
    else:
        reason = f"rejected by {data.get('by', 'a person')}" + (f": {note}" if note else "")
        _reject(draft, entry, "rejected", reason, given)


def _reject(draft: Draft, entry: Open, code: str, reason: str, given: JsonObject) -> None:
    """Fail a step whose approval was not given. The step's output still contains the decision."""
    error = {"code": code, "message": reason}
    result = {**result_of(text=reason, status=code), **given, "decision": code}
    fail(draft, entry, error, output=result)


def _on_cancel(draft: Draft, input: inputs.CancelInput) -> None:
    if not draft.is_over:
        stop_run(draft, "cancelled", by=input.by, reason=input.reason)


def _on_failure(draft: Draft, input: inputs.FailInput) -> None:
    child, type_ = input.ended or (None, "")
    if draft.state.stop is None:
        stop_run(draft, "failed", error=input.error)
    elif child is None:
        end_stopped(draft, now=True)
    if child is not None and child in draft.state.left:
        _leave(draft, child, _ENDED[type_])


def _on_event_input(draft: Draft, input: inputs.EventInput) -> None:
    entry = draft.state.open.get((input.step, input.index))
    if entry is None or entry.attempt != input.attempt:
        return
    step = draft.plan.step(entry.step)
    match entry.waits, step.action:
        case records.Waiting(kind="listen"), compiled.Listen(where=where):
            pass
        case _:
            return
    if where is not None:
        try:
            if not draft.of_step("where", where, step, entry.index, event=input.event):
                return
        except StepError as failed:
            # If the event lacks a field that the condition reads, the event does not match.
            if not failed.is_missing_field:
                fail_step(draft, entry.key, failed.error)
            return
    run_id = input.event.get("run_id")
    complete(draft, entry, result_of(data=input.event, run_id=run_id))


def _on_called(draft: Draft, input: inputs.CalledInput) -> None:
    key = draft.state.keys.get(input.call_id)
    if key is None:
        return
    entry, answer = draft.state.open[key], input.answer or ""
    if input.outcome == "delivered":
        status = input.status or 0
        complete(draft, entry, result_of(text=answer, data=_parsed(answer), status=status))
        return
    given = input.error or {}
    error = {
        "code": str(given.get("code") or "call_failed"),
        "message": str(given.get("message") or "the call failed"),
    }
    fail(draft, entry, error)


def _on_seen(draft: Draft, input: inputs.StepStartedSeen) -> None:
    start = start_child(draft.state, input.child)
    if start is not None:
        draft.effects.append(start)


def _proceed(draft: Draft, input: inputs.Input) -> None:
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
}
