"""Makes the trace context and the span of an attempt of a workflow's step. Pure."""

from __future__ import annotations

from typing import Final

from penstock.tracing import spans
from penstock.tracing.spans import Span
from penstock_workflows.engine.ids import step_id
from penstock_workflows.engine.records import Ended, Retry, Scheduled, Waiting
from penstock_workflows.engine.state import State

_NS_PER_MS: Final = 1_000_000


def context_of(state: State, child_or_call: str) -> str | None:
    """Return the trace context for the child or the call with this id.

    It is that of the span of the step's attempt. While tracing is off, or if no step waits for this
    id, it is the context with which the workflow's run was started.
    """
    key = state.keys.get(child_or_call)
    opened = state.open.get(key) if key is not None else None
    if opened is None:
        started_with: str | None = state.started.command.get("traceparent")
        return started_with
    return _context(state, opened.step, opened.index, opened.attempt)


def span_of(before: State | None, record: Ended | Retry) -> Span | None:
    """Return the span of the attempt that this record ends; None if there is none.

    `before` is the run's state before the record. A step that does not wait for anything begins and
    ends at once, and gets no span.
    """
    opened = before.open.get((record.step, record.index)) if before is not None else None
    if before is None or opened is None or not isinstance(opened.waits, Scheduled | Waiting):
        return None
    context = _context(before, opened.step, opened.index, opened.attempt)
    if context is None:
        return None
    error = record.error
    return Span(
        name=f"step {record.step}",
        kind="internal",
        context=context,
        parent=spans.of_run(before.started.command.get("traceparent"), before.run_id),
        began_ns=opened.waits.at * _NS_PER_MS,
        ended_ns=record.at * _NS_PER_MS,
        attributes={
            "penstock.run.id": before.run_id,
            "penstock.step.id": step_id(record.step, record.index),
            "penstock.step.kind": opened.waits.kind,
            "penstock.step.attempt": opened.attempt,
            "penstock.step.outcome": record.outcome if isinstance(record, Ended) else "retried",
        },
        error=str(error.get("code") or "failed") if error is not None else None,
    )


def _context(state: State, step: str, index: int | None, attempt: int) -> str | None:
    above = spans.of_run(state.started.command.get("traceparent"), state.run_id)
    return spans.child(above, "step", state.run_id, step_id(step, index), attempt)
