"""With the operator's keys, NATS stores no content in clear, and every way of reading opens it."""

from __future__ import annotations

import asyncio
import random
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.bus import (
    Bus,
    Consumer,
    Follow,
    Message,
    RawWriter,
    Reader,
    StartUpError,
    Stored,
    WorkQueue,
    messages,
    streams,
    subjects,
)
from penstock.bus.admin.replay import CannotReplay, replay_letter
from penstock.bus.admin.rewrap import rewrap
from penstock.bus.errors import BusUnavailable, ContentErased, ContentRefused
from penstock.bus.messages import Unreadable
from penstock.bus.read import direct
from penstock.bus.read.follow import events, raw
from penstock.bus.sealing import KeyMissing
from penstock.bus.state import deadletters
from penstock.bus.state.deadletters import Letter
from penstock.bus.write import fence, objects
from penstock.bus.write.fence import MAX_MESSAGE_BYTES
from penstock.bus.write.overwriting import overwrite
from penstock.bus.write.schedules import schedule
from support.drive.bus import connected, new_run_id
from support.drive.waiting import eventually
from support.real.nats import NatsServer, login

FIRST, SECOND = "first key of the operator, 32 bytes", "second key of the operator, 32 bytes"
SECRET = b"the-planted-secret"
# A forgotten key is not read again within this time by tests whose key was destroyed.
WITHIN_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run a server for this module alone, whose files are searched."""
    nats = NatsServer(tmp_path_factory.mktemp("sealed"))
    nats.start()
    yield nats
    nats.remove()


@asynccontextmanager
async def sealing_bus(nats: NatsServer, *keys: str, user: str = "") -> AsyncIterator[Bus]:
    more = login(user) if user else {}
    async with connected(nats.url, content_keys=keys or (FIRST,), **more) as bus:
        yield bus


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    async with sealing_bus(server) as bus:
        yield bus


@pytest.fixture
async def other(server: NatsServer) -> AsyncIterator[Bus]:
    """Another process, which has none of the first one's keys in memory."""
    async with sealing_bus(server) as bus:
        yield bus


def body(run_id: str, sequence: int, text: bytes = SECRET) -> bytes:
    return orjson.dumps(
        {
            **{"run_id": run_id, "timestamp": "2026-11-27T11:00:00.000Z", "sequence": sequence},
            **{"source": None, "event": {"category": "llm", "action": "stream"}},
            **{"data": {"content": text.decode()}, "session_id": "s", "leg": 1},
        }
    )


def event(run_id: str, sequence: int) -> Message:
    headers = {messages.SEQUENCE: f"{sequence}"}
    return Message(subjects.event_input("llm.stream", run_id), body(run_id, sequence), headers)


def files_with(secret: bytes, store: Path) -> list[str]:
    """Return the streams whose files have the bytes."""
    found = [path for path in store.rglob("*") if path.is_file() and secret in path.read_bytes()]
    return sorted({path.parent.parent.name for path in found})


async def test_every_way_of_reading_opens_what_no_file_of_nats_has(
    server: NatsServer, bus: Bus, other: Bus, run_id: str
) -> None:
    pattern, stream = subjects.events_of_run(run_id), streams.events_for(run_id)
    for number in (1, 2):
        await bus.publisher.publish(event(run_id, number))
    await bus.publisher.publish_batch([event(run_id, number) for number in (3, 4)])
    written = [body(run_id, number) for number in (1, 2, 3, 4)]

    found, _ = await direct.read(other, stream, pattern)
    assert [stored.payload for stored in found] == written
    last = await direct.last(other, stream, pattern)
    tail = await other.tail(stream, pattern)
    assert last is not None
    assert tail is not None
    assert last.payload == tail.payload == written[-1]

    read: list[bytes] = []

    async def take(stored: Stored) -> None:
        read.append(stored.payload)
        if len(read) == len(written):
            raise StopReading

    with pytest.raises(StopReading):
        await Reader(other, stream, pattern, 1, take).run()
    assert read == written
    assert files_with(SECRET, server.store) == []
    assert files_with(run_id.encode(), server.store)  # the files are those of this server


