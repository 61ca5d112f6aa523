"""Keeps the trace context of the request that is handled now, and records the request's span."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field

from penstock.tracing import context, spans
from penstock.tracing.context import SAMPLED, TraceContext


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that gets a span. `parent` is the client's `traceparent`."""

    context: TraceContext
    parent: str | None
    began_ns: int
    links: list[str] = field(default_factory=list)


_header: ContextVar[str | None] = ContextVar("traceparent", default=None)
_request: ContextVar[_Request | None] = ContextVar("request span", default=None)


def header_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the valid `traceparent` among the headers of an ASGI request, or None. As W3C Trace
    Context requires, an invalid header is ignored, and so are several of them."""
    values = [value for name, value in headers if name == b"traceparent"]
    header = values[0].decode("latin-1") if len(values) == 1 else None
    return header if context.parse(header) is not None else None


def enter(header: str | None) -> None:
    """Remember the `traceparent` of this task's request, which comes from `header_of`."""
    _header.set(header)


def traceparent() -> str:
    """Return the `traceparent` for the runs and requests that this request starts.

    It is the context of the request's span, or else the request's own header, or else a new context
    that is not sampled.
    """
    request = _request.get()
    if request is not None:
        return str(request.context)
    return _header.get() or str(context.random_context(0))


def current() -> str | None:
    """Return the context of this task's request, for links to it; None if it gets no span."""
    request = _request.get()
    is_sampled = request is not None and request.context.flags & SAMPLED
    return str(request.context) if request is not None and is_sampled else None


def begin(header: str | None) -> None:
    """Begin the span of this task's request, whose header comes from `header_of`, if tracing is
    on."""
    sampled = spans.decide(header)
    if sampled is not None:
        _request.set(_Request(sampled, header, time.time_ns()))


def link(traceparent: str | None) -> None:
    """Link the span of this task's request to another span, if the other span is sampled."""
    request, other = _request.get(), context.parse(traceparent)
    if request is not None and other is not None and other.flags & SAMPLED:
        request.links.append(str(other))


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
            links=tuple(request.links),
        )
    )
