"""A start names what is wrong with the connection; later, a lost connection is always restored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from penstock.bus import (
    Bus,
    BusError,
    BusSettings,
    BusUnavailable,
    Message,
    OutcomeUnknown,
    StartUpError,
    streams,
    subjects,
)
from penstock.bus.errors import ApiError
from penstock.bus.read import direct
from support.drive.bus import connected, event, publish_events, server_stopped
from support.drive.waiting import eventually
from support.fakes.serving import close_after
from support.real.nats import NatsServer
from support.real.ports import free_port

USERS = """
accounts {
  ALL { jetstream: enabled, users: [
    { user: all, password: right }
    { user: reader, password: right, permissions: {
        publish: { allow: ["$JS.API.INFO", "$JS.API.STREAM.INFO.*"] }, subscribe: ["_INBOX.>"] } }
    { user: core, password: right, permissions: {
        publish: { deny: ["$JS.>"] }, subscribe: ["_INBOX.>"] } }
  ] }
  NONE { users: [ { user: none, password: right } ] }
}
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[NatsServer]:
    """Run a server that requires a user and a password."""
    server = NatsServer(tmp_path / "nats", config=USERS, users=False)
    server.start()
    yield server
    server.remove()


async def refusal(url: str, **settings: object) -> str:
    """Return the error text of a refused start."""
    wanted = BusSettings(url=url, connect_timeout_s=1, publish_timeout_s=1)
    for name, value in settings.items():
        object.__setattr__(wanted, name, value)
    with pytest.raises(StartUpError) as refused:
        await Bus.connect(wanted)
    return str(refused.value)


