"""Begins the steps that can begin. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from penstock.expressions import Budget, ExpressionError, ValueExpression, inserted_text
from penstock_workflows.definition import Step, compiled
from penstock_workflows.definition.model import MAX_ITEMS
from penstock_workflows.engine import forking, ids, limits, records
from penstock_workflows.engine.draft import Draft, StepError
from penstock_workflows.engine.ending import (
    complete_run,
    end_loop,
    end_step,
    end_stopped,
    fail_step,
    not_storable,
    skip,
    stop_run,
    take_over,
)
from penstock_workflows.engine.records import Json, JsonObject
from penstock_workflows.engine.state import WORKING
from penstock_workflows.engine.values import NotStorable


def advance(draft: Draft) -> None:
    """Begin every step and item that can begin now, and end the run if nothing is left to do.

    Steps that could begin at the same time begin in the order of the definition, and items in the
    order of their list. A decision that is used up begins nothing more, and is partial.
    """
    state, positions = draft.state, draft.plan.positions
    while draft.may_begin:
        before = len(draft.records)
        for name in sorted({*state.ready, *state.loops}, key=positions.__getitem__):
            if not draft.may_begin:
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
    if draft.may_begin and not (state.open or state.loops or state.ready):
        if state.stop is None:
            complete_run(draft)
        else:
            end_stopped(draft)


def _begin_step(draft: Draft, name: str) -> None:
    step, results = draft.plan.step(name), draft.state.results
    if step.for_each is None and not _has_room(draft, step):
        return
    if step.handles and not any(
        each in results and results[each].outcome == "failed" for each in step.handles
    ):
        skip(draft, name)
        return
    try:
        if step.when is not None and not draft.of_step("when", step.when, step):
            skip(draft, name)
            return
        items = None
        if step.for_each is not None and step.for_each.in_ is not None:
            items = draft.of_step("for_each.in", step.for_each.in_, step)
        elif step.for_each is not None:
            items = list(range(1, step.for_each.rounds + 1))
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
    if draft.state.begun >= limits.MAX_BEGUN:
        message = (
            f"the run has begun {limits.MAX_BEGUN} steps, items and further attempts, "
            "and may begin no more"
        )
        if draft.is_over:
            fail_step(draft, (step.name, index), _limit_exceeded(message))
        else:
            stop_run(draft, "failed", step=(step.name, index), error=_limit_exceeded(message))
        return
    if attempt == 1 and (end := forking.end_to_take_over(draft.state, step, index)) is not None:
        take_over(draft, end)
        return
    try:
        _begin(_Attempt(draft, step, index, attempt))
    except StepError as failed:
        fail_step(draft, (step.name, index), failed.error)
    except NotStorable as refused:
        fail_step(draft, (step.name, index), not_storable(refused))


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt of a step that begins now."""

    draft: Draft
    step: Step
    index: int | None
    number: int

    @property
    def common(self) -> dict[str, Any]:
        """The fields that the records of all kinds of steps have."""
        timeout_s = self.step.timeout_s
        return {
            "at": self.draft.at,
            "step": self.step.name,
            "index": self.index,
            "attempt": self.number,
            "timeout": None if timeout_s is None else self.draft.at + round(timeout_s * 1000),
        }

    def value(self, field: str, expression: ValueExpression | None) -> Any:
        if expression is None:
            return None
        return self.draft.of_step(field, expression, self.step, self.index)

    def fork(self) -> dict[str, Any]:
        """Return what the record of a child has if the child is a fork."""
        fork = None
        if self.number == 1:
            fork = forking.fork_of_child(self.draft.state, self.step, self.index)
        return {} if fork is None else {"fork": fork, "version": fork["version"]}

    def dispatch(self) -> dict[str, Any]:
        """Return whom clients see as those who do the task of a child."""
        dispatch = self.step.dispatch
        if dispatch is None:
            return {}
        return {
            "team": self.value("dispatch.team", dispatch.team),
            "worker": self.value("dispatch.worker", dispatch.worker),
            "task": self.value("dispatch.task", dispatch.task),
        }


def _begin(attempt: _Attempt) -> None:
    """Begin an attempt. If it raises StepError or NotStorable, nothing has begun."""
    _BEGINNINGS[type(attempt.step.action)](attempt, attempt.step.action)


