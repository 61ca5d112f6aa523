"""Where content is sealed, a subscriber reads what the operator has granted to its durable."""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import nats
import orjson
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeoutError

from penstock.bus import Bus, Message, streams, subjects
from penstock.bus.admin import permissions, subscribers
from penstock.bus.admin.subscribers import Durable, Grant
from penstock.bus.messages import REFUSAL, SEQUENCE
from penstock.bus.records.erasures import Erasure
from penstock.bus.records.runs import RunRecord
from penstock.bus.subjects import key_request
from penstock.bus.write import objects
from penstock.contract.asyncapi import headers
from penstock.events import Data, Event
from penstock.events.llm import ToolCall
from penstock.subscribe import Received, Sealed, account
from penstock.subscribe.account import Account
from penstock_edge.sources import key_requests
from penstock_edge.sources.askers import PER_SECOND
from penstock_edge.sources.key_requests import KeyRequests
from penstock_edge.sources.large_events import LargeEvents
from penstock_edge.sources.sessions import RunRecords
from support.drive.bus import all_processed, connected, new_run_id
from support.drive.dead_letters import all_letters, the_letter
from support.drive.waiting import eventually
from support.real.nats import NatsServer, login, password_of

from .conftest import QUICK, System, burying, came, event, running

KEYS = ("k" * 32,)
SECRET = "the-planted-secret"
# Subscribers besides `subscriber`, each with a user and a durable: one of the operator's, and one
# of the tenant.
ANALYST, ACME = "analyst", "acme"
DEAF = "deaf"  # a subscriber whose user may not hear that a key was destroyed
ASKS_FOR_CONTENT: tuple[Callable[[dict[str, Any]], object], ...] = (
    lambda data: data["args"],
    lambda data: data.get("args", {}),
    lambda data: data.setdefault("args", {}),
    lambda data: data.pop("args", {}),
    lambda data: "args" in data,
)
WITHIN_S = 1.0  # the time after which an erasure must count


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    deaf = permissions.reader(DEAF)
    hears = tuple(each for each in deaf.subscribe if each != subjects.key_notice("*"))
    readers = [*permissions.READERS, *map(permissions.reader, (ANALYST, ACME))]
    readers.append(replace(deaf, subscribe=hears))
    names = [*permissions.NAMES, ANALYST, ACME, DEAF]
    passwords = {name: f'"{password_of(name)}"' for name in names}
    accounts = permissions.configuration(passwords, 1, readers)
    config = f"{accounts}no_auth_user: {permissions.OPERATOR}\n"
    folder = tmp_path_factory.mktemp("grants")
    server = NatsServer(folder, name="nats of grants", config=config, users=False)
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def sealed(server: NatsServer) -> AsyncIterator[System]:
    """A server whose durables are new, an edge with the content keys, and a bus that seals."""
    async with connected(server.url, content_keys=KEYS) as bus:
        await bus.api("STREAM.PURGE.EVENTS")
        for name in (permissions.SUBSCRIBER, ANALYST, ACME, DEAF):
            await subscribers.delete(bus, name)
            await subscribers.make(bus, Durable(name))
        await subscribers.grant(bus, permissions.SUBSCRIBER, Grant(True))
        await subscribers.grant(bus, DEAF, Grant(True))
        await subscribers.grant(bus, ACME, Grant(True, ("acme",)))
        async with edge(server), burying(bus):
            yield System(server, bus)


@asynccontextmanager
async def edge(server: NatsServer) -> AsyncIterator[None]:
    """Answer subscribers' requests as an edge does, with its rights."""
    async with connected(server.url, **login("edge"), content_keys=KEYS) as bus:
        # As of an edge that has just started, which reads the records of runs.
        records = RunRecords(bus, {}, lambda: False)
        answering = LargeEvents(bus, records), KeyRequests(bus)
        for each in answering:
            await each.start()
        try:
            yield
        finally:
            for each in answering:
                await each.stop()


async def made(bus: Bus, tenant: str = "acme") -> str:
    """Make a run of the tenant's; return its id."""
    now = "2026-11-27T15:00:00.000Z"
    record = RunRecord(
        **{"run_id": new_run_id(), "agent": "assistant", "session_id": "s", "user_id": "ada"},
        **{"tenant": tenant, "message": SECRET, "created_at": now, "updated_at": now},
    )
    await bus.bucket("runs").put(record.run_id, record.dump())
    return record.run_id


