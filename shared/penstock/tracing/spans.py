"""Records spans when their end is known.

Without a recorder, tracing is off, and no spans are recorded.

A run may last for weeks and be handed from process to process, so no process holds a span open. The
process that gets to know the end records the whole span. The start time comes from the stored
records.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from penstock.tracing import context
from penstock.tracing.context import SAMPLED, TraceContext

log = logging.getLogger(__name__)

Kind = Literal["internal", "server", "client"]
Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended.

    `context` and `parent` are `traceparent`s. If `parent` is None, the span begins a trace.

    Attributes contain ids, numbers and outcomes, and never content. `error` is a code, for example
    the code of a failed run; None if there was no error. `links` has the `traceparent`s of related
    spans, which may be in other traces. `events` has pairs of a name and a time (nanoseconds since
    1970) within the span.
    """

    name: str
    kind: Kind
    context: str
    parent: str | None
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None
    links: tuple[str, ...] = ()
    events: tuple[tuple[str, int], ...] = ()


class Recorder(Protocol):
    """Samples spans, and exports them in the background."""

    def samples(self, parent: TraceContext | None, trace_id: str) -> bool: ...

    def record(self, span: Span) -> None: ...


class _State:
    recorder: Recorder | None = None


def use(recorder: Recorder | None) -> None:
    _State.recorder = recorder


def is_on() -> bool:
    return _State.recorder is not None


def decide(parent: str | None) -> TraceContext | None:
    """Return a new context with the sampler's decision about the trace; None while tracing is off.
    `parent` is a valid `traceparent`. If it is None, the context begins a new trace."""
    recorder = _State.recorder
    if recorder is None:
        return None
    above, new = context.parse(parent), context.random_context(0)
    trace_id = above.trace_id if above is not None else new.trace_id
    flags = SAMPLED if recorder.samples(above, trace_id) else 0
    return TraceContext(trace_id, new.span_id, flags)


def root(*about: object) -> str | None:
    """Return the context of the span about these things, which begins a trace; None if tracing is
    off."""
    recorder = _State.recorder
    if recorder is None:
        return None
    trace_id = context.derived_trace_id("trace", *about)
    flags = SAMPLED if recorder.samples(None, trace_id) else 0
    return context.child(str(TraceContext(trace_id, "1" * 16, flags)), *about)


def child(traceparent: str | None, *about: object) -> str | None:
    """Return the context of the child span about these things; `traceparent` if tracing is off."""
    if _State.recorder is None or context.parse(traceparent) is None:
        return traceparent
    assert traceparent is not None
    return context.child(traceparent, *about)


def of_run(traceparent: str | None, run_id: str) -> str | None:
    """Return the context of a run's span; `traceparent` is that with which the run was started."""
    return child(traceparent, "run", run_id)


def of_leg(traceparent: str | None, run_id: str, number: int) -> str | None:
    return child(of_run(traceparent, run_id), "leg", run_id, number)


def of_approval(traceparent: str | None, run_id: str, approval_id: str) -> str | None:
    return child(of_run(traceparent, run_id), "approval", approval_id)


def record(span: Span | None) -> None:
    """Record a span, if there is one and tracing is on. A failure is only logged."""
    recorder = _State.recorder
    if recorder is None or span is None or context.parse(span.context) is None:
        return
    try:
        recorder.record(span)
    except Exception:
        log.exception("a span was not recorded: %s", span.name)


def nanoseconds(stamp: str) -> int:
    """Return an RFC 3339 time in nanoseconds since 1970. Raises ValueError."""
    return round(datetime.fromisoformat(stamp).timestamp() * 1e6) * 1000
