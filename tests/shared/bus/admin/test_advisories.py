"""Each message that the server has given up becomes one dead letter, for every consumer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.bus import Bus, BusError, Stored, WorkQueue, streams
from penstock.bus.admin.advisories import ADVISORIES, handler_of_advisories
from penstock.bus.state import deadletters
from penstock.bus.state.attempts import Attempts
from penstock.bus.subjects import MAX_DELIVERIES
from support.drive.bus import connected, event, new_run_id
from support.drive.dead_letters import all_letters, publish, stored_command, the_letter
from support.drive.waiting import eventually
from support.real.nats import NatsServer
from support.real.nats_cluster import REPLICATED, cluster

NANO = 1_000_000_000


@asynccontextmanager
async def recorder(bus: Bus, ended: list[str] | None = None) -> AsyncIterator[list[Stored]]:
    """Run the recorder of given-up messages without a normalizer.

    Yields the list of messages for which the recorder could not write a dead letter.
    """
    ended = [] if ended is None else ended
    unread: list[Stored] = []

    async def store_dead_letter(service: str, stored: Stored, error: Exception) -> None:
        await deadletters.store_dead_letter(
            bus, deadletters.letter_about(service, "pod", stored, error)
        )

    async def give_up(stored: Stored, error: Exception) -> None:
        unread.append(stored)

    async def end(stored: Stored, error: Exception) -> None:
        ended.append(stored.subject)

    queue = WorkQueue(
        bus,
        ADVISORIES,
        handler_of_advisories(bus, store_dead_letter, end),
        give_up=give_up,
        attempts=Attempts(bus, "normalizer"),
    )
    task = asyncio.create_task(queue.run())
    try:
        yield unread
    finally:
        task.cancel()
        await asyncio.wait([task])


async def exhaust(bus: Bus, stream: str, durable: str, subject: str) -> None:
    """Create a consumer with `max_deliver` 1; take a message from it without an acknowledgement."""
    config: dict[str, Any] = {
        "durable_name": durable,
        "filter_subject": subject,
        "ack_policy": "explicit",
        "ack_wait": NANO // 5,
        "max_deliver": 1,
    }
    call = f"CONSUMER.DURABLE.CREATE.{stream}.{durable}"
    await bus.api(call, {"stream_name": stream, "config": config})
    inbox = bus.client.new_inbox()
    await bus.client.subscribe(inbox)

    async def told() -> Stored | None:
        # The server looks for overdue acknowledgements only when a client pulls.
        await bus.client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}",
            orjson.dumps({"batch": 1, "no_wait": True}),
            inbox,
        )
        return await bus.tail(streams.ADVISORIES, f"{MAX_DELIVERIES}.{stream}.{durable}")

    await eventually(told, 30, "an advisory")


async def done_with_advisories(bus: Bus) -> None:
    async def none_left() -> bool:
        try:
            info = await bus.api("STREAM.INFO.ADVISORIES")
        except BusError:
            return False
        return bool(info["state"]["messages"] == 0)

    await eventually(none_left, 30, "no advisory is left")


async def test_a_command_that_the_server_gave_up_is_a_letter_and_leaves_the_queue(
    own_bus: Bus,
) -> None:
    run_id = new_run_id()
    subject = f"command.connector.start.{run_id}"
    sequence = await publish(own_bus, subject, b"poison")
    await exhaust(own_bus, "COMMANDS", "connector-start", "command.connector.start.*")
    ended: list[str] = []
    async with recorder(own_bus, ended):
        found = await the_letter(own_bus, "connector", run_id)
        await done_with_advisories(own_bus)
    assert ended == [subject]
    assert (found.letter.subject, found.letter.sequence) == (subject, sequence)
    assert (found.letter.payload, found.letter.delivered) == (b"poison", 1)
    assert "NeverFinished" in found.letter.reason
    assert await stored_command(own_bus, subject) == 0


async def test_an_event_that_a_subscriber_of_ours_cannot_take_is_a_letter_and_stays(
    own_bus: Bus,
) -> None:
    run_id = new_run_id()
    sequence = await own_bus.publisher.publish(event(run_id, 1, b"an event"))
    await exhaust(own_bus, "EVENTS", "billing", "llm.>")
    ended: list[str] = []
    async with recorder(own_bus, ended):
        found = await the_letter(own_bus, "billing", run_id)
        await done_with_advisories(own_bus)
    assert ended == []
    assert found.letter.payload == b"an event"
    assert found.letter.headers["Penstock-Sequence"] == "1"
    assert await own_bus.at(streams.EVENTS, sequence) is not None


async def test_the_same_advisory_twice_is_one_letter(own_bus: Bus, fresh_nats: NatsServer) -> None:
    run_id = new_run_id()
    await own_bus.publisher.publish(event(run_id, 1))
    await exhaust(own_bus, "EVENTS", "billing", "llm.>")
    advisory = await own_bus.tail(streams.ADVISORIES, f"{MAX_DELIVERIES}.>")
    assert advisory is not None
    for _ in range(5):
        await publish(own_bus, advisory.subject, advisory.payload)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            bus = await stack.enter_async_context(connected(fresh_nats.url))
            await stack.enter_async_context(recorder(bus))
        await done_with_advisories(own_bus)
    assert len(await all_letters(own_bus)) == 1


async def test_a_message_that_was_given_up_by_its_service_already_is_one_letter(
    own_bus: Bus,
) -> None:
    run_id = new_run_id()
    subject = f"command.connector.start.{run_id}"
    sequence = await publish(own_bus, subject)
    stored = await own_bus.at(streams.COMMANDS, sequence)
    assert stored is not None
    letter = deadletters.letter_about("connector", "pod", stored, ValueError("the real reason"))
    await deadletters.store_dead_letter(own_bus, letter)
    await exhaust(own_bus, "COMMANDS", "connector-start", "command.connector.start.*")
    async with recorder(own_bus):
        await done_with_advisories(own_bus)
    found = await the_letter(own_bus, "connector", run_id)
    assert "the real reason" in found.letter.reason
    assert await stored_command(own_bus, subject) == 0


async def test_what_was_done_meanwhile_or_is_not_ours_is_no_letter(
    own_bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for stream in ("COMMANDS", "theirs"):
        advisory = {"stream": stream, "consumer": "x", "stream_seq": 99, "deliveries": 3}
        subject = f"{MAX_DELIVERIES}.{stream}.x"
        await publish(own_bus, subject, orjson.dumps(advisory))
    async with recorder(own_bus) as unread:
        await done_with_advisories(own_bus)
    assert await all_letters(own_bus) == []
    assert unread == []
    assert "message 99, which is gone" in caplog.text
    assert "the consumer x of theirs gave up a message of another stream" in caplog.text


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[NatsServer]]:
    with cluster(tmp_path) as servers:
        yield servers


@pytest.mark.chaos
async def test_of_three_replicas_whose_leader_is_killed_there_is_one_letter(
    servers: list[NatsServer],
) -> None:
    """The new leader must know which dead letters the killed leader has recorded."""
    run_id = new_run_id()
    async with AsyncExitStack() as stack:
        buses = [
            await stack.enter_async_context(connected(server.url, retention=REPLICATED))
            for server in servers
        ]
        await buses[0].publisher.publish(event(run_id, 1))
        await exhaust(buses[0], "EVENTS", "billing", "llm.>")
        advisory = await buses[0].tail(streams.ADVISORIES, f"{MAX_DELIVERIES}.>")
        assert advisory is not None
        async with recorder(buses[0]):
            await the_letter(buses[0], "billing", run_id)
            await done_with_advisories(buses[0])
        leader = str((await buses[0].api("STREAM.INFO.DEADLETTERS"))["cluster"]["leader"])
        await asyncio.to_thread(servers[int(leader.removeprefix("n"))].kill)
        left = [bus for number, bus in enumerate(buses) if f"n{number}" != leader]
        for _ in range(3):
            await again(lambda: publish(left[0], advisory.subject, advisory.payload))
        for bus in left:
            await stack.enter_async_context(recorder(bus))
        await done_with_advisories(left[0])
        assert len(await all_letters(left[0])) == 1
        info = await left[0].api("STREAM.INFO.DEADLETTERS")
    assert info["cluster"]["leader"] != leader


async def again(step: Callable[[], Awaitable[int]]) -> None:
    """Repeat the step until the cluster has a leader that stores the message."""

    async def probe() -> bool:
        try:
            await step()
        except BusError:
            return False
        return True

    await eventually(probe, 30, "a leader that stores it")