def said(run_id: str, sequence: int, text: str = SECRET) -> Event:
    """Return a tool call of the run, with the fields that an event has on the bus."""
    args = {"text": text}
    whole = event(run_id, sequence, tool_call_id=f"c{sequence}", tool="search", args=args)
    return whole.model_copy(update={"session_id": "s", "leg": 1})


async def publish_large(system: System, large: Event) -> None:
    name = f"{large.run_id}.{large.sequence}"
    reference = await objects.wrap(system.bus, name, large.dump(), large.run_id)
    assert objects.is_reference(reference)
    await system.store(large, reference)


async def stored(system: System, event: Event) -> bytes:
    """Return an event of the run as EVENTS has it."""
    subject = subjects.event(event.type, event.run_id)
    answer = await system.bus.api("STREAM.MSG.GET.EVENTS", {"seq": 1, "next_by_subj": subject})
    return base64.b64decode(answer["message"]["data"])


async def erase(bus: Bus, run_id: str, *, is_told: bool = True) -> None:
    """Erase the run's content as the normalizer does, up to the key. Without `is_told`, no notice
    comes, as to a process that is cut off."""

    def begin(record: RunRecord) -> None:
        record.erasure = Erasure(id="e", by="ada", at=record.created_at, sequence=9)

    await bus.bucket("runs").change(run_id, RunRecord, begin)
    if is_told:
        await bus.content.let_forget(run_id)


# grants


async def test_with_the_grant_content_a_subscriber_gets_what_it_gets_without_sealing(
    sealed: System,
) -> None:
    run_id = await made(sealed.bus)
    subscriber = sealed.subscriber()
    events: list[Event] = []
    calls: list[ToolCall] = []

    @subscriber.on(f"*.*.{run_id}")
    async def whole(event: Event) -> None:
        events.append(event)

    @subscriber.on(f"llm.tool_call.{run_id}")
    async def typed(call: ToolCall) -> None:
        calls.append(call)

    written = [said(run_id, 1), said(run_id, 2, SECRET * 60_000), said(run_id, 3)]
    await sealed.publish(written[0])
    await publish_large(sealed, written[1])
    await sealed.publish(written[2])
    assert SECRET.encode() not in await stored(sealed, written[0])
    async with running(subscriber):
        await sealed.settled()
    assert events == written
    assert [call.args for call in calls] == [each.data["args"] for each in written]
    assert await all_letters(sealed.bus, run_id=run_id) == []


async def test_without_a_grant_a_handler_gets_envelopes_which_nobody_takes_for_empty_content(
    sealed: System,
) -> None:
    run_id = await made(sealed.bus)
    subscriber = sealed.subscriber(ANALYST, user=ANALYST)
    calls: list[ToolCall | Sealed] = []
    events: list[Event] = []
    received: list[Received[Data]] = []

    @subscriber.on(f"llm.tool_call.{run_id}")
    async def typed(call: ToolCall | Sealed) -> None:
        calls.append(call)

    @subscriber.on(f"*.*.{run_id}")
    async def envelope(event: Event) -> None:
        events.append(event)

    @subscriber.on(f"llm.*.{run_id}")
    async def with_facts(found: Received[Data]) -> None:
        received.append(found)

    written = [said(run_id, 1), said(run_id, 2, SECRET * 60_000), said(run_id, 3)]
    await sealed.publish(written[0])
    await publish_large(sealed, written[1])
    await sealed.publish(written[2])
    async with running(subscriber):
        await sealed.settled(durable=ANALYST)
    assert calls == [Sealed(reason="no_grant")] * 3
    assert not hasattr(calls[0], "args")
    assert [found.data for found in received] == calls
    shown = [each.model_dump(exclude={"data"}, exclude_unset=True) for each in written]
    found = [each.model_dump(exclude={"data"}, exclude_unset=True) for each in events]
    assert found == [{**each, "sealed": 1} for each in shown]
    for each in events:
        assert list(each.data) == ["sealed"]
        for ask in ASKS_FOR_CONTENT:
            with pytest.raises(LookupError, match=r"data\.args is sealed"):
                ask(each.data)
    assert await all_letters(sealed.bus, run_id=run_id) == []


