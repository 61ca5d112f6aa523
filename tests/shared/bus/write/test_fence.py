"""The fence stores nothing twice, whichever process writes and whichever answers are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from penstock.bus import Bus, FenceConflict, Message, streams, subjects
from penstock.bus.messages import EXPECTED_SEQUENCE
from penstock.bus.read import direct
from penstock.bus.write import fence
from penstock.bus.write.publisher import EXPECTED_SUBJECT, error_of
from support.drive.bus import connected, event, new_run_id
from support.real.nats import NatsServer


def raw(run_id: str, payload: bytes = b"frame") -> Message:
    return Message(subjects.raw(run_id, "upstream"), payload, {})


async def count(bus: Bus, stream: str, pattern: str) -> int:
    return len([stored async for stored in direct.replay(bus, stream, pattern)])


async def test_a_second_first_frame_is_refused(bus: Bus, run_id: str) -> None:
    pattern = subjects.raw_stored(run_id, "upstream")
    await fence.append(bus, pattern, [raw(run_id)], 0)
    with pytest.raises(FenceConflict):
        await fence.append(bus, pattern, [raw(run_id)], 0)
    assert await count(bus, streams.RAW, pattern) == 1


async def test_a_second_first_event_is_refused_whatever_its_subject(bus: Bus, run_id: str) -> None:
    pattern = subjects.events_of_run(run_id)
    await fence.append(bus, pattern, [event(run_id, 1, type="lifecycle.started")], 0)
    with pytest.raises(FenceConflict):
        await fence.append(bus, pattern, [event(run_id, 1, type="llm.stream")], 0)
    assert await count(bus, streams.EVENTS, pattern) == 1


async def test_a_pattern_that_does_not_cover_the_subject_fences_nothing(
    bus: Bus, run_id: str
) -> None:
    """The server accepts such headers without an error, so only the bus may build a fence."""
    headers = {EXPECTED_SEQUENCE: "0", EXPECTED_SUBJECT: subjects.raw(run_id, "upstream")}
    message = Message(subjects.raw(run_id, "upstream"), b"", headers)
    await bus.publisher.publish(message)
    await bus.publisher.publish(message)
    assert await count(bus, streams.RAW, subjects.raw_of_run(run_id)) == 2


async def test_writers_of_other_runs_and_names_do_not_meet(bus: Bus, run_id: str) -> None:
    for run, writer in [(run_id, "upstream"), (run_id, "edge"), (new_run_id(), "upstream")]:
        message = Message(subjects.raw(run, writer), b"", {})
        await fence.append(bus, subjects.raw_stored(run, writer), [message], 0)


async def test_each_append_follows_on_the_one_before(bus: Bus, run_id: str) -> None:
    pattern = subjects.events_of_run(run_id)
    first = await fence.append(bus, pattern, [event(run_id, 1)], 0)
    second = await fence.append(bus, pattern, [event(run_id, 2)], first)
    for stale in (0, first, second + 1):
        with pytest.raises(FenceConflict):
            await fence.append(bus, pattern, [event(run_id, 3)], stale)
    await fence.append(bus, pattern, [event(run_id, 3)], second)


async def test_a_batch_is_stored_whole_and_returns_its_last_sequence(bus: Bus, run_id: str) -> None:
    pattern = subjects.events_of_run(run_id)
    last = await fence.append(bus, pattern, [event(run_id, n) for n in range(1, 101)], 0)
    found = [stored async for stored in direct.replay(bus, streams.EVENTS, pattern)]
    assert [stored.payload for stored in found] == [b"%d" % n for n in range(1, 101)]
    assert found[-1].sequence == last


async def test_a_refused_batch_leaves_nothing(bus: Bus, run_id: str) -> None:
    pattern = subjects.events_of_run(run_id)
    last = await fence.append(bus, pattern, [event(run_id, 1)], 0)
    with pytest.raises(FenceConflict):
        await fence.append(bus, pattern, [event(run_id, n) for n in range(1, 51)], 0)
    tail = await fence.tail(bus, streams.EVENTS, pattern)
    assert tail is not None
    assert tail.sequence == last


async def race(
    buses: list[Bus], run_id: str, batch: int, losers: list[str]
) -> tuple[int, list[int]]:
    """Let all buses append the run's first events at once.

    Returns the number of winners, and for each stored event of a winner the winner's number.
    """
    pattern = subjects.events_of_run(run_id)
    types = ["llm.stream", "lifecycle.started", "custom.event"]

    def attempt(number: int) -> Awaitable[int]:
        type = types[number % 3]
        return fence.append(
            buses[number],
            pattern,
            [event(run_id, n, b"%d" % number, type) for n in range(1, batch + 1)],
            0,
        )

    results = await asyncio.gather(*map(attempt, range(len(buses))), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            assert isinstance(result, FenceConflict), repr(result)
            losers.append(str(result))
    stored = [s async for s in direct.replay(buses[0], streams.EVENTS, pattern)]
    winners = [n for n, result in enumerate(results) if isinstance(result, int)]
    return len(winners), [int(s.payload) for s in stored if int(s.payload) in winners]


@pytest.mark.parametrize("batch", [1, 3], ids=["one by one", "in batches"])
async def test_of_many_writers_at_once_exactly_one_wins(
    nats_server: NatsServer, batch: int
) -> None:
    async with (
        connected(nats_server.url) as one,
        connected(nats_server.url) as two,
        connected(nats_server.url) as three,
    ):
        for _ in range(40):
            winners, stored = await race([one, two, three], new_run_id(), batch, [])
            assert (winners, len(stored)) == (1, batch)


async def test_of_many_writers_of_frames_exactly_one_wins(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as one, connected(nats_server.url) as two:
        for _ in range(40):
            run_id = new_run_id()
            pattern = subjects.raw_stored(run_id, "upstream")
            results = await asyncio.gather(
                *(fence.append(bus, pattern, [raw(run_id)], 0) for bus in (one, two)),
                return_exceptions=True,
            )
            assert sum(isinstance(result, FenceConflict) for result in results) == 1
            assert await count(one, streams.RAW, pattern) == 1


async def test_the_tail_is_the_runs_last_event(bus: Bus, run_id: str) -> None:
    pattern = subjects.events_of_run(run_id)
    assert await fence.tail(bus, streams.EVENTS, pattern) is None
    for number, type in enumerate(["lifecycle.started", "llm.stream", "lifecycle.completed"], 1):
        last = await bus.publisher.publish(event(run_id, number, type=type))
    await bus.publisher.publish(event(new_run_id(), 1))
    tail = await fence.tail(bus, streams.EVENTS, pattern)
    assert tail is not None
    assert (tail.sequence, tail.payload) == (last, b"3")
    assert tail.headers == {"Penstock-Sequence": "3"}


async def test_the_tail_waits_for_the_bus(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    last = await own_bus.publisher.publish(event(run_id, 1))
    await asyncio.to_thread(fresh_nats.stop)
    asking = asyncio.create_task(
        fence.tail(own_bus, streams.EVENTS, subjects.events_of_run(run_id))
    )
    await asyncio.to_thread(fresh_nats.start)
    tail = await asking
    assert tail is not None
    assert tail.sequence == last


@pytest.mark.parametrize("code", [10071, 10164])
def test_both_codes_of_a_conflict_are_one(code: int) -> None:
    error = error_of({"code": 400, "err_code": code, "description": "wrong last sequence"})
    assert type(error) is FenceConflict
    assert str(code) in str(error)
