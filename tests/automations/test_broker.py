"""FastStream's subscribers work on the bus's connection, and lose and repeat nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.bus import Bus, Message, Msg, streams, subjects
from penstock_automations.broker import Broker, Consumer, Taken, declare
from support.drive.bus import connected, new_run_id
from support.drive.waiting import eventually
from support.real.nats import NatsServer, login


@pytest.fixture
def consumer() -> Consumer:
    return Consumer(streams.DELIVERIES, "automations", ("delivery.*.*",), ack_wait_s=2)


async def publish(bus: Bus, count: int) -> None:
    run_id = new_run_id()
    for number in range(count):
        subject = subjects.delivery("rule", run_id, number + 1)
        await bus.publisher.publish(Message(subject, b"%d" % number, {}))


async def came(found: Sequence[object], count: int) -> None:
    async def enough() -> bool:
        return len(found) >= count

    await eventually(enough, what=f"{count} messages")


async def test_batches_come_in_order_and_each_message_once(
    fresh_nats: NatsServer, consumer: Consumer
) -> None:
    async with connected(fresh_nats.url, **login("operator")):
        pass  # makes the streams
    async with connected(fresh_nats.url, **login("automations")) as bus:
        await declare(bus, consumer)
        broker = Broker(bus, 1)
        found: list[bytes] = []

        async def handle(batch: Sequence[Taken]) -> None:
            assert len(batch) <= 7
            for taken in batch:
                found.append(taken.stored.payload)
                await taken.ack()

        broker.batches(consumer, 7, handle)
        async with broker:
            await publish(bus, 50)
            await came(found, 50)
        assert found == [b"%d" % number for number in range(50)]
        assert bus.is_ready, "the broker must not close the bus's connection"
        await publish(bus, 1)
        assert len(found) == 50


async def test_messages_that_wait_come_in_batches_and_a_quiet_subscriber_rarely_asks(
    fresh_nats: NatsServer, consumer: Consumer
) -> None:
    async with connected(fresh_nats.url) as bus:
        await declare(bus, consumer)
        await publish(bus, 50)
        broker = Broker(bus, 1)
        sizes: list[int] = []
        requests: list[bytes] = []

        async def handle(batch: Sequence[Taken]) -> None:
            sizes.append(len(batch))
            await asyncio.sleep(0.05)  # the next batch arrives meanwhile
            for taken in batch:
                await taken.ack()

        async def on_request(msg: Msg) -> None:
            requests.append(msg.data)

        async def all_came() -> bool:
            return sum(sizes) == 50

        broker.batches(consumer, 20, handle)
        async with broker:
            await eventually(all_came, what="all messages")
            assert max(sizes) <= 20
            assert len(sizes) < 10
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.durable}"
            await bus.subscribe(subject, on_request)
            await asyncio.sleep(2)
            assert len(requests) <= 1


async def test_what_was_fetched_and_not_handled_is_given_back_at_the_end(
    fresh_nats: NatsServer,
) -> None:
    slow = Consumer(streams.DELIVERIES, "automations", ("delivery.*.*",), ack_wait_s=60)
    async with connected(fresh_nats.url) as bus:
        await declare(bus, slow)
        await publish(bus, 10)
        found: list[bytes] = []
        first = Broker(bus, 1)
        begun = asyncio.Event()

        async def hold(batch: Sequence[Taken]) -> None:
            begun.set()
            await asyncio.sleep(0.5)
            for taken in batch:
                found.append(taken.stored.payload)
                await taken.ack()

        first.batches(slow, 3, hold)
        async with first, asyncio.timeout(30):
            await begun.wait()
        assert 0 < len(found) <= 3, "the batch that was begun is finished"
        second = Broker(bus, 1)
        second.batches(slow, 10, hold)
        async with second:
            await came(found, 10)
        assert sorted(found) == sorted(b"%d" % number for number in range(10))


async def test_messages_on_their_way_while_a_broker_stops_are_given_back_at_once(
    fresh_nats: NatsServer,
) -> None:
    slow = Consumer(streams.DELIVERIES, "automations", ("delivery.*.*",), ack_wait_s=60)
    async with connected(fresh_nats.url) as bus, connected(fresh_nats.url) as other:
        await declare(bus, slow)
        found: list[bytes] = []

        async def handle(batch: Sequence[Taken]) -> None:
            for taken in batch:
                found.append(taken.stored.payload)
                await taken.ack()

        async def info(field: str, value: int) -> bool:
            call = f"CONSUMER.INFO.{slow.stream}.{slow.durable}"
            return bool((await other.api(call))[field] == value)

        first = Broker(bus, 1)
        first.batches(slow, 10, handle)
        await first.start()
        await eventually(lambda: info("num_waiting", 1), what="a request for messages")
        bus.client._wire.hold()  # messages wait in the socket
        await publish(other, 5)
        await eventually(lambda: info("num_ack_pending", 5), what="that the server has sent them")
        stopping = asyncio.create_task(first.stop())
        await asyncio.sleep(0.2)
        bus.client._wire.release()
        await stopping
        assert found == []
        second = Broker(other, 1)
        second.batches(slow, 10, handle)
        async with second:
            await came(found, 5)


async def test_no_more_is_fetched_than_there_is_room_for(fresh_nats: NatsServer) -> None:
    slow = Consumer(streams.DELIVERIES, "automations", ("delivery.*.*",), ack_wait_s=60)
    async with connected(fresh_nats.url) as bus:
        await declare(bus, slow)
        await publish(bus, 30)
        under_way: list[Taken] = []
        broker = Broker(bus, 1)

        async def handle(batch: Sequence[Taken]) -> None:
            under_way.extend(batch)

        more = broker.batches(slow, 8, handle, room=lambda: 8 - len(under_way))
        async with broker:
            for done in range(0, 30, 5):
                await came(under_way, min(8, 30 - done))
                info = await bus.api(f"CONSUMER.INFO.{slow.stream}.{slow.durable}")
                assert info["num_ack_pending"] <= 8
                for taken in under_way[:5]:
                    await taken.ack()
                del under_way[:5]
                more()


async def test_a_message_that_is_given_back_comes_again_and_one_that_is_held_does_not(
    fresh_nats: NatsServer, consumer: Consumer
) -> None:
    async with connected(fresh_nats.url) as bus:
        await declare(bus, consumer)
        broker = Broker(bus, 5)
        deliveries: list[tuple[bytes, int]] = []
        done = asyncio.Event()

        async def handle(taken: Taken) -> None:
            deliveries.append((taken.stored.payload, taken.stored.delivered))
            if taken.stored.delivered == 1 and taken.stored.payload == b"0":
                await taken.give_back(0.05)
                return
            for _ in range(5):  # longer than the server waits for an answer
                await asyncio.sleep(0.6)
                await taken.working()
            await taken.ack()
            if taken.stored.payload == b"0":
                done.set()

        broker.messages(consumer, handle)
        async with broker, asyncio.timeout(20):
            await publish(bus, 2)
            await done.wait()
        assert sorted(deliveries) == [(b"0", 1), (b"0", 2), (b"1", 1)]


async def test_a_consumer_gets_other_subjects_while_a_subscriber_runs(
    fresh_nats: NatsServer,
) -> None:
    def consumer(*patterns: str) -> Consumer:
        return Consumer(streams.DELIVERIES, "automations", patterns, ack_wait_s=5)

    async with connected(fresh_nats.url) as bus:
        await declare(bus, consumer("delivery.nothing.nothing"))
        broker = Broker(bus, 1)
        found: list[str] = []

        async def handle(batch: Sequence[Taken]) -> None:
            for taken in batch:
                found.append(taken.stored.subject.split(".")[1])
                await taken.ack()

        broker.batches(consumer("delivery.nothing.nothing"), 10, handle)
        async with broker:
            await declare(bus, consumer("delivery.wanted.*", "delivery.also.*"))
            run_id = new_run_id()
            for rule in ("other", "wanted", "also"):
                message = Message(subjects.delivery(rule, run_id, 1), b"", {})
                await bus.publisher.publish(message)
            await came(found, 2)
        assert sorted(found) == ["also", "wanted"]


async def test_a_message_that_was_deleted_before_is_no_error_for_the_services_user(
    fresh_nats: NatsServer,
) -> None:
    """A process may be killed between the deletion of a due message and its acknowledgement."""
    async with connected(fresh_nats.url, **login("operator")) as operator:
        subject = subjects.due("automations", f"rule.{new_run_id()}-1")
        sequence = await operator.publisher.publish(Message(subject, b"", {}))
        async with connected(fresh_nats.url, **login("automations")) as bus:
            assert await bus.delete(streams.SCHEDULES, sequence)
            assert not await bus.delete(streams.SCHEDULES, sequence)
