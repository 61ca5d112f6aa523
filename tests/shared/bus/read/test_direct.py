"""Batched direct gets read the messages that a stream already has."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from penstock.bus import Bus, BusUnavailable, Stored, messages, streams, subjects
from penstock.bus.connection import incoming
from penstock.bus.read import direct
from penstock.bus.read.direct import BATCH
from support.drive.bus import event, new_run_id, publish_events, server_stopped
from support.real.nats import NatsServer


async def numbers(bus: Bus, pattern: str, start: int = 1) -> list[int]:
    return [int(s.payload) async for s in direct.replay(bus, streams.EVENTS, pattern, start)]


async def test_what_matches_is_read_in_order(bus: Bus, run_id: str) -> None:
    other = new_run_id()
    for number in range(1, 11):
        await publish_events(bus, run_id, number, number)
        await publish_events(bus, other, number + 100, number + 100)
    assert await numbers(bus, subjects.events_of_run(run_id)) == [*range(1, 11)]


async def test_a_message_is_whole(bus: Bus, run_id: str) -> None:
    [sequence] = await publish_events(bus, run_id, 7, 7)
    [stored], _ = await direct.read(bus, streams.EVENTS, subjects.events_of_run(run_id))
    assert (stored.subject, stored.sequence) == (f"llm.stream.{run_id}", sequence)
    assert (stored.headers["Penstock-Sequence"], stored.payload) == ("7", b"7")


async def test_only_the_headers_that_are_asked_for_are_parsed(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event has 16 headers. Parsing all of them took half of the time of a replay."""
    await publish_events(bus, run_id, 1, 20)
    parsed = Mock(wraps=incoming.fields)
    monkeypatch.setattr(incoming, "fields", parsed)
    found, _ = await direct.read(bus, streams.EVENTS, subjects.events_of_run(run_id))
    assert [each.headers[messages.SEQUENCE] for each in found] == [str(n) for n in range(1, 21)]
    assert parsed.call_count <= 3  # the answer's status, and answers to other requests
    assert "ce-none" not in found[0].headers
    assert dict(found[0].headers)[messages.SEQUENCE] == "1"


async def test_a_pattern_takes_what_it_names(bus: Bus, run_id: str) -> None:
    for number, type in enumerate(["lifecycle.started", "llm.stream", "llm.tool_call"], 1):
        await bus.publisher.publish(event(run_id, number, type=type))
    assert await numbers(bus, f"llm.*.{run_id}") == [2, 3]
    assert await numbers(bus, f"llm.tool_call.{run_id}") == [3]


async def test_where_nothing_matches_nothing_is_read(bus: Bus, run_id: str) -> None:
    assert await direct.read(bus, streams.EVENTS, subjects.events_of_run(run_id)) == ([], 0)
    [last] = await publish_events(bus, run_id, 1, 1)
    assert await numbers(bus, subjects.events_of_run(run_id), last + 1) == []


async def test_a_stream_that_was_always_empty_reads_as_empty(own_bus: Bus) -> None:
    assert await direct.read(own_bus, streams.RAW, ">") == ([], 0)


async def test_reading_begins_at_the_sequence_given(bus: Bus, run_id: str) -> None:
    sequences = await publish_events(bus, run_id, 1, 10)
    assert await numbers(bus, subjects.events_of_run(run_id), sequences[4]) == [5, 6, 7, 8, 9, 10]


async def test_a_limited_read_says_how_many_follow(bus: Bus, run_id: str) -> None:
    await publish_events(bus, run_id, 1, 10)
    pattern = subjects.events_of_run(run_id)
    found, pending = await direct.read(bus, streams.EVENTS, pattern, limit=4)
    assert ([int(s.payload) for s in found], pending) == ([1, 2, 3, 4], 6)


async def test_more_than_one_batch_is_read_to_the_end(bus: Bus, run_id: str) -> None:
    count = 2 * BATCH + 7
    await bus.publisher.publish_batch([event(run_id, n) for n in range(1, BATCH + 1)])
    await bus.publisher.publish_batch([event(run_id, n) for n in range(BATCH + 1, count + 1)])
    assert await numbers(bus, subjects.events_of_run(run_id)) == [*range(1, count + 1)]


async def test_a_batch_ends_by_bytes_too(bus: Bus, run_id: str) -> None:
    payload = bytes(700_000)
    for number in range(1, 16):
        await bus.publisher.publish(event(run_id, number, payload))
    pattern = subjects.events_of_run(run_id)
    found, pending = await direct.read(bus, streams.EVENTS, pattern)
    assert 0 < len(found) < 15
    assert len(found) + pending == 15
    whole = [s async for s in direct.replay(bus, streams.EVENTS, pattern)]
    assert [s.headers["Penstock-Sequence"] for s in whole] == [str(n) for n in range(1, 16)]


