"""The normalizer over a real NATS server publishes events, run records and large payloads."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.bus import (
    Message,
    messages,
)
from penstock.bus.connection import wire
from penstock.bus.records.runs import RunRecord
from penstock.bus.write import objects
from penstock.bus.write.publisher import Publisher, Settle
from penstock_normalizer.runs.run_index import RunIndex
from support.drive.normalizing import (
    Run,
    bus_to,
    check_order,
    normalizer,
)
from support.drive.waiting import eventually
from support.fakes.raw import agno, agno_approved, agno_pause, agno_text
from support.real.nats import NatsServer


async def test_source_frames_become_events_with_their_headers(nats_server: NatsServer) -> None:
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run = Run(bus)
        await run.open(traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
        await run.bytes(agno_text("one", "two"))
        await run.end()
        events = await run.until("lifecycle.completed")
    check_order(events, ["one", "two"])
    first, second = events[0], events[1]
    assert first.subject == f"lifecycle.started.{run.run_id}"
    assert messages.FIRST not in first.headers
    assert second.headers[messages.FIRST] == str(first.sequence)
    assert second.headers["ce-specversion"] == "1.0"
    assert second.headers["ce-id"] == f"{run.run_id}.2"
    assert second.headers["ce-type"] == "custom.event"
    assert second.headers["ce-source"] == "/penstock/a"
    assert second.headers["traceparent"].startswith("00-aaaa")
    assert "Nats-Msg-Id" not in second.headers


async def test_only_the_last_event_before_a_pause_is_published_patiently(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, are_patient = Publisher.post, list[bool]()

    def watched(
        self: Publisher, message: Message, settled: Settle, timeout_s: float, *, is_patient: bool
    ) -> bool:
        if message.subject.endswith(run.run_id) and ".stream." in message.subject:
            are_patient.append(is_patient)
        return post(self, message, settled, timeout_s, is_patient=is_patient)

    monkeypatch.setattr(Publisher, "post", watched)
    monkeypatch.setattr(wire, "QUIET_S", 3600.0)
    chunks: list[str] = []
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run = Run(bus)

        async def say(count: int) -> None:
            said = [f"{len(chunks) + n}" for n in range(count)]
            chunks.extend(said)
            await run.bytes(b"".join(agno("RunContent", content=chunk) for chunk in said))

            async def is_published() -> bool:
                last = (await run.events())[-1:]
                return any(f'"{said[-1]}"'.encode() in each.payload for each in last)

            await eventually(is_published)

        await run.open()
        await run.bytes(agno("RunStarted"))
        while not are_patient:  # the first events are published by a task
            await say(1)
        await say(3)
        assert are_patient == [True, False, False, True]
        await run.bytes(agno("RunCompleted", content="x"))
        await run.end()
        check_order(await run.until("lifecycle.completed"), chunks)


async def test_the_list_of_runs_follows_the_lifecycle(nats_server: NatsServer) -> None:
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run = Run(bus)

        async def status(wanted: str) -> RunRecord | None:
            entry = await bus.bucket("runs").get(run.run_id)
            if entry is None or entry.value is None:
                return None
            record = RunRecord.model_validate_json(entry.value)
            return record if record.status == wanted else None

        await run.open(message="hello")
        running = await eventually(lambda: status("running"))
        assert (running.agent, running.session_id, running.message) == ("a", "s", "hello")
        await run.bytes(agno("RunError", content="it broke"))
        failed = await eventually(lambda: status("failed"))
        assert failed.error == "it broke"
        assert failed.first_event is not None


async def test_a_run_that_is_out_before_the_list_could_be_told_is_listed_as_it_ended(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = RunIndex.update
    failed: list[str] = []

    async def failing(self: RunIndex, run_id: str, *args: Any, **options: Any) -> None:
        if run_id == run.run_id and not failed:
            failed.append(run_id)
            raise RuntimeError("it fails between the events and the list")
        await update(self, run_id, *args, **options)

    monkeypatch.setattr(RunIndex, "update", failing)
    async with bus_to(nats_server.url) as bus:
        run = Run(bus)
        # the frames are in RAW before the normalizer starts, so their events are published together
        await run.whole("one")

        async def completed() -> bool:
            entry = await bus.bucket("runs").get(run.run_id)
            return entry is not None and b'"completed"' in entry.value

        async with normalizer(nats_server.url):
            events = await run.until("lifecycle.completed")
            await eventually(completed, what="the list says that the run is completed")
    assert failed
    check_order(events, ["one"])


async def test_a_large_backlog_of_one_run_goes_out_in_batches(nats_server: NatsServer) -> None:
    chunks = [f"word{n} " for n in range(2500)]
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run = Run(bus)
        await run.open()
        await run.bytes(agno_text(*chunks))
        await run.end()
        events = await run.until("lifecycle.completed")
    check_order(events, chunks)
    assert "Nats-Batch-Id" in events[10].headers


async def test_an_event_over_the_payload_limit_goes_by_reference(nats_server: NatsServer) -> None:
    large = "x" * (700 * 1024)
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run = Run(bus)
        await run.open()
        await run.bytes(agno_text(large))
        await run.end()
        events = await run.until("lifecycle.completed")
        (stream,) = [event for event in events if event.headers["ce-type"] == "llm.stream"]
        assert len(stream.payload) < 1000
        body = orjson.loads(await objects.unwrap(bus, stream.payload))
    assert body["data"]["content"] == large


async def test_the_list_of_runs_shows_the_beginning_of_a_huge_answer(
    nats_server: NatsServer,
) -> None:
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run = Run(bus)
        await run.open()
        await run.bytes(agno_text("long " * 500_000))
        await run.end()
        await run.until("lifecycle.completed")

        async def completed() -> RunRecord | None:
            entry = await bus.bucket("runs").get(run.run_id)
            record = RunRecord.model_validate_json(entry.value) if entry else None
            return record if record is not None and record.status == "completed" else None

        record = await eventually(completed)
    assert record.summary == ("long " * 500_000)[:2000]


async def test_a_pause_and_an_answer_over_the_payload_limit_are_carried_whole(
    nats_server: NatsServer,
) -> None:
    large = "x" * (1500 * 1024)
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run = Run(bus)
        await run.open(message=large)
        await run.bytes(agno_pause(path=large))
        await run.end()
        asked = await run.until("approval.requested")
        body = orjson.loads(await objects.unwrap(bus, asked[-1].payload))
        assert body["data"]["items"][0]["args"]["path"] == large
        run.leg = 2
        items = [{"item_id": "t1", "decision": "approve", "value": large}]
        await run.open(approval_id=body["data"]["approval_id"], items=items)
        await run.bytes(agno_approved())
        await run.end()
        events = await run.until("lifecycle.completed")
        started = orjson.loads(await objects.unwrap(bus, events[0].payload))
    assert started["data"]["message"] == large
    numbers = [int(event.headers[messages.SEQUENCE]) for event in events]
    assert numbers == list(range(1, len(events) + 1))
