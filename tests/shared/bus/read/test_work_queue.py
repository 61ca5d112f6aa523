"""Each command is handled until it is done, by any of the processes that take commands."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.bus import (
    Bus,
    BusUnavailable,
    Consumer,
    Message,
    NeverFinished,
    Retry,
    Stored,
    StreamFull,
    WorkQueue,
    streams,
)
from penstock.bus.read import work_queue
from penstock.bus.state import attempts
from penstock.bus.state.attempts import Attempts
from penstock.bus.subjects import MAX_DELIVERIES
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.real.nats import NatsServer

# Handles a command in a process, with the limits of attempts in its arguments: the command `poison`
# kills the process, and another command is still being handled at that moment.
_DIES = """
import asyncio, os, signal, sys
from penstock.bus import Bus, BusSettings, Consumer, WorkQueue
from penstock.bus.state import attempts

async def handle(stored):
    if stored.payload == b"poison":
        await asyncio.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(30)

async def main(url, target, uncounted, unsurvived):
    attempts.UNCOUNTED, attempts.MAX_UNSURVIVED = int(uncounted), int(unsurvived)
    bus = await Bus.connect(BusSettings(url=url))
    patterns = (f"command.{target}.start.*",)
    counter = attempts.Attempts(bus, target)
    consumer = Consumer(stream="COMMANDS", durable=target, subjects=patterns, ack_wait_s=1)
    await WorkQueue(bus, consumer, handle, give_up=handle, attempts=counter).run()

asyncio.run(main(*sys.argv[1:]))
"""


class Commands:
    """Send and take commands of a kind that only this test uses."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.target = f"t{secrets.token_hex(6)}"
        self.handled: list[bytes] = []
        self.given_up: list[tuple[bytes, str]] = []

    async def send(self, *payloads: bytes) -> None:
        for payload in payloads:
            await self.bus.publisher.publish(Message(f"command.{self.target}.start.x", payload, {}))

    async def note(self, stored: Stored) -> None:
        self.handled.append(stored.payload)

    async def give_up(self, stored: Stored, error: Exception) -> None:
        self.given_up.append((stored.payload, str(error)))

    def queue(
        self,
        handle: Callable[[Stored], Awaitable[None]] | None = None,
        bus: Bus | None = None,
        *,
        give_up: Callable[[Stored, Exception], Awaitable[None]] | None = None,
        counts_attempts: bool = True,
        **settings: Any,
    ) -> WorkQueue:
        consumer = Consumer(
            stream=streams.COMMANDS,
            durable=self.target,
            subjects=(f"command.{self.target}.start.*",),
            **settings,
        )
        return WorkQueue(
            bus or self.bus,
            consumer,
            handle or self.note,
            give_up=give_up or self.give_up,
            attempts=Attempts(self.bus, self.target) if counts_attempts else None,
        )

    @asynccontextmanager
    async def taken(
        self, *arguments: Any, max_deliver: int | None = None, **settings: Any
    ) -> AsyncIterator[asyncio.Task[None]]:
        queue = self.queue(*arguments, **settings)
        with pytest.MonkeyPatch.context() as patch:
            if max_deliver is not None:
                patch.setattr(work_queue, "MAX_DELIVER", max_deliver)
            async with running(queue) as task:
                yield task

    async def left(self) -> int:
        info = await self.bus.api(
            "STREAM.INFO.COMMANDS", {"subjects_filter": f"command.{self.target}.>"}
        )
        return sum(info["state"].get("subjects", {}).values())

    async def empty(self) -> None:
        async def nothing_left() -> bool:
            return await self.left() == 0

        await eventually(nothing_left, 30, "the queue is empty")

    async def until(self, count: int) -> list[bytes]:
        async def enough() -> bool:
            return len(self.handled) >= count

        await eventually(enough, 30, f"{count} commands handled")
        return self.handled


