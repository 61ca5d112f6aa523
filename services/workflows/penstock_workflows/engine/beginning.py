"""Begins the steps that can begin. Pure."""

from __future__ import annotations

from typing import Any, Final

from penstock_workflows.definition import Step, compiled
from penstock_workflows.definition.model import MAX_ITEMS
from penstock_workflows.engine import ids, limits, records
from penstock_workflows.engine.draft import Draft, StepError
from penstock_workflows.engine.ending import (
    complete_run,
    end_loop,
    end_step,
    fail_step,
    not_storable,
    skip,
    stop_run,
)
from penstock_workflows.engine.records import Json, JsonObject
from penstock_workflows.engine.state import WORKING
from penstock_workflows.engine.values import NotStorable

_KINDS: Final = {compiled.Run: "run", compiled.SubWorkflow: "workflow"}


def advance(draft: Draft) -> None:
    """Begin every step and item that can begin now, and end the run if nothing is left to do.

    Steps that could begin at the same time begin in the order of the definition, and items in the
    order of their list. A decision that is used up begins nothing more, and is partial.
    """
    state, positions = draft.state, draft.plan.positions
    while not draft.is_over:
        before = len(draft.records)
        for name in sorted({*state.ready, *state.loops}, key=positions.__getitem__):
            if draft.is_over:
                return
            if draft.is_used_up:
                draft.is_partial = True
                return
            if name in state.loops:
                _continue_loop(draft, name)
            elif name in state.ready:
                _begin_step(draft, name)
        if len(draft.records) == before:
            break
    if not (draft.is_over or state.open or state.loops or state.ready):
        complete_run(draft)


def _begin_step(draft: Draft, name: str) -> None:
    step, results = draft.plan.step(name), draft.state.results
    if step.for_each is None and not _has_room(draft, step):
        return
    if step.handles and not any(results[each].outcome == "failed" for each in step.handles):
        skip(draft, name)
        return
    try:
        if step.when is not None and not draft.of_step("when", step.when, step):
            skip(draft, name)
            return
        items = None
        if step.for_each is not None:
            items = draft.of_step("for_each.in", step.for_each.in_, step)
    except StepError as failed:
        fail_step(draft, (name, None), failed.error)
        return
    if items is None:
        begin(draft, step)
    elif len(items) > MAX_ITEMS:
        message = f"for_each of the step {name} has {len(items)} items, more than {MAX_ITEMS}"
        stop_run(draft, "failed", step=(name, None), error=_limit_exceeded(message))
    else:
        draft.write(records.ForEachStarted(draft.at, name, items))
        if not items:
            end_loop(draft, name)


def _continue_loop(draft: Draft, name: str) -> None:
    """Begin as many items of a loop as may be under way at the same time."""
    step = draft.plan.step(name)
    assert step.for_each is not None
    while not (draft.is_over or draft.is_used_up):
        loop = draft.state.loops.get(name)
        if loop is None or loop.begun == len(loop.items):
            return
        if loop.begun - loop.ended >= step.for_each.limit or not _has_room(draft, step):
            return
        begin(draft, step, loop.begun)


def _has_room(draft: Draft, step: Step) -> bool:
    return step.kind not in WORKING or draft.state.busy < draft.state.concurrency


def begin(draft: Draft, step: Step, index: int | None = None, attempt: int = 1) -> None:
    """Begin an attempt of a step, or of an item."""
    if draft.state.begun >= limits.MAX_BEGUN:
        message = (
            f"the run has begun {limits.MAX_BEGUN} steps, items and further attempts, "
            "and may begin no more"
        )
        stop_run(draft, "failed", step=(step.name, index), error=_limit_exceeded(message))
        return
    try:
        _begin(draft, step, index, attempt)
    except StepError as failed:
        fail_step(draft, (step.name, index), failed.error)
    except NotStorable as refused:
        fail_step(draft, (step.name, index), not_storable(refused))


def _begin(draft: Draft, step: Step, index: int | None, attempt: int) -> None:
    """Begin an attempt.

    Raises:
        StepError: an expression of the step cannot be evaluated; nothing has begun.
        NotStorable: the value of `set` cannot be stored as JSON; nothing has begun.
    """

    def value(field: str, expression: Any) -> Any:
        if expression is None:
            return None
        return draft.of_step(field, expression, step, index)

    timeout = None if step.timeout_s is None else draft.at + round(step.timeout_s * 1000)
    match step.action:
        case compiled.Set(expression):
            output = value("set", expression)
            if step.output is not None:
                result = result_of(data=output)
                output = draft.of_step("output", step.output, step, index, result=result)
            end_step(draft, (step.name, index), output)
        case compiled.Run() | compiled.SubWorkflow() as action:
            is_run = isinstance(action, compiled.Run)
            dispatch = step.dispatch
            draft.write(
                records.Scheduled(
                    at=draft.at,
                    step=step.name,
                    kind="run" if is_run else "workflow",
                    name=action.agent if isinstance(action, compiled.Run) else action.workflow,
                    message=value("message", action.message)
                    if isinstance(action, compiled.Run)
                    else "",
                    input=value("input", action.input),
                    version=None if isinstance(action, compiled.Run) else action.version,
                    session=action.session if isinstance(action, compiled.Run) else "own",
                    team=value("dispatch.team", dispatch and dispatch.team),
                    worker=value("dispatch.worker", dispatch and dispatch.worker),
                    task=value("dispatch.task", dispatch and dispatch.task),
                    child=draft.new_id(),
                    index=index,
                    attempt=attempt,
                    timeout=timeout,
                )
            )
        case compiled.Approve() as ask:
            _wait(
                draft,
                step,
                index,
                attempt,
                "approve",
                id=ids.approval_id(draft.state.run_id, step.name, index, attempt),
                timeout=timeout,
                detail={
                    "title": value("title", ask.title),
                    "show": value("show", ask.show) or {},
                    "policy": ask.policy,
                },
            )
        case compiled.Call() as call:
            detail = {"url": call.url, "body": value("body", call.body), "secret": call.secret}
            id_ = ids.call_id(step.name, index, attempt)
            _wait(draft, step, index, attempt, "call", id=id_, timeout=timeout, detail=detail)
        case compiled.Listen() as listen:
            detail = {"event": listen.event}
            _wait(draft, step, index, attempt, "listen", timeout=timeout, detail=detail)
        case compiled.Wait(duration_s):
            due = draft.at + round(duration_s * 1000)
            _wait(draft, step, index, attempt, "wait", due=due, timeout=timeout)


def _wait(
    draft: Draft,
    step: Step,
    index: int | None,
    attempt: int,
    kind: records.WaitKind,
    *,
    id: str | None = None,
    due: int | None = None,
    detail: JsonObject | None = None,
    timeout: int | None = None,
) -> None:
    draft.write(
        records.Waiting(draft.at, step.name, kind, index, attempt, id, due, detail, timeout)
    )


def result_of(
    *,
    text: str = "",
    data: Json = None,
    status: str | int = "completed",
    run_id: str | None = None,
    usage: JsonObject | None = None,
) -> JsonObject:
    """Return the variable `result` for the expression `output` of a step."""
    return {"text": text, "data": data, "status": status, "run_id": run_id, "usage": usage}


def _limit_exceeded(message: str) -> JsonObject:
    return {"code": "limit_exceeded", "message": message}