class StopReading(Exception):
    """Ends a reader."""


async def test_the_envelope_is_readable_without_a_key(
    server: NatsServer, bus: Bus, run_id: str
) -> None:
    await bus.publisher.publish(event(run_id, 1))
    call = f"STREAM.MSG.GET.{streams.events_for(run_id)}"
    answer = await bus.api(call, {"last_by_subj": subjects.events_of_run(run_id)})
    shown = orjson.loads(b64decode(answer["message"]["data"]))
    assert list(shown.pop("data")) == ["sealed"]
    assert shown.pop("sealed") == 1
    clear = orjson.loads(body(run_id, 1))
    del clear["data"]
    assert shown == clear


async def test_a_follower_gets_live_events_whose_key_it_does_not_have_yet(
    bus: Bus, other: Bus, run_id: str
) -> None:
    got: list[Stored] = []
    follow = Follow(other, events(run_id), 1, got.extend)
    await follow.start()
    try:
        for number in range(1, 21):
            await bus.publisher.publish(event(run_id, number))

        async def all_there() -> bool:
            return len(got) == 20

        await eventually(all_there, 10, "all events")
        assert [stored.payload for stored in got] == [body(run_id, n) for n in range(1, 21)]
    finally:
        await follow.stop()


async def test_frames_are_sealed_in_parts_and_followed_in_clear(
    server: NatsServer, bus: Bus, other: Bus, run_id: str
) -> None:
    writer = await RawWriter.resume(bus, run_id, "upstream", "one")
    large = SECRET * (MAX_MESSAGE_BYTES // len(SECRET) + 100)
    await writer.write("bytes", SECRET, leg=1)
    await writer.write("bytes", large, leg=1)
    await writer.write("end", b"", leg=1)
    got: list[Stored] = []
    follow = Follow(other, raw(run_id, "upstream"), 1, got.extend)
    await follow.start()
    try:

        async def all_there() -> bool:
            return len(got) == 4

        await eventually(all_there, 10, "all frames")
        assert [got[0].payload, b"".join(each.payload for each in got[1:])] == [SECRET, large]
    finally:
        await follow.stop()
    assert files_with(SECRET, server.store) == []


async def test_commands_schedules_records_letters_and_objects_are_sealed(
    server: NatsServer, bus: Bus, other: Bus, run_id: str
) -> None:
    command = subjects.command("connector", "start", run_id)
    await bus.publisher.publish(Message(command, SECRET, {}))
    await bus.publisher.publish(Message(subjects.journal(run_id), SECRET, {"Penstock-Record": "1"}))
    key = f"rule.{run_id}-1"
    waits, due = subjects.schedule("automations", key), subjects.due("automations", key)
    assert await schedule(bus, waits, due, time.time() + 3600, SECRET)
    await bus.bucket("pauses").put(run_id, SECRET)
    await bus.bucket("threads").put(f"run.{run_id}", SECRET)
    stored = Stored(command, 9, {}, SECRET)
    error = ValueError(f"quotes {SECRET.decode()}")
    await deadletters.store_dead_letter(bus, deadletters.letter_about("edge", "p", stored, error))
    large = SECRET * (MAX_MESSAGE_BYTES // len(SECRET) + 1)
    reference = await objects.wrap(bus, f"{run_id}.start", large, run_id)
    assert await objects.wrap(bus, f"{run_id}.start", large, run_id) == reference

    for stream, subject in [
        *((streams.COMMANDS, command), (streams.JOURNAL, subjects.journal(run_id))),
        (streams.SCHEDULES, waits),
    ]:
        tail = await other.tail(stream, subject)
        assert tail is not None
        assert tail.payload == SECRET
    entry = await other.bucket("pauses").get(run_id)
    assert entry is not None
    assert entry.value == SECRET
    letters = [each async for each in deadletters.letters(other, "edge", run_id)]
    assert [each.letter.payload for each in letters] == [SECRET]
    assert SECRET.decode() in letters[0].letter.reason
    assert await objects.unwrap(other, reference) == large
    assert files_with(SECRET, server.store) == []


async def test_a_work_queue_gets_content_and_a_swapped_one_is_a_dead_letter(
    bus: Bus, other: Bus
) -> None:
    good, bad = new_run_id(), new_run_id()
    kind = f"k{random.randrange(10**9)}"
    for run_id in (good, bad):
        await bus.publisher.publish(
            Message(subjects.command("sealed", kind, run_id), SECRET + run_id.encode(), {})
        )
    # Somebody copies the ciphertext of one run's command into another run's.
    answer = await bus.api(
        f"STREAM.MSG.GET.{streams.COMMANDS}",
        {"last_by_subj": subjects.command("sealed", kind, bad)},
    )
    stolen = new_run_id()
    await bus.publisher.publish(Message(subjects.command("none", kind, stolen), b"x", {}))
    await bus.request(
        subjects.command("sealed", kind, stolen), b64decode(answer["message"]["data"])
    )
    refused: list[int] = []
    other.content.refused = lambda: refused.append(1)
    handled: dict[str, bytes] = {}
    given_up: dict[str, Exception] = {}

    async def handle(stored: Stored) -> None:
        handled[subjects.run_id_of(stored.subject)] = stored.payload

    async def give_up(stored: Stored, error: Exception) -> None:
        given_up[subjects.run_id_of(stored.subject)] = error

    consumer = Consumer(
        stream=streams.COMMANDS, durable=f"sealed-{kind}", subjects=(f"command.sealed.{kind}.*",)
    )
    queue = WorkQueue(other, consumer, handle, give_up=give_up, attempts=None)
    task = asyncio.create_task(queue.run())
    try:

        async def done() -> bool:
            return len(handled) + len(given_up) == 3

        await eventually(done, 20, "all messages")
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert handled == {each: SECRET + each.encode() for each in (good, bad)}
    assert list(given_up) == [stolen]
    assert isinstance(given_up[stolen], ContentRefused)
    assert refused == [1]


async def test_two_starters_agree_on_one_key(server: NatsServer, run_id: str) -> None:
    async with sealing_bus(server) as one, sealing_bus(server) as two:
        writes = [each.publisher.publish(event(run_id, n)) for n, each in enumerate((one, two), 1)]
        await asyncio.gather(*writes)
        for each in (one, two):
            found, _ = await direct.read(
                each, streams.events_for(run_id), subjects.events_of_run(run_id)
            )
            assert {stored.payload for stored in found} == {body(run_id, 1), body(run_id, 2)}
        info = await one.api(
            f"STREAM.INFO.{streams.KEYS}", {"subjects_filter": subjects.content_key(run_id)}
        )
        assert info["state"]["subjects"] == {subjects.content_key(run_id): 1}


async def test_a_destroyed_key_is_on_no_disk_and_in_no_process_after_a_second(
    server: NatsServer, bus: Bus, other: Bus, run_id: str
) -> None:
    sequence = await bus.publisher.publish(event(run_id, 1))
    stream = streams.events_for(run_id)
    assert (await other.at(stream, sequence)).payload == body(run_id, 1)  # type: ignore[union-attr]  # stored above
    key = await bus.tail(streams.KEYS, subjects.content_key(run_id))
    assert key is not None
    assert files_with(key.payload, server.store) == [streams.KEYS]

    assert await bus.content.destroy(run_id)
    began = time.monotonic()

    async def unreadable() -> bool:
        stored = await other.at(stream, sequence)
        assert stored is not None
        return isinstance(stored.payload, Unreadable)

    await eventually(unreadable, WITHIN_S, "the other process has forgotten the key")
    assert time.monotonic() - began < WITHIN_S
    assert files_with(key.payload, server.store) == []
    for each in (bus, other):
        stored = await each.at(stream, sequence)
        assert stored is not None
        with pytest.raises(ContentErased):
            await objects.unwrap(each, stored.payload)
    assert not await bus.content.destroy(run_id)


async def test_a_key_that_is_destroyed_while_it_is_made_seals_nothing(
    bus: Bus, other: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, erases = bus.jetstream.request, True

    async def destroyed_meanwhile(subject: str, *arguments: Any, **named: Any) -> Any:
        nonlocal erases
        answer = await request(subject, *arguments, **named)
        if erases and subject == subjects.content_key(run_id):
            erases = False
            assert await other.content.destroy(run_id)
            await bus.client.flush()  # the notice comes before the answer to this
        return answer

    monkeypatch.setattr(bus.jetstream, "request", destroyed_meanwhile)
    sequence = await bus.publisher.publish(event(run_id, 1))
    stored = await other.at(streams.events_for(run_id), sequence)
    assert stored is not None
    assert stored.payload == body(run_id, 1)


async def test_content_after_an_erasure_has_a_key_of_its_own(
    bus: Bus, other: Bus, run_id: str
) -> None:
    await bus.publisher.publish(event(run_id, 1))
    await bus.content.destroy(run_id)
    pattern = subjects.events_of_run(run_id)
    erased = await other.tail(streams.events_for(run_id), pattern)
    assert erased is not None
    assert isinstance(erased.payload, Unreadable)  # so the other process knows that there is no key
    await bus.publisher.publish(event(run_id, 2))
    found, _ = await direct.read(other, streams.events_for(run_id), subjects.events_of_run(run_id))
    assert isinstance(found[0].payload, Unreadable)
    assert found[1].payload == body(run_id, 2)


async def test_a_key_that_a_later_write_replaced_would_stay_on_the_disk(
    server: NatsServer, bus: Bus
) -> None:
    """This is why KEYS has no limit of messages a subject: see the decision 0375."""
    config = {"name": "LIMITED", "subjects": ["limited"], "max_msgs_per_subject": 1}
    await bus.api("STREAM.CREATE.LIMITED", config)
    for value in (b"the-first-value-of-a-key", b"the-second-value-of-a-key"):
        await bus.request("limited", value)
    state = (await bus.api("STREAM.INFO.LIMITED"))["state"]
    assert state["messages"] == 1
    assert files_with(b"the-first-value-of-a-key", server.store) == ["LIMITED"]
    await bus.api("STREAM.DELETE.LIMITED")


async def test_what_was_written_in_clear_is_read_beside_what_is_sealed(
    fresh_nats: NatsServer, run_id: str
) -> None:
    async with connected(fresh_nats.url) as before:
        await before.publisher.publish(event(run_id, 1))
        async with sealing_bus(fresh_nats, "none", FIRST) as opens:
            await opens.publisher.publish(event(run_id, 2))
            assert files_with(SECRET, fresh_nats.store)
            async with sealing_bus(fresh_nats) as seals:
                await seals.publisher.publish(event(run_id, 3))
                for each in (opens, seals):
                    found, _ = await direct.read(
                        each, streams.events_for(run_id), subjects.events_of_run(run_id)
                    )
                    assert [s.payload for s in found] == [body(run_id, n) for n in (1, 2, 3)]
        # A process that has no key waits, and says what the operator must do.
        with pytest.raises(KeyMissing, match="PENSTOCK_CONTENT_KEYS is not set to"):
            await before.tail(streams.events_for(run_id), subjects.events_of_run(run_id))
        assert any("PENSTOCK_CONTENT_KEYS" in reason for reason in before.not_ready)
    for keys in ((), (SECOND,)):
        with pytest.raises(StartUpError, match="PENSTOCK_CONTENT_KEYS"):
            async with connected(fresh_nats.url, content_keys=keys):
                pass


@asynccontextmanager
async def attacker(nats: NatsServer) -> AsyncIterator[Bus]:
    """Who may write on NATS, and has no key: what he writes is in clear."""
    async with sealing_bus(nats, "none", FIRST) as bus:
        yield bus


async def test_content_in_clear_is_refused_wherever_it_is_read_once_its_run_has_a_key(
    server: NatsServer, bus: Bus, other: Bus, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream, pattern = streams.events_for(run_id), subjects.events_of_run(run_id)
    refused: list[int] = []
    other.content.refused = lambda: refused.append(1)
    got: list[Stored] = []
    follow = Follow(other, events(run_id), 1, got.extend)
    await follow.start()
    try:
        await bus.publisher.publish(event(run_id, 1))
        await bus.bucket("pauses").put(run_id, SECRET)
        async with attacker(server) as forges:
            sequence = await forges.publisher.publish(event(run_id, 2))
            await forges.bucket("pauses").put(run_id, SECRET)

        async def both() -> bool:
            return len(got) == 2

        await eventually(both, 10, "both events")
    finally:
        await follow.stop()
    entry = await other.bucket("pauses").get(run_id)
    assert entry is not None
    found, _ = await direct.read(other, stream, pattern)
    by_reader: list[Stored] = []

    async def take(stored: Stored) -> None:
        by_reader.append(stored)
        if stored.sequence == sequence:
            raise StopReading

    with pytest.raises(StopReading):
        await Reader(other, stream, pattern, 1, take).run()
    tail = await other.tail(stream, pattern)
    assert tail is not None
    assert [got[0].payload, found[0].payload, by_reader[0].payload] == [body(run_id, 1)] * 3
    for payload in (entry.value, got[1].payload, found[1].payload, by_reader[1].payload):
        with pytest.raises(ContentRefused, match="in clear, and its run is sealed"):
            await objects.unwrap(other, payload)
    assert isinstance(tail.payload, Unreadable)
    assert len(refused) == 5
    assert any(run_id in line and "is refused" in line for line in caplog.messages)


async def test_a_command_in_clear_for_a_sealed_run_is_a_dead_letter(
    server: NatsServer, bus: Bus, other: Bus, run_id: str
) -> None:
    kind = f"k{random.randrange(10**9)}"
    await bus.publisher.publish(event(run_id, 1))
    unsealed = new_run_id()  # of before the installation was switched over
    async with attacker(server) as forges:
        for each in (run_id, unsealed):
            await forges.publisher.publish(
                Message(subjects.command("clear", kind, each), SECRET, {})
            )
    handled: list[str] = []
    given_up: dict[str, Exception] = {}

    async def handle(stored: Stored) -> None:
        handled.append(subjects.run_id_of(stored.subject))

    async def give_up(stored: Stored, error: Exception) -> None:
        given_up[subjects.run_id_of(stored.subject)] = error

    consumer = Consumer(
        stream=streams.COMMANDS, durable=f"clear-{kind}", subjects=(f"command.clear.{kind}.*",)
    )
    queue = WorkQueue(other, consumer, handle, give_up=give_up, attempts=None)
    task = asyncio.create_task(queue.run())
    try:

        async def done() -> bool:
            return len(handled) + len(given_up) == 2

        await eventually(done, 20, "both commands")
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert handled == [unsealed]
    assert isinstance(given_up[run_id], ContentRefused)


async def test_an_event_of_a_sealed_run_refers_to_no_object_in_clear_or_of_another_run(
    server: NatsServer, bus: Bus, other: Bus, run_id: str
) -> None:
    await bus.publisher.publish(event(run_id, 1))
    large, elsewhere = SECRET * 40_000, new_run_id()
    await objects.wrap(bus, f"{elsewhere}.1", large, elsewhere)
    async with attacker(server) as forges:
        own = await objects.wrap(forges, f"{run_id}.2", large, run_id)
    for payload in (own, objects.reference(f"{elsewhere}.1")):
        sequence = await bus.publisher.publish(
            Message(subjects.event_input("llm.stream", run_id), payload, {messages.SEQUENCE: "2"})
        )
        stored = await other.at(streams.events_for(run_id), sequence)
        assert stored is not None
        with pytest.raises(ContentRefused):
            await objects.unwrap(other, stored.payload)


async def test_a_run_whose_key_was_made_while_not_all_services_sealed_has_both(
    fresh_nats: NatsServer, run_id: str
) -> None:
    async with connected(fresh_nats.url) as before:
        await before.publisher.publish(event(run_id, 1))
    pattern = subjects.events_of_run(run_id)
    async with (
        sealing_bus(fresh_nats, "none", FIRST) as not_yet,
        sealing_bus(fresh_nats, FIRST, "none") as first,
    ):
        await first.publisher.publish(event(run_id, 2))
        await not_yet.publisher.publish(event(run_id, 3))  # it is restarted last
        for bus in (not_yet, first):
            found, _ = await direct.read(bus, streams.events_for(run_id), pattern)
            assert [stored.payload for stored in found] == [body(run_id, n) for n in (1, 2, 3)]
    later = new_run_id()
    async with sealing_bus(fresh_nats) as bus:
        found, _ = await direct.read(bus, streams.events_for(run_id), pattern)
        assert [stored.payload for stored in found] == [body(run_id, n) for n in (1, 2, 3)]
        await bus.publisher.publish(event(later, 1))
        assert (await rewrap(bus)).keys == 2
    async with sealing_bus(fresh_nats, SECOND, FIRST) as bus, attacker(fresh_nats) as forges:
        await forges.publisher.publish(event(later, 2))
        assert (await rewrap(bus)).changed == 2
        tail = await bus.tail(streams.events_for(later), subjects.events_of_run(later))
        assert tail is not None
        assert isinstance(tail.payload, Unreadable)


async def test_a_letter_about_content_that_was_refused_is_replayed_once_its_key_is_back(
    server: NatsServer, bus: Bus, run_id: str
) -> None:
    subject = subjects.command("connector", "cancel", run_id)
    sealed = await bus.content.sealed(Message(subject, SECRET, {}))
    key = await bus.tail(streams.KEYS, subjects.content_key(run_id))
    assert key is not None
    await bus.api(f"STREAM.PURGE.{streams.KEYS}", {"filter": key.subject})  # as after a loss
    bus.content.forget()
    stored = Stored(subject, 9, {}, sealed.payload)
    await bus.content.open(stored)
    assert isinstance(stored.payload, Unreadable)
    letter = deadletters.letter_about("connector", "p", stored, stored.payload.error)
    found = Letter(1, letter)
    with pytest.raises(CannotReplay, match="NATS has lost the key; drop the letter, or restore"):
        await replay_letter(bus, found)
    await bus.request(key.subject, key.payload)
    bus.content.forget()
    assert await replay_letter(bus, found)
    command = await bus.tail(streams.COMMANDS, subject)
    assert command is not None
    assert command.payload == SECRET


async def test_a_service_without_the_key_does_not_start_after_an_erasure_either(
    fresh_nats: NatsServer, run_id: str
) -> None:
    async with sealing_bus(fresh_nats) as bus:
        await bus.publisher.publish(event(run_id, 1))
        await bus.content.destroy(run_id)
    for keys in ((), (SECOND,)):
        with pytest.raises(StartUpError, match="PENSTOCK_CONTENT_KEYS"):
            async with connected(fresh_nats.url, content_keys=keys):
                pass
    async with sealing_bus(fresh_nats, SECOND, FIRST) as bus:
        assert (await rewrap(bus)).changed == 1
    async with sealing_bus(fresh_nats, SECOND):
        pass


async def test_a_rewrap_lets_the_former_key_of_the_operator_go(
    fresh_nats: NatsServer, run_id: str
) -> None:
    async with sealing_bus(fresh_nats) as bus:
        await bus.publisher.publish(event(run_id, 1))
        former = await bus.tail(streams.KEYS, subjects.content_key(run_id))
        assert former is not None
    async with sealing_bus(fresh_nats, SECOND, FIRST) as bus:
        # as after a rewrap that ended between its two steps
        masters = bus.content.masters
        value = masters.wrap(run_id, masters.unwrap(run_id, former.payload))
        subject = subjects.content_key(run_id)
        await fence.append(bus, subject, [Message(subject, value, {})], former.sequence)
        done = await rewrap(bus)
        assert (done.changed, done.keys) == (1, 2)
        again = await rewrap(bus)
        assert (again.changed, again.keys) == (0, 1)
    assert files_with(former.payload, fresh_nats.store) == []
    async with sealing_bus(fresh_nats, SECOND) as bus:
        tail = await bus.tail(streams.events_for(run_id), subjects.events_of_run(run_id))
        assert tail is not None
        assert tail.payload == body(run_id, 1)


@pytest.mark.parametrize(
    "user", ["connector", "normalizer", "edge", "approvals", "automations", "workflows"]
)
async def test_each_service_may_make_and_read_the_key_of_a_run(
    server: NatsServer, bus: Bus, user: str, run_id: str
) -> None:
    async with sealing_bus(server, user=user) as service:
        message = Message(subjects.journal(run_id), SECRET, {})
        sealed = await service.content.sealed(message)
        assert SECRET not in sealed.payload
    stored = Stored(message.subject, 1, {}, sealed.payload)
    await bus.content.open(stored)
    assert stored.payload == SECRET


async def test_a_key_that_somebody_wrote_over_stops_its_readers_and_erases_nothing(
    bus: Bus, other: Bus, run_id: str
) -> None:
    await bus.publisher.publish(event(run_id, 1))
    await bus.request(subjects.content_key(run_id), b"{}")
    with pytest.raises(BusUnavailable, match="is not what was stored"):
        await other.tail(streams.events_for(run_id), subjects.events_of_run(run_id))
    await bus.content.destroy(run_id)


async def test_clear_messages_among_those_of_a_destroyed_key_are_overwritten_and_only_these(
    server: NatsServer, bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern, stream, clear = subjects.events_of_run(run_id), streams.events_for(run_id), b"in-clear"
    other_run = new_run_id()
    await bus.publisher.publish(event(other_run, 1))
    async with sealing_bus(server, "none", FIRST) as in_clear:
        for number in range(1, 8):
            if number == 4:
                message = event(run_id, number)
                payload = body(run_id, number, clear)
                await in_clear.publisher.publish(Message(message.subject, payload, message.headers))
            else:
                await bus.publisher.publish(event(run_id, number))

    async def is_stored() -> bool:
        return files_with(clear, server.store) == [stream]

    await eventually(is_stored, 20, "the clear message in a file")
    await bus.content.destroy(run_id)
    kept: list[bool] = []  # whether the bytes of each message are kept
    api = bus.jetstream.api

    async def noted(call: str, body: Any = None, *more: Any) -> dict[str, Any]:
        kept.extend([body["no_erase"]] if "DELETE" in call else [])
        return await api(call, body, *more)

    monkeypatch.setattr(bus.jetstream, "api", noted)
    await overwrite(bus, stream, pattern)
    assert kept == [True, True, True, False, True, True, True]
    assert await bus.tail(stream, pattern) is None
    assert await bus.tail(stream, subjects.events_of_run(other_run)) is not None

    async def is_gone() -> bool:
        return files_with(clear, server.store) == []

    await eventually(is_gone, 20, "files without the clear message")