async def test_no_byte_of_content_reaches_a_user_without_a_grant(sealed: System) -> None:
    run_id = await made(sealed.bus)
    got: list[bytes] = []

    async def hear(msg: Msg) -> None:
        got.append(msg.data)

    async with client_of(sealed, ANALYST) as (client, refused):
        await client.subscribe("live.>", cb=hear)
        await all_processed(client)
        await sealed.publish(said(run_id, 1))
        await publish_large(sealed, said(run_id, 2, SECRET * 60_000))
        js = client.jetstream(domain=permissions.DOMAIN)
        durable = await js.pull_subscribe_bind(durable=ANALYST, stream="EVENTS")
        got += [each.data for each in await durable.fetch(batch=2, timeout=5)]
        for part in range(3):
            subject = subjects.large_event(run_id, 2, part)
            got.append((await client.request(subject, timeout=5)).data)

        async def heard() -> bool:
            return len(got) == 7

        await eventually(heard, 10, "the durable's, the live and the large events")
        assert refused == []
    assert sum(map(len, got)) > len(SECRET) * 60_000  # the large event came, sealed
    assert sum(run_id.encode() in each for each in got) >= 5
    assert SECRET.encode() not in b"".join(got)


async def test_a_reader_in_any_language_opens_an_event_as_consuming_md_says(
    sealed: System,
) -> None:
    run_id = await made(sealed.bus)
    written = said(run_id, 1)
    await sealed.publish(written)
    async with client_of(sealed, permissions.SUBSCRIBER) as (client, _):
        js = client.jetstream(domain=permissions.DOMAIN)
        durable = await js.pull_subscribe_bind(durable=permissions.SUBSCRIBER, stream="EVENTS")
        [msg] = await durable.fetch(batch=1, timeout=5)
        key = (await asked(client, permissions.SUBSCRIBER, run_id)).data
    content = base64.b64decode(orjson.loads(msg.data)["data"]["sealed"])
    before, rest = msg.data.replace(b'"sealed":1,', b"", 1).split(b',"data":', 1)
    after = rest.split(b"}", 1)[1]
    number = (msg.headers or {})[SEQUENCE].encode()
    bound = b"\n".join([msg.subject.encode(), number, before, after])
    data = AESGCM(key).decrypt(content[8:20], content[20:], bound)
    assert orjson.loads(data) == written.data


