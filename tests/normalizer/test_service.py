"""The normalizer over a real NATS server: alone, in company, killed, and after a long pause."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import uuid_utils
from prometheus_client import REGISTRY

from penstock.bus import (
    Bucket,
    Bus,
    BusSettings,
    Message,
    MessageTooLarge,
    RawWriter,
    Stored,
    messages,
    streams,
    subjects,
)
from penstock.bus.budget import Budget
from penstock.bus.read import direct
from penstock.bus.records import PauseRecord, RunRecord
from penstock.bus.state import deadletters
from penstock.bus.write import objects
from penstock.dialects.decoders import DECODERS
from penstock.service import Context, pod_name
from penstock.settings import Config
from penstock_normalizer.partitions.checkpoint import Checkpoint
from penstock_normalizer.partitions.partition import Partition
from penstock_normalizer.runs.backlog import Backlog
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.pauses import Pauses
from penstock_normalizer.runs.run import Run as RunWorker
from penstock_normalizer.runs.run_index import RunIndex
from penstock_normalizer.service import NormalizerService
from penstock_normalizer.settings import NormalizerSettings
from support.drive.bus import make_streams
from support.drive.dead_letters import all_letters, publish, the_letter
from support.drive.waiting import eventually
from support.fakes.raw import agno, agno_approved, agno_pause, agno_text
from support.real.nats import NatsServer, login

FAST: dict[str, Any] = {"partition_ttl_s": 2.0, "partition_renew_s": 0.3, "checkpoint_s": 0.1}


@asynccontextmanager
async def bus_to(url: str, **login: Any) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusSettings(url=url, **login))
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def normalizer(url: str, **settings: Any) -> AsyncIterator[NormalizerService]:
    await make_streams(url)
    async with bus_to(url, **login("normalizer")) as bus:
        own = NormalizerSettings(nats_url=url, **{**FAST, **settings})
        service = NormalizerService(Context(Config(), own, bus, pod_name("normalizer")))
        await service.run()
        try:
            yield service
        finally:
            await service.stop()


class Run:
    """A run that a connector writes."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.run_id = str(uuid_utils.uuid7())
        self.writer = RawWriter(bus, self.run_id, "upstream", f"pod/{self.run_id}")
        self.leg = 1

    async def open(self, **facts: Any) -> None:
        opened = {"agent": "a", "protocol": "agno", "session_id": "s", "user_id": "u", **facts}
        await self.writer.write("open", orjson.dumps(opened), leg=self.leg)

    async def bytes(self, body: bytes) -> None:
        await self.writer.write("bytes", body, leg=self.leg)

    async def end(self) -> None:
        await self.writer.write("end", b'{"outcome":"eof"}', leg=self.leg)

    async def whole(self, *chunks: str) -> None:
        await self.open()
        await self.bytes(agno("RunStarted"))
        for chunk in chunks:
            await self.bytes(agno("RunContent", content=chunk))
        await self.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
        await self.end()

    async def events(self) -> list[Stored]:
        pattern = subjects.events_of_run(self.run_id)
        return [m async for m in direct.replay(self.bus, streams.events_for(self.run_id), pattern)]

    async def until(self, type_: str, timeout_s: float = 15) -> list[Stored]:
        async def found() -> list[Stored] | None:
            events = await self.events()
            return events if events and events[-1].headers["ce-type"] == type_ else None

        return await eventually(found, timeout_s, f"{type_} of {self.run_id}")


def check_order(events: list[Stored], chunks: list[str]) -> None:
    """Every number once, and every chunk in its place."""
    numbers = [int(event.headers[messages.SEQUENCE]) for event in events]
    assert numbers == list(range(1, len(events) + 1))
    bodies = [orjson.loads(event.payload) for event in events]
    assert [body["sequence"] for body in bodies] == numbers
    said = [body["data"]["content"] for body in bodies if body["event"]["action"] == "stream"]
    assert said == chunks


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
        await run.whole("one")  # in RAW before the normalizer: its events go out together

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


