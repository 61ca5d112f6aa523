"""Ids of spans follow from what the spans are about, and tracing is off unless it is asked for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from penstock import telemetry
from penstock.tracing import context, otlp, requests, setup, spans
from penstock.tracing.spans import Span
from support.fakes.collector import Collector, collector
from support.fakes.recorder import Recorder, recording

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
EXPORTER = "OtelBatchSpanRecordProcessor"  # the name of the thread of the SDK that exports spans


@pytest.fixture
def kept() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


def span(number: int) -> Span:
    return Span(f"span {number}", "internal", context.child(CLIENT, number), CLIENT, 1, 2)


def test_the_same_run_has_the_same_span_in_every_process(kept: Recorder) -> None:
    run = spans.of_run(CLIENT, "r1")
    assert run == "00-4bf92f3577b34da6a3ce929d0e0e4736-b887b6310330700c-01"
    assert spans.of_run(run, "r1") == run  # whichever span of the trace is known
    assert spans.of_run(CLIENT, "r2") != run


def test_ids_about_different_things_differ() -> None:
    about = [("leg", "r1", 11), ("leg", "r11", 1), ("leg", "r1", 1), ("run", "r1"), ("run", "r11")]
    assert len({context.child(CLIENT, *each) for each in about}) == len(about)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        CLIENT + "-00",
        CLIENT.upper(),
        "ff" + CLIENT[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
    ],
)
@pytest.mark.usefixtures("kept")
def test_an_invalid_traceparent_is_no_context(header: str) -> None:
    assert context.parse(header) is None
    assert requests.header_of([(b"host", b"x"), (b"traceparent", header.encode())]) is None
    assert spans.of_run(header, "r1") == header


def test_one_valid_traceparent_is_continued_and_of_several_none(kept: Recorder) -> None:
    header = (b"traceparent", CLIENT.encode())
    assert requests.header_of([(b"host", b"x"), header]) == CLIENT
    for headers in ([], [header, header], [header, (b"traceparent", b"nonsense")]):
        assert requests.header_of(headers) is None
    requests.begin(None)
    requests.end("POST", "/v1/runs", 202)
    [recorded] = kept.spans
    assert recorded.parent is None


def test_a_request_is_linked_to_sampled_spans_only(kept: Recorder) -> None:
    other, unsampled = context.child(CLIENT, "other"), context.child(CLIENT[:-2] + "00", "x")
    requests.link(other)  # without a request, nothing happens
    requests.begin(CLIENT)
    requests.link(None)
    requests.link(unsampled)
    requests.link(other)
    carried = requests.current()
    requests.end("POST", "/v1/approvals/{approval_id}/decision", 200)
    [recorded] = kept.spans
    assert (recorded.links, recorded.context) == ((other,), carried)
    requests.begin(CLIENT[:-2] + "00")
    assert requests.current() is None
    requests.end("POST", "/v1/runs", 202)


def test_a_request_continues_the_clients_trace_with_its_flag(kept: Recorder) -> None:
    unsampled = CLIENT[:-2] + "00"
    for header in (CLIENT, unsampled):
        requests.begin(header)
        requests.enter(header)
        carried = requests.traceparent()
        requests.end("POST", "/v1/runs", 503)
        recorded = kept.spans[-1]
        assert (recorded.context, recorded.parent, recorded.error) == (carried, header, "503")
        assert (carried[:36], carried[-2:]) == (header[:36], header[-2:])
        assert requests.traceparent() == header  # the request has ended


def test_while_tracing_is_off_contexts_are_carried_as_they_are() -> None:
    requests.begin(CLIENT)
    requests.enter(CLIENT)
    assert requests.traceparent() == CLIENT
    assert spans.of_run(CLIENT, "r1") == CLIENT
    assert spans.root("delivery") is None
    spans.record(span(1))


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    code = """
import sys
import penstock_connector.service, penstock_normalizer.service, penstock_edge.service
import penstock_approvals.service, penstock_automations.service, penstock_workflows.service
from penstock.tracing import setup
for environment in ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
                    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"},
                    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}):
    assert setup.start("penstock-edge", "1", environment) is None
# FastStream imports a part of the API, where it is installed.
sdk = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto")
assert not [name for name in sys.modules if name.startswith(sdk)]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({ENDPOINT: "collector:4317"}, "http:// or https://"),
        ({ENDPOINT: "http://collector:port"}, "is no URL"),
        ({ENDPOINT: "http://"}, "is no URL"),
        ({ENDPOINT: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "only `http/protobuf`"),
        ({ENDPOINT: "http://c", "OTEL_TRACES_EXPORTER": "zipkin"}, "use `otlp`"),
    ],
)
def test_what_cannot_be_exported_is_refused(variables: dict[str, str], says: str) -> None:
    with pytest.raises(setup.TracingRefused, match=says):
        setup.start("penstock-edge", "1", variables)
    assert not spans.is_on()


