"""Ends steps and runs, after a success or a failure, and begins retries. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from penstock.expressions import ValueExpression
from penstock_workflows.definition.model import LAST
from penstock_workflows.engine import limits, records
from penstock_workflows.engine.draft import Draft, StepError, name_of
from penstock_workflows.engine.records import Ended, Json, JsonObject
from penstock_workflows.engine.state import Key, Open
from penstock_workflows.engine.values import NotStorable

MAX_FAILED_ITEMS: Final = 20  # the greatest number of failed items that a loop's error names


def complete(
    draft: Draft,
    entry: Open,
    result: Json,
    *,
    child: JsonObject | None = None,
    usage: dict[str, int] | None = None,
) -> None:
    step = draft.plan.step(entry.step)
    output = result
    if step.output is not None:
        try:
            output = draft.of_step("output", step.output, step, entry.index, result=result)
        except StepError as failed:
            fail(draft, entry, failed.error, child=child)
            return
    try:
        end_step(draft, entry.key, output, child=child, usage=usage)
    except NotStorable as refused:
        # If this error were raised, the child's end would become a dead letter, and the step would
        # stay open for ever.
        fail(draft, entry, not_storable(refused), child=child)


def not_storable(refused: NotStorable) -> JsonObject:
    return {"code": "invalid_output", "message": str(refused)}


def end_step(
    draft: Draft,
    key: Key,
    output: Json,
    *,
    child: JsonObject | None = None,
    usage: dict[str, int] | None = None,
) -> None:
    """End a step, or an item, with its output. If it raises NotStorable, nothing has changed."""
    inline, ref, size = draft.stored_output(output)
    draft.write(
        records.Ended(draft.at, key[0], "completed", key[1], inline, ref, size, None, child, usage)
    )
    _end_loop(draft, key)


def take_over(draft: Draft, end: Ended) -> None:
    """End a step, or an item, as it has ended in the run from which this one was forked."""
    draft.output_bytes += end.size
    draft.write(replace(end, at=draft.at))
    _end_loop(draft, (end.step, end.index))


def skip(draft: Draft, step: str) -> None:
    draft.write(records.Ended(draft.at, step, "skipped"))


def fail(
    draft: Draft,
    entry: Open,
    error: JsonObject,
    *,
    output: Json = None,
    child: JsonObject | None = None,
    error_type: str | None = None,
) -> None:
    """End an attempt of an open step with an error: the step is tried again, or has failed.
    `error_type` is the type of the error in the agent server's own words."""
    retry = draft.plan.step(entry.step).retry
    if (
        draft.is_exhausted
        or retry is None
        or entry.attempt >= retry.attempts
        or not retry.applies_to(error["code"], error_type)
    ):
        fail_step(draft, entry.key, error, output=output, child=child)
        return
    due = draft.at + round(retry.backoff_after(entry.attempt) * 1000)
    draft.write(
        records.Retry(
            draft.at,
            entry.step,
            entry.attempt,
            due,
            error,
            entry.index,
            child,
            _abandons(entry, child),
        )
    )


def fail_step(
    draft: Draft,
    key: Key,
    error: JsonObject,
    *,
    output: Json = None,
    child: JsonObject | None = None,
) -> None:
    try:
        inline, ref, size = draft.stored_output(output) if output is not None else (None, None, 0)
    except NotStorable:
        inline, ref, size = None, None, 0  # the item failed, so its output is not kept
    draft.write(
        records.Ended(
            draft.at,
            key[0],
            "failed",
            key[1],
            inline,
            ref,
            size,
            error,
            child,
            abandoned=_abandons(draft.state.open.get(key), child),
        )
    )
    if draft.plan.step(key[0]).on_failure == "fail" or draft.is_exhausted:
        stop_run(draft, "failed", step=key, error=_of_step(key, error))
    else:
        _end_loop(draft, key)


def _abandons(entry: Open | None, child: JsonObject | None) -> bool | None:
    """Return whether an attempt ends before its child does, as a timeout has it; None if not."""
    has_child = entry is not None and isinstance(entry.waits, records.Scheduled)
    return True if has_child and child is None else None


def _of_step(key: Key, error: JsonObject) -> JsonObject:
    # Other steps may have had effects. With `not_sent`, a workflow above would repeat them.
    code = "upstream_lost" if error["code"] == "not_sent" else error["code"]
    message = f"the step {name_of(key)} failed: {error['message']}"
    return {**error, "code": code, "message": message}


