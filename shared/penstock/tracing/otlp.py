"""Exports spans with the OpenTelemetry SDK, by OTLP over HTTP.

The variables OTEL_… configure the SDK.

A thread of the SDK exports batches of spans. A collector that is away or hangs delays only this
thread. If the thread's queue is full, the oldest spans are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
)

from penstock import telemetry
from penstock.tracing import context
from penstock.tracing.context import TraceContext
from penstock.tracing.spans import Span

log = logging.getLogger(__name__)

# seconds that a process waits at its end until the collector has taken the last spans
STOP_S: Final = 3.0
_KINDS: Final = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
}


class _GivenIds(IdGenerator):
    """Generates the ids for the next span, which are the ids of the context `next`."""

    def __init__(self) -> None:
        self.next = context.random_context(0)

    def generate_span_id(self) -> int:
        return int(self.next.span_id, 16)

    def generate_trace_id(self) -> int:
        return int(self.next.trace_id, 16)


class _Reporting(SpanExporter):
    """Counts the spans that another exporter exports.

    Failures in a row are logged at growing intervals.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failures = 0  # the number of batches in a row that were not exported

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch of spans."""
        result = self._exporter.export(spans)
        is_exported = result is SpanExportResult.SUCCESS
        telemetry.SPANS.labels("exported" if is_exported else "failed").inc(len(spans))
        if is_exported:
            if self._failures:
                log.info("traces: the collector takes spans again")
            self._failures = 0
            return result
        self._failures += 1
        if self._failures.bit_count() == 1:
            log.warning(
                "traces: the collector did not take %d spans (batch %d in a row that is lost); "
                "check OTEL_EXPORTER_OTLP_ENDPOINT and the collector",
                *(len(spans), self._failures),
            )
        return result

    def shutdown(self) -> None:
        """Stop exporting."""
        self._exporter.shutdown()


class Otlp:
    """Records spans, and exports them to an OTLP collector."""

    def __init__(self, service: str, instance: str, version: str) -> None:
        # The SDK's exporter would log each failed request. `_Reporting` logs failures more rarely.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        names = {"service.instance.id": instance, "service.version": version}
        resource = Resource.create(names)
        if str(resource.attributes.get("service.name")).startswith("unknown_service"):
            # Neither OTEL_SERVICE_NAME nor OTEL_RESOURCE_ATTRIBUTES names the service.
            resource = resource.merge(Resource({"service.name": service}))
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(_Reporting(OTLPSpanExporter())))
        self._tracer = self._provider.get_tracer("penstock", version)

    def samples(self, parent: TraceContext | None, trace_id: str) -> bool:
        """Return whether the sampler (OTEL_TRACES_SAMPLER) wants a span of this trace."""
        result = self._provider.sampler.should_sample(_below(parent), int(trace_id, 16), "")
        return result.decision is Decision.RECORD_AND_SAMPLE

    def record(self, span: Span) -> None:
        """Give the span to the thread that exports spans, if the span is sampled."""
        own = context.parse(span.context)
        assert own is not None, "the caller has checked the context"
        self._ids.next = own
        recorded = self._tracer.start_span(
            span.name,
            context=_below(context.parse(span.parent)),
            kind=_KINDS[span.kind],
            attributes=dict(span.attributes),
            start_time=span.began_ns,
            links=[Link(_remote(link)) for each in span.links if (link := context.parse(each))],
        )
        if recorded.is_recording():
            telemetry.SPANS.labels("recorded").inc()
        for name, at_ns in span.events:
            recorded.add_event(name, timestamp=at_ns)
        if span.error is not None:
            recorded.set_attribute("error.type", span.error)
            recorded.set_status(StatusCode.ERROR)
        recorded.end(max(span.began_ns, span.ended_ns))

    async def stop(self) -> None:
        """Export the spans that are still in the queue, for up to `STOP_S` seconds."""
        await _in_thread(self._provider.shutdown, STOP_S)


def _below(parent: TraceContext | None) -> Context:
    """Return the SDK's context for a child span of this parent."""
    if parent is None:
        return Context()
    return trace.set_span_in_context(NonRecordingSpan(_remote(parent)), Context())


def _remote(of: TraceContext) -> SpanContext:
    """Return the SDK's context of a span. The span may belong to another process."""
    return SpanContext(int(of.trace_id, 16), int(of.span_id, 16), True, TraceFlags(of.flags))


async def _in_thread(work: Callable[[], object], timeout_s: float) -> None:
    """Call `work` in a new thread, and wait for up to `timeout_s` seconds.

    A thread of asyncio's executor is not used, because the process could not end while `work`
    hangs.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                log.debug("traces: the last spans were exported after the end of the loop")

    threading.Thread(target=run, name="stop-traces", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_s):
            await done.wait()
    except TimeoutError:
        log.warning("traces: the collector did not take the last spans in %g s", timeout_s)
