"""A writer stores each source frame once and in order, whatever happens to the bus."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from nats.aio.msg import Msg

from penstock.bus import (
    Bus,
    FenceConflict,
    Incoming,
    RawWriter,
    Stored,
    messages,
    streams,
    subjects,
)
from penstock.bus.messages import raw_frame
from penstock.bus.read import direct
from penstock.bus.write.fence import MAX_MESSAGE_BYTES
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.real.nats import NatsServer


async def writer_of(bus: Bus, run_id: str, connection: str = "pod/1") -> RawWriter:
    return await RawWriter.resume(bus, run_id, "upstream", connection)


async def stored_of(bus: Bus, run_id: str) -> list[Stored]:
    pattern = subjects.raw_of_run(run_id)
    return [stored async for stored in direct.replay(bus, streams.RAW, pattern)]


async def test_a_frame_says_where_it_belongs(bus: Bus, run_id: str) -> None:
    writer = await writer_of(bus, run_id)
    sequence = await writer.write("open", b"{}", leg=1, received="2026-11-20T10:00:00.000Z")
    [stored] = await stored_of(bus, run_id)
    frame = raw_frame(stored)
    assert (frame.run_id, frame.writer, frame.sequence) == (run_id, "upstream", sequence)
    assert (frame.kind, frame.leg, frame.connection) == ("open", 1, "pod/1")
    assert (frame.received, frame.payload, frame.part) == ("2026-11-20T10:00:00.000Z", b"{}", None)


async def test_further_headers_go_along(bus: Bus, run_id: str) -> None:
    writer = await writer_of(bus, run_id)
    await writer.write("open", leg=1, headers={"traceparent": "00-1"})
    [stored] = await stored_of(bus, run_id)
    assert stored.headers["traceparent"] == "00-1"
    assert stored.headers[messages.RECEIVED].endswith("Z")


async def test_frames_are_stored_in_the_order_of_writing(bus: Bus, run_id: str) -> None:
    writer = await writer_of(bus, run_id)
    sequences = [await writer.write("bytes", b"%d" % n, leg=1) for n in range(20)]
    stored = await stored_of(bus, run_id)
    assert [s.payload for s in stored] == [b"%d" % n for n in range(20)]
    assert [s.sequence for s in stored] == sequences


async def test_a_writer_that_resumes_appends_to_the_stored_frames(bus: Bus, run_id: str) -> None:
    await (await writer_of(bus, run_id)).write("open", leg=1)
    await (await writer_of(bus, run_id, "pod/2")).write("open", leg=2)
    assert [raw_frame(s).leg for s in await stored_of(bus, run_id)] == [1, 2]


async def test_a_writer_that_was_taken_over_can_store_nothing(bus: Bus, run_id: str) -> None:
    old = await writer_of(bus, run_id, "pod/1")
    await old.write("open", leg=1)
    new = await writer_of(bus, run_id, "pod/2")
    await new.write("lost", leg=1)
    for _ in range(2):
        with pytest.raises(FenceConflict, match="taken over"):
            await old.write("bytes", b"late", leg=1)
    assert [s.payload for s in await stored_of(bus, run_id)] == [b"", b""]


async def test_of_two_writers_that_begin_at_once_one_is_refused(bus: Bus, run_id: str) -> None:
    writers = [await writer_of(bus, run_id, f"pod/{n}") for n in range(5)]
    results = await asyncio.gather(
        *(writer.write("open", leg=1) for writer in writers), return_exceptions=True
    )
    assert sum(isinstance(result, FenceConflict) for result in results) == 4
    assert len(await stored_of(bus, run_id)) == 1


async def test_two_tasks_may_write_at_once(bus: Bus, run_id: str) -> None:
    """A leg notes a cancel by a budget while the agent's answer is still stored."""
    writer = await writer_of(bus, run_id)
    wrote: dict[int, bytes] = {}

    async def write_on(task: int) -> None:
        for number in range(50):
            payload = b"%d/%d" % (task, number)
            wrote[await writer.write("bytes", payload, leg=1)] = payload

    await asyncio.gather(write_on(0), write_on(1))
    assert {s.sequence: s.payload for s in await stored_of(bus, run_id)} == wrote
    assert len(wrote) == 100


