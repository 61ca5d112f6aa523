"""A follower delivers each event of a run once and in order, although live messages are lost."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bus import Bus, Follow, Followed, Incoming, RawWriter, Stored, streams, subjects
from penstock.bus.budget import counted_bytes
from penstock.bus.read import direct
from penstock.bus.read.follow import events, raw
from penstock.bus.write.fence import MAX_MESSAGE_BYTES
from support.drive.bus import connected, event, new_run_id, publish_events
from support.drive.waiting import eventually
from support.real.nats import NatsServer


class Delivered:
    """Collect what a follower delivers, and wait for more."""

    def __init__(self) -> None:
        self.messages: list[Stored] = []

    def __call__(self, batch: list[Stored]) -> None:
        assert batch
        self.messages += batch

    @property
    def numbers(self) -> list[int]:
        return [int(stored.payload) for stored in self.messages]

    async def until(self, count: int, timeout_s: float = 30) -> list[int]:
        async def enough() -> bool:
            return len(self.messages) >= count

        await eventually(enough, timeout_s, f"{count} messages delivered")
        return self.numbers


@asynccontextmanager
async def following(
    bus: Bus, followed: Followed, start: int = 1, probe_s: float = 5
) -> AsyncIterator[tuple[Delivered, Follow]]:
    delivered = Delivered()
    follow = Follow(bus, followed, start, delivered, probe_s)
    await follow.start()
    try:
        yield delivered, follow
    finally:
        await follow.stop()


async def test_the_past_and_what_comes_are_delivered_once_and_in_order(
    bus: Bus, run_id: str
) -> None:
    await publish_events(bus, run_id, 1, 20)
    async with following(bus, events(run_id)) as (delivered, _):
        await publish_events(bus, run_id, 21, 40)
        assert await delivered.until(40) == [*range(1, 41)]


async def test_a_run_that_begins_later_is_followed(bus: Bus, run_id: str) -> None:
    async with following(bus, events(run_id)) as (delivered, _):
        await publish_events(bus, run_id, 1, 5)
        assert await delivered.until(5) == [1, 2, 3, 4, 5]


async def test_what_comes_while_the_past_is_read_is_kept_to_a_limit_and_not_lost(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.bus.read.follow.MAX_EARLY_BYTES", 5 * counted_bytes(b"000"))
    reading = asyncio.Event()

    async def waits(*arguments: Any) -> Any:
        found = await direct.read(*arguments)
        await reading.wait()
        return found

    monkeypatch.setattr("penstock.bus.read.follow.read", waits)
    await publish_events(bus, run_id, 1, 20)
    # The probe interval is so long that a probe cannot be what finds the remaining events.
    async with following(bus, events(run_id), probe_s=60) as (delivered, followed):
        await publish_events(bus, run_id, 21, 100)

        async def came() -> bool:
            return followed._left_out

        await eventually(came)
        assert len(followed._early) <= 6
        reading.set()
        assert await delivered.until(100) == [*range(1, 101)]


async def test_what_is_published_while_the_past_is_read_is_not_lost(bus: Bus, run_id: str) -> None:
    publishing = asyncio.create_task(publish_events(bus, run_id, 1, 300))
    async with following(bus, events(run_id)) as (delivered, _):
        await publishing
        assert await delivered.until(300) == [*range(1, 301)]


async def test_following_begins_in_the_middle(bus: Bus, run_id: str) -> None:
    sequences = await publish_events(bus, run_id, 1, 10)
    async with following(bus, events(run_id), start=sequences[5]) as (delivered, _):
        await publish_events(bus, run_id, 11, 12)
        assert await delivered.until(7) == [6, 7, 8, 9, 10, 11, 12]


async def test_following_after_the_end_waits_for_what_comes(bus: Bus, run_id: str) -> None:
    *_, last = await publish_events(bus, run_id, 1, 3)
    async with following(bus, events(run_id), start=last + 1) as (delivered, _):
        await publish_events(bus, run_id, 4, 5)
        assert await delivered.until(2) == [4, 5]


async def test_other_runs_are_not_delivered(bus: Bus, run_id: str) -> None:
    async with following(bus, events(run_id)) as (delivered, _):
        await publish_events(bus, new_run_id(), 1, 5)
        await publish_events(bus, run_id, 1, 2)
        assert await delivered.until(2) == [1, 2]


async def test_events_of_an_atomic_batch_are_followed(bus: Bus, run_id: str) -> None:
    async with following(bus, events(run_id)) as (delivered, _):
        await publish_events(bus, run_id, 1, 1)
        await bus.publisher.publish_batch([event(run_id, n) for n in range(2, 700)])
        assert await delivered.until(699) == [*range(1, 700)]


async def test_source_frames_are_followed_and_parts_put_together(bus: Bus, run_id: str) -> None:
    writer = await RawWriter.resume(bus, run_id, "upstream", "pod/1")
    await writer.write("open", b"1", leg=1)
    large = bytes(range(256)) * 5000
    async with following(bus, raw(run_id, "upstream")) as (delivered, _):
        await writer.write("bytes", b"2", leg=1)
        await writer.write("bytes", large, leg=1)
        await writer.write("end", b"3", leg=1)
        parts = -(-len(large) // MAX_MESSAGE_BYTES)

        async def all_of_it() -> bool:
            return len(delivered.messages) == 3 + parts

        await eventually(all_of_it)
    payloads = [stored.payload for stored in delivered.messages]
    assert b"".join(payloads[2:-1]) == large
    assert [*payloads[:2], payloads[-1]] == [b"1", b"2", b"3"]


async def test_frames_of_another_writer_are_not_delivered(bus: Bus, run_id: str) -> None:
    edge = await RawWriter.resume(bus, run_id, "edge", "pod/1")
    upstream = await RawWriter.resume(bus, run_id, "upstream", "pod/1")
    async with following(bus, raw(run_id, "upstream")) as (delivered, _):
        await edge.write("event", b"0", leg=1)
        await upstream.write("open", b"1", leg=1)
        await upstream.write("end", b"2", leg=1)
        assert await delivered.until(2) == [1, 2]


class Lossy:
    """Drop live messages by their number, as a slow reader or a reconnect would."""

    def __init__(self, follow: Follow, monkeypatch: pytest.MonkeyPatch, lost: set[int]) -> None:
        assert follow._listener is not None
        take = follow._on_live
        self.dropped: set[int] = set()

        def on_live(msg: Incoming) -> None:
            if int(msg.data) in lost:
                self.dropped.add(int(msg.data))
            else:
                take(msg)

        monkeypatch.setattr(follow._listener, "deliver", on_live)


@pytest.mark.parametrize("kind", ["events", "raw"])
async def test_a_live_message_that_is_lost_is_read_from_the_stream(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    followed = events(run_id) if kind == "events" else raw(run_id, "upstream")
    writer = await RawWriter.resume(bus, run_id, "upstream", "pod/1")
    gaps = bus.jetstream.gaps

    async def publish(first: int, last: int) -> None:
        for number in range(first, last + 1):
            if kind == "events":
                await publish_events(bus, run_id, number, number)
            else:
                await writer.write("bytes", b"%d" % number, leg=1)

    async with following(bus, followed, probe_s=60) as (delivered, follow):
        lossy = Lossy(follow, monkeypatch, set(range(10, 200, 10)))
        await publish(1, 5)
        await delivered.until(5)
        await publish(6, 199)
        assert await delivered.until(199) == [*range(1, 200)]
    assert lossy.dropped == set(range(10, 200, 10))
    # Messages that are lost while one gap is read belong to the same repair.
    assert 1 <= bus.jetstream.gaps - gaps <= len(lossy.dropped)


async def test_the_first_message_of_a_run_that_had_none_is_no_gap(bus: Bus, run_id: str) -> None:
    gaps = bus.jetstream.gaps
    async with following(bus, events(run_id), probe_s=60) as (delivered, follow):

        async def history_is_read() -> bool:
            return follow._repair is None

        await eventually(history_is_read, what="the empty history is read")
        await publish_events(bus, run_id, 1, 3)
        assert await delivered.until(3) == [1, 2, 3]
    assert bus.jetstream.gaps == gaps


@pytest.mark.parametrize("kind", ["events", "raw"])
async def test_the_last_message_is_found_by_a_probe_when_it_was_lost(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    followed = events(run_id) if kind == "events" else raw(run_id, "upstream")
    writer = await RawWriter.resume(bus, run_id, "upstream", "pod/1")
    async with following(bus, followed, probe_s=0.1) as (delivered, follow):
        Lossy(follow, monkeypatch, {1, 2, 3})
        for number in (1, 2, 3):
            await publish_events(bus, run_id, number, number)
            await writer.write("bytes", b"%d" % number, leg=1)
        assert await delivered.until(3) == [1, 2, 3]


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """Run one server for all examples of a Hypothesis test."""
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder) / "nats")
        server.start()
        yield server
        server.remove()


@settings(max_examples=25)
@given(
    lost=st.sets(st.integers(1, 30)),
    past=st.integers(0, 10),
    start=st.integers(1, 8),
    batches=st.lists(st.integers(1, 8), min_size=1, max_size=4),
)
def test_whatever_is_lost_everything_is_delivered_once_and_in_order(
    server: NatsServer, lost: set[int], past: int, start: int, batches: list[int]
) -> None:
    async def scenario() -> None:
        run_id = new_run_id()
        with pytest.MonkeyPatch.context() as monkeypatch:
            async with connected(server.url) as bus:
                sequences = await publish_events(bus, run_id, 1, past)
                first = min(start, past + 1)
                at = sequences[first - 1] if first <= past else (sequences or [0])[-1] + 1
                async with following(bus, events(run_id), at, 0.05) as (delivered, follow):
                    Lossy(follow, monkeypatch, lost)
                    number = past
                    for size in batches:
                        batch = [event(run_id, number + n) for n in range(1, size + 1)]
                        await bus.publisher.publish_batch(batch)
                        number += size
                    expected = [*range(first, number + 1)]
                    assert await delivered.until(len(expected)) == expected

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_nothing_is_lost_or_repeated_over_restarts_of_the_server(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str, how: str
) -> None:
    writer = await RawWriter.resume(own_bus, run_id, "upstream", "pod/1")
    number = 0

    async def write(count: int) -> None:
        nonlocal number
        for _ in range(count):
            number += 1
            await writer.write("bytes", b"%d" % number, leg=1)

    async with following(own_bus, raw(run_id, "upstream")) as (delivered, _):
        for _ in range(2):
            writing = asyncio.create_task(write(200))
            await delivered.until(number + 50)
            await asyncio.to_thread(getattr(fresh_nats, how))
            await asyncio.to_thread(fresh_nats.start)
            await writing
        assert await delivered.until(400) == [*range(1, 401)]


async def test_what_was_published_while_the_follower_was_away_is_read(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    async with (
        connected(fresh_nats.url) as publisher,
        following(own_bus, events(run_id), probe_s=60) as (delivered, _),
    ):
        await publish_events(publisher, run_id, 1, 5)
        await delivered.until(5)
        await own_bus.client.force_reconnect()
        await publish_events(publisher, run_id, 6, 50)
        assert await delivered.until(50) == [*range(1, 51)]


async def test_many_followers_each_get_all(bus: Bus) -> None:
    runs = [new_run_id() for _ in range(10)]
    follows: list[tuple[Delivered, Follow]] = []
    for run_id in runs * 10:
        delivered = Delivered()
        follows.append((delivered, Follow(bus, events(run_id), 1, delivered)))
    await asyncio.gather(*(follow.start() for _, follow in follows))
    await asyncio.gather(*(publish_events(bus, run_id, 1, 20) for run_id in runs))
    for delivered, follow in follows:
        assert await delivered.until(20) == [*range(1, 21)]
        await follow.stop()


async def test_a_gap_in_the_stream_is_skipped_and_logged(
    bus: Bus, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    sequences = await publish_events(bus, run_id, 1, 10)
    await bus.api("STREAM.MSG.DELETE.EVENTS", {"seq": sequences[4]})
    async with following(bus, events(run_id)) as (delivered, _):
        await publish_events(bus, run_id, 11, 11)
        assert await delivered.until(10) == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert f"no message is left between {sequences[3]} and {sequences[5]}" in caplog.text


async def test_after_stop_nothing_is_delivered(bus: Bus, run_id: str) -> None:
    async with following(bus, events(run_id), probe_s=0.01) as (delivered, follow):
        await publish_events(bus, run_id, 1, 2)
        await delivered.until(2)
        await follow.stop()
        async with following(bus, events(run_id)) as (witness, _):
            await publish_events(bus, run_id, 3, 4)
            await witness.until(4)
        assert delivered.numbers == [1, 2]


async def test_a_delivery_that_fails_does_not_end_the_following(
    bus: Bus, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    await publish_events(bus, run_id, 1, 2)
    delivered = Delivered()
    calls = 0

    def fail_first(batch: list[Stored]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("as the test wants")
        delivered(batch)

    follow = Follow(bus, events(run_id), 1, fail_first, probe_s=0.05)
    await follow.start()

    async def failed() -> bool:
        return calls > 0

    await eventually(failed)
    await publish_events(bus, run_id, 3, 4)
    assert await delivered.until(2) == [3, 4]
    assert "as the test wants" in caplog.text
    await follow.stop()


async def test_following_makes_no_consumers(own_bus: Bus, run_id: str) -> None:
    async with following(own_bus, events(run_id)) as (delivered, _):
        await publish_events(own_bus, run_id, 1, 3)
        await delivered.until(3)
        info = await own_bus.api("STREAM.INFO.EVENTS")
        assert info["state"]["consumer_count"] == 0


def test_what_is_followed_is_what_is_stored_and_republished() -> None:
    run_id = new_run_id()
    assert events(run_id).stream == streams.EVENTS
    assert events(run_id).live == f"live.{subjects.events_of_run(run_id)}"
    assert raw(run_id, "edge").pattern == f"rawp.*.{run_id}.edge"
    assert raw(run_id, "edge").live == f"frames.{run_id}.edge"