def _begin_set(attempt: _Attempt, action: compiled.Set) -> None:
    draft, step, index = attempt.draft, attempt.step, attempt.index
    output = attempt.value("set", action.value)
    if step.output is not None:
        result = result_of(data=output)
        output = draft.of_step("output", step.output, step, index, result=result)
    end_step(draft, (step.name, index), output)


def _begin_run(attempt: _Attempt, action: compiled.Run) -> None:
    attempt.draft.write(
        records.Scheduled(
            kind="run",
            name=action.agent,
            message=attempt.value("message", action.message),
            input=attempt.value("input", action.input),
            session=action.session,
            child=attempt.draft.new_id(),
            **attempt.fork(),
            **attempt.dispatch(),
            **attempt.common,
        )
    )


def _begin_workflow(attempt: _Attempt, action: compiled.SubWorkflow) -> None:
    attempt.draft.write(
        records.Scheduled(
            kind="workflow",
            name=action.workflow,
            message="",
            input=attempt.value("input", action.input),
            child=attempt.draft.new_id(),
            **{"version": action.version, **attempt.fork()},
            **attempt.dispatch(),
            **attempt.common,
        )
    )


def _begin_approve(attempt: _Attempt, action: compiled.Approve) -> None:
    detail = {
        "title": attempt.value("title", action.title),
        "show": attempt.value("show", action.show) or {},
        "policy": action.policy,
    }
    run_id, name = attempt.draft.state.run_id, attempt.step.name
    id_ = ids.approval_id(run_id, name, attempt.index, attempt.number)
    attempt.draft.write(records.Waiting(kind="approve", id=id_, detail=detail, **attempt.common))


def _begin_call(attempt: _Attempt, action: compiled.Call) -> None:
    query = _values(attempt, "query", action.query)
    detail: JsonObject = {
        "url": _with_query(action.url, query),
        "method": action.method,
        "headers": _values(attempt, "headers", action.headers),
        "body": attempt.value("body", action.body),
        "expect": list(action.expect) if action.expect is not None else None,
        "secret": action.secret,
    }
    id_ = ids.call_id(attempt.step.name, attempt.index, attempt.number)
    attempt.draft.write(records.Waiting(kind="call", id=id_, detail=detail, **attempt.common))


def _values(
    attempt: _Attempt, field: str, expressions: Mapping[str, ValueExpression]
) -> JsonObject:
    """Return the values of parameters or headers. Raises StepError for a large one: the journal
    would have all of them."""
    found: JsonObject = {}
    for name, each in expressions.items():
        found[name] = attempt.value(f"{field}.{name}", each)
        size = len(json.dumps(found[name], ensure_ascii=False))
        if size > limits.MAX_CALL_CHARACTERS:
            reason = f"it gives {size} characters, more than {limits.MAX_CALL_CHARACTERS}"
            raise StepError(f"{field}.{name}", each, ExpressionError(reason))
    return found


def _with_query(url: str, query: Mapping[str, Json]) -> str:
    """Return the URL with further parameters. Null leaves a parameter out, and a list repeats it;
    what is no text is written as in a template."""
    pairs = [
        (name, inserted_text(Budget(), each))
        for name, value in query.items()
        if value is not None
        for each in (value if isinstance(value, list) else [value])
    ]
    if not pairs:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(pairs)}"


def _begin_listen(attempt: _Attempt, action: compiled.Listen) -> None:
    detail = {"event": action.event}
    attempt.draft.write(records.Waiting(kind="listen", detail=detail, **attempt.common))


def _begin_wait(attempt: _Attempt, action: compiled.Wait) -> None:
    due = attempt.draft.at + round(action.duration_s * 1000)
    attempt.draft.write(records.Waiting(kind="wait", due=due, **attempt.common))


_BEGINNINGS: Final[Mapping[type, Callable[[_Attempt, Any], None]]] = {
    compiled.Set: _begin_set,
    compiled.Run: _begin_run,
    compiled.SubWorkflow: _begin_workflow,
    compiled.Approve: _begin_approve,
    compiled.Call: _begin_call,
    compiled.Listen: _begin_listen,
    compiled.Wait: _begin_wait,
}


def result_of(
    *,
    text: str = "",
    data: Json = None,
    status: str | int = "completed",
    run_id: str | None = None,
    usage: JsonObject | None = None,
) -> JsonObject:
    return {"text": text, "data": data, "status": status, "run_id": run_id, "usage": usage}


def _limit_exceeded(message: str) -> JsonObject:
    return {"code": "limit_exceeded", "message": message}