@pytest.mark.parametrize(
    "size",
    [
        *[0, 1, MAX_MESSAGE_BYTES - 1, MAX_MESSAGE_BYTES],
        *[MAX_MESSAGE_BYTES + 1, 2 * MAX_MESSAGE_BYTES, 5_000_001],
    ],
)
async def test_a_large_frame_is_its_parts_put_together(bus: Bus, run_id: str, size: int) -> None:
    payload = random.Random(size).randbytes(size)
    writer = await writer_of(bus, run_id)
    await writer.write("bytes", payload, leg=1)
    await writer.write("end", leg=1)
    *parts, end = [raw_frame(s) for s in await stored_of(bus, run_id)]
    assert b"".join(part.payload for part in parts) == payload
    assert end.kind == "end"
    if size <= MAX_MESSAGE_BYTES:
        assert [(part.kind, part.part) for part in parts] == [("bytes", None)]
    else:
        count = -(-size // MAX_MESSAGE_BYTES)
        assert [part.part for part in parts] == [(n, count) for n in range(1, count + 1)]
        assert {part.kind for part in parts} == {"part"}


async def test_a_large_message_of_any_kind_says_what_it_is_a_part_of(bus: Bus, run_id: str) -> None:
    writer = await writer_of(bus, run_id)
    await writer.write("open", bytes(MAX_MESSAGE_BYTES + 1), leg=1)
    frames = [raw_frame(s) for s in await stored_of(bus, run_id)]
    assert [(frame.kind, frame.whole, frame.part) for frame in frames] == [
        ("part", "open", (1, 2)),
        ("part", "open", (2, 2)),
    ]
    assert all(frame.opens_run and not frame.is_body for frame in frames)


async def test_the_parts_of_a_refused_frame_are_not_there(bus: Bus, run_id: str) -> None:
    old = await writer_of(bus, run_id, "pod/1")
    await (await writer_of(bus, run_id, "pod/2")).write("open", leg=1)
    with pytest.raises(FenceConflict):
        await old.write("bytes", bytes(3 * MAX_MESSAGE_BYTES), leg=1)
    assert len(await stored_of(bus, run_id)) == 1


async def test_parts_are_seen_live_only_when_all_are_stored(bus: Bus, run_id: str) -> None:
    seen: list[Msg] = []

    async def on_frame(msg: Msg) -> None:
        seen.append(msg)

    subscription = await bus.subscribe(subjects.frames(run_id, "upstream"), on_frame)
    writer = await writer_of(bus, run_id)
    payload = bytes(3 * MAX_MESSAGE_BYTES - 7)
    await writer.write("bytes", payload, leg=1)

    async def all_seen() -> bool:
        return len(seen) == 3

    await eventually(all_seen, what="three parts")
    assert b"".join(msg.data for msg in seen) == payload
    await subscription.unsubscribe()


class Deaf:
    """Hold the acknowledgements back, so that a publish stays in flight."""

    def __init__(self, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard = asyncio.Event()
        self._deaf = True
        self._on_ack = bus.publisher._on_ack
        inbox = f"{bus.publisher._inbox}.*"
        [acks] = [sub for sub in bus.client._subs.values() if sub.subject == inbox]
        monkeypatch.setattr(acks, "deliver", self._hold)

    def _hold(self, msg: Incoming) -> None:
        if not self._deaf:
            self._on_ack(msg)
            return
        if msg.data:
            self.heard.set()

    def hear(self) -> None:
        self._deaf = False


@pytest.mark.parametrize("payload", [b"frame", bytes(2 * MAX_MESSAGE_BYTES)], ids=["one", "parts"])
async def test_a_frame_whose_acknowledgement_is_lost_is_stored_once(
    nats_server: NatsServer, run_id: str, monkeypatch: pytest.MonkeyPatch, payload: bytes
) -> None:
    """The frame keeps its connection's name if the writer gets another name meanwhile."""
    async with connected(nats_server.url, publish_timeout_s=0.5) as bus:
        writer = await writer_of(bus, run_id)
        await writer.write("open", leg=1)
        deaf = Deaf(bus, monkeypatch)
        writing = asyncio.create_task(writer.write("bytes", payload, leg=1))
        await deaf.heard.wait()
        await asyncio.gather(writing, writer.rename("pod/1.1"))
        deaf.hear()
        await writer.write("end", leg=1)
        frames = [raw_frame(s) for s in await stored_of(bus, run_id)]
    assert b"".join(f.payload for f in frames) == payload
    assert [f.kind for f in frames if f.kind != "part"][-1] == "end"
    assert {f.connection for f in frames[:-1]} == {"pod/1"}
    assert frames[-1].connection == "pod/1.1"


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_frame_in_flight_at_the_servers_end_is_stored_once(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str, how: str
) -> None:
    writer = await writer_of(own_bus, run_id)
    wrote: list[bytes] = []

    async def write_on() -> None:
        number = 0
        while True:
            await writer.write("bytes", b"%d" % number, leg=1)
            wrote.append(b"%d" % number)
            number += 1

    async def many() -> bool:
        return len(wrote) > before + 20

    writing = asyncio.create_task(write_on())
    for _ in range(3):
        before = len(wrote)
        await eventually(many, what="frames written")
        await asyncio.to_thread(getattr(fresh_nats, how))
        await asyncio.to_thread(fresh_nats.start)
    before = len(wrote)
    await eventually(many, what="frames written after the last restart")
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    stored = [s.payload for s in await stored_of(own_bus, run_id)]
    # The cancelled frame may be stored as well.
    assert stored[: len(wrote)] == wrote
    assert len(stored) <= len(wrote) + 1


async def test_a_writer_waits_while_the_bus_is_away(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    writer = await writer_of(own_bus, run_id)
    await asyncio.to_thread(fresh_nats.stop)
    writing = asyncio.create_task(writer.write("bytes", b"held back", leg=1))
    await asyncio.wait([writing], timeout=own_bus.settings.publish_timeout_s + 1)
    assert not writing.done()
    await asyncio.to_thread(fresh_nats.start)
    await writing
    assert [s.payload for s in await stored_of(own_bus, run_id)] == [b"held back"]


async def test_a_write_that_was_cancelled_in_flight_is_no_takeover(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leg is cancelled during a write; the writer can still write how the leg ended."""
    writer = await writer_of(bus, run_id)
    await writer.write("open", leg=1)
    deaf = Deaf(bus, monkeypatch)
    writing = asyncio.create_task(writer.write("bytes", b"stored", leg=1))
    await deaf.heard.wait()
    writing.cancel()
    await asyncio.wait([writing])
    deaf.hear()
    await writer.write("end", leg=1)
    frames = [raw_frame(s) for s in await stored_of(bus, run_id)]
    assert [f.kind for f in frames] == ["open", "bytes", "end"]


async def test_a_run_whose_frames_have_all_aged_out_begins_anew_at_0(
    own_bus: Bus, run_id: str
) -> None:
    writer = await writer_of(own_bus, run_id)
    await writer.write("open", leg=1)
    await writer.write("bytes", leg=1)
    await own_bus.api("STREAM.PURGE.RAW")
    await writer.write("open", leg=2)
    await writer.write("bytes", leg=2)
    assert [raw_frame(s).kind for s in await stored_of(own_bus, run_id)] == ["open", "bytes"]


async def test_a_run_of_which_a_part_has_aged_out_continues(own_bus: Bus, run_id: str) -> None:
    writer = await writer_of(own_bus, run_id)
    await writer.write("open", leg=1)
    last = await writer.write("bytes", b"old", leg=1)
    await own_bus.api("STREAM.PURGE.RAW", {"seq": last})
    await writer.write("bytes", b"new", leg=1)
    assert [s.payload for s in await stored_of(own_bus, run_id)] == [b"old", b"new"]
