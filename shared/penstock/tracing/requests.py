"""Keeps the trace context of the request that is handled now, and records the request's span."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass

from penstock.tracing import context, spans
from penstock.tracing.context import TraceContext


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that gets a span. `parent` is the client's `traceparent`."""

    context: TraceContext
    parent: str | None
    began_ns: int


_header: ContextVar[str | None] = ContextVar("traceparent", default=None)
_request: ContextVar[_Request | None] = ContextVar("request span", default=None)


def enter(header: str | None) -> None:
    """Remember the `traceparent` of this task's request; ignore an invalid header."""
    _header.set(header if context.parse(header) is not None else None)


def traceparent() -> str:
    """Return the `traceparent` for the runs and requests that this request starts.

    If the request gets a span, the result is the span's context. Otherwise the result is the
    request's own header. If the request has no valid header, the result is a new context that is
    not sampled.
    """
    request = _request.get()
    if request is not None:
        return str(request.context)
    return _header.get() or str(context.random_context(0))


def begin(header: str | None) -> None:
    """Begin the span of this task's request. Does nothing while tracing is off."""
    parent = context.parse(header)
    sampled = spans.decide(header if parent is not None else None)
    if sampled is None:
        return
    _request.set(_Request(sampled, header if parent is not None else None, time.time_ns()))


def end(method: str, route: str, status_code: int) -> None:
    """Record the span of this task's request, if one was begun."""
    request = _request.get()
    if request is None:
        return
    _request.set(None)
    spans.record(
        spans.Span(
            name=f"{method} {route}",
            kind="server",
            context=str(request.context),
            parent=request.parent,
            began_ns=request.began_ns,
            ended_ns=time.time_ns(),
            attributes={
                "http.request.method": method,
                "http.route": route,
                "http.response.status_code": status_code,
            },
            error=str(status_code) if status_code >= 500 else None,
        )
    )