@pytest.mark.parametrize("form", ["ToolCall", "Event", "Event, by its model"])
async def test_an_event_waits_for_the_grant_that_its_handler_needs(
    sealed: System, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    run_id = await made(sealed.bus)
    subscriber = sealed.subscriber(ANALYST, user=ANALYST)
    calls: list[object] = []
    if form == "ToolCall":

        @subscriber.on(f"llm.tool_call.{run_id}")
        async def typed(call: ToolCall) -> None:
            calls.append(call.args)

    elif form == "Event":

        @subscriber.on(f"llm.tool_call.{run_id}")
        async def untyped(event: Event) -> None:
            calls.append(event.data.get("args", {}))
    else:

        @subscriber.on(f"llm.tool_call.{run_id}")
        async def by_model(event: Event) -> None:
            call = event.data_model()
            assert isinstance(call, ToolCall)
            calls.append(call.args)

    await sealed.publish(said(run_id, 1))
    async with running(subscriber):

        async def told() -> bool:
            return "waits, since" in caplog.text

        await eventually(told, 10, "what the handler needs")
        assert calls == []
        assert "penstock subscribers grant DURABLE content" in caplog.text
        await subscribers.grant(sealed.bus, ANALYST, Grant(True))
        await came(calls, 1)
        await sealed.settled(durable=ANALYST)
    assert calls == [{"text": SECRET}]
    assert await all_letters(sealed.bus, run_id=run_id) == []


async def test_a_grant_for_a_tenant_opens_the_runs_of_this_tenant_only(sealed: System) -> None:
    own, others, nobodys = [await made(sealed.bus, each) for each in ("acme", "other", "")]
    subscriber = sealed.subscriber(ACME, user=ACME)
    calls: list[ToolCall] = []
    seen: list[Received[ToolCall | Sealed]] = []

    @subscriber.on()
    async def typed(call: ToolCall) -> None:
        calls.append(call)

    @subscriber.on()
    async def all_runs(found: Received[ToolCall | Sealed]) -> None:
        seen.append(found)

    await sealed.publish(said(others, 1), said(own, 1), said(nobodys, 1))
    async with running(subscriber):
        await sealed.settled(durable=ACME)
    assert [call.args for call in calls] == [{"text": SECRET}]
    reasons = {found.run_id: getattr(found.data, "reason", None) for found in seen}
    assert reasons == {others: "other_tenant", own: None, nobodys: "other_tenant"}
    assert await all_letters(sealed.bus) == []


async def test_a_grant_that_is_taken_back_counts_for_the_next_request(sealed: System) -> None:
    run_id = await made(sealed.bus)
    await sealed.publish(said(run_id, 1))
    async with client_of(sealed, permissions.SUBSCRIBER) as (client, _):
        assert len((await asked(client, permissions.SUBSCRIBER, run_id)).data) == 32
        await subscribers.grant(sealed.bus, permissions.SUBSCRIBER, Grant())
        assert await refusal(client, permissions.SUBSCRIBER, run_id) == "no_grant"


# attackers


@asynccontextmanager
async def client_of(system: System, user: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """Connect as this user with a plain client; yield it and what the server has refused."""
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    client = await nats.connect(system.server.url, error_cb=on_error, **login(user))
    try:
        yield client, refused
    finally:
        await client.close()


async def asked(client: Client, durable: str, run_id: str) -> Msg:
    return await client.request(key_request(durable, run_id), timeout=5)


async def refusal(client: Client, durable: str, run_id: str) -> str:
    """Return why the key was refused."""
    answer = await asked(client, durable, run_id)
    assert answer.data == b""
    return (answer.headers or {})[REFUSAL]


async def test_a_key_is_refused_with_the_reason(sealed: System) -> None:
    own, others = await made(sealed.bus), await made(sealed.bus, "other")
    await sealed.publish(said(own, 1), said(others, 1))
    async with client_of(sealed, ANALYST) as (client, _):
        assert await refusal(client, ANALYST, own) == "no_grant"
    async with client_of(sealed, ACME) as (client, _):
        assert len((await asked(client, ACME, own)).data) == 32
        assert await refusal(client, ACME, others) == "other_tenant"
        assert await refusal(client, ACME, new_run_id()) == "unknown"
        assert await refusal(client, ACME, "x") == "unknown"
        await erase(sealed.bus, own)
        assert await refusal(client, ACME, own) == "erased"


async def test_nobody_asks_for_another_answers_for_an_edge_or_reads_the_stream_of_keys(
    sealed: System,
) -> None:
    run_id = await made(sealed.bus)
    await sealed.publish(said(run_id, 1))
    publish = [
        key_request(permissions.SUBSCRIBER, run_id),  # as somebody who has the grant
        "_INBOX_subscriber.1.1",  # the answer to somebody else's request
        subjects.key_notice(run_id),
        subjects.content_key(run_id),
        *("$JS.API.STREAM.MSG.GET.KEYS", "$JS.penstock.API.STREAM.MSG.GET.KEYS"),
        *("$JS.API.DIRECT.GET.KEYS", f"$JS.penstock.API.DIRECT.GET.KEYS.key.{run_id}"),
        "$JS.penstock.API.CONSUMER.CREATE.KEYS",
        "$JS.penstock.API.CONSUMER.DURABLE.CREATE.EVENTS.analyst",  # to grant itself content
    ]
    listen = ["runkey.>", "runkey.*.*", "key.>", "_INBOX_subscriber.>"]
    async with client_of(sealed, ANALYST) as (client, refused):
        for subject in publish:
            await client.publish(subject, b"{}", "_INBOX_analyst.answer")
        for subject in listen:
            await client.subscribe(subject)
        await all_processed(client)

        async def all_refused() -> bool:
            return len(refused) >= len(publish) + len(listen)

        await eventually(all_refused, 10, "every refusal")
    text = "\n".join(refused)
    assert all(f'"{subject.lower()}"' in text for subject in (*publish, *listen))


@pytest.mark.parametrize("into", ["another run", "another number"])
async def test_content_that_stands_in_another_place_is_given_to_nobody(
    sealed: System, into: str
) -> None:
    """The attacker may write on NATS, and has a grant for the run into which it puts content."""
    victim, own = await made(sealed.bus, "other"), await made(sealed.bus)
    await sealed.publish(said(victim, 1), said(own, 1))
    of_victim = orjson.loads(await stored(sealed, said(victim, 1)))
    place = orjson.loads(await stored(sealed, said(own, 1)))
    if into == "another run":
        forged = said(own, 2)
        place |= {"sequence": 2, "data": of_victim["data"]}
    else:
        forged = said(own, 3)
        place |= {"sequence": 3}
    subscriber = sealed.subscriber(ACME, user=ACME)
    calls: list[ToolCall] = []

    @subscriber.on(f"llm.tool_call.{own}")
    async def typed(call: ToolCall) -> None:
        calls.append(call)

    # A bus without keys publishes the bytes as they are.
    async with connected(sealed.server.url, content_keys=("none", *KEYS)) as plain:
        subject = subjects.event_input(forged.type, own)
        body = orjson.dumps(place)
        # Sealed events begin so.
        body = b'{"sealed":1,' + body[1:].replace(b'"sealed":1,', b"", 1)
        await plain.publisher.publish(Message(subject, body, headers(forged)))
    async with running(subscriber):
        found = await the_letter(sealed.bus, ACME, own)
        await sealed.settled(durable=ACME)
    assert [call.tool_call_id for call in calls] == ["c1"]
    assert "cannot be read" in found.letter.reason


@pytest.mark.parametrize("by", ["a notice", "the loss of its connection"])
async def test_a_subscriber_forgets_a_key_when_the_run_is_erased(sealed: System, by: str) -> None:
    run_id = await made(sealed.bus)
    subscriber = sealed.subscriber()
    seen: list[ToolCall | Sealed] = []

    @subscriber.on(f"llm.tool_call.{run_id}")
    async def typed(call: ToolCall | Sealed) -> None:
        seen.append(call)

    await sealed.publish(said(run_id, 1))
    late = Message(
        subjects.event_input("llm.tool_call", run_id),
        await stored(sealed, said(run_id, 1)),
        {**headers(said(run_id, 1)), SEQUENCE: "1"},
    )
    async with running(subscriber):
        await came(seen, 1)
        await erase(sealed.bus, run_id, is_told=by == "a notice")
        if by == "a notice":
            await asyncio.sleep(WITHIN_S)
        else:
            await asyncio.to_thread(sealed.server.stop)
            await asyncio.to_thread(sealed.server.start)
        # An event that the server delivers once more.
        async with connected(sealed.server.url, content_keys=("none", *KEYS)) as plain:
            await plain.publisher.publish(late)
        await came(seen, 2)
        await sealed.settled()
    assert isinstance(seen[0], ToolCall)
    assert seen[1] == Sealed(reason="erased")
    assert await all_letters(sealed.bus, run_id=run_id) == []


async def test_a_large_event_of_an_erased_run_becomes_no_dead_letter(sealed: System) -> None:
    """As of a subscriber that is behind, until the messages of the run are deleted."""
    run_id = await made(sealed.bus)
    await sealed.publish(said(run_id, 1))
    await publish_large(sealed, said(run_id, 2, SECRET * 60_000))
    await erase(sealed.bus, run_id)
    subscriber = sealed.subscriber()
    seen: list[ToolCall | Sealed] = []

    @subscriber.on(f"llm.tool_call.{run_id}")
    async def typed(call: ToolCall | Sealed) -> None:
        seen.append(call)

    async with running(subscriber):
        await sealed.settled()
    assert seen == [Sealed(reason="erased")]
    assert await all_letters(sealed.bus, run_id=run_id) == []


async def test_a_subscriber_that_cannot_hear_of_erasures_uses_no_key(
    sealed: System, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = await made(sealed.bus)
    subscriber = sealed.subscriber(DEAF, user=DEAF, limits=replace(QUICK, grace_s=0.1))

    @subscriber.on(f"*.*.{run_id}")
    async def take(event: Event) -> None:
        raise AssertionError(event)

    await sealed.publish(said(run_id, 1))
    async with running(subscriber):

        async def told() -> bool:
            return "the NATS user deaf may not subscribe to keygone.*" in caplog.text

        await eventually(told, 10, "what the user lacks")
        assert await sealed.pending(durable=DEAF) == 1


async def test_a_flood_of_one_subscriber_delays_no_other(sealed: System) -> None:
    """The flood and the edge are in this process, so the times contain what the flood takes."""
    run_id = await made(sealed.bus)
    await sealed.publish(said(run_id, 1))
    answers: list[Msg] = []

    async def take(msg: Msg) -> None:
        answers.append(msg)

    async with (
        client_of(sealed, ACME) as (flooding, _),
        client_of(sealed, permissions.SUBSCRIBER) as (second, _),
    ):
        await flooding.subscribe("_INBOX_acme.flood", cb=take)
        await all_processed(flooding)
        for _ in range(50 * PER_SECOND):
            await flooding.publish(key_request(ACME, run_id), b"", "_INBOX_acme.flood")
        await flooding.flush()
        begun = time.monotonic()
        for _ in range(20):
            assert len((await asked(second, permissions.SUBSCRIBER, run_id)).data) == 32
        took_s = time.monotonic() - begun

        async def refused() -> bool:
            return any((each.headers or {}).get(REFUSAL) == "busy" for each in answers)

        await eventually(refused, 30, "a refusal")
    # The flood may have lasted for more than a second.
    assert len(answers) <= 10 * PER_SECOND
    assert took_s < 5.0


async def test_a_flood_for_large_events_of_one_subscriber_delays_no_other(sealed: System) -> None:
    run_id = await made(sealed.bus)
    await publish_large(sealed, said(run_id, 2, SECRET * 60_000))

    async def flood(client: Client) -> None:
        for number in itertools.count(3):
            subject = subjects.large_event(run_id, number, 0)
            await client.publish(subject, b"", "_INBOX_acme.flood")
            if number % PER_SECOND == 0:
                await client.flush()

    async with (
        client_of(sealed, ACME) as (flooding, _),
        client_of(sealed, permissions.SUBSCRIBER) as (second, _),
    ):
        beside = asyncio.create_task(flood(flooding))
        await all_processed(flooding)
        begun = time.monotonic()
        for _ in range(5):
            answer = await second.request(subjects.large_event(run_id, 2, 0), timeout=5)
            assert answer.data, answer.headers
        assert time.monotonic() - begun < 5.0
        assert not beside.done()
        beside.cancel()


async def test_while_nats_is_slow_requests_for_keys_do_not_pile_up(
    sealed: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await made(sealed.bus)

    async def hang(*_: object) -> Grant:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(key_requests, "grant_to", hang)
    async with client_of(sealed, ACME) as (client, _):
        for _ in range(3 * PER_SECOND):
            await client.publish(key_request(ACME, run_id), b"", "_INBOX_acme.flood")

        async def busy() -> bool:
            with suppress(NatsTimeoutError):
                answer = await client.request(key_request(ACME, run_id), timeout=0.3)
                return (answer.headers or {})[REFUSAL] == "busy"
            return False

        # In the second of the flood there is no answer.
        await eventually(busy, 10, "a refusal while the requests of before wait")


async def test_events_wait_while_no_edge_answers_and_are_in_order_then(
    server: NatsServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    request = Account._request

    async def counted(self: Account, subject: str, payload: bytes) -> object:
        asked.extend([subject] if subject.startswith("runkey.") else [])
        return await request(self, subject, payload)

    async def asked_often() -> bool:
        return len(asked) > 5

    monkeypatch.setattr(Account, "_request", counted)
    monkeypatch.setattr(account, "AGAIN_S", 0.1)
    async with connected(server.url, content_keys=KEYS) as bus:
        await bus.api("STREAM.PURGE.EVENTS")
        await subscribers.delete(bus, permissions.SUBSCRIBER)
        await subscribers.make(bus, Durable(permissions.SUBSCRIBER))
        await subscribers.grant(bus, permissions.SUBSCRIBER, Grant(True))
        system = System(server, bus)
        run_id = await made(bus)
        subscriber = system.subscriber()
        seen: list[Received[ToolCall]] = []

        @subscriber.on(f"llm.tool_call.{run_id}")
        async def typed(found: Received[ToolCall]) -> None:
            seen.append(found)

        await system.publish(*(said(run_id, number) for number in (1, 2, 3)))
        async with running(subscriber):
            await eventually(partial(_in_work, bus), 10, "an event that waits")
            await eventually(asked_often, 10, "that its key was asked for")
            assert seen == []
            assert caplog.text.count("no edge sends keys") == 1, "one line for all attempts"
            async with edge(server):
                await came(seen, 3)
                await system.settled()
    assert [each.event.sequence for each in seen] == [1, 2, 3]
    assert {each.delivered for each in seen} == {1}


async def _in_work(bus: Bus) -> bool:
    info = await bus.api(f"CONSUMER.INFO.{streams.EVENTS}.{permissions.SUBSCRIBER}")
    return bool(info["num_ack_pending"])