@asynccontextmanager
async def server_that_says(info: dict[str, object]) -> AsyncIterator[str]:
    """Run a server that sends this INFO and knows just enough of the protocol for a connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(close_after(serve), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.close()
        await server.wait_closed()


def unused_url() -> str:
    return f"nats://127.0.0.1:{free_port()}"


async def test_where_nothing_listens_the_start_says_where_and_what() -> None:
    url = unused_url()
    said = await refusal(url)
    assert f"cannot connect to NATS at {url}" in said
    assert "Connect call failed" in said
    assert "PENSTOCK_NATS_URL" in said


async def test_a_wrong_password_is_reported_and_not_shown(guarded: NatsServer) -> None:
    url = guarded.url.replace("//", "//all:secret@")
    for said in [
        await refusal(guarded.url, user="all", password="secret"),
        await refusal(url),
    ]:
        assert "Authorization Violation" in said
        assert "credentials" in said
        assert "secret" not in said


async def test_an_invalid_address_is_reported() -> None:
    assert "cannot connect to NATS at" in await refusal("nats://127.0.0.1:port")


async def test_a_server_that_is_too_old_is_refused() -> None:
    info = {"version": "2.9.0", "headers": True, "max_payload": 1 << 20}
    async with server_that_says(info) as url:
        said = await refusal(url)
    assert "nats-server 2.9" in said
    assert "2.12 or later" in said


async def test_a_server_with_small_messages_is_refused() -> None:
    info = {"version": "2.15.1", "headers": True, "max_payload": 65536}
    async with server_that_says(info) as url:
        said = await refusal(url)
    assert "messages of 65536 bytes" in said
    assert "max_payload" in said


async def test_an_account_without_jetstream_is_refused(guarded: NatsServer) -> None:
    said = await refusal(guarded.url, user="none", password="right")
    assert "no JetStream" in said
    assert "-js" in said


async def test_a_user_who_may_not_use_jetstream_is_refused(guarded: NatsServer) -> None:
    said = await refusal(guarded.url, user="core", password="right")
    assert "$JS.API.>" in said


async def test_a_user_who_may_not_make_streams_is_refused(guarded: NatsServer) -> None:
    said = await refusal(guarded.url, user="reader", password="right")
    assert "the stream KV_leases is missing" in said
    assert "let the operator make the streams (`penstock streams make`)" in said


async def test_a_user_who_may_do_all_gets_in(guarded: NatsServer, run_id: str) -> None:
    async with connected(guarded.url, user="all", password="right") as bus:
        assert await bus.publisher.publish(event(run_id, 1))
    async with connected(guarded.url.replace("//", "//all:right@")) as bus:
        assert bus.is_ready


async def test_a_refused_start_leaves_no_connection(guarded: NatsServer) -> None:
    before = asyncio.all_tasks()
    await refusal(guarded.url, user="none", password="right")
    await refusal(unused_url())
    assert asyncio.all_tasks() <= before


async def test_ready_is_true_while_the_connection_is_usable(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    async def ready() -> bool:
        return own_bus.is_ready

    async def not_ready() -> bool:
        return not own_bus.is_ready

    assert own_bus.is_ready
    for _ in range(2):
        await asyncio.to_thread(fresh_nats.stop)
        await eventually(not_ready, 30)
        await asyncio.to_thread(fresh_nats.start)
        await eventually(ready, 30)
        await publish_events(own_bus, run_id, 1, 1)
    await own_bus.close()
    assert not own_bus.is_ready


async def test_a_long_disconnect_is_logged_once_and_survived(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    await server_stopped(fresh_nats, own_bus)
    with pytest.raises(BusUnavailable):  # in two seconds, the client has tried about eight times
        await own_bus.publisher.publish(event(run_id, 1))
    assert caplog.text.count("disconnected from NATS; reconnecting") == 1
    assert caplog.text.count("Connect call failed") == 1
    await asyncio.to_thread(fresh_nats.start)
    await publish_events(own_bus, run_id, 1, 1)


async def test_an_error_of_the_server_ends_in_a_reconnect(bus: Bus, run_id: str) -> None:
    """nats-py alone would close the connection for good."""
    again = asyncio.Event()
    bus.on_reconnect(again.set)
    assert bus.client._transport is not None
    bus.client._transport.write(b"GARBAGE\r\n")
    async with asyncio.timeout(30):
        await again.wait()
    assert bus.is_ready
    await publish_events(bus, run_id, 1, 1)


async def test_subscriptions_live_on_over_a_restart(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    heard: list[bytes] = []

    async def on_message(msg: Msg) -> None:
        heard.append(msg.data)

    await own_bus.subscribe(subjects.live_of_run(run_id), on_message)
    await asyncio.to_thread(fresh_nats.restart)
    await publish_events(own_bus, run_id, 1, 1)

    async def first() -> bool:
        return heard == [b"1"]

    await eventually(first)


async def test_a_listener_for_reconnects_can_be_removed(
    own_bus: Bus, fresh_nats: NatsServer
) -> None:
    calls: list[str] = []
    heard = asyncio.Event()
    stop = own_bus.on_reconnect(lambda: calls.append("stopped"))
    own_bus.on_reconnect(lambda: calls.append("kept"))
    own_bus.on_reconnect(heard.set)
    stop()
    await asyncio.to_thread(fresh_nats.restart)
    await heard.wait()
    assert calls == ["kept"]


async def test_a_subscription_is_known_to_the_server_when_it_is_made(bus: Bus, run_id: str) -> None:
    async def answer(msg: Msg) -> None:
        await bus.client.publish(msg.reply, b"here")

    for _ in range(20):
        subscription = await bus.subscribe(subjects.control(run_id), answer)
        assert (await bus.request(subjects.control(run_id), b"")).data == b"here"
        await subscription.unsubscribe()
        with pytest.raises(BusUnavailable, match="nobody answers"):
            await bus.request(subjects.control(run_id), b"")


async def test_a_request_that_nobody_finishes_is_of_unknown_outcome(bus: Bus, run_id: str) -> None:
    async def silent(msg: Msg) -> None:
        return

    await bus.subscribe(subjects.control(run_id), silent)
    with pytest.raises(OutcomeUnknown):
        await bus.request(subjects.control(run_id), b"", timeout_s=0.05)


@pytest.mark.parametrize("waits_for", ["a request", "a read"])
async def test_a_request_fails_at_once_when_the_connection_is_lost(
    fresh_nats: NatsServer, waits_for: str
) -> None:
    asked = asyncio.Event()

    async def silent(msg: Msg) -> None:
        asked.set()

    async with connected(fresh_nats.url, publish_timeout_s=600) as bus:
        await bus.subscribe("silence", silent)
        waiting: asyncio.Task[object]
        if waits_for == "a request":
            waiting = asyncio.create_task(bus.request("silence", b""))
        else:
            await bus.subscribe("$JS.API.DIRECT.GET.SILENT", silent)
            waiting = asyncio.create_task(direct.read(bus, "SILENT", ">"))
        await asked.wait()
        await asyncio.to_thread(fresh_nats.kill)
        async with asyncio.timeout(30):
            with pytest.raises(OutcomeUnknown):
                await waiting


async def test_without_a_server_requests_and_subscriptions_are_unavailable(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    async def on_message(msg: Msg) -> None:
        return

    await server_stopped(fresh_nats, own_bus)
    with pytest.raises(BusUnavailable):
        await own_bus.request(subjects.control(run_id), b"", timeout_s=0.1)
    with pytest.raises(BusUnavailable):
        await own_bus.subscribe(subjects.control(run_id), on_message)


async def test_the_server_refuses_in_its_own_words(bus: Bus) -> None:
    with pytest.raises(ApiError, match="stream not found") as refused:
        await bus.api("STREAM.INFO.NO_SUCH")
    assert refused.value.code == 10059
    with pytest.raises(NotFoundError):
        await bus.jetstream.nats.stream_info("NO_SUCH")


async def test_an_absent_leader_is_no_refusal(bus: Bus) -> None:
    """A cluster answers 503 during an election; a start must wait for the election's end."""

    async def no_leader(msg: Msg) -> None:
        error = {"code": 503, "err_code": 10008, "description": "temporarily unavailable"}
        await bus.client.publish(msg.reply, json.dumps({"error": error}).encode())

    await bus.subscribe("$JS.API.TEST.ELECTION", no_leader)
    with pytest.raises(BusUnavailable, match="temporarily unavailable"):
        await bus.api("TEST.ELECTION")


