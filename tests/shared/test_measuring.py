"""The loop that measures NATS goes on after every error, and counts the gaps that were repaired."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from penstock.bus import BusUnavailable
from penstock.service import measuring
from support.drive.waiting import eventually


def service(*answers: Any) -> Any:
    """Return a service with one reader, whose number of waiting messages is asked repeatedly."""
    left = list(answers)

    async def waiting() -> int:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    jetstream = SimpleNamespace(waiting={("S", "measured"): waiting}, gaps=0)
    bus = SimpleNamespace(jetstream=jetstream)
    return SimpleNamespace(name="tried", bus=bus, repairs_streams=False)


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_an_unexpected_answer_is_logged_and_the_next_one_is_measured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(measuring, "MEASURE_S", 0.0)
    broken = service(KeyError("num_pending"), BusUnavailable("away"), 7)
    loop = asyncio.create_task(measuring.measure([broken]))

    async def is_measured() -> bool:
        assert not loop.done(), "the loop has ended"
        return value("penstock_reader_waiting", stream="S", reader="measured") == 7

    await eventually(is_measured, 30, "the reader is measured")
    loop.cancel()
    (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "tried: NATS cannot be measured" in line.getMessage()
    assert line.exc_info


async def test_gaps_of_all_services_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MEASURE_S", 0.0)
    one, other = service(0), service(0)
    before = value("penstock_gaps_repaired_total")
    loop = asyncio.create_task(measuring.measure([one, other]))
    for gaps in (2, 3):
        one.bus.jetstream.gaps = other.bus.jetstream.gaps = gaps

        async def is_counted(now: int = 2 * gaps) -> bool:
            return value("penstock_gaps_repaired_total") == before + now

        await eventually(is_counted, 30, f"{gaps} gaps of each are counted")
    loop.cancel()


async def test_normalizers_measure_all_durable_consumers_until_they_are_gone() -> None:
    def consumer(waiting: int, **config: str) -> dict[str, Any]:
        return {"config": config, "num_pending": waiting}

    listed = {
        "EVENTS": [consumer(3), consumer(5, durable_name="gone-service")],
        "EVENTS_1": [consumer(9, durable_name="gone-service")],
    }

    async def consumers(stream: str) -> list[dict[str, Any]]:
        return listed.get(stream, [])

    jetstream = SimpleNamespace(consumers=consumers)
    bus: Any = SimpleNamespace(jetstream=jetstream, shards=SimpleNamespace(made=2))
    known: set[tuple[str, str]] = set()

    def waiting(stream: str) -> float | None:
        labels = {"stream": stream, "reader": "gone-service"}
        return REGISTRY.get_sample_value("penstock_reader_waiting", labels)

    await measuring._measure_all_readers(bus, known)
    assert (waiting("EVENTS"), waiting("EVENTS_1")) == (5, 9)
    assert known == {("EVENTS", "gone-service"), ("EVENTS_1", "gone-service")}
    del listed["EVENTS_1"]
    await measuring._measure_all_readers(bus, known)
    assert (waiting("EVENTS"), waiting("EVENTS_1")) == (5, None)


async def test_a_limit_that_a_stream_has_no_more_is_no_more_shown() -> None:
    config = {"max_bytes": 100}

    async def api(subject: str) -> dict[str, Any]:
        return {"state": {"bytes": 7}, "config": config if subject.endswith(".JOURNAL") else {}}

    bus: Any = SimpleNamespace(api=api, shards=SimpleNamespace(made=1))
    await measuring._measure_streams(bus)
    limit = "penstock_stream_limit_bytes"
    assert REGISTRY.get_sample_value(limit, {"stream": "JOURNAL"}) == 100
    config["max_bytes"] = -1
    await measuring._measure_streams(bus)
    assert REGISTRY.get_sample_value(limit, {"stream": "JOURNAL"}) is None
    assert value("penstock_stream_bytes", stream="JOURNAL") == 7
