"""A flooding run is bounded in memory, is published completely, and delays no other run."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from penstock.bus import Bus, Message, RawWriter, streams, subjects
from penstock.bus.budget import Budget, counted_bytes
from penstock.bus.read import direct
from penstock.bus.write import fence
from penstock.dialects.decoders import DECODERS
from penstock.settings import Config
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.backlog import Backlog, read
from penstock_normalizer.runs.run import Run
from penstock_normalizer.service import NormalizerService
from support.drive.bus import connected, new_run_id
from support.drive.pipeline import Event, pipeline
from support.drive.waiting import eventually
from support.fakes.raw import Frames, agno, agno_text
from support.real.nats import NatsServer

KIB = 1024
OPEN = orjson.dumps({"agent": "a", "protocol": "agno", "session_id": "s", "user_id": "u"})


async def opened(bus: Bus) -> RawWriter:
    """Open a run in RAW; return its writer."""
    run_id = new_run_id()
    writer = RawWriter(bus, run_id, "upstream", f"pod/{run_id}")
    await writer.write("open", OPEN, leg=1)
    return writer


async def neighbour(bus: Bus, run_id: str) -> RawWriter:
    """Open another run in the same partition; return its writer."""

    async def partition(run_id: str) -> str:
        tail = await bus.tail(streams.RAW, subjects.raw_of_run(run_id))
        assert tail is not None
        return tail.subject.split(".")[1]

    wanted = await partition(run_id)
    while True:
        writer = await opened(bus)
        if await partition(writer.run_id) == wanted:
            return writer


async def write(writer: RawWriter, *bodies: bytes) -> None:
    for body in bodies:
        await writer.write("bytes", body, leg=1)
    await writer.write("end", b'{"outcome":"eof"}', leg=1)


def check(events: list[Event], chunks: Sequence[str]) -> None:
    assert [event.sequence for event in events] == [*range(1, len(events) + 1)]
    assert [e.data["content"] for e in events if e.type == "llm.stream"] == [*chunks]
    assert events[-1].type == "lifecycle.completed"


class StuckReason:
    """Hold back every write to EVENTS of one run until `let_go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run_id: str) -> None:
        self.let_go = asyncio.Event()
        append = fence.append

        async def waits(bus: Bus, pattern: str, batch: Sequence[Message], last: int) -> int:
            if pattern == subjects.events_of_run(run_id):
                await self.let_go.wait()
            return await append(bus, pattern, batch, last)

        monkeypatch.setattr(fence, "append", waits)


class Watched:
    """Record the most bytes that any budget has held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peak_bytes = self.now_bytes = 0
        take = Budget.take

        def taken(budget: Budget, size_bytes: int) -> None:
            take(budget, size_bytes)
            self.now_bytes = budget.used_bytes
            self.peak_bytes = max(self.peak_bytes, self.now_bytes)

        monkeypatch.setattr(Budget, "take", taken)


async def test_a_run_that_floods_stays_in_its_share_and_blocks_no_other_of_its_partition(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, chunks = 64 * KIB, [f"word{n} " for n in range(1500)]
    watched = Watched(monkeypatch)
    async with pipeline(
        fresh_nats.url, Config(), (NormalizerService,), max_held_bytes=limit
    ) as penstock:
        flood = await opened(penstock.bus)
        stuck = StuckReason(monkeypatch, flood.run_id)
        beside = await neighbour(penstock.bus, flood.run_id)
        contents = (agno("RunContent", content=chunk) for chunk in chunks)
        await write(flood, agno("RunStarted"), *contents, agno("RunCompleted", content="x"))
        # RAW holds the whole flood before this run's frames, and no event of the flood is
        # published.
        await write(beside, agno_text("one", "two"))
        check(await penstock.ended(beside.run_id), ["one", "two"])
        assert limit / 2 <= watched.peak_bytes <= limit
        stuck.let_go.set()
        check(await penstock.ended(flood.run_id, timeout_s=30), chunks)
    largest = max(counted_bytes(agno("RunContent", content=chunk)) for chunk in chunks)
    assert watched.peak_bytes <= limit + 2 * largest


async def test_a_normalizer_that_dies_behind_loses_nothing_of_what_it_had_not_kept(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [f"word{n} " for n in range(300)]
    fast = {"partition_ttl_s": 2.0, "partition_renew_s": 0.3, "checkpoint_s": 0.05}
    async with connected(fresh_nats.url) as bus:
        flood = await opened(bus)
        stuck = StuckReason(monkeypatch, flood.run_id)
        settings = {"max_held_bytes": 8 * KIB, **fast}
        services = (NormalizerService,)
        async with pipeline(fresh_nats.url, Config(), services, **settings):
            contents = (agno("RunContent", content=chunk) for chunk in chunks)
            await write(flood, agno("RunStarted"), *contents, agno("RunCompleted", content="x"))
            # Later frames are handled. The checkpoint only passes frames before which nothing is
            # missing.
            beside = await neighbour(bus, flood.run_id)
            await write(beside, agno_text("one"))

            async def done() -> bool:
                pattern = subjects.events_of_run(beside.run_id)
                tail = await bus.tail(streams.EVENTS, pattern)
                return tail is not None and tail.headers["ce-type"] == "lifecycle.completed"

            await eventually(done)
        stuck.let_go.set()
        async with pipeline(fresh_nats.url, Config(), services, **settings) as penstock:
            check(await penstock.ended(flood.run_id, timeout_s=30), chunks)


async def test_frames_that_were_not_kept_are_read_again_in_order(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as bus:
        writer = await opened(bus)
        for number in range(50):
            await writer.write("bytes", b"%d" % number, leg=1)
        frames = await read(bus, writer.run_id, 1, 100)
        budget = Budget(5 * counted_bytes(b"00"))
        backlog = Backlog(bus, writer.run_id, budget)
        for stored in frames[:40]:
            backlog.push(stored)
        assert budget.used_bytes <= budget.limit_bytes
        assert backlog.done_up_to == frames[0].sequence - 1
        seen = []
        while backlog:
            seen.append(await backlog.first())
            backlog.done(1)
            assert backlog.done_up_to >= seen[-1].sequence
            if len(seen) == 10:
                for stored in frames[40:]:  # more frames come while the reader is behind
                    backlog.push(stored)
        assert [stored.sequence for stored in seen] == [stored.sequence for stored in frames]
        assert budget.used_bytes == 0


async def test_a_backlog_tells_of_what_has_aged_out_and_continues(fresh_nats: NatsServer) -> None:
    # The stream holds only this run: among frames of other runs, a purged frame would count as lost
    # instead of aged out.
    async with connected(fresh_nats.url) as bus:
        writer = await opened(bus)
        for number in range(20):
            await writer.write("bytes", b"%d" % number, leg=1)
        frames = await read(bus, writer.run_id, 1, 100)
        budget = Budget(3 * counted_bytes(b"00"))
        backlog = Backlog(bus, writer.run_id, budget)
        for stored in frames:
            backlog.push(stored)
        purge = {"filter": subjects.raw_of_run(writer.run_id)}
        await bus.api(f"STREAM.PURGE.{streams.RAW}", purge)
        kept = 0
        while budget.used_bytes:
            kept += 1
            backlog.done(1)
        assert 0 < kept < len(frames)
        assert backlog.done_up_to < frames[-1].sequence
        remnant = await backlog.first()
        assert remnant is backlog.remnant
        assert (remnant.sequence, remnant.payload) == (frames[-1].sequence, b"")
        last = await writer.write("bytes", b"new", leg=1)
        backlog.push((await read(bus, writer.run_id, last, 1))[0])
        backlog.done(1)
        assert backlog.remnant is None
        assert (await backlog.first()).payload == b"new"
        backlog.done(1)
        assert not backlog


@pytest.mark.parametrize("waiting", [1, 3])
async def test_a_run_of_which_the_rest_aged_out_while_it_had_to_wait_ends_and_says_so(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    async with pipeline(fresh_nats.url, Config(), (NormalizerService,)) as penstock:
        bus = penstock.bus
        flood = await opened(bus)
        stuck = StuckReason(monkeypatch, flood.run_id)
        beside = await neighbour(bus, flood.run_id)
        for body in (agno("RunStarted"), agno("RunContent", content="one")):
            await flood.write("bytes", body, leg=1)
        await write(beside, agno_text("one"))
        check(await penstock.ended(beside.run_id), ["one"])
        monkeypatch.setattr(Budget, "admits", lambda budget, held_bytes: held_bytes == 0)
        contents = (agno("RunContent", content=f"{n}") for n in range(1, waiting))
        await write(flood, *contents)
        last = await neighbour(bus, flood.run_id)
        await write(last, agno_text("two"))
        check(await penstock.ended(last.run_id), ["two"])
        await bus.api(f"STREAM.PURGE.{streams.RAW}")
        stuck.let_go.set()
        events = await penstock.ended(flood.run_id)
        assert [event.sequence for event in events] == [*range(1, len(events) + 1)]
        assert [e.data["content"] for e in events if e.type == "llm.stream"] == ["one"]
        assert events[-1].data["code"] == "history_lost"
        await penstock.record(flood.run_id, "failed")


def test_a_frame_of_tiny_events_is_folded_piece_by_piece() -> None:
    """All events of this frame of 4 MiB at once would take 800 MB."""
    made = Frames()
    fold = RunFold("01a1f8c3-1007-77dc-be51-6f2ae3b9b92e", DECODERS)
    fold.feed(made.open())
    tiny = f"data: {json.dumps({'event': 'X'})}\n\n".encode()
    events = fold.events(made.bytes(tiny * 200_000))
    first = next(events)
    assert isinstance(first, CanonicalEvent)
    assert first.type == "custom.event"
    assert fold.sequence == 2  # only the requested events were made
    assert sum(1 for _ in events) == 199_999


async def test_a_run_that_has_ended_leaves_memory_before_one_that_is_idle(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ended run that stayed as long as an idle run would need memory.

    All of 5,000 short runs in a minute would still be in memory at its end.
    """
    monkeypatch.setattr("penstock_normalizer.partitions.open_runs.ENDED_IDLE_S", 0.1)

    async with pipeline(
        nats_server.url, Config(), (NormalizerService,), checkpoint_s=0.1
    ) as penstock:
        ends, waits = await opened(penstock.bus), await opened(penstock.bus)
        await write(ends, agno_text("one"))
        await penstock.ended(ends.run_id)
        await penstock.events_until(waits.run_id, "lifecycle.started")

        async def only_one_is_left() -> bool:
            runs = {run.run_id for run in gc.get_objects() if isinstance(run, Run)}
            return {ends.run_id, waits.run_id} & runs == {waits.run_id}

        await eventually(only_one_is_left)
        await write(waits, agno_text("two"))
        check(await penstock.ended(waits.run_id), ["two"])


async def test_many_short_frames_of_one_run_go_out_together(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    append = fence.append

    async def counted(bus: Bus, pattern: str, batch: Sequence[Message], last: int) -> int:
        batches.append(len(batch))
        return await append(bus, pattern, batch, last)

    chunks = [f"{n} " for n in range(1000)]
    async with connected(fresh_nats.url) as bus:
        writer = await opened(bus)
        contents = (agno("RunContent", content=chunk) for chunk in chunks)
        await write(writer, agno("RunStarted"), *contents, agno("RunCompleted", content="x"))
        monkeypatch.setattr(fence, "append", counted)
        async with pipeline(fresh_nats.url, Config(), (NormalizerService,)) as penstock:
            events = await penstock.ended(writer.run_id)
    check(events, chunks)
    assert len(batches) < len(chunks) / 5
    raw = [int(event.headers["Penstock-Raw"]) for event in events]
    assert len(set(raw)) > len(chunks)  # each event names the frame that it came from
    assert raw == sorted(raw)


async def test_a_read_gives_one_message_that_is_larger_than_what_was_asked_for(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server.url) as bus:
        writer = await opened(bus)
        for _ in range(3):
            await writer.write("bytes", bytes(200 * KIB), leg=1)
        pattern = subjects.raw_of_run(writer.run_id)
        found, pending = await direct.read(
            bus, streams.RAW, pattern, writer.last, max_bytes=10 * KIB
        )
        assert [len(stored.payload) for stored in found] == [200 * KIB]
        assert pending == 0
        first, left = await direct.read(bus, streams.RAW, pattern, 1, max_bytes=10 * KIB)
        assert len(first) < 3
        assert left > 0


async def test_a_frame_over_the_limit_in_parts_ends_its_run_with_limit(
    nats_server: NatsServer,
) -> None:
    async with pipeline(
        nats_server.url, Config(), (NormalizerService,), max_frame_bytes=2 * KIB * KIB
    ) as penstock:
        writer = await opened(penstock.bus)
        large: Any = agno("RunContent", content="x" * 3 * KIB * KIB)
        await write(writer, agno("RunStarted"), large, agno("RunCompleted", content="x"))
        events = await penstock.ended(writer.run_id)
    assert events[-1].type == "lifecycle.failed"
    assert events[-1].data["code"] == "limit"
