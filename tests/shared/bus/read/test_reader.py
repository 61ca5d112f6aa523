"""A reader delivers every message of a stream once and in order, through reconnects and losses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.bus import Bus, BusUnavailable, RawWriter, Reader, Stored, streams, subjects
from penstock.bus.read.pull import Delivery
from penstock.bus.write.fence import MAX_MESSAGE_BYTES
from support.drive.bus import event, new_run_id, publish_events
from support.drive.waiting import eventually
from support.real.nats import NatsServer


class Read:
    """Collect what a reader delivers, and wait for more."""

    def __init__(self) -> None:
        self.messages: list[Stored] = []

    async def handle(self, stored: Stored) -> None:
        self.messages.append(stored)

    @property
    def numbers(self) -> list[int]:
        return [int(stored.payload) for stored in self.messages]

    async def until(self, count: int, timeout_s: float = 30) -> list[int]:
        async def enough() -> bool:
            return len(self.messages) >= count

        await eventually(enough, timeout_s, f"{count} messages read")
        return self.numbers


@asynccontextmanager
async def reading(
    bus: Bus,
    run_id: str,
    handle: Callable[[Stored], Awaitable[None]],
    *,
    start: int = 1,
    batch: int = 500,
) -> AsyncIterator[Reader]:
    """Run a reader of the run's events."""
    pattern = subjects.events_of_run(run_id)
    reader = Reader(bus, streams.EVENTS, pattern, start, handle, batch)
    task = asyncio.create_task(reader.run())
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            raise error


async def consumers(bus: Bus, stream: str = streams.EVENTS) -> list[str]:
    answer = await bus.api(f"CONSUMER.NAMES.{stream}")
    return answer["consumers"] or []


async def test_the_past_and_what_comes_are_read_once_and_in_order(bus: Bus, run_id: str) -> None:
    await publish_events(bus, run_id, 1, 10)
    read = Read()
    async with reading(bus, run_id, read.handle):
        await read.until(10)
        await publish_events(bus, run_id, 11, 20)
        assert await read.until(20) == [*range(1, 21)]


async def test_reading_begins_at_the_sequence_given(bus: Bus, run_id: str) -> None:
    sequences = await publish_events(bus, run_id, 1, 10)
    read = Read()
    async with reading(bus, run_id, read.handle, start=sequences[6]):
        assert await read.until(4) == [7, 8, 9, 10]


async def test_only_what_matches_is_read(bus: Bus, run_id: str) -> None:
    read = Read()
    async with reading(bus, run_id, read.handle):
        await publish_events(bus, new_run_id(), 1, 5)
        await publish_events(bus, run_id, 6, 7)
        assert await read.until(2) == [6, 7]


@pytest.mark.parametrize("batch", [1, 3, 64])
async def test_more_than_a_batch_is_read_in_order(bus: Bus, run_id: str, batch: int) -> None:
    for first in range(1, 301, 100):
        await bus.publisher.publish_batch([event(run_id, n) for n in range(first, first + 100)])
    read = Read()
    async with reading(bus, run_id, read.handle, batch=batch):
        assert await read.until(300) == [*range(1, 301)]


async def test_more_than_fits_into_one_request_is_read_in_order(bus: Bus, run_id: str) -> None:
    payload = bytes(MAX_MESSAGE_BYTES)
    for number in range(1, 41):  # 20 MiB in all
        await bus.publisher.publish(event(run_id, number, payload))
    read = Read()
    async with reading(bus, run_id, read.handle) as reader:

        async def opened() -> str:
            return reader._pull.consumer

        consumer = await eventually(opened)

        async def all_read() -> bool:
            return len(read.messages) == 40

        await eventually(all_read, 30, "40 large messages")
        assert reader._pull.consumer == consumer, "it had to begin again"
    numbers = [int(stored.headers["Penstock-Sequence"]) for stored in read.messages]
    assert numbers == [*range(1, 41)]


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_nothing_is_lost_or_repeated_over_restarts_of_the_server(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str, how: str
) -> None:
    writer = await RawWriter.resume(own_bus, run_id, "upstream", "pod/1")
    read = Read()
    reader = Reader(own_bus, streams.RAW, subjects.raw_of_run(run_id), 1, read.handle)
    task = asyncio.create_task(reader.run())
    number = 0

    async def write(count: int) -> None:
        nonlocal number
        for _ in range(count):
            number += 1
            await writer.write("bytes", b"%d" % number, leg=1)

    for _ in range(3):
        writing = asyncio.create_task(write(200))
        await read.until(number + 50)
        await asyncio.to_thread(getattr(fresh_nats, how))
        await asyncio.to_thread(fresh_nats.start)
        await writing
    assert await read.until(600) == [*range(1, 601)]
    task.cancel()
    await asyncio.wait([task])


async def test_nothing_is_lost_or_repeated_over_a_lost_connection(bus: Bus, run_id: str) -> None:
    read = Read()
    async with reading(bus, run_id, read.handle):
        for first in range(1, 401, 100):
            publishing = asyncio.create_task(publish_events(bus, run_id, first, first + 49))
            await publishing
            await bus.client.force_reconnect()
            await publish_events(bus, run_id, first + 50, first + 99)
        assert await read.until(400) == [*range(1, 401)]


async def test_a_consumer_that_is_deleted_is_made_again(own_bus: Bus, run_id: str) -> None:
    read = Read()
    async with reading(own_bus, run_id, read.handle):
        for number in range(1, 6):
            await publish_events(own_bus, run_id, number, number)
            await read.until(number)
            [consumer] = await consumers(own_bus)
            await own_bus.api(f"CONSUMER.DELETE.EVENTS.{consumer}")
        await publish_events(own_bus, run_id, 6, 6)
        assert await read.until(6) == [1, 2, 3, 4, 5, 6]