def _end_loop(draft: Draft, key: Key) -> None:
    name, index = key
    if index is None:
        return
    loop, for_each = draft.state.loops[name], draft.plan.step(name).for_each
    if for_each is not None and for_each.until is not None:
        _end_round(draft, name, index, for_each.until)
    elif loop.ended == len(loop.items):
        end_loop(draft, name)


def _end_round(draft: Draft, name: str, index: int, until: ValueExpression) -> None:
    """End a repeated step whose round has ended, unless a further round follows.

    The decision that ends the round also ends the step. So the journal tells without `until`
    whether a further round follows.
    """
    loop, step = draft.state.loops[name], draft.plan.step(name)
    result, error = loop.results[index], None
    if result is not None and result.error is not None:
        error = {**result.error, "message": f"round {index + 1} failed: {result.error['message']}"}
    else:
        try:
            last = draft.output_before(name, index + 1)
            if draft.of_step("repeat.until", until, step, index, **{LAST: last}):
                end_loop(draft, name)
                return
        except StepError as failed:
            error = failed.error
    if error is None and loop.ended == len(loop.items):
        message = f"{until.text!r} does not hold after {loop.ended} rounds"
        error = {"code": "until_not_met", "message": message}
    if error is not None:
        fail_step(draft, (name, None), error)


def end_loop(draft: Draft, name: str) -> None:
    loop = draft.state.loops[name]
    if not loop.failed:
        draft.write(records.Ended(draft.at, name, "completed"))
        return
    failed = [
        {"index": index, **item.error}
        for index, item in enumerate(loop.results)
        if item is not None and item.error is not None
    ]
    first = failed[0]
    error: JsonObject = {
        "code": "items_failed",
        "message": f"{len(failed)} of {len(loop.items)} items failed; "
        f"item {first['index']}: {first['message']}",
        "items": [
            {name: each[name] for name in ("index", "code", "message")}
            for each in failed[:MAX_FAILED_ITEMS]
        ],
    }
    draft.write(records.Ended(draft.at, name, "failed", error=error))


def complete_run(draft: Draft) -> None:
    expression = draft.plan.workflow.output
    output: Json = None
    if expression is not None:
        try:
            output = draft.evaluate("the workflow's output", expression, draft.plan.positions)
        except StepError as failed:
            stop_run(draft, "failed", error=failed.error)
            return
    draft.write(records.End(draft.at, "completed", output))


def stop_run(
    draft: Draft,
    status: Literal["failed", "cancelled"],
    *,
    step: Key | None = None,
    error: JsonObject | None = None,
    by: str | None = None,
    reason: str | None = None,
    budget: JsonObject | None = None,
) -> None:
    """Begin no further step, cancel all children, and end the run when its children have ended.
    The steps with `always` are excepted. A run that stops already goes on stopping."""
    if draft.is_over:
        return
    if draft.state.waits_for_turn:
        end = records.End(draft.at, status, error=error, by=by, reason=reason, budget=budget)
        draft.write(end)
        return
    if step is None:
        step = _first_open(draft)
    name, index = step or (None, None)
    due = draft.at + limits.STOP_MS
    last = None
    if any(one.always and one.name not in draft.state.results for one in draft.plan.steps):
        last = due + limits.ALWAYS_MS
    draft.write(records.Stop(draft.at, status, due, name, index, error, by, reason, budget, last))
    end_stopped(draft)


def end_stopped(draft: Draft, *, now: bool = False) -> None:
    """End a stopped run whose children and `always` steps have ended; with `now`, do not wait for
    them."""
    state = draft.state
    stop = state.stop
    if stop is None or state.end is not None:
        return
    if not now and (state.open or state.ready or not draft.may_begin):
        return
    draft.write(
        records.End(
            draft.at,
            stop.status,
            error=stop.error,
            step=stop.step,
            by=stop.by,
            reason=stop.reason,
            budget=stop.budget,
            confirmed=not (state.abandoned_children or state.unconfirmed or state.open),
        )
    )


def _first_open(draft: Draft) -> Key | None:
    positions = draft.plan.positions
    return min(draft.state.open, key=lambda key: (positions[key[0]], key[1] or 0), default=None)
