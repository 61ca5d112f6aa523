"""Exports spans with the OpenTelemetry SDK, by OTLP over HTTP; variables OTEL_… configure it.

A thread of the SDK exports batches of spans. A collector that is away or hangs delays only this
thread. If the thread's queue is full, the oldest spans are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

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
SAY_AGAIN_S: Final = 600.0  # Seconds between two warnings about a collector that comes and goes.
_QUEUE_SIZE: Final = 2048  # The default of the SDK for OTEL_BSP_MAX_QUEUE_SIZE.
# Seconds that a test connection may take, which shows why the collector takes no spans.
_PROBE_S: Final = 1.0
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


class _Status(logging.Filter):
    """Takes the status with which the collector refused spans from the SDK's log lines; drops
    these."""

    status: int | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        values = record.args if isinstance(record.args, tuple) else ()
        self.status = next((each for each in values if isinstance(each, int)), self.status)
        return False


_STATUS: Final = _Status()


class _Reporting(SpanExporter):
    """Counts the spans that another exporter exports, and logs one warning while spans are lost."""

    def __init__(self, exporter: SpanExporter, url: str, capacity: int) -> None:
        self._exporter = exporter
        self._url = url
        self._capacity = capacity  # the greatest number of spans in the SDK's queue
        logger = logging.getLogger(type(exporter).__module__)
        logger.setLevel(logging.WARNING)
        logger.addFilter(_STATUS)
        self._lock = threading.Lock()
        # the number of spans given to the SDK's queue, without the spans that the queue dropped
        self._queued = 0
        self._taken = 0  # The number of spans that the exporter has taken from the queue.
        self._done = 0  # The number of spans that were exported or that the collector refused.
        self._lost = 0  # The number of spans that were lost since the collector last took spans.
        self._is_said = False  # Whether these losses are in the log.
        self._said_at = -SAY_AGAIN_S  # When a loss was last logged, on the monotonic clock.

    @property
    def unfinished(self) -> int:
        return self._queued - self._done

    def queue(self) -> None:
        """Count a span that the SDK is about to queue; a full queue drops its oldest span."""
        if self._queued - self._taken >= self._capacity:
            telemetry.SPANS.labels("dropped").inc()
            self.lose(1, "its queue is full")
        else:
            self._queued += 1

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._taken += len(spans)
        _STATUS.status = None
        result = self._exporter.export(spans)
        is_exported = result is SpanExportResult.SUCCESS
        telemetry.SPANS.labels("exported" if is_exported else "failed").inc(len(spans))
        self._done += len(spans)
        if not is_exported:
            self.lose(len(spans), _why(_STATUS.status, self._url))
            return result
        with self._lock:
            lost, was_said = self._lost, self._is_said
            self._lost, self._is_said = 0, False
        if was_said:
            log.info("traces: the collector takes spans again; %d were lost", lost)
        return result

    def lose(self, count: int, why: str) -> None:
        """Count lost spans; log the first loss of an outage, at most one in `SAY_AGAIN_S`
        seconds."""
        now = time.monotonic()
        with self._lock:
            self._lost += count
            if self._is_said or now < self._said_at + SAY_AGAIN_S:
                return
            self._is_said, self._said_at = True, now
        log.warning(
            "traces: spans are lost, the collector does not take them: %s. Runs are not affected. "
            "Check OTEL_EXPORTER_OTLP_ENDPOINT and the collector; penstock_spans_total counts them",
            why,
        )

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _why(status: int | None, url: str) -> str:
    """Return why the collector takes no spans; `status` is that of its answer, None without one."""
    if status is not None:
        return f"it answers with status {status}"
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), _PROBE_S).close()
    except TimeoutError:
        return "no connection in time"
    except OSError as error:
        return error.strerror or type(error).__name__
    return "it did not answer in time"


class Otlp:
    """Records spans, and exports them to an OTLP collector."""

    def __init__(self, service: str, instance: str, version: str, url: str) -> None:
        """Begin to export. `url` is the collector's URL, for log messages."""
        # The SDK would log each failed request. `_Reporting` logs one warning.
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
        self._reporting = _Reporting(OTLPSpanExporter(), url, _queue_size())
        self._provider.add_span_processor(BatchSpanProcessor(self._reporting))
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
            self._reporting.queue()
        for name, at_ns in span.events:
            recorded.add_event(name, timestamp=at_ns)
        if span.error is not None:
            recorded.set_attribute("error.type", span.error)
            recorded.set_status(StatusCode.ERROR)
        recorded.end(max(span.began_ns, span.ended_ns))

    async def stop(self) -> None:
        """Export the spans that are still in the queue, for up to `STOP_S` seconds."""
        if not await _in_thread(self._provider.shutdown, STOP_S):
            count = self._reporting.unfinished
            self._reporting.lose(count, f"it did not take the last {count} in {STOP_S:g} s")


def _below(parent: TraceContext | None) -> Context:
    if parent is None:
        return Context()
    return trace.set_span_in_context(NonRecordingSpan(_remote(parent)), Context())


def _remote(of: TraceContext) -> SpanContext:
    """Return the SDK's context of a span, which may belong to another process."""
    return SpanContext(int(of.trace_id, 16), int(of.span_id, 16), True, TraceFlags(of.flags))


def _queue_size() -> int:
    """Return how many spans the SDK's queue may have; as the SDK does, ignore what is no number."""
    try:
        return int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", _QUEUE_SIZE))
    except ValueError:
        return _QUEUE_SIZE


async def _in_thread(work: Callable[[], object], timeout_s: float) -> bool:
    """Call `work` in a new thread; return whether it has ended within `timeout_s` seconds. A thread
    of asyncio's executor is not used, because the process could not end while `work` hangs."""
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
        return False
    return True