@asynccontextmanager
async def running(queue: WorkQueue) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(queue.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def commands(bus: Bus) -> Commands:
    return Commands(bus)


async def test_what_is_handled_is_gone(commands: Commands) -> None:
    await commands.send(b"before")
    async with commands.taken():
        await commands.send(b"after")
        await commands.empty()
    assert sorted(commands.handled) == [b"after", b"before"]


async def test_a_command_that_cannot_be_handled_now_comes_again(commands: Commands) -> None:
    async def handle(stored: Stored) -> None:
        await commands.note(stored)
        if len(commands.handled) < 8:  # more often than a poison message may be delivered
            raise Retry(0.01)

    async with commands.taken(handle):
        await commands.send(b"x")
        await commands.empty()
    assert commands.handled == [b"x"] * 8
    assert commands.given_up == []


async def test_to_wait_is_no_failed_attempt(commands: Commands) -> None:
    """Seven attempts end in a wait and one fails: one failure is no reason to give up a command."""

    async def handle(stored: Stored) -> None:
        await commands.note(stored)
        if len(commands.handled) < 8:
            raise Retry(0.01)
        if len(commands.handled) == 8:
            raise ValueError("as the test wants")

    async with commands.taken(handle, max_deliver=2):
        await commands.send(b"x")
        await commands.empty()
    assert commands.handled == [b"x"] * 9
    assert commands.given_up == []


async def test_a_stopping_connector_gives_back_the_commands_that_wait(commands: Commands) -> None:
    waiting = asyncio.Event()

    async def handle(stored: Stored) -> None:
        waiting.set()
        raise Retry(60)

    async with commands.taken(handle):
        await commands.send(b"x")
        await waiting.wait()
    async with commands.taken():
        # the command comes long before ack_wait has passed
        assert await commands.until(1) == [b"x"]


async def test_what_kills_each_process_is_given_up_and_what_was_beside_it_is_handled(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process that takes the commands is a real process, which a real SIGKILL ends."""
    monkeypatch.setattr(attempts, "UNCOUNTED", 1)
    monkeypatch.setattr(attempts, "MAX_UNSURVIVED", 2)
    await commands.send(b"poison", b"innocent")
    for _ in range(3):  # the first process records no attempt
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _DIES),
            *(commands.bus.settings.url, commands.target, "1", "2"),
        )
        async with asyncio.timeout(60):
            assert await process.wait() == -signal.SIGKILL
    async with commands.taken(ack_wait_s=1):
        await commands.empty()
    assert commands.handled == [b"innocent"]
    [(payload, message)] = commands.given_up
    assert payload == b"poison"
    assert "delivered 3 times and never finished" in message
    assert len(await commands.bus.bucket("claims").keys(f"attempts.{commands.target}.>")) == 1


async def test_a_process_killed_by_something_else_is_no_failed_attempt(
    commands: Commands,
) -> None:
    await taken_and_left(commands, 3)
    async with commands.taken(ack_wait_s=1, max_deliver=1):
        await commands.empty()
    assert commands.handled == [b"x"]
    assert commands.given_up == []


@pytest.mark.parametrize("kills", [True, False])
async def test_where_deliveries_do_not_count_the_handler_says_what_kills(
    commands: Commands, kills: bool
) -> None:
    async def handle(stored: Stored) -> None:
        await commands.note(stored)
        assert stored.delivered == 31
        if kills:
            raise NeverFinished(30)

    await taken_and_left(commands, 30)
    async with commands.taken(handle, counts_attempts=False):
        await commands.empty()
    assert commands.handled == [b"x"]
    assert [payload for payload, _ in commands.given_up] == ([b"x"] if kills else [])


async def taken_and_left(commands: Commands, times: int) -> None:
    """Take a command this many times without acknowledging it, as processes that are killed do."""
    await commands.bus.api(
        f"CONSUMER.DURABLE.CREATE.COMMANDS.{commands.target}",
        {
            "stream_name": "COMMANDS",
            "config": {
                "durable_name": commands.target,
                "filter_subjects": [f"command.{commands.target}.start.*"],
                "ack_policy": "explicit",
                "max_ack_pending": 10_000,
            },
        },
    )
    await commands.send(b"x")
    taker = await commands.bus.jetstream.nats.pull_subscribe_bind(
        commands.target, stream="COMMANDS"
    )
    for _ in range(times):
        [taken] = await taker.fetch(1)
        await taken.nak()  # otherwise the test would wait for ack_wait
    await taker.unsubscribe()


@pytest.mark.parametrize("failures", [1, 2])
async def test_one_failure_after_many_kills_is_no_poison(commands: Commands, failures: int) -> None:
    async def handle(stored: Stored) -> None:
        await commands.note(stored)
        if len(commands.handled) <= failures:
            raise ValueError("as the test wants")

    await taken_and_left(commands, 3)
    async with commands.taken(handle, max_deliver=2):
        await commands.empty()
    assert commands.handled == [b"x", b"x"]
    assert len(commands.given_up) == failures - 1


async def test_what_cannot_even_be_given_up_is_left_to_the_server(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_queue, "SERVER_LIMIT", 3)
    failed = 0

    async def fail(stored: Stored, error: Exception | None = None) -> None:
        nonlocal failed
        failed += 1
        raise ValueError("as the test wants")

    async def told() -> Stored | None:
        return await commands.bus.tail(
            streams.ADVISORIES, f"{MAX_DELIVERIES}.COMMANDS.{commands.target}"
        )

    async with commands.taken(fail, give_up=fail, max_deliver=1, ack_wait_s=1):
        await commands.send(b"x")
        await eventually(told, 30, "an advisory")
    # In each of the three deliveries, the handler fails, and then the attempt to give up.
    # In the second delivery, the handler is called twice, since the first failure was not recorded.
    assert failed == 7


async def test_a_consumer_of_an_older_version_gets_the_limit(commands: Commands) -> None:
    await commands.bus.api(
        f"CONSUMER.DURABLE.CREATE.COMMANDS.{commands.target}",
        {
            "stream_name": "COMMANDS",
            "config": {
                "durable_name": commands.target,
                "filter_subjects": [f"command.{commands.target}.start.*"],
                "ack_policy": "explicit",
                "ack_wait": 30_000_000_000,
                "max_ack_pending": 10_000,
            },
        },
    )
    async with commands.taken():
        await commands.send(b"x")
        await commands.until(1)
        info = await commands.bus.api(f"CONSUMER.INFO.COMMANDS.{commands.target}")
    assert info["config"]["max_deliver"] == work_queue.SERVER_LIMIT


async def test_a_command_that_always_fails_is_given_up(
    commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(stored: Stored) -> None:
        await commands.note(stored)
        raise ValueError("as the test wants")

    async with commands.taken(handle, max_deliver=2):
        await commands.send(b"x")
        await commands.empty()
    assert commands.handled == [b"x", b"x"]
    assert commands.given_up == [(b"x", "as the test wants")]
    assert "Traceback" in caplog.text


async def test_a_failure_does_not_hold_up_the_others(commands: Commands) -> None:
    async def handle(stored: Stored) -> None:
        if stored.payload == b"bad":
            raise ValueError("as the test wants")
        await commands.note(stored)

    async with commands.taken(handle, max_deliver=1):
        await commands.send(b"a", b"bad", b"b")
        await commands.empty()
    assert sorted(commands.handled) == [b"a", b"b"]


async def test_a_bus_that_is_away_makes_no_poison(commands: Commands) -> None:
    async def handle(stored: Stored) -> None:
        await commands.note(stored)
        if len(commands.handled) < 2:
            raise BusUnavailable("as the test wants")

    async with commands.taken(handle, max_deliver=1):
        await commands.send(b"x")
        await commands.empty()
    assert commands.handled == [b"x", b"x"]
    assert commands.given_up == []


async def test_what_cannot_be_given_up_comes_again(commands: Commands) -> None:
    tries = 0

    async def fail(stored: Stored) -> None:
        raise ValueError("as the test wants")

    async def give_up(stored: Stored, error: Exception) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise BusUnavailable("as the test wants")

    async with commands.taken(fail, give_up=give_up, max_deliver=1, ack_wait_s=1):
        await commands.send(b"x")
        await commands.empty()
    assert tries == 2


async def test_a_handler_that_takes_long_keeps_its_command(commands: Commands) -> None:
    release = asyncio.Event()

    async def handle(stored: Stored) -> None:
        await commands.note(stored)
        await release.wait()

    witness = Commands(commands.bus)

    async def abandon(stored: Stored) -> None:
        await witness.note(stored)
        raise asyncio.CancelledError  # as if the connector's process had ended

    async with (
        commands.taken(handle, ack_wait_s=1),
        witness.taken(abandon, ack_wait_s=1),
    ):
        await commands.send(b"long")
        await witness.send(b"abandoned")
        await witness.until(3)  # twice its ack_wait has passed
        assert commands.handled == [b"long"]
        release.set()
        await commands.empty()
    assert commands.handled == [b"long"]


async def test_two_takers_share_the_work(nats_server: NatsServer, commands: Commands) -> None:
    by: dict[str, list[bytes]] = {"one": [], "two": []}

    def taker(name: str) -> Callable[[Stored], Awaitable[None]]:
        async def handle(stored: Stored) -> None:
            by[name].append(stored.payload)
            await commands.bus.client.flush()

        return handle

    async with (
        connected(nats_server.url) as other,
        commands.taken(taker("one"), at_once=2),
        commands.taken(taker("two"), bus=other, at_once=2),
    ):
        await commands.send(*(b"%d" % n for n in range(60)))
        await commands.empty()
    assert sorted(by["one"] + by["two"]) == sorted(b"%d" % n for n in range(60))
    assert by["one"]
    assert by["two"]


async def test_no_more_are_taken_than_there_is_room(commands: Commands) -> None:
    """The legs of a connector continue after the handlers of their commands have returned."""
    held: set[bytes] = set()
    most = 0

    async def handle(stored: Stored) -> None:
        nonlocal most
        await commands.bus.client.flush()  # stands for the request that claims the run
        held.add(stored.payload)
        most = max(most, len(held))
        await commands.note(stored)

    await commands.send(*(b"%d" % n for n in range(12)))
    async with commands.taken(handle, at_once=8, room=lambda: 3 - len(held)):
        for done in range(3, 13):
            await commands.until(done)
            held.pop()
    assert most == 3


async def test_no_more_are_handled_at_once_than_the_concurrency(commands: Commands) -> None:
    at_once = most = 0

    async def handle(stored: Stored) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await commands.bus.client.flush()
        at_once -= 1
        await commands.note(stored)

    await commands.send(*(b"%d" % n for n in range(100)))
    async with commands.taken(handle, at_once=4):
        await commands.until(100)
    assert 1 < most <= 4


async def test_without_room_nothing_is_taken_until_there_is(commands: Commands) -> None:
    room = 0
    asked = asyncio.Event()

    def how_much() -> int:
        asked.set()
        return room

    async with commands.taken(room=how_much):
        await commands.send(b"x")
        await asked.wait()
        assert commands.handled == []
        room = 1
        await commands.until(1)


async def test_a_cancelled_handler_finishes_the_message_that_it_has_begun(
    commands: Commands,
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def handle(stored: Stored) -> None:
        begun.set()
        await release.wait()
        await commands.note(stored)

    async with commands.taken(handle) as task:
        await commands.send(b"begun")
        await begun.wait()
        task.cancel()
        await asyncio.wait([task], timeout=0.2)
        assert not task.done()
        await commands.send(b"left for others")
        release.set()
        await asyncio.wait([task])
        assert task.cancelled()
    assert commands.handled == [b"begun"]

    async def one_left() -> bool:
        return await commands.left() == 1

    await eventually(one_left)


async def test_the_queue_survives_restarts_of_the_server(
    own_bus: Bus, fresh_nats: NatsServer
) -> None:
    commands = Commands(own_bus)
    await commands.send(*(b"%d" % n for n in range(50)))
    begun = asyncio.Event()

    async def handle(stored: Stored) -> None:
        begun.set()
        await own_bus.client.flush()
        await commands.note(stored)

    async with commands.taken(handle, at_once=2, ack_wait_s=1):
        await begun.wait()
        await asyncio.to_thread(fresh_nats.kill)
        await asyncio.to_thread(fresh_nats.start)
        await commands.send(b"after")
        await commands.empty()
    # Commands are delivered at least once: an acknowledgement may have been lost with the server.
    assert set(commands.handled) == {*(b"%d" % n for n in range(50)), b"after"}


async def test_a_queue_whose_consumer_is_deleted_makes_it_again(commands: Commands) -> None:
    async with commands.taken():
        await commands.send(b"one")
        await commands.until(1)
        await commands.bus.api(f"CONSUMER.DELETE.COMMANDS.{commands.target}")
        await commands.send(b"two")
        # `one` comes again if its acknowledgement came after the consumer was deleted.
        handled = await commands.until(2)
        if handled == [b"one", b"one"]:
            handled = (await commands.until(3))[1:]
        assert list(dict.fromkeys(handled)) == [b"one", b"two"]


async def test_messages_of_an_ended_process_are_handled_before_their_ack_wait(
    nats_server: NatsServer, commands: Commands
) -> None:
    async def hang(stored: Stored) -> None:
        taken.append(stored.payload)
        await asyncio.Event().wait()

    taken: list[bytes] = []
    queue = commands.queue(counts_attempts=False)
    async with connected(nats_server.url) as dying:
        victim = commands.queue(hang, dying, counts_attempts=False)
        task = asyncio.create_task(victim.run())
        await commands.send(b"one", b"two")

        async def both_taken() -> bool:
            return len(taken) == 2

        async def its_requests_are_gone() -> bool:
            info = await commands.bus.api(f"CONSUMER.INFO.COMMANDS.{commands.target}")
            return not info["num_waiting"]

        await eventually(both_taken)
        await dying.client.close()
        # otherwise the server may still deliver to the closed client
        await eventually(its_requests_are_gone)
        await commands.send(b"not taken yet")
        await queue.take_up()
        assert sorted(commands.handled) == [b"one", b"two"]
        for each in (task, *victim._tasks):
            each.cancel()
        await asyncio.wait([task])


async def test_a_message_that_this_process_handles_is_not_taken_twice(commands: Commands) -> None:
    goes_on = asyncio.Event()

    async def handle(stored: Stored) -> None:
        await commands.note(stored)
        await goes_on.wait()

    queue = commands.queue(handle, counts_attempts=False)
    async with running(queue):
        await commands.send(b"x")
        await commands.until(1)
        await queue.take_up()
        assert commands.handled == [b"x"]
        goes_on.set()
        await commands.empty()


async def test_a_message_that_comes_again_while_it_is_handled_is_not_begun_twice(
    commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that is suspended reports no work, so the server delivers the message again."""
    goes_on = asyncio.Event()

    async def handle(stored: Stored) -> None:
        await commands.note(stored)
        time.sleep(2.5)  # as if the process were suspended for longer than `ack_wait_s`
        await goes_on.wait()

    async def came_again() -> bool:
        return "delivered again while it is handled" in caplog.text

    async with commands.taken(handle, ack_wait_s=1):
        await commands.send(b"x")
        await eventually(came_again, 30)
        goes_on.set()
        await commands.empty()
    assert commands.handled == [b"x"]


async def test_a_handler_that_does_not_finish_in_time_is_ended_and_another_process_gets_its_message(
    commands: Commands,
) -> None:
    begun = asyncio.Event()

    async def hang(stored: Stored) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with commands.taken(hang, finish_s=0.1, ack_wait_s=60):
        await commands.send(b"x")
        await begun.wait()
    async with commands.taken():
        # the message comes long before ack_wait has passed
        assert await commands.until(1) == [b"x"]


async def test_a_refusal_of_the_bus_is_no_failure_of_the_message(
    commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning is enough: the bus may refuse requests for hours."""

    async def handle(stored: Stored) -> None:
        await commands.note(stored)
        if len(commands.handled) < 4:
            raise StreamFull("as the test wants")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_queue, "AGAIN_S", 0.01)
        async with commands.taken(handle, max_deliver=1):
            await commands.send(b"x")
            await commands.empty()
    assert commands.handled == [b"x"] * 4
    assert commands.given_up == []
    warnings = [each for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 1