async def test_spans_are_exported_with_their_ids_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as made:
        monkeypatch.setenv(ENDPOINT, made.url)
        exporter = setup.start("penstock-edge", "one", {ENDPOINT: made.url})
        spans.record(span(1))
        spans.record(span(1))  # a repetition has the same id
        root = spans.root("delivery", "d1")
        assert root is not None
        spans.record(Span("delivery", "client", root, None, 5, 3, {"a": 1}, error="http_500"))
        unsampled = CLIENT[:-2] + "00"
        spans.record(Span("no", "internal", context.child(unsampled, 1), unsampled, 1, 2))
        await setup.stop(exporter)
    assert [each.name for each in made.spans] == ["span 1", "span 1", "delivery"]
    first, again, delivery = made.spans
    assert first == again
    assert (first.trace_id, first.parent) == tuple(CLIENT.split("-")[1:3])
    assert first.id == context.child(CLIENT, 1).split("-")[2]
    assert (first.began_ns, first.ended_ns, first.service) == (1, 2, "penstock-edge")
    assert f"00-{delivery.trace_id}-{delivery.id}-01" == root
    assert (delivery.parent, delivery.is_error) == ("", True)
    assert delivery.ended_ns == 5  # by a clock that was put back
    assert delivery.attributes == {"a": 1, "error.type": "http_500"}


@contextmanager
def silent_collector() -> Iterator[Collector]:
    """Run a collector that does not answer. At the end, wait until no thread exports spans.

    A thread that tries an export again uses the module `random`. If that happens while a strategy
    of Hypothesis draws, Hypothesis refuses the test, which is any test that follows in the process.
    """
    with collector() as made:
        made.hangs = True
        try:
            yield made
        finally:
            made.hangs, made.status = False, 400  # the exporter does not repeat what gets a 400
            made.over.set()
            for thread in threading.enumerate():
                if thread.name == EXPORTER:
                    thread.join(60)
                    assert not thread.is_alive()


def counted(outcome: str) -> int:
    return int(telemetry.SPANS.labels(outcome)._value.get())


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("away", "Connection refused"),
        ("hangs", "it did not answer in time"),
        ("refuses", "it answers with status 500"),
    ],
)
async def test_a_dead_collector_is_reported_once_and_delays_nothing(
    how: str, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    outcomes = ("recorded", "exported", "failed", "dropped")
    with collector() as made:
        made.hangs, made.status = how == "hangs", 500 if how == "refuses" else 200
        url = "http://127.0.0.1:9" if how == "away" else made.url
        monkeypatch.setenv(ENDPOINT, url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        before = {outcome: counted(outcome) for outcome in outcomes}
        exporter = setup.start("penstock-edge", "one", {ENDPOINT: url})
        for batch in (1, 2):
            began = time.thread_time()
            spans.record(span(batch))
            assert time.thread_time() - began < 5  # of CPU: nothing waits
            async with asyncio.timeout(60):
                while counted("failed") < before["failed"] + batch:
                    await asyncio.sleep(0.02)
        made.hangs, made.status = False, 200
        if how != "away":
            spans.record(span(3))
        async with asyncio.timeout(60):
            await setup.stop(exporter)
    lines = [record.message for record in caplog.records if "spans are lost" in record.message]
    assert len(lines) == 1, lines
    assert says in lines[0]
    assert "Check OTEL_EXPORTER_OTLP_ENDPOINT" in lines[0]
    assert ("takes spans again; 2 were lost" in caplog.text) == (how != "away")
    was = {outcome: counted(outcome) - before[outcome] for outcome in outcomes}
    taken = 0 if how == "away" else 1
    assert was == {"recorded": 2 + taken, "exported": taken, "failed": 2, "dropped": 0}


async def test_spans_that_do_not_fit_into_the_queue_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with silent_collector() as made:
        monkeypatch.setenv(ENDPOINT, made.url)
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
        before = counted("dropped")
        monkeypatch.setattr("penstock.tracing.otlp.STOP_S", 0.2)
        exporter = setup.start("penstock-edge", "one", {ENDPOINT: made.url})
        for number in range(4):
            spans.record(span(number))
        assert await asyncio.to_thread(made.asked.wait, 30)  # the first batch has left the queue
        for number in range(4, 15):
            spans.record(span(number))
        assert counted("dropped") == before + 3
        async with asyncio.timeout(60):
            await setup.stop(exporter)
    lines = [record.message for record in caplog.records if "spans are lost" in record.message]
    assert len(lines) == 1, lines
    assert "its queue is full" in lines[0]


async def test_a_process_that_stops_says_how_many_spans_the_collector_did_not_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.tracing.otlp.STOP_S", 0.2)
    with silent_collector() as made:
        monkeypatch.setenv(ENDPOINT, made.url)
        exporter = setup.start("penstock-edge", "one", {ENDPOINT: made.url})
        spans.record(span(1))
        spans.record(span(2))
        async with asyncio.timeout(60):
            await setup.stop(exporter)
    assert "it did not take the last 2 in 0.2 s" in caplog.text


class Exporter(SpanExporter):
    """An exporter that fails while `fails` is set."""

    fails = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE if self.fails else SpanExportResult.SUCCESS


@pytest.mark.parametrize(("again_s", "warnings"), [(600.0, 1), (0.0, 2)])
def test_a_collector_that_comes_and_goes_is_not_reported_each_time(
    again_s: float,
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(otlp, "SAY_AGAIN_S", again_s)
    exporter = Exporter()
    reporting = otlp._Reporting(exporter, "http://127.0.0.1:9", capacity=8)
    for fails in (True, True, False, True, True):
        exporter.fails = fails
        reporting.export([])
    assert caplog.text.count("spans are lost") == warnings
