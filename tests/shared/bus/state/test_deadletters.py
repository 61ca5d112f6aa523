"""A dead letter is complete, is found by service, run and time, and is stored once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.bus import Bus, BusSettings, Message, streams, subjects
from penstock.bus.state import deadletters
from support.drive.bus import connected, new_run_id
from support.drive.dead_letters import WHY, a_cancel, all_letters, buried, letter_about
from support.real.nats import NatsServer


async def test_a_letter_has_the_whole_message_and_why(bus: Bus) -> None:
    letter = letter_about(
        a_cancel(), b"\x00\xff not text", sequence=7, headers={"A": "b", "Nats-Msg-Id": "x"}
    )
    found = await buried(bus, letter)
    assert found.letter == letter
    assert found.letter.payload == b"\x00\xff not text"
    assert found.letter.headers == {"A": "b", "Nats-Msg-Id": "x"}
    assert (found.letter.sequence, found.letter.delivered, found.letter.pod) == (7, 5, "pod-1")
    assert found.letter.reason == repr(WHY)
    assert found.mark is None
    assert await deadletters.find(bus, found.number) == found


async def test_the_headers_say_the_main_things_to_whoever_looks_without_us(bus: Bus) -> None:
    letter = letter_about(a_cancel(), error=ValueError("ü\r\nNats-Msg-Id: forged"))
    found = await buried(bus, letter)
    stored = await bus.at(streams.DEADLETTERS, found.number)
    assert stored is not None
    assert stored.headers["Penstock-From"] == f"{letter.subject} 1"
    assert stored.headers["Penstock-Traceback"] == letter.traceback_id
    assert stored.headers["Penstock-Reason"] == r"ValueError('\xfc\r\nNats-Msg-Id: forged')"
    assert stored.headers["Nats-Msg-Id"] == letter.key


async def test_the_same_message_given_up_again_is_one_letter(fresh_nats: NatsServer) -> None:
    letter = letter_about(a_cancel())
    async with connected(fresh_nats.url) as bus:
        for _ in range(3):
            await deadletters.store_dead_letter(bus, letter)
    fresh_nats.kill()
    fresh_nats.start()
    async with connected(fresh_nats.url) as bus:
        await deadletters.store_dead_letter(bus, letter)
        other = letter.model_copy(update={"service": "approvals"})
        await deadletters.store_dead_letter(bus, other)
        assert [found.letter for found in await all_letters(bus)] == [letter, other]


async def test_a_message_near_the_brokers_limit_fits_with_its_headers(bus: Bus) -> None:
    payload = b"x" * (bus.client.max_payload - 16 * 1024)
    letter = letter_about(a_cancel(), payload, headers={"H": "y" * 7000})
    found = await buried(bus, letter)
    assert found.letter == letter
    stored = await bus.at(streams.DEADLETTERS, found.number)
    assert stored is not None
    assert len(stored.payload) < 1000


async def test_letters_are_found_by_service_run_and_time(fresh_nats: NatsServer) -> None:
    run_id = new_run_id()
    async with connected(fresh_nats.url) as bus:
        first = letter_about(a_cancel(run_id))
        second = letter_about(a_cancel(), service="normalizer")
        await deadletters.store_dead_letter(bus, first)
        await deadletters.store_dead_letter(bus, second)
        now = datetime.now(UTC)
        third = letter_about(a_cancel(run_id), service="normalizer")
        await deadletters.store_dead_letter(bus, third)

        async def found(**which: Any) -> list[str]:
            return [one.letter.key async for one in deadletters.letters(bus, **which)]

        assert await found() == [first.key, second.key, third.key]
        assert await found(service="normalizer") == [second.key, third.key]
        assert await found(run_id=run_id) == [first.key, third.key]
        assert await found(since=now) == [third.key]
        assert await found(since=now + timedelta(hours=1)) == []
        assert await deadletters.count(bus) == 3


async def test_what_is_dropped_is_gone_and_does_not_come_again(bus: Bus) -> None:
    letter = letter_about(a_cancel())
    found = await buried(bus, letter)
    await deadletters.mark(bus, letter.key, "replayed")
    assert await deadletters.drop(bus, found)
    assert not await deadletters.drop(bus, found)
    assert await deadletters.find(bus, found.number) is None
    assert await bus.bucket("letters").get(letter.key) is None
    await deadletters.store_dead_letter(bus, letter)
    assert await all_letters(bus, run_id=letter.run_id) == []


async def test_what_is_no_letter_of_ours_is_shown_as_it_is(bus: Bus) -> None:
    run_id = new_run_id()
    headers = {"Penstock-Reason": "old", "Penstock-From": f"{a_cancel(run_id)} 12"}
    subject = subjects.deadletter("billing", run_id)
    await bus.publisher.publish(Message(subject, b"{}", headers))
    [found] = await all_letters(bus, "billing", run_id)
    assert (found.letter.reason, found.letter.sequence) == ("old", 12)
    assert found.letter.payload == b"{}"


async def test_a_letter_whose_object_has_aged_does_not_hide_the_others(bus: Bus) -> None:
    run_id = new_run_id()
    large = letter_about(a_cancel(run_id), b"x" * 600_000)
    await deadletters.store_dead_letter(bus, large)
    store = await bus.jetstream.nats.object_store("payloads")
    await store.delete(f"deadletter.{large.key}")
    await deadletters.store_dead_letter(bus, letter_about(a_cancel(run_id), sequence=2))
    first, second = await all_letters(bus, run_id=run_id)
    assert (first.letter.service, first.letter.sequence) == ("connector", 1)
    assert second.letter.payload == b"{}"


async def test_a_service_that_only_reads_makes_no_streams(fresh_nats: NatsServer) -> None:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url), ensure=False)
    try:
        assert not await bus.has(streams.DEADLETTERS)
        assert (await bus.api("STREAM.LIST"))["total"] == 0
    finally:
        await bus.close()


async def test_a_mark_that_cannot_be_read_hides_no_dead_letter(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    letter = letter_about(a_cancel())
    number = (await buried(bus, letter)).number
    await bus.bucket("letters").put(letter.key, b'{"state": "half"}')
    assert (await all_letters(bus))[-1].number == number
    found = await deadletters.find(bus, number)
    assert found is not None
    assert found.mark is None
    assert f"the mark {letter.key} cannot be read" in caplog.text
