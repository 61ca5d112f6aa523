"""Many publishes are in flight, and each ends in a sequence or in an error with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.bus import (
    Bus,
    BusError,
    BusUnavailable,
    FenceConflict,
    Message,
    MessageTooLarge,
    OutcomeUnknown,
    StreamFull,
    streams,
    subjects,
)
from penstock.bus.messages import header_lines
from penstock.bus.read import direct
from penstock.bus.write.fence import append, post
from penstock.bus.write.publisher import error_of
from support.drive.bus import connected, event, publish_events, server_stopped
from support.real.nats import NatsServer


async def test_a_thousand_messages_in_flight_are_each_stored_once(bus: Bus, run_id: str) -> None:
    sequences = await asyncio.gather(
        *(bus.publisher.publish(event(run_id, n)) for n in range(1, 1001))
    )
    pattern = subjects.events_of_run(run_id)
    stored = [s async for s in direct.replay(bus, streams.EVENTS, pattern)]
    assert [s.payload for s in stored] == [b"%d" % n for n in range(1, 1001)]
    assert [s.sequence for s in stored] == sequences


async def test_headers_are_sent_unchanged(bus: Bus, run_id: str) -> None:
    headers = {"Penstock-Sequence": "1", "ce-id": f"{run_id}.1"}
    await bus.publisher.publish(Message(f"llm.stream.{run_id}", b"{}", headers))
    stored = await bus.tail(streams.EVENTS, subjects.events_of_run(run_id))
    assert stored is not None
    assert stored.headers == headers


async def test_encoded_headers_are_stored_as_a_mapping_of_them_is(bus: Bus, run_id: str) -> None:
    headers = {"Penstock-Sequence": "1", "ce-source": "/penstock/größer"}
    await bus.publisher.publish(Message(f"llm.stream.{run_id}", b"{}", header_lines(headers)))
    stored = await bus.tail(streams.EVENTS, subjects.events_of_run(run_id))
    assert stored is not None
    assert (stored.headers, stored.payload) == (headers, b"{}")


async def test_a_message_with_encoded_headers_is_fenced_alone_and_in_a_batch(
    bus: Bus, run_id: str
) -> None:
    pattern = subjects.events_of_run(run_id)
    messages = [
        Message(f"llm.stream.{run_id}", b"%d" % n, header_lines({"n": str(n)})) for n in range(4)
    ]
    last = await append(bus, pattern, messages[:1], 0)
    for batch in (messages[1:2], messages[1:]):
        with pytest.raises(FenceConflict):
            await append(bus, pattern, batch, 0)
    await append(bus, pattern, messages[1:], last)
    stored = [s async for s in direct.replay(bus, streams.EVENTS, pattern)]
    assert [(s.payload, s.headers["n"]) for s in stored] == [(b"%d" % n, str(n)) for n in range(4)]


def test_the_value_of_a_header_adds_no_header() -> None:
    lines = header_lines({"ce-source": "/penstock/a\r\nNats-Msg-Id: x", "n": " 1 "})
    assert lines == b"ce-source: /penstock/a  Nats-Msg-Id: x\r\nn: 1\r\n"


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "ä"])
def test_a_wrong_name_of_a_header_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a header"):
        header_lines({name: "1"})


async def test_a_message_without_headers_is_stored(bus: Bus, run_id: str) -> None:
    await bus.publisher.publish(Message(f"llm.stream.{run_id}", b"", {}))
    stored = await bus.tail(streams.EVENTS, subjects.events_of_run(run_id))
    assert stored is not None
    assert (stored.headers, stored.payload) == ({}, b"")


async def test_a_subject_of_no_stream_is_unavailable(bus: Bus) -> None:
    with pytest.raises(BusUnavailable):
        await bus.publisher.publish(Message("nowhere.at.all", b"", {}))


async def test_without_a_connection_nothing_is_sent_not_even_later(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    await server_stopped(fresh_nats, own_bus)
    with pytest.raises(BusUnavailable):
        await own_bus.publisher.publish(event(run_id, 1))
    with pytest.raises(BusUnavailable):
        await own_bus.publisher.publish_batch([event(run_id, 1), event(run_id, 2)])
    await asyncio.to_thread(fresh_nats.start)
    await publish_events(own_bus, run_id, 3, 3)
    pattern = subjects.events_of_run(run_id)
    stored = [s async for s in direct.replay(own_bus, streams.EVENTS, pattern)]
    assert [s.payload for s in stored] == [b"3"]


async def test_a_short_reconnect_is_waited_out(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    await asyncio.to_thread(fresh_nats.stop)
    publishing = asyncio.create_task(own_bus.publisher.publish(event(run_id, 1)))
    await asyncio.to_thread(fresh_nats.start)
    assert await publishing > 0


async def test_what_is_in_flight_when_the_connection_goes_is_unknown_at_once(
    fresh_nats: NatsServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(fresh_nats.url, publish_timeout_s=600) as bus:
        sent = asyncio.Event()

        def swallow(*message: object) -> None:
            sent.set()

        monkeypatch.setattr(bus.client, "send", swallow)
        publishing = asyncio.create_task(bus.publisher.publish(event(run_id, 1)))
        await sent.wait()
        await asyncio.to_thread(fresh_nats.kill)
        with pytest.raises(OutcomeUnknown, match="connection was lost"):
            await publishing


async def test_no_answer_in_time_is_an_unknown_outcome(
    nats_server: NatsServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(nats_server.url, publish_timeout_s=0.2) as bus:

        def swallow(*message: object) -> None:
            return

        monkeypatch.setattr(bus.client, "send", swallow)
        with pytest.raises(OutcomeUnknown, match=r"within 0\.2 s"):
            await bus.publisher.publish(event(run_id, 1))


async def test_a_message_over_the_servers_limit_is_refused_and_the_connection_stays_open(
    bus: Bus, run_id: str
) -> None:
    # The server counts the headers as well, and closes the connection if the sum is too large.
    for size in (bus.client.max_payload + 1, bus.client.max_payload - 10):
        with pytest.raises(MessageTooLarge):
            await bus.publisher.publish(event(run_id, 1, bytes(size)))
    assert await bus.publisher.publish(event(run_id, 1, bytes(bus.client.max_payload - 10_000)))
    assert bus.is_ready


async def test_a_batch_with_a_message_too_large_leaves_nothing(bus: Bus, run_id: str) -> None:
    batch = [event(run_id, 1), event(run_id, 2, bytes(2_000_000)), event(run_id, 3)]
    with pytest.raises(MessageTooLarge):
        await bus.publisher.publish_batch(batch)
    assert await bus.tail(streams.EVENTS, subjects.events_of_run(run_id)) is None


async def test_a_full_stream_that_refuses_says_so(own_bus: Bus) -> None:
    await own_bus.jetstream.nats.add_stream(
        name="SMALL", subjects=["small"], max_bytes=2000, discard="new"
    )
    await own_bus.publisher.publish(Message("small", bytes(1000), {}))
    with pytest.raises(StreamFull):
        await own_bus.publisher.publish(Message("small", bytes(1000), {}))


class Outcomes:
    """Collect the outcomes of the messages that `post` sends."""

    def __init__(self) -> None:
        self.all: list[int | BusError] = []

    async def first(self) -> int | BusError:
        await wait_for(lambda: self.all)
        return self.all[0]


async def wait_for(probe: Callable[[], object], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not probe():
            await asyncio.sleep(0.005)


async def test_a_posted_message_is_stored_and_its_sequence_is_reported_later(
    bus: Bus, run_id: str
) -> None:
    outcomes = Outcomes()
    assert bus.publisher.post(event(run_id, 1), outcomes.all.append, 5)
    assert not outcomes.all
    sequence = await outcomes.first()
    stored = await bus.tail(streams.EVENTS, subjects.events_of_run(run_id))
    assert stored is not None
    assert (stored.sequence, stored.payload) == (sequence, b"1")
    assert not bus.publisher._waiting
    assert not bus.publisher._gate.inside_bytes


async def test_a_posted_message_that_the_fence_refuses_is_reported_as_a_conflict(
    bus: Bus, run_id: str
) -> None:
    pattern = subjects.events_of_run(run_id)
    last = await append(bus, pattern, [event(run_id, 1)], 0)
    stale, fresh = Outcomes(), Outcomes()
    assert post(bus, pattern, event(run_id, 2), 0, stale.all.append)
    assert isinstance(await stale.first(), FenceConflict)
    assert post(bus, pattern, event(run_id, 2), last, fresh.all.append)
    assert isinstance(await fresh.first(), int)


async def test_a_message_that_cannot_be_sent_now_is_not_posted(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    outcomes = Outcomes()
    too_large = event(run_id, 1, bytes(own_bus.client.max_payload))
    assert not own_bus.publisher.post(too_large, outcomes.all.append, 5)
    await own_bus.publisher._gate.enter(2**40)
    assert not own_bus.publisher.post(event(run_id, 1), outcomes.all.append, 5)
    own_bus.publisher._gate.leave(2**40)
    await asyncio.to_thread(fresh_nats.stop)
    await wait_for(lambda: not own_bus.is_ready)
    assert not own_bus.publisher.post(event(run_id, 1), outcomes.all.append, 5)
    await asyncio.to_thread(fresh_nats.start)
    await wait_for(lambda: own_bus.is_ready)
    assert await own_bus.tail(streams.EVENTS, subjects.events_of_run(run_id)) is None
    assert not outcomes.all


async def test_the_outcome_of_a_posted_message_is_unknown_once_the_connection_is_lost_or_late(
    fresh_nats: NatsServer, run_id: str
) -> None:
    async with connected(fresh_nats.url) as bus:
        late, lost = Outcomes(), Outcomes()
        fresh_nats.pause()
        try:
            assert bus.publisher.post(event(run_id, 1), lost.all.append, 600)
            assert bus.publisher.post(event(run_id, 1), late.all.append, 0.1)
            assert isinstance(await late.first(), OutcomeUnknown)
            assert not lost.all
        finally:
            await asyncio.to_thread(fresh_nats.kill)
        assert isinstance(await lost.first(), OutcomeUnknown)
        assert not bus.publisher._gate.inside_bytes


async def test_a_thousand_messages_fit_into_one_batch(bus: Bus, run_id: str) -> None:
    last = await bus.publisher.publish_batch([event(run_id, n) for n in range(1, 1001)])
    found, pending = await direct.read(
        bus, streams.EVENTS, subjects.events_of_run(run_id), last - 999, limit=1000
    )
    assert [s.payload for s in found] == [b"%d" % n for n in range(1, 1001)]
    assert pending == 0


async def test_a_batch_to_a_stream_without_batches_is_refused(bus: Bus, run_id: str) -> None:
    letters = [Message(f"deadletter.test.{run_id}", b"", {})] * 2
    with pytest.raises(BusError, match="10174"):
        await bus.publisher.publish_batch(letters)


async def test_a_cancelled_publish_leaves_nothing_waiting(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swallow(*message: object) -> None:
        return

    monkeypatch.setattr(bus.client, "send", swallow)
    publishing = asyncio.create_task(bus.publisher.publish(event(run_id, 1)))
    await asyncio.wait([publishing], timeout=0.01)
    publishing.cancel()
    await asyncio.wait([publishing])
    assert publishing.cancelled()
    assert not bus.publisher._waiting


@pytest.mark.parametrize(
    ("code", "err_code", "kind"),
    [
        (400, 10071, FenceConflict),
        (400, 10164, FenceConflict),
        (503, 10077, StreamFull),
        (500, 10023, StreamFull),
        (400, 10054, MessageTooLarge),
        (400, 10176, BusUnavailable),  # the server restarted in the middle of a batch
        (429, 10210, BusUnavailable),
        (503, 10008, BusUnavailable),  # the stream has no leader
        (400, 10060, BusError),
    ],
)
def test_what_the_server_refuses_has_its_own_error(
    code: int, err_code: int, kind: type[BusError]
) -> None:
    error = error_of({"code": code, "err_code": err_code, "description": "said so"})
    assert type(error) is kind
    assert str(error) == f"said so (err_code {err_code})"


async def test_what_is_not_yet_acknowledged_is_bounded(
    nats_server: NatsServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 64 * 1024
    async with connected(nats_server.url, max_unacked_bytes=limit) as bus:
        inside: list[int] = []
        send = bus.client.send

        def watched(*arguments: Any) -> None:
            inside.append(bus.publisher._gate.inside_bytes)
            send(*arguments)

        monkeypatch.setattr(bus.client, "send", watched)
        sequences = await asyncio.gather(
            *(bus.publisher.publish(event(run_id, n, bytes(10_000))) for n in range(100)),
            bus.publisher.publish_batch([event(run_id, n, bytes(10_000)) for n in range(20)]),
        )
    assert len(set(sequences)) == 101
    # The batch is larger than the limit, so it is in flight alone.
    assert max(inside) == 20 * (10_000 + 1024)
    assert sorted(inside)[-21] <= limit
