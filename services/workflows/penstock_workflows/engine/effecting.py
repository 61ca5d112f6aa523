"""Derives the effects of a record, and of all open steps: those that have begun and are not done.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock_workflows.engine import limits, records
from penstock_workflows.engine.effects import (
    Call,
    CancelChild,
    CancelTimer,
    Effect,
    LeaveTurn,
    Listen,
    StartChild,
    StartTimer,
    TakeTurn,
    Unlisten,
)
from penstock_workflows.engine.ids import Timer, session_id, step_id
from penstock_workflows.engine.records import Record
from penstock_workflows.engine.state import Open, State, Waits


def effects_of(before: State, record: Record) -> Iterator[Effect]:
    """Yield the effects of a record that is not the first one; `before` is the state before it. A
    record that schedules a child starts at most a timer; `start_child` is for later."""
    match record:
        case records.Scheduled() | records.Waiting() | records.Retry() | records.Ended():
            entry = before.open.get((record.step, record.index))
            if entry is not None:
                yield from _closing(entry)
                has_ended = isinstance(record, records.Retry | records.Ended) and record.child
                if not has_ended:
                    yield from _cancelling(before, entry, "timeout")
            if not isinstance(record, records.Ended):
                yield from _opening(before, record)
        case records.TurnAsked():
            yield TakeTurn(record.workflow, record.key, record.when_busy)
        case records.TurnTaken():
            timer = _run_timer(before, record.at)
            if timer is not None:
                yield timer
        case records.Stop():
            yield from _stopping(before, record)
        case records.End():
            yield from _ending(before)


def _stopping(before: State, stop: records.Stop) -> Iterator[Effect]:
    stopped = [each for each in before.open.values() if not _is_always(before, each)]
    for entry in stopped:
        yield from _closing(entry)
        yield from _cancelling(before, entry, stop.reason or "stopped", stop.by)
    if before.abandoned_children or any(
        isinstance(entry.waits, records.Scheduled) for entry in stopped
    ):
        yield StartTimer(str(Timer("stop")), stop.due)
    if stop.always_due is not None:
        yield StartTimer(str(Timer("always")), stop.always_due)


def _ending(before: State) -> Iterator[Effect]:
    if _run_timer(before, before.began) is not None:
        yield CancelTimer(str(Timer("run")))
    if before.stop is not None and before.stop.due:
        yield CancelTimer(str(Timer("stop")))
    if before.stop is not None and before.stop.always_due is not None:
        yield CancelTimer(str(Timer("always")))
    for entry in before.open.values():  # the `always` steps whose time is over
        yield from _closing(entry)
        yield from _cancelling(before, entry, "timeout")
    if before.turn is not None:
        yield LeaveTurn(before.turn.workflow, before.turn.key)


def open_effects(state: State) -> Iterator[Effect]:
    """Yield the effects of all open steps and of all cancelled children that have not ended.

    The service does them again when it cannot know whether they were done. The starts of children
    are not among them: a child starts when EVENTS has its `workflow.step_started`.
    """
    for child in state.abandoned_children:
        yield _cancel(state, child)
    if state.end is not None:
        if state.turn is not None:
            yield LeaveTurn(state.turn.workflow, state.turn.key)
        return
    yield from started_effects(state)
    if state.waits_for_turn and state.turn is not None:
        yield TakeTurn(state.turn.workflow, state.turn.key, state.turn.when_busy)
    if state.stop is not None:
        yield StartTimer(str(Timer("stop")), state.stop.due)
        if state.stop.always_due is not None:
            yield StartTimer(str(Timer("always")), state.stop.always_due)
    for entry in state.open.values():
        yield from _opening(state, entry.waits)


def started_effects(state: State) -> Iterator[Effect]:
    """Yield the effect of a run's start: its timer, if the workflow has a timeout and the run does
    not wait for its turn."""
    timer = _run_timer(state, state.began)
    if timer is not None and not state.waits_for_turn:
        yield timer


def start_child(state: State, child: str) -> StartChild | None:
    key = state.keys.get(child)
    if key is None:
        return None
    waits = state.open[key].waits
    if not isinstance(waits, records.Scheduled):
        return None
    own = session_id(state.run_id, *key)
    return StartChild(
        child=child,
        kind=waits.kind,
        name=waits.name,
        version=waits.version,
        message=waits.message,
        input=waits.input,
        session_id=own if waits.session == "own" else str(state.started.command["session_id"]),
        step_id=step_id(*key),
        workflow_depth=state.depth + 1,
        places=max(1, state.places // state.concurrency),
        always=_is_always(state, state.open[key]),
        fork=waits.fork,
    )


def _is_always(state: State, entry: Open) -> bool:
    assert state.plan is not None
    return state.plan.step(entry.step).always


def _run_timer(state: State, began: int) -> StartTimer | None:
    if state.plan is None or state.plan.workflow.timeout_s is None:
        return None
    due = began + round(state.plan.workflow.timeout_s * 1000)
    return StartTimer(str(Timer("run")), due)


def _timers(waits: Waits) -> Iterator[StartTimer]:
    of = waits.step, waits.index, waits.attempt
    if isinstance(waits, records.Retry):
        yield StartTimer(str(Timer("retry", *of)), waits.due)
        return
    if isinstance(waits, records.Waiting) and waits.due is not None:
        yield StartTimer(str(Timer("wait", *of)), waits.due)
    if waits.timeout is not None:
        due = waits.timeout + (limits.APPROVAL_GRACE_MS if waits.kind == "approve" else 0)
        yield StartTimer(str(Timer("timeout", *of)), due)


def _opening(state: State, waits: Waits) -> Iterator[Effect]:
    yield from _timers(waits)
    if not isinstance(waits, records.Waiting):
        return
    detail = waits.detail or {}
    if waits.kind == "call":
        assert waits.id is not None
        assert state.plan is not None
        yield Call(
            call_id=waits.id,
            step_id=step_id(waits.step, waits.index),
            url=detail["url"],
            method=detail.get("method", "POST"),
            headers=detail.get("headers", {}),
            body=detail.get("body"),
            expect=detail.get("expect"),
            secret=detail.get("secret"),
            one_attempt=state.plan.step(waits.step).retry is not None,
            give_up_at=waits.timeout,
        )
    elif waits.kind == "listen":
        yield Listen(waits.step, waits.index, waits.attempt, detail["event"], waits.at)


def _closing(entry: Open) -> Iterator[Effect]:
    for timer in _timers(entry.waits):
        yield CancelTimer(timer.timer)
    if isinstance(entry.waits, records.Waiting) and entry.waits.kind == "listen":
        yield Unlisten(*entry.key, entry.attempt, (entry.waits.detail or {})["event"])


def _cancelling(state: State, entry: Open, reason: str, by: str | None = None) -> Iterator[Effect]:
    if isinstance(entry.waits, records.Scheduled):
        yield CancelChild(entry.waits.child, reason, by or "workflow")


def _cancel(state: State, child: str) -> CancelChild:
    stop = state.stop
    if stop is None:
        return CancelChild(child, "timeout", "workflow")
    return CancelChild(child, stop.reason or "stopped", stop.by or "workflow")