async def test_a_message_that_is_lost_on_the_way_is_read_again(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_events(bus, run_id, 1, 100)
    read = Read()
    dropped: set[int] = set()
    async with reading(bus, run_id, read.handle, batch=10) as reader:
        take = reader._pull._on_message

        def lossy(delivery: Delivery) -> None:
            number = int(delivery.stored.payload)
            if number % 7 == 0 and number not in dropped:
                dropped.add(number)
            else:
                take(delivery)

        monkeypatch.setattr(reader._pull, "_on_message", lossy)
        await publish_events(bus, run_id, 101, 150)
        assert await read.until(150) == [*range(1, 151)]
    assert dropped


@pytest.mark.parametrize("batch", [1, 3, 64])
async def test_a_message_that_needs_no_waiting_is_taken_as_it_arrives(
    bus: Bus, run_id: str, batch: int
) -> None:
    await publish_events(bus, run_id, 1, 100)
    read, handled = Read(), 0

    async def handle(stored: Stored) -> None:
        nonlocal handled
        handled += 1
        await asyncio.sleep(0)
        await read.handle(stored)

    def take(stored: Stored) -> bool:
        if int(stored.payload) % 10 == 0:
            return False  # it waits for `handle`, and later messages wait behind it
        read.messages.append(stored)
        return True

    pattern = subjects.events_of_run(run_id)
    task = asyncio.create_task(Reader(bus, streams.EVENTS, pattern, 1, handle, batch, take).run())
    try:
        await publish_events(bus, run_id, 101, 205)
        assert await read.until(205) == [*range(1, 206)]
        assert 20 <= handled < 205
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_slow_handler_is_read_ahead_of_by_a_batch_at_most(bus: Bus, run_id: str) -> None:
    await bus.publisher.publish_batch([event(run_id, n) for n in range(1, 201)])
    read = Read()
    most = 0
    async with reading(bus, run_id, read.handle, batch=10) as reader:
        pending = reader._pending

        async def slow(stored: Stored) -> None:
            nonlocal most
            await bus.client.flush()  # all requested messages have arrived by now
            most = max(most, len(reader._pending))
            await read.handle(stored)

        reader._handle = slow
        assert await read.until(200) == [*range(1, 201)]
    assert len(pending) <= 10
    assert 0 < most <= 10


async def test_a_handler_that_waits_for_the_bus_gets_the_message_again(
    bus: Bus, run_id: str
) -> None:
    await publish_events(bus, run_id, 1, 3)
    read = Read()
    failed = False

    async def handle(stored: Stored) -> None:
        nonlocal failed
        if stored.payload == b"2" and not failed:
            failed = True
            raise BusUnavailable("as the test wants")
        await read.handle(stored)

    async with reading(bus, run_id, handle):
        assert await read.until(3) == [1, 2, 3]
    assert failed


async def test_any_other_error_of_a_handler_ends_the_reader(bus: Bus, run_id: str) -> None:
    await publish_events(bus, run_id, 1, 1)

    async def handle(stored: Stored) -> None:
        raise ValueError("as the test wants")

    with pytest.raises(ValueError, match="as the test wants"):
        await Reader(bus, streams.EVENTS, subjects.events_of_run(run_id), 1, handle).run()


async def test_a_reader_that_ends_leaves_no_consumer(own_bus: Bus, run_id: str) -> None:
    read = Read()
    await publish_events(own_bus, run_id, 1, 1)
    async with reading(own_bus, run_id, read.handle):
        await read.until(1)
        assert len(await consumers(own_bus)) == 1

    async def none_is_left() -> bool:
        return await consumers(own_bus) == []

    await eventually(none_is_left)  # the reader does not wait until its consumer is deleted


async def test_a_reader_can_be_cancelled_at_any_moment(own_bus: Bus, run_id: str) -> None:
    await publish_events(own_bus, run_id, 1, 1)
    for turns in range(60):
        read = Read()
        pattern = subjects.events_of_run(run_id)
        task = asyncio.create_task(Reader(own_bus, streams.EVENTS, pattern, 1, read.handle).run())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        assert done, f"cancelled after {turns} turns of the loop, it goes on"


async def test_a_reader_that_hears_no_heartbeats_any_more_makes_a_new_consumer(
    bus: Bus, run_id: str
) -> None:
    read = Read()
    async with reading(bus, run_id, read.handle) as reader:
        await publish_events(bus, run_id, 1, 3)
        await read.until(3)
        before = reader._pull.consumer
        assert reader._pull._listener is not None
        reader._pull._listener.stop()  # nothing arrives from now on, as from a leader that is gone
        await publish_events(bus, run_id, 4, 5)
        assert await read.until(5) == [1, 2, 3, 4, 5]
        assert reader._pull.consumer != before


async def test_a_reader_that_must_begin_again_while_it_requests_messages_does_so(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, consumers_asked = bus.jetstream.connection, list[str]()
    publish = connection.publish

    async def breaks_the_first_request(subject: str, *args: Any) -> None:
        await publish(subject, *args)
        if ".MSG.NEXT." in subject:
            consumers_asked.append(subject)
            if len(consumers_asked) == 1:
                reader._pull.restart()

    monkeypatch.setattr(connection, "publish", breaks_the_first_request)
    read = Read()
    async with reading(bus, run_id, read.handle) as reader:

        async def asks_another() -> bool:
            return len(set(consumers_asked)) > 1

        await eventually(asks_another, 10, "a request to a new consumer")
