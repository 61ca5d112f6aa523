"""Runs and partitions that are blocked are retried, and a blocked run is ended in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from penstock.bus import (
    Bucket,
    Bus,
    Message,
    MessageTooLarge,
    RawWriter,
    Stored,
    streams,
    subjects,
)
from penstock.bus.budget import Budget
from penstock.bus.read import direct
from penstock.bus.records.runs import RunRecord
from penstock.bus.state import deadletters
from penstock.bus.write import objects
from penstock.dialects.decoders import DECODERS
from penstock_normalizer.fold.run_fold import no_cost
from penstock_normalizer.partitions.checkpoint import Checkpoint
from penstock_normalizer.runs.backlog import Backlog
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.pauses import Pauses
from penstock_normalizer.runs.run import Run as RunWorker
from penstock_normalizer.runs.run_index import RunIndex
from support.drive.bus import make_streams
from support.drive.dead_letters import all_letters, the_letter
from support.drive.normalizing import (
    Run,
    are_blocked,
    bus_to,
    check_order,
    go_on,
    normalizer,
    passed,
    paused,
    raises,
)
from support.drive.waiting import eventually
from support.fakes.raw import agno, agno_pause, agno_text
from support.real.nats import NatsServer


async def test_a_blocked_run_continues_once_its_cause_is_gone(
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
        # the purge removes the earlier frames, so the normalizer must read the stored pause
        await bus.api("STREAM.PURGE.RAW", {"seq": stands_at})
        async with normalizer(fresh_nats.url, max_blocked_s=2):
            await go_on(run, approval_id)
            await eventually(lambda: are_blocked(1), what="a blocked run")
            *_, end = await run.until("lifecycle.failed")
            letter = (await the_letter(bus, "normalizer", run.run_id)).letter
            await eventually(lambda: are_blocked(0), what="no blocked run")
            last = await approvals.write("event", said, leg=1)
            await eventually(lambda: passed(bus, subjects.partition_of(run.run_id), last - 1))
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
        large = await objects.wrap(bus, f"{approval_id}.pause", bytes(600_000), run.run_id)
        await bus.bucket("pauses").put(run.run_id, large)
        for stream in ("OBJ_payloads", "RAW"):
            await bus.api(f"STREAM.PURGE.{stream}")
        async with normalizer(fresh_nats.url, max_blocked_s=1):
            await go_on(run, approval_id)
            *_, end = await run.until("lifecycle.failed")
            letter = (await the_letter(bus, "normalizer", run.run_id)).letter
            last = await run.writer.write("event", b"{}", leg=2)
            await eventually(lambda: passed(bus, subjects.partition_of(run.run_id), last - 1))
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
            await eventually(lambda: are_blocked(1), what="a blocked run")
            monkeypatch.undo()
            await run.until("approval.requested")


async def test_a_run_continues_once_its_pause_can_be_read_again(fresh_nats: NatsServer) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run, approval_id = await paused(bus)
        kept = await bus.bucket("pauses").get(run.run_id)
        assert kept is not None
        await bus.bucket("pauses").put(run.run_id, b"garbage")
        await bus.api("STREAM.PURGE.RAW")
        async with normalizer(fresh_nats.url):
            await go_on(run, approval_id)
            await eventually(lambda: are_blocked(1), what="a blocked run")
            await bus.bucket("pauses").put(run.run_id, kept.value)
            await run.until("lifecycle.completed")
            await eventually(lambda: are_blocked(0), what="no blocked run")
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
            bus=bus,
            decoders=DECODERS,
            max_frame_bytes=2**20,
            index=RunIndex(bus),
            pauses=Pauses(bus, 60),
            budget=Budget(2**20),
            give_up=raises,
            max_blocked_s=60,
            loop=asyncio.get_running_loop(),
            cost_of=no_cost,
        )
        worker = RunWorker(context, run.run_id, lambda _: None)
        missing = frames[3]  # the frame with the content "two"
        for stored in frames:
            if stored is not missing:
                worker.push(stored)
        try:
            check_order(await run.until("lifecycle.completed"), ["one", "two", "three"])
        finally:
            if (task := worker.close()) is not None:
                await asyncio.wait([task])


async def test_a_run_continues_after_a_failure_outside_of_its_frames(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that stopped would not continue elsewhere while this normalizer holds its partition."""
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
    assert await are_blocked(0)


@pytest.mark.parametrize("step", ["_fold_waiting", "_acknowledged"])
async def test_a_run_continues_after_a_failure_in_a_callback_of_the_event_loop(
    nats_server: NatsServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
) -> None:
    """The event loop only logs such a failure and would never call the run again."""
    works = getattr(RunWorker, step)
    failures = [RuntimeError("a defect")]

    def failing(self: RunWorker, *arguments: Any) -> None:
        if self.run_id == run.run_id and failures and fails:
            raise failures.pop()
        works(self, *arguments)

    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        run, fails = Run(bus), False
        monkeypatch.setattr(RunWorker, step, failing)
        await run.open()
        await run.bytes(agno("RunStarted"))
        await run.until("custom.event")
        await run.bytes(agno("RunContent", content="one"))
        await run.until("llm.stream")  # by now, the task that began the run has ended
        fails = True
        for content in ("two", "three"):
            await run.bytes(agno("RunContent", content=content))
        await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
        await run.end()
        check_order(await run.until("lifecycle.completed"), ["one", "two", "three"])
    assert not failures
    assert f"run {run.run_id}: it is blocked at RAW" in caplog.text
    assert await are_blocked(0)


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
            await eventually(lambda: passed(bus, number, last - 1))
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