async def test_a_blocked_run_goes_on_once_its_cause_is_gone(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run = Run(bus)
        await bus.bucket("runs").put(run.run_id, b"no record")
        await run.open()
        await run.bytes(agno_text("one"))
        await run.end()

        async def told() -> bool:
            return f"run {run.run_id}: it is blocked at RAW" in caplog.text

        await eventually(told)
        await bus.bucket("runs").delete(run.run_id)
        check_order(await run.until("lifecycle.completed"), ["one"])


async def paused(bus: Bus) -> tuple[Run, str]:
    """A run that waits, of which only the bus knows, and what it waits for."""
    run = Run(bus)
    approvals = RawWriter(bus, run.run_id, "approvals", f"pod/{run.run_id}/a")
    async with normalizer(bus.settings.url):
        await run.open()
        await run.bytes(agno_pause())
        await run.end()
        asked = await run.until("approval.requested")
        approval_id: str = orjson.loads(asked[-1].payload)["data"]["approval_id"]
        said = {"type": "lifecycle.paused", "data": {"approval_id": approval_id}}
        await approvals.write("event", orjson.dumps(said), leg=1)
        await run.until("lifecycle.paused")
    run.leg = 2
    return run, approval_id


async def go_on(run: Run, approval_id: str) -> None:
    """It is approved."""
    await run.open(approval_id=approval_id, items=[{"item_id": "t1", "decision": "approve"}])
    await run.bytes(agno_approved())
    await run.end()


@pytest.mark.parametrize("unreadable", ["pauses", "runs"])
async def test_a_run_whose_records_stay_garbage_ends_and_is_passed_by(
    fresh_nats: NatsServer, unreadable: str
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run, approval_id = await paused(bus)
        approvals = await RawWriter.resume(bus, run.run_id, "approvals", f"pod/{run.run_id}/b")
        said = orjson.dumps({"type": "system.warning", "data": {"message": "soon", "code": "w"}})
        stands_at = await approvals.write("event", said, leg=1)
        await bus.bucket(unreadable).put(run.run_id, b"garbage")
        await bus.api("STREAM.PURGE.RAW", {"seq": stands_at})  # so that the pause is read
        async with normalizer(fresh_nats.url, max_standing_s=2):
            await go_on(run, approval_id)
            await eventually(lambda: _blocked(1), what="a blocked run")
            *_, end = await run.until("lifecycle.failed")
            letter = (await the_letter(bus, "normalizer", run.run_id)).letter
            await eventually(lambda: _blocked(0), what="no blocked run")
            last = await approvals.write("event", said, leg=1)
            await eventually(lambda: _passed(bus, subjects.partition_of(run.run_id), last - 1))
            other = Run(bus)
            await other.whole("one")
            check_order(await other.until("lifecycle.completed"), ["one"])
        assert letter.sequence == stands_at
        assert orjson.loads(end.payload)["data"]["code"] == "internal"
        events = [orjson.loads(stored.payload) for stored in await run.events()]
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        if unreadable == "pauses":
            entry = await bus.bucket("runs").get(run.run_id)
            assert entry is not None
            record = RunRecord.model_validate_json(entry.value)
            assert (record.status, record.code) == ("failed", "internal")


async def test_a_run_whose_pause_has_lost_its_object_ends_and_is_passed_by(
    fresh_nats: NatsServer,
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run, approval_id = await paused(bus)
        large = await objects.wrap(bus, f"{approval_id}.pause", bytes(600_000))
        await bus.bucket("pauses").put(run.run_id, large)
        for stream in ("OBJ_payloads", "RAW"):
            await bus.api(f"STREAM.PURGE.{stream}")
        async with normalizer(fresh_nats.url, max_standing_s=1):
            await go_on(run, approval_id)
            *_, end = await run.until("lifecycle.failed")
            letter = (await the_letter(bus, "normalizer", run.run_id)).letter
            last = await run.writer.write("event", b"{}", leg=2)
            await eventually(lambda: _passed(bus, subjects.partition_of(run.run_id), last - 1))
        assert "ObjectGone" in letter.reason
        assert orjson.loads(end.payload)["data"]["code"] == "internal"


@pytest.mark.parametrize("bucket", ["pauses", "runs"])
async def test_a_run_whose_record_is_over_the_servers_limit_is_blocked(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    update = Bucket.update

    async def limited(self: Bucket, key: str, *args: Any) -> int | None:
        if self._name == bucket:
            raise MessageTooLarge("over max_payload")
        return await update(self, key, *args)

    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        async with normalizer(fresh_nats.url):
            monkeypatch.setattr(Bucket, "update", limited)
            await run.open()
            await run.bytes(agno_pause())
            await run.end()
            await eventually(lambda: _blocked(1), what="a blocked run")
            monkeypatch.undo()
            await run.until("approval.requested")


async def test_a_run_goes_on_once_its_pause_can_be_read_again(fresh_nats: NatsServer) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run, approval_id = await paused(bus)
        kept = await bus.bucket("pauses").get(run.run_id)
        assert kept is not None
        await bus.bucket("pauses").put(run.run_id, b"garbage")
        await bus.api("STREAM.PURGE.RAW")
        async with normalizer(fresh_nats.url):
            await go_on(run, approval_id)
            await eventually(lambda: _blocked(1), what="a blocked run")
            await bus.bucket("pauses").put(run.run_id, kept.value)
            await run.until("lifecycle.completed")
            await eventually(lambda: _blocked(0), what="no blocked run")
        assert not await all_letters(bus, "normalizer", run.run_id)


async def test_a_run_that_lacks_a_frame_which_another_partition_has_read_is_folded_again(
    nats_server: NatsServer,
) -> None:
    await make_streams(nats_server.url)
    async with bus_to(nats_server.url) as bus:
        run = Run(bus)
        await run.whole("one", "two", "three")
        pattern = subjects.raw_of_run(run.run_id)
        frames = [
            stored async for stored in direct.replay(bus, streams.raw_for(run.run_id), pattern)
        ]
        context = RunContext(
            bus,
            DECODERS,
            2**20,
            RunIndex(bus),
            Pauses(bus, 60),
            Budget(2**20),
            _raise,
            60,
            asyncio.get_running_loop(),
        )
        worker = RunWorker(context, run.run_id)
        missing = frames[3]  # it says "two"
        for stored in frames:
            if stored is not missing:
                worker.backlog.push(stored)
        task = asyncio.create_task(worker.work())
        try:
            check_order(await run.until("lifecycle.completed"), ["one", "two", "three"])
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_a_run_goes_on_after_a_failure_outside_of_its_frames(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else would work on the run while its partition is held here."""
    first = Backlog.first
    failures = [RuntimeError("a defect")]

    async def failing(self: Backlog) -> Stored:
        if self._run_id == run.run_id and failures:
            raise failures.pop()
        return await first(self)

    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run = Run(bus)
        monkeypatch.setattr(Backlog, "first", failing)
        await run.whole("one")
        check_order(await run.until("lifecycle.completed"), ["one"])
    assert not failures
    assert f"run {run.run_id}: unexpected failure" in caplog.text
    assert await _blocked(0)


async def test_a_partition_begins_again_when_one_of_its_loops_fails(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Checkpoint.write
    failures = [RuntimeError("a defect")]

    async def failing(self: Checkpoint, floor: int) -> None:
        if self._partition == number and floor and failures:
            raise failures.pop()
        await write(self, floor)

    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        number = subjects.partition_of(run.run_id)
        monkeypatch.setattr(Checkpoint, "write", failing)
        async with normalizer(fresh_nats.url):
            await run.open()
            last = await run.writer.write("bytes", agno("RunStarted"), leg=1)
            await eventually(lambda: _passed(bus, number, last - 1))
            assert not failures
            await run.bytes(agno_text("one"))
            await run.end()
            check_order(await run.until("lifecycle.completed"), ["one"])


async def test_a_partition_whose_checkpoint_is_garbage_reads_raw_from_the_start(
    fresh_nats: NatsServer,
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        number = subjects.partition_of(run.run_id)
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno("RunStarted") + agno("RunContent", content="one"))
            await run.until("llm.stream")
        for key in (f"normalizer.{number}", f"normalizer.{number}.past"):
            await bus.bucket("checkpoints").put(key, b"garbage")
        async with normalizer(fresh_nats.url):
            await run.bytes(agno("RunContent", content="two"))
            await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
            await run.end()
            check_order(await run.until("lifecycle.completed"), ["one", "two"])
            await eventually(lambda: _is_number(bus, number), what="a checkpoint again")


async def _is_number(bus: Bus, partition: int) -> bool:
    entry = await bus.bucket("checkpoints").get(f"normalizer.{partition}")
    return entry is not None and entry.value.isdigit()


async def _blocked(count: int) -> bool:
    return REGISTRY.get_sample_value("penstock_runs_standing") == count


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


async def test_a_message_that_is_no_source_frame_becomes_a_dead_letter(
    nats_server: NatsServer,
) -> None:
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run = Run(bus)
        await run.open()
        await bus.publisher.publish(Message(subjects.raw(run.run_id, "stray"), b"what?", {}))
        await run.bytes(agno_text("fine"))
        await run.end()
        events = await run.until("lifecycle.completed")
        [found] = [found async for found in deadletters.letters(bus, "normalizer", run.run_id)]
    check_order(events, ["fine"])
    assert found.letter.payload == b"what?"
    assert "KeyError" in found.letter.reason


async def test_a_normalizer_goes_on_where_the_last_one_stopped(nats_server: NatsServer) -> None:
    async with bus_to(nats_server.url) as bus:
        run = Run(bus)
        async with normalizer(nats_server.url):
            await run.open()
            await run.bytes(agno("RunStarted") + agno("RunContent", content="one"))
            await run.until("llm.stream")
        await run.bytes(agno("RunContent", content="two"))
        async with normalizer(nats_server.url):
            await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
            events = await run.until("lifecycle.completed")
    check_order(events, ["one", "two"])


async def test_a_cancel_before_the_start_is_known_to_the_next_normalizer(
    fresh_nats: NatsServer,
) -> None:
    # A run of another test that stands would hold back the checkpoint of its partition.
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        async with normalizer(fresh_nats.url):
            edge = RawWriter(bus, run.run_id, "edge", f"edge/{run.run_id}")
            cancelled = {"type": "lifecycle.cancelled", "data": {"reason": "user_stop"}}
            position = await edge.write("event", orjson.dumps(cancelled), leg=1)
            partition = subjects.partition_of(run.run_id)
            await eventually(lambda: _passed(bus, partition, position - 1), what="the checkpoint")
        async with normalizer(fresh_nats.url):
            await run.whole("x")
            events = await run.until("lifecycle.cancelled")
    assert [event.headers["ce-type"] for event in events] == [
        "lifecycle.started",
        "lifecycle.cancelled",
    ]


async def test_two_normalizers_share_the_partitions_and_lose_and_repeat_nothing(
    fresh_nats: NatsServer,
) -> None:
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(bus_to(fresh_nats.url))
        one = await stack.enter_async_context(normalizer(fresh_nats.url))
        two = await stack.enter_async_context(normalizer(fresh_nats.url))

        async def shared() -> bool:
            return len(one.partitions) == len(two.partitions) == 8

        runs = [Run(bus) for _ in range(20)]
        # runs go on while the partitions move
        writing = asyncio.gather(*(run.whole(*map(str, range(30))) for run in runs))
        await eventually(shared)
        await writing
        assert not one.partitions & two.partitions
        for run in runs:
            check_order(await run.until("lifecycle.completed"), [*map(str, range(30))])


async def test_two_owners_of_one_partition_publish_each_event_once(
    fresh_nats: NatsServer,
) -> None:
    """A zombie: two that both believe the partition theirs. Only the fence stands between."""

    async def give_up(stored: Stored, error: Exception) -> None:
        raise AssertionError(error)

    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(bus_to(fresh_nats.url))
        tasks = []
        for _ in range(2):
            own = await stack.enter_async_context(bus_to(fresh_nats.url))
            settings = NormalizerSettings(nats_url=fresh_nats.url, **FAST)
            budget = Budget(settings.max_held_bytes)
            tasks += [
                asyncio.create_task(Partition(own, number, settings, budget, give_up).work())
                for number in range(subjects.PARTITIONS)
            ]
        runs = [Run(bus) for _ in range(20)]
        await asyncio.gather(*(run.whole(*map(str, range(30))) for run in runs))
        for run in runs:
            check_order(await run.until("lifecycle.completed"), [*map(str, range(30))])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("missed", ["an event", "half an event"])
async def test_a_run_that_was_elsewhere_for_a_while_goes_on_with_all_of_its_frames(
    fresh_nats: NatsServer, missed: str
) -> None:
    """The number of partitions was changed and changed back: one owner misses a frame between.

    Of half an event nothing is published, so that no conflict tells the owner what it lacks.
    """

    async def give_up(stored: Stored, error: Exception) -> None:
        raise AssertionError(error)

    async with bus_to(fresh_nats.url) as bus:
        await make_streams(fresh_nats.url)
        settings = NormalizerSettings(nats_url=fresh_nats.url, **FAST)
        here, elsewhere = (
            Partition(bus, number, settings, Budget(settings.max_held_bytes), give_up)
            for number in range(2)
        )
        run = Run(bus)
        first, second, third = (agno("RunContent", content=text) for text in "abc")
        at = len(second) if missed == "an event" else len(second) // 2
        await run.open()
        await run.bytes(agno("RunStarted") + first)
        await run.bytes(second[:at])
        await run.bytes(second[at:] + third)
        await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="abc"))
        await run.end()
        pattern = subjects.raw_stored(run.run_id, "upstream")
        frames = [
            stored async for stored in direct.replay(bus, streams.raw_for(run.run_id), pattern)
        ]

        async def hand_out(partition: Partition, given: list[Stored]) -> None:
            for stored in given:
                await partition._hand_out(stored)

            async def is_done() -> bool:
                return not partition.runs.is_busy

            await eventually(is_done)

        await hand_out(here, frames[:2])
        await hand_out(elsewhere, frames[:3])
        await hand_out(here, frames[3:])
        check_order(await run.until("lifecycle.completed"), ["a", "b", "c"])
        for partition in (here, elsewhere):
            await partition._close()


async def test_runs_survive_kill_9_of_their_normalizer(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text("agents: []\n")
    environment = {
        **os.environ,
        "PENSTOCK_CONFIG": str(config),
        "PENSTOCK_NATS_URL": fresh_nats.url,
        "PENSTOCK_PROBE_PORT": "0",
        **{f"PENSTOCK_{name.upper()}": str(value) for name, value in FAST.items()},
    }

    async def start() -> asyncio.subprocess.Process:
        with (tmp_path / "normalizer.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock_normalizer", env=environment, stderr=log
            )

    async with bus_to(fresh_nats.url) as bus:
        process = await start()
        runs = [Run(bus) for _ in range(10)]
        for run in runs:
            await run.open()
            await run.bytes(agno("RunStarted"))
        try:
            for round_ in range(3):
                for run in runs:
                    await run.bytes(agno("RunContent", content=f"{round_}"))
                # killed in the middle of these
                await runs[0].until("llm.stream")
                process.send_signal(signal.SIGKILL)
                await process.wait()
                process = await start()
            for run in runs:
                await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
            for run in runs:
                check_order(await run.until("lifecycle.completed", 30), ["0", "1", "2"])
        finally:
            process.kill()
            await process.wait()


async def test_runs_survive_kill_9_of_the_broker(fresh_nats: NatsServer) -> None:
    async with bus_to(fresh_nats.url) as bus, normalizer(fresh_nats.url):
        runs = [Run(bus) for _ in range(5)]
        writing = asyncio.gather(*(run.whole(*map(str, range(100))) for run in runs))
        await runs[0].until("llm.stream")
        await asyncio.to_thread(fresh_nats.kill)
        await asyncio.to_thread(fresh_nats.start)
        await writing
        for run in runs:
            check_order(await run.until("lifecycle.completed", 30), [*map(str, range(100))])


@pytest.mark.parametrize("gone", [["RAW"], ["EVENTS", "RAW"]], ids="+".join)
async def test_a_paused_run_goes_on_although_its_past_has_aged_out(
    fresh_nats: NatsServer, gone: list[str]
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno_pause())
            await run.end()
            before = await run.until("approval.requested")
        approval_id = orjson.loads(before[-1].payload)["data"]["approval_id"]
        for stream in gone:
            await bus.api(f"STREAM.PURGE.{stream}")
        run.leg = 2
        async with normalizer(fresh_nats.url):
            items = [{"item_id": "t1", "decision": "approve"}]
            await run.open(approval_id=approval_id, items=items)
            await run.bytes(agno_approved())
            await run.end()
            after = await run.until("lifecycle.completed")
    numbers = [int(event.headers[messages.SEQUENCE]) for event in after]
    last_before = 0 if gone == ["RAW"] else len(before)
    assert numbers == list(range(last_before + 1, last_before + 1 + len(after)))
    kinds = [event.headers["ce-type"] for event in after]
    assert kinds.count("llm.tool_call") == (1 if gone == ["RAW"] else 0)
    assert kinds.count("llm.tool_result") == 1


@pytest.mark.parametrize("follows", [True, False], ids=["more follows", "nothing follows"])
async def test_a_run_whose_frames_aged_out_unread_ends_and_says_so(
    fresh_nats: NatsServer,
    follows: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock_normalizer.recovery.expired.MIN_AGE_S", -1.0)
    monkeypatch.setattr("penstock_normalizer.partitions.partition.LOOK_S", 0.0)
    async with bus_to(fresh_nats.url) as bus:
        run, other = Run(bus), Run(bus)
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno("RunStarted") + agno("RunContent", content="one"))
            before = await run.until("llm.stream")
            await other.whole("fine")
            await other.until("lifecycle.completed")
            await checkpointed(bus, before[-1])
        # nobody reads: what comes now is lost
        await run.bytes(agno("RunContent", content="lost"))
        await bus.api("STREAM.PURGE.RAW")
        async with normalizer(fresh_nats.url):
            if follows:
                await run.bytes(agno("RunContent", content="two"))
            events = await run.until("lifecycle.failed")
            ended = await other.events()
    numbers = [int(event.headers[messages.SEQUENCE]) for event in events]
    assert numbers == list(range(1, len(before) + 2))
    data = orjson.loads(events[-1].payload)["data"]
    assert data["code"] == "history_lost"
    assert "before they were read" in data["error"]
    assert f"run {run.run_id}: frames before RAW" in caplog.text
    assert ended[-1].headers["ce-type"] == "lifecycle.completed"


async def test_a_run_that_aged_out_before_the_first_normalizer_came_ends_and_says_so(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_normalizer.recovery.expired.MIN_AGE_S", -1.0)
    async with bus_to(fresh_nats.url) as bus:
        run, young = Run(bus), Run(bus)
        for each in (run, young):
            await bus.bucket("runs").put(each.run_id, registered(each.run_id).dump())
        await run.open()
        await bus.api("STREAM.PURGE.RAW")
        await young.open()
        async with normalizer(fresh_nats.url):
            *_, end = await run.until("lifecycle.failed")
            await young.until("lifecycle.started")
    assert orjson.loads(end.payload)["data"]["code"] == "history_lost"


def registered(run_id: str) -> RunRecord:
    """A run as the edge lists it, before anybody has begun with it."""
    return RunRecord(
        run_id=run_id,
        agent="a",
        session_id="s",
        user_id="u",
        message="hello",
        created_at=messages.now(),
        updated_at=messages.now(),
    )


async def gave_up(bus: Bus, kind: str, sequence: int) -> None:
    """What the server says of a command that it has delivered for the last time."""
    advisory = {"stream": "COMMANDS", "consumer": f"connector-{kind}", "stream_seq": sequence}
    subject = f"{subjects.MAX_DELIVERIES}.COMMANDS.connector-{kind}"
    await publish(bus, subject, orjson.dumps({**advisory, "deliveries": 20}))


async def no_command(bus: Bus) -> bool:
    return bool((await bus.api("STREAM.INFO.COMMANDS"))["state"]["messages"] == 0)


@pytest.mark.parametrize("kind", ["start", "continue"])
async def test_a_run_whose_command_the_server_gave_up_ends_once(
    fresh_nats: NatsServer, kind: str
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        if kind == "continue":
            run, _ = await paused(bus)
        else:
            run = Run(bus)
            await bus.bucket("runs").put(run.run_id, registered(run.run_id).dump())
        sequence = await publish(bus, subjects.command("connector", kind, run.run_id), b"poison")
        for _ in range(2):
            await gave_up(bus, kind, sequence)
        async with normalizer(fresh_nats.url):
            events = await run.until("lifecycle.failed")
            await eventually(lambda: no_command(bus), what="no command is left")
            assert await run.events() == events

            async def recorded() -> RunRecord | None:
                entry = await bus.bucket("runs").get(run.run_id)
                assert entry is not None
                found = RunRecord.model_validate_json(entry.value)
                return found if found.status != "queued" else None

            record = await eventually(recorded, what="the end is in the run's record")
        assert (await the_letter(bus, "connector", run.run_id)).letter.payload == b"poison"
    data = orjson.loads(events[-1].payload)["data"]
    assert data["code"] == "internal"
    assert "delivered 20 times and never finished" in data["error"]
    assert [int(each.headers[messages.SEQUENCE]) for each in events] == [*range(1, len(events) + 1)]
    assert (record.status, record.code) == ("failed", "internal")


async def test_a_run_goes_on_whose_command_was_carried_out_and_given_up_all_the_same(
    fresh_nats: NatsServer,
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        await bus.bucket("runs").put(run.run_id, registered(run.run_id).dump())
        sequence = await publish(bus, subjects.command("connector", "start", run.run_id), b"x")
        await run.open()
        await gave_up(bus, "start", sequence)
        async with normalizer(fresh_nats.url):
            await eventually(lambda: no_command(bus), what="no command is left")
            await run.bytes(agno_text("one"))
            await run.end()
            check_order(await run.until("lifecycle.completed"), ["one"])


async def checkpointed(bus: Bus, event: Stored) -> None:
    """Until every partition's checkpoint has passed the frame that this event came from."""
    position = int(event.headers[messages.RAW_POSITION])

    async def has() -> bool:
        entries = await bus.bucket("checkpoints").entries("normalizer.*")
        return len(entries) == subjects.PARTITIONS and all(
            int(entry.value) >= position for entry in entries
        )

    await eventually(has, what="the checkpoints")


async def test_a_leg_that_outlived_its_frames_ends_when_its_normalizer_changes(
    fresh_nats: NatsServer,
) -> None:
    """The run's beginning has aged out, so that nobody else can go on with the decoder's state."""
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno("RunStarted") + agno("RunContent", content="one"))
            before = await run.until("llm.stream")
        pattern = subjects.raw_of_run(run.run_id)
        await bus.api("STREAM.PURGE.RAW", {"filter": pattern})
        async with normalizer(fresh_nats.url):
            await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
            await run.end()
            events = await run.until("lifecycle.failed")
    assert len(events) == len(before) + 1
    assert orjson.loads(events[-1].payload)["data"]["code"] == "history_lost"


async def test_what_is_said_about_a_pause_is_kept_with_it(fresh_nats: NatsServer) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        approvals = RawWriter(bus, run.run_id, "approvals", f"pod/{run.run_id}/a")
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno_pause())
            await run.end()
            asked = await run.until("approval.requested")
            approval_id = orjson.loads(asked[-1].payload)["data"]["approval_id"]
            paused = {"type": "lifecycle.paused", "data": {"approval_id": approval_id}}
            await approvals.write("event", orjson.dumps(paused), leg=1)
            before = await run.until("lifecycle.paused")
        for stream in ("RAW", "EVENTS"):
            await bus.api(f"STREAM.PURGE.{stream}")
        run.leg = 2
        async with normalizer(fresh_nats.url):
            await run.open(
                approval_id=approval_id, items=[{"item_id": "t1", "decision": "approve"}]
            )
            await run.bytes(agno_approved())
            await run.end()
            after = await run.until("lifecycle.completed")
    assert after[0].headers["ce-type"] == "lifecycle.resumed"
    assert int(after[0].headers[messages.SEQUENCE]) == len(before) + 1


async def test_a_zombie_does_not_put_back_a_pause_or_a_checkpoint(
    fresh_nats: NatsServer,
) -> None:
    """Two that fold the same partition; the second is stopped behind its first frames."""
    async with bus_to(fresh_nats.url) as bus, bus_to(fresh_nats.url) as theirs:
        run = Run(bus)
        settings = NormalizerSettings(nats_url=fresh_nats.url, **FAST)
        number = subjects.partition_of(run.run_id)
        zombie = Partition(theirs, number, settings, Budget(2**20), _raise)
        held: list[Stored] = []

        async def hold(stored: Stored) -> None:
            held.append(stored)

        take, zombie._hand_out = zombie._hand_out, hold  # type: ignore[method-assign]  # it hangs here
        task = asyncio.create_task(zombie.work())
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno_pause())
            await run.end()
            asked = await run.until("approval.requested")
            approval_id = orjson.loads(asked[-1].payload)["data"]["approval_id"]

            async def all_held() -> bool:
                return len(held) == 3

            await eventually(all_held)
            stale = held.copy()
            run.leg = 2
            await run.open(
                approval_id=approval_id, items=[{"item_id": "t1", "decision": "approve"}]
            )
            await run.bytes(agno("RunContinued") + agno_pause("t2"))
            await run.end()

            async def second() -> PauseRecord | None:
                entry = await bus.bucket("pauses").get(run.run_id)
                record = PauseRecord.model_validate_json(entry.value) if entry else None
                return record if record is not None and record.leg == 2 else None

            kept = await eventually(second)
            checkpoint = await eventually(lambda: _passed(bus, number, stale[-1].sequence))
            for stored in stale:
                await take(stored)

            async def woke() -> bool:
                return not zombie.runs.is_busy

            await eventually(woke)
            await zombie._checkpoint.write(zombie._floor)
            assert await second() == kept
            assert await _passed(bus, number, checkpoint - 1)
        task.cancel()
        await asyncio.wait([task])


async def _raise(stored: Stored, error: Exception) -> None:
    raise AssertionError(error)


async def _passed(bus: Bus, partition: int, sequence: int) -> int | None:
    entry = await bus.bucket("checkpoints").get(f"normalizer.{partition}")
    return int(entry.value) if entry is not None and int(entry.value) > sequence else None