async def test_a_callback_that_fails_is_logged_with_its_traceback(
    bus: Bus, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    failed = asyncio.Event()

    async def fail(msg: Msg) -> None:
        failed.set()
        raise ValueError("as the test wants")

    await bus.subscribe(subjects.control(run_id), fail)
    await bus.client.publish(subjects.control(run_id))
    await failed.wait()

    async def logged() -> bool:
        return "Traceback" in caplog.text and "as the test wants" in caplog.text

    await eventually(logged)


@pytest.mark.parametrize("waits_in", ["request", "publish", "tail"])
async def test_a_task_at_the_bus_can_be_cancelled_at_any_moment(
    bus: Bus, run_id: str, waits_in: str
) -> None:
    """`wait_for` of Python 3.11 swallows a cancellation that comes together with the answer."""
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "request": lambda: bus.api("INFO"),
        "publish": lambda: bus.publisher.publish(event(run_id, 1)),
        "tail": lambda: bus.tail(streams.EVENTS, subjects.events_of_run(run_id)),
    }

    async def for_ever() -> None:
        while True:
            await calls[waits_in]()

    for turns in range(150):
        task = asyncio.create_task(for_ever())
        for _ in range(turns % 30):
            await asyncio.sleep(0)
        await bus.client.flush()  # the answers are here when the task is cancelled
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        assert done, "the cancellation was swallowed"


async def test_what_was_published_before_closing_is_sent(nats_server: NatsServer) -> None:
    heard = asyncio.Event()

    async def on_message(msg: Msg) -> None:
        heard.set()

    async with connected(nats_server.url) as listener:
        await listener.subscribe("test.closing", on_message)
        bus = await Bus.connect(BusSettings(url=nats_server.url))
        await bus.client.publish("test.closing")
        await bus.close()
        await bus.close()
        async with asyncio.timeout(30):
            await heard.wait()
        with pytest.raises(BusError):
            await bus.publisher.publish(Message("test.closing", b"", {}))
