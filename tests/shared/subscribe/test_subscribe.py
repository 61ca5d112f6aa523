"""Subscribers get each event in the order of its run, and give up events that always fail."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest
from faststream import FastStream

from penstock.bus.admin import subscribers
from penstock.bus.admin.migrate import reshard
from penstock.bus.admin.permissions import OPERATOR
from penstock.bus.admin.subscribers import Durable, make
from penstock.bus.shards import new_run_id as run_of_shard
from penstock.events import Data, Event
from penstock.events.lifecycle import Completed
from penstock.events.llm import ToolCall, ToolResult
from penstock.subscribe import Later, Limits, Received, Reject, StartUpError
from support.drive.bus import connected, new_run_id
from support.drive.dead_letters import all_letters, the_letter
from support.drive.waiting import eventually

from .conftest import QUICK, System, burying, came, event, running

RESULT = {"tool_call_id": "call-1", "tool": "search", "result": "found", "outcome": "ok"}


async def test_a_handler_gets_the_typed_data_of_the_event_that_its_annotation_names(
    system: System, run_id: str
) -> None:
    subscriber = system.subscriber()
    calls: list[ToolCall] = []
    texts: list[Received[Data]] = []

    @subscriber.on()
    async def tool_called(event: ToolCall) -> None:
        calls.append(event)

    @subscriber.on("custom.*")
    async def own(received: Received[Data]) -> None:
        texts.append(received)

    await system.publish(
        event(run_id, 1),
        event(run_id, 2, "llm.stream", content="Hello", message_id="m1"),
        event(run_id, 3, "custom.of_tomorrow", colour="blue"),
    )
    async with running(subscriber):
        await came(calls, 1)
        await came(texts, 1)
        await system.settled()
    assert (calls[0].tool, calls[0].tool_call_id) == ("search", "call-1")
    assert texts[0].id == f"{run_id}.3"
    assert texts[0].data.dump() == {"colour": "blue"}
    assert (texts[0].delivered, texts[0].event.type) == (1, "custom.of_tomorrow")
    assert abs(texts[0].stored_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_an_annotation_may_join_events_and_a_run_may_be_followed_alone(
    system: System, run_id: str
) -> None:
    subscriber = system.subscriber()
    both: list[ToolCall | ToolResult] = []
    one_run: list[Event] = []

    @subscriber.on()
    async def tools(event: ToolCall | ToolResult) -> None:
        both.append(event)

    @subscriber.on(f"*.*.{run_id}")
    async def of_the_run(event: Event) -> None:
        one_run.append(event)

    await system.publish(
        event(new_run_id(), 1), event(run_id, 1), event(run_id, 2, "llm.tool_result", **RESULT)
    )
    async with running(subscriber):
        await system.settled()
    assert [type(each).__name__ for each in both] == ["ToolCall", "ToolCall", "ToolResult"]
    assert [each.sequence for each in one_run] == [1, 2]


# what cannot be handled


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"null", b'{"penstock_object":"', b'{"penstock_object":"../etc.1"}', b"\xff\xfe"],
)
async def test_a_message_that_never_parses_becomes_one_dead_letter_and_does_not_come_again(
    system: System, run_id: str, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = system.subscriber()
    seen: list[int] = []

    @subscriber.on("llm.*")
    async def take(event: Event) -> None:
        seen.append(event.sequence)

    await system.store(event(run_id, 1), payload)
    await system.publish(event(run_id, 2))
    async with burying(system.bus), running(subscriber):
        found = await the_letter(system.bus, "subscriber", run_id)
        await system.settled()
    assert seen == [2]
    assert "cannot be read" in found.letter.reason
    assert found.letter.payload == payload
    assert f"run {run_id}" in caplog.text


async def test_data_that_do_not_fit_the_type_are_a_dead_letter(system: System, run_id: str) -> None:
    subscriber = system.subscriber()

    @subscriber.on()
    async def take(event: ToolCall) -> None:
        raise AssertionError(event)

    await system.publish(event(run_id, 1, tool=17))
    async with burying(system.bus), running(subscriber):
        found = await the_letter(system.bus, "subscriber", run_id)
    assert "data.tool" in found.letter.reason


async def test_a_handler_that_fails_is_called_again_after_a_delay_and_then_the_event_is_given_up(
    system: System, run_id: str
) -> None:
    subscriber = system.subscriber()
    tries: list[tuple[int, float]] = []

    @subscriber.on()
    async def take(received: Received[ToolCall]) -> None:
        tries.append((received.delivered, asyncio.get_running_loop().time()))
        raise ValueError("the database is away")

    await system.publish(event(run_id, 1))
    async with burying(system.bus), running(subscriber):
        found = await the_letter(system.bus, "subscriber", run_id)
        await system.settled()
    assert [delivered for delivered, _ in tries] == [1, 2, 3]
    assert tries[1][1] - tries[0][1] >= QUICK.retry_delays_s[0]
    assert tries[2][1] - tries[1][1] >= QUICK.retry_delays_s[1]
    assert "the database is away" in found.letter.reason
    assert len(await all_letters(system.bus)) == 1


async def test_a_handler_that_fails_once_gets_the_event_once_more_and_others_are_not_held_up(
    system: System, run_id: str
) -> None:
    subscriber = system.subscriber()
    done: list[int] = []

    @subscriber.on()
    async def take(received: Received[ToolCall]) -> None:
        if received.event.sequence == 1 and received.delivered == 1:
            raise ValueError
        done.append(received.event.sequence)

    await system.publish(*(event(run_id, number) for number in (1, 2, 3)))
    async with running(subscriber):
        await came(done, 3)
        await system.settled()
    assert sorted(done) == [1, 2, 3]
    assert done[0] == 2, "an event that comes again comes after those behind it"


async def test_a_handler_may_reject_an_event_or_ask_for_it_later(
    system: System, run_id: str
) -> None:
    subscriber = system.subscriber()
    delivered: list[int] = []

    @subscriber.on()
    async def take(received: Received[ToolCall]) -> None:
        if received.event.sequence == 1:
            raise Reject("of a customer who has left")
        delivered.append(received.delivered)
        if received.delivered == 1:
            raise Later(0.05)

    await system.publish(event(run_id, 1), event(run_id, 2))
    async with burying(system.bus), running(subscriber):
        found = await the_letter(system.bus, "subscriber", run_id)
        await came(delivered, 2)
        await system.settled()
    assert "of a customer who has left" in found.letter.reason
    assert delivered == [1, 2]


# order, and stops


async def test_events_of_one_run_are_handled_in_order_and_runs_at_the_same_time(
    system: System,
) -> None:
    limits = Limits(concurrency=8, grace_s=5)
    subscriber = system.subscriber(limits=limits)
    runs = [new_run_id() for _ in range(4)]
    seen: dict[str, list[int]] = {each: [] for each in runs}
    at_once = most = 0

    @subscriber.on()
    async def take(received: Received[ToolCall]) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        # The first event of a run takes longest. Without an order, the other events would overtake
        # it.
        await asyncio.sleep(0.2 if received.event.sequence == 1 else 0)
        seen[received.run_id].append(received.event.sequence)
        at_once -= 1

    await system.publish(*(event(each, number) for number in range(1, 6) for each in runs))
    async with running(subscriber):
        await system.settled()
    assert seen == {each: [1, 2, 3, 4, 5] for each in runs}
    assert 1 < most <= 4


async def test_a_stop_finishes_what_is_being_handled_and_repeats_nothing(
    system: System, run_id: str
) -> None:
    begun, seen = asyncio.Event(), list[int]()

    async def slowly(event: Event) -> None:
        begun.set()
        await asyncio.sleep(0.5)
        seen.append(event.sequence)

    first = system.subscriber()
    first.on("llm.*")(slowly)
    await system.publish(*(event(run_id, number) for number in range(1, 5)))
    async with running(first):
        await begun.wait()
    stopped_at = len(seen)
    assert 1 <= stopped_at < 4

    second = system.subscriber()

    @second.on("llm.*")
    async def rest(event: Event) -> None:
        seen.append(event.sequence)

    async with running(second):
        await system.settled()
    assert seen == [1, 2, 3, 4]


async def test_a_handler_that_does_not_end_in_time_is_cancelled_and_its_event_comes_again_at_once(
    system: System, run_id: str
) -> None:
    begun, delivered = asyncio.Event(), list[int]()
    first = system.subscriber(limits=Limits(grace_s=0.1))

    @first.on("llm.*")
    async def never(event: Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    await system.publish(event(run_id, 1))
    async with running(first):
        await begun.wait()
    second = system.subscriber()

    @second.on()
    async def take(received: Received[ToolCall]) -> None:
        delivered.append(received.delivered)

    async with running(second):
        await came(delivered, 1)  # the durable's ack_wait is 30 s
    assert delivered == [2]


async def test_a_long_handler_keeps_its_event(system: System, run_id: str) -> None:
    await system.bus.api(
        "CONSUMER.DURABLE.CREATE.EVENTS.impatient",
        {
            "stream_name": "EVENTS",
            "config": {**Durable("impatient").config(), "ack_wait": 1_000_000_000},
        },
    )
    subscriber = system.subscriber("impatient", user=OPERATOR)
    delivered: list[int] = []

    @subscriber.on()
    async def take(received: Received[ToolCall]) -> None:
        delivered.append(received.delivered)
        await asyncio.sleep(2.5)  # longer than twice the durable's ack_wait

    await system.publish(event(run_id, 1))
    async with running(subscriber):
        await system.settled(durable="impatient")
    assert delivered == [1]


async def test_a_nats_server_that_is_killed_loses_no_event(system: System, run_id: str) -> None:
    subscriber = system.subscriber()
    seen: set[int] = set()

    @subscriber.on("llm.*")
    async def take(event: Event) -> None:
        seen.add(event.sequence)

    await system.publish(*(event(run_id, number) for number in range(1, 6)))
    async with running(subscriber):
        await came_set(seen, 5)
        await asyncio.to_thread(system.server.kill)
        await asyncio.to_thread(system.server.start)
        async with connected(system.server.url) as bus:
            await System(system.server, bus).publish(event(run_id, 6))
        await came_set(seen, 6)
    assert seen == set(range(1, 7))


async def came_set(found: set[int], count: int) -> None:
    async def enough() -> bool:
        return len(found) >= count

    await eventually(enough, 30, f"{count} events")


# durables


@pytest.mark.parametrize("start", ["beginning", "time", "now"])
async def test_a_new_durable_begins_where_start_says_and_an_old_one_continues(
    system: System, run_id: str, start: str
) -> None:
    seen: list[int] = []

    async def take(event: Event) -> None:
        seen.append(event.sequence)

    await system.publish(event(run_id, 1))
    stored = await system.bus.tail("EVENTS", f"*.*.{run_id}")
    assert stored is not None
    assert stored.stored_at is not None
    await asyncio.sleep(0.01)
    place = datetime.fromisoformat(stored.stored_at) + timedelta(milliseconds=5)
    begin = {"beginning": "beginning", "time": place, "now": "now"}[start]
    await system.publish(event(run_id, 2))

    for _ in range(2):
        subscriber = system.subscriber("reporting", user=OPERATOR, start=begin)  # type: ignore[arg-type]
        subscriber.on("llm.*")(take)
        async with running(subscriber):
            await system.settled(durable="reporting")
            await system.publish(event(run_id, 3))
            await system.settled(durable="reporting")
    expected = {"beginning": [1, 2, 3, 3], "time": [2, 3, 3], "now": [3, 3]}[start]
    assert seen == expected


async def test_the_durable_that_start_makes_has_only_the_events_that_handlers_want(
    system: System, run_id: str
) -> None:
    for wanted in (("lifecycle.completed",), ("lifecycle.*", "lifecycle.completed", "llm")):
        subscriber = system.subscriber("reporting", user=OPERATOR, start="beginning")

        async def take(event: Event) -> None: ...

        subscriber.on(*wanted)(take)
        async with running(subscriber):
            pass
    info = await system.bus.api("CONSUMER.INFO.EVENTS.reporting")
    assert sorted(info["config"]["filter_subjects"]) == ["lifecycle.*.*", "llm.*.*"]


async def test_a_missing_durable_is_an_error_that_says_how_to_make_it(system: System) -> None:
    await system.bus.api("CONSUMER.DELETE.EVENTS.subscriber")
    subscriber = system.subscriber()

    @subscriber.on()
    async def take(event: Completed) -> None: ...

    with pytest.raises(
        StartUpError,
        match=r"penstock subscribers make subscriber --event 'lifecycle.completed'",
    ):
        await subscriber.broker.start()


async def test_a_durable_that_the_user_may_not_read_is_an_error_that_names_the_user(
    system: System,
) -> None:
    system.server.allow_violations()
    subscriber = system.subscriber("approvals")
    limits = Limits()
    assert limits.concurrency == 1

    @subscriber.on()
    async def take(event: Completed) -> None: ...

    with pytest.raises(StartUpError, match="the NATS user subscriber may not publish to"):
        await subscriber.broker.start()


async def test_a_subscriber_may_not_make_its_durable(system: System) -> None:
    system.server.allow_violations()
    await system.bus.api("CONSUMER.DELETE.EVENTS.subscriber")
    subscriber = system.subscriber(start="beginning")

    @subscriber.on()
    async def take(event: Completed) -> None: ...

    with pytest.raises(StartUpError, match=r"may not publish to .*DURABLE.CREATE"):
        await subscriber.broker.start()


async def test_a_durable_without_the_events_that_a_handler_wants_is_an_error(
    system: System,
) -> None:
    await make(system.bus, Durable("reporting", ("llm.tool_call", "approval")))
    subscriber = system.subscriber("reporting", user=OPERATOR)

    @subscriber.on()
    async def take(event: Completed) -> None: ...

    with pytest.raises(StartUpError, match=r"never delivers lifecycle.completed"):
        await subscriber.broker.start()


async def test_a_subscriber_without_handlers_is_an_error(system: System) -> None:
    with pytest.raises(StartUpError, match="no handlers"):
        await system.subscriber().broker.start()


async def test_a_durable_that_is_deleted_is_logged_and_uses_no_core(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = system.subscriber()

    @subscriber.on()
    async def take(event: Completed) -> None: ...

    async with running(subscriber):
        before = subscriber.broker.account.connection.stats["out_msgs"]
        await system.bus.api("CONSUMER.DELETE.EVENTS.subscriber")

        async def said() -> bool:
            return "EVENTS has no durable consumer subscriber" in caplog.text

        with caplog.at_level(logging.ERROR):
            await eventually(said, 30, "an error")
        assert subscriber.broker.account.connection.stats["out_msgs"] - before < 50


async def test_each_shard_is_followed_also_one_that_is_made_later(system: System) -> None:
    subscriber = system.subscriber()
    seen: list[str] = []

    @subscriber.on()
    async def take(received: Received[ToolCall]) -> None:
        seen.append(received.id)

    async with running(subscriber):
        await system.publish(event(first := new_run_id(), 1))
        await came(seen, 1)
        await reshard(system.bus, 2)
        await subscribers.ensure(system.bus)
        second = run_of_shard(1, system.bus.clock.now().timestamp())
        await system.publish(event(second, 1))
        await came(seen, 2)
    assert seen == [f"{first}.1", f"{second}.1"]


async def test_a_faststream_application_of_the_users_own_runs_the_subscriber_with_its_hooks(
    system: System, run_id: str
) -> None:
    subscriber = system.subscriber()
    said: list[str] = []
    app = FastStream(subscriber.broker, logger=None)

    @app.after_startup
    async def started() -> None:
        said.append("started")

    @app.on_shutdown
    async def stopping() -> None:
        said.append("stopping")

    @subscriber.on()
    async def take(event: ToolCall) -> None:
        said.append(event.tool)
        app.exit()

    await system.publish(event(run_id, 1))
    async with asyncio.timeout(20):
        await app.run()
    assert sorted(said) == ["search", "started", "stopping"]
    assert await system.pending() == 0