async def test_the_last_that_matches_is_found_at_once(bus: Bus, run_id: str) -> None:
    *_, at = await publish_events(bus, run_id, 1, 3)
    await publish_events(bus, new_run_id(), 1, 2)
    found = await direct.last(bus, streams.EVENTS, subjects.events_of_run(run_id))
    assert found is not None
    assert (found.sequence, found.payload) == (at, b"3")
    assert found.headers[messages.SEQUENCE] == "3"


async def test_where_nothing_matches_nothing_is_last(bus: Bus, run_id: str) -> None:
    assert await direct.last(bus, streams.EVENTS, subjects.events_of_run(run_id)) is None


async def test_a_stream_that_does_not_exist_is_unavailable(bus: Bus) -> None:
    with pytest.raises(BusUnavailable):
        await direct.read(bus, "NO_SUCH_STREAM", ">")
    with pytest.raises(BusUnavailable):
        await direct.last(bus, "NO_SUCH_STREAM", ">")


async def test_without_a_server_reading_is_unavailable(
    own_bus: Bus, fresh_nats: NatsServer
) -> None:
    await server_stopped(fresh_nats, own_bus)
    with pytest.raises(BusUnavailable):
        await direct.read(own_bus, streams.EVENTS, ">")


async def test_reading_leaves_no_consumer_behind(own_bus: Bus, run_id: str) -> None:
    await publish_events(own_bus, run_id, 1, 3)
    assert await numbers(own_bus, subjects.events_of_run(run_id)) == [1, 2, 3]
    info = await own_bus.api("STREAM.INFO.EVENTS")
    assert info["state"]["consumer_count"] == 0


async def test_messages_of_several_subjects_are_read_between_two_sequences_in_order(
    bus: Bus, run_id: str
) -> None:
    wanted = ["llm.tool_call", "lifecycle.paused", "lifecycle.completed"]
    types = [*wanted[:2], "llm.stream", *wanted[:2], "llm.stream", "llm.tool_call", "llm.stream"]
    at = [await bus.publisher.publish(event(run_id, n, type=t)) for n, t in enumerate(types, 1)]
    await publish_events(bus, new_run_id(), 1, 3)
    names = [subjects.event(type_, run_id) for type_ in wanted]

    async def found(after: int, upto: int) -> list[int]:
        stored = await direct.between(bus, streams.EVENTS, names, after, upto)
        return [int(each.payload) for each in stored]

    assert await found(0, at[6]) == [1, 2, 4, 5, 7]
    assert await found(at[0], at[6]) == [2, 4, 5, 7]
    assert await found(at[1], at[4]) == [4, 5]
    assert await found(at[4], at[6]) == [7]
    assert await found(at[6], at[6]) == []


async def test_what_a_lagging_replica_does_not_have_yet_is_asked_for_again(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [await bus.publisher.publish(event(run_id, n)) for n in range(1, 6)]
    answers = direct._batch
    # How many of the messages the replicas have that answer the first requests of each kind.
    lags = {"multi_last": [2, 3], "next_by_subj": [1, 2]}

    async def lagging(bus: Bus, stream: str, request: dict[str, Any]) -> tuple[list[Stored], int]:
        [kind] = lags.keys() & request.keys()
        found, pending = await answers(bus, stream, request)
        if not lags[kind]:
            return found, pending
        has = at[lags[kind].pop() - 1]
        if kind == "multi_last":
            return await answers(bus, stream, {**request, "up_to_seq": has})
        return [each for each in found if each.sequence <= has], 0

    monkeypatch.setattr(direct, "_batch", lagging)
    names = [subjects.event("llm.stream", run_id)]
    found = await direct.between(bus, streams.EVENTS, names, 0, at[-1])
    assert [int(each.payload) for each in found] == [1, 2, 3, 4, 5]
    assert not any(lags.values())


async def test_a_message_that_expired_meanwhile_is_not_waited_for(bus: Bus, run_id: str) -> None:
    at = [await bus.publisher.publish(event(run_id, n)) for n in range(1, 4)]
    await bus.api(f"STREAM.MSG.DELETE.{streams.EVENTS}", {"seq": at[-1], "no_erase": True})
    names = [subjects.event("llm.stream", run_id)]
    found = await direct.between(bus, streams.EVENTS, names, 0, at[-1])
    assert [int(each.payload) for each in found] == [1, 2]
