"""An OTLP receiver: it takes spans over HTTP, as a collector does, or hangs on request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True)
class Exported:
    """A span as the collector got it. Ids are in hexadecimal; `parent` is empty for a root."""

    service: str
    name: str
    trace_id: str
    id: str
    parent: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    is_error: bool
    links: tuple[str, ...]  # the ids of traces and spans: `<trace>-<span>`
    events: tuple[tuple[str, int], ...]  # names and times, in their order


@dataclass
class Collector:
    """The receiver. It refuses spans with another `status`; while `hangs` is set, it is silent."""

    port: int = 0
    spans: list[Exported] = field(default_factory=list)
    hangs: bool = False
    status: int = 200
    asked: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """The value of OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    def of(self, trace_id: str) -> list[Exported]:
        """Return the spans of a trace, each once, by the time of their beginning."""
        found = {span.id: span for span in self.spans if span.trace_id == trace_id}
        return sorted(found.values(), key=lambda span: span.began_ns)

    def take(self, body: bytes) -> None:
        """Keep the spans of a request."""
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            service = _values(of_resource.resource.attributes)["service.name"]
            for of_scope in of_resource.scope_spans:
                self.spans += [
                    Exported(
                        service=service,
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        id=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        began_ns=span.start_time_unix_nano,
                        ended_ns=span.end_time_unix_nano,
                        attributes=_values(span.attributes),
                        is_error=span.status.code == 2,  # STATUS_CODE_ERROR
                        links=tuple(
                            f"{link.trace_id.hex()}-{link.span_id.hex()}" for link in span.links
                        ),
                        events=tuple((event.name, event.time_unix_nano) for event in span.events),
                    )
                    for span in of_scope.spans
                ]


def _values(attributes: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes
    }


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a receiver on a free port of this machine."""
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.asked.set()
            if made.hangs:
                made.over.wait()
                return
            if made.status == 200:
                made.take(body)
            self.send_response(made.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
