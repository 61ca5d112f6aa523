"""The NATS client delivers messages as they are parsed, bounds unsent bytes, and closes on errors.

The client uses private names of nats-py. The first test compares these names with the installed
version.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any
from urllib.parse import urlparse

import pytest
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from penstock.bus import Bus, Incoming, Listener
from penstock.bus.connection import wire
from penstock.bus.connection.dialing import NATS_PY
from penstock.bus.connection.nats_client import Connection
from penstock.bus.connection.wire import Wire
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.fakes.serving import close_after
from support.real.nats import NatsServer

# Methods of nats-py that `Connection` replaces, with the parameters that nats-py passes.
REPLACED = {
    "_connect_command": [],
    "_connect_to_server": ["s"],
    "_flush_pending": ["force_flush"],
    "_flusher": [],
    "_parse_header_lines": ["raw"],
    "_process_err": ["err_msg"],
    "_process_info": ["info", "initial_connection"],
    "_process_op_err": ["e"],
    "_read_loop": [],
    "_send_command": ["cmd", "priority"],
    "_send_ping": ["future"],
    "close": [],
    "flush": ["timeout"],
    "publish": ["subject", "payload", "reply", "headers"],
    "request": ["subject", "payload", "timeout", "old_style", "headers"],
}
USED = [
    *("_current_server", "_error_cb", "_flush_queue", "_max_payload", "_max_pending_size"),
    *("_pending", "_pending_data_size", "_pings_outstanding", "_pongs", "_pongs_received"),
    *("_server_info", "_server_pool", "_sid", "_status", "_subs", "_transport", "options"),
]


def test_the_private_names_of_nats_py_are_as_this_client_expects_them() -> None:
    """If this fails after an update of nats-py, compare nats/aio/client.py, then change NATS_PY."""
    assert version("nats-py").startswith(f"{NATS_PY}."), "the client was tried with another nats-py"
    for name, parameters in REPLACED.items():
        found = list(inspect.signature(getattr(Client, name)).parameters)
        assert [each for each in found if each != "self"] == parameters, name
    fresh = Client()
    assert [name for name in USED if not hasattr(fresh, name)] == []
    touched = set(re.findall(r"\bsub\.(_\w+)", inspect.getsource(Client)))
    # Attributes of nats-py's own subscriptions, which `_on_message` treats separately.
    others = {"_future", "_pending_bytes_limit", "_pending_queue", "_pending_size", "_start"}
    listener = set(dir(Listener))
    assert touched - listener - others == set(), "attributes that a Listener must have"
    assert set(inspect.signature(Subscription.__init__).parameters) >= {"cb", "future", "max_msgs"}


class Heard:
    """Collect the payloads that a listener receives."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def __call__(self, message: Incoming) -> None:
        self.data.append(message.data)

    async def until(self, count: int) -> list[bytes]:
        async def enough() -> bool:
            return len(self.data) >= count

        await eventually(enough, 30, f"{count} messages heard")
        return self.data


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


async def test_messages_come_in_order_beside_those_of_nats_pys_own_subscriptions(
    bus: Bus, run_id: str
) -> None:
    heard, own = Heard(), Heard()

    async def on_message(msg: Msg) -> None:
        own.data.append(msg.data)

    await bus.listen(f"test.{run_id}", heard)
    await bus.subscribe(f"test.{run_id}", on_message)
    for payload in numbers(3000):
        await bus.client.publish(f"test.{run_id}", payload)
    assert await heard.until(3000) == numbers(3000)
    assert await own.until(3000) == numbers(3000)


async def test_a_listener_that_fails_is_logged_and_gets_the_next_message(
    bus: Bus, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def fails_first(message: Incoming) -> None:
        heard(message)
        if len(heard.data) == 1:
            raise ValueError("as the test wants")

    await bus.listen(f"test.{run_id}", fails_first)
    for payload in numbers(3):
        await bus.client.publish(f"test.{run_id}", payload)
    assert await heard.until(3) == numbers(3)

    async def logged() -> bool:
        return "Traceback" in caplog.text and "as the test wants" in caplog.text

    await eventually(logged)


async def test_a_listener_that_has_stopped_gets_nothing_more_even_of_what_has_come(
    bus: Bus, run_id: str
) -> None:
    heard, end = Heard(), Heard()

    def stops(message: Incoming) -> None:
        heard(message)
        listener.stop()

    listener = await bus.listen(f"test.{run_id}", stops)
    await bus.listen(f"end.{run_id}", end)
    for payload in numbers(5):
        bus.client.send(f"test.{run_id}", payload)
    bus.client.send(f"end.{run_id}", b"")
    await end.until(1)
    assert heard.data == [b"0"]
    assert not [each for each in bus.client._subs.values() if each.subject == f"test.{run_id}"]
    listener.stop()  # a second stop raises no error


async def test_listeners_live_on_over_a_restart(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    heard = Heard()
    await own_bus.listen(f"test.{run_id}", heard)
    stopped = await own_bus.listen(f"test.{run_id}", Heard())
    await asyncio.to_thread(fresh_nats.stop)
    stopped.stop()
    await asyncio.to_thread(fresh_nats.start)

    async def ready() -> bool:
        return own_bus.is_ready

    await eventually(ready, 30)
    await own_bus.client.publish(f"test.{run_id}", b"0")
    assert await heard.until(1) == [b"0"]


async def test_a_burst_is_delivered_in_slices_between_which_the_loop_does_other_work(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SLICE_S", 0.0)
    heard = Heard()
    turns: list[int] = []  # the number of messages at each turn of the event loop
    listener = await bus.listen(f"test.{run_id}", heard)
    for payload in numbers(10_000):
        bus.client.send(f"test.{run_id}", payload)
    while len(heard.data) < 10_000:
        turns.append(len(heard.data))
        await asyncio.sleep(0)
    assert heard.data == numbers(10_000)
    assert max(b - a for a, b in itertools.pairwise(turns)) <= 64
    listener.stop()


@asynccontextmanager
async def deaf_server(takes: int) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a server that sends INFO, reads this many bytes, and then reads no more.

    Yields the server's URL and the bytes that it has read.
    """
    taken: list[bytes] = []
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.12.0","max_payload":1048576,"headers":true}\r\n')
        while sum(map(len, taken)) < takes and (data := await reader.read(4096)):
            taken.append(data)
            writer.write(b"PONG\r\n" * data.count(b"PING\r\n"))
        await done.wait()
        writer.transport.abort()

    server = await asyncio.start_server(close_after(serve), "127.0.0.1", 0, limit=4096)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", taken
    finally:
        done.set()
        server.close()


async def test_a_publisher_waits_while_the_server_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with deaf_server(takes=1) as (url, _):
        client = Connection()
        await client.connect([url])
        sent = 0

        async def publish() -> None:
            nonlocal sent
            while True:
                await client.publish("test", bytes(64 * 1024))
                sent += 64 * 1024

        publishing = asyncio.create_task(publish())

        async def full() -> bool:
            return client._wire.is_full

        await eventually(full)
        before = sent
        await asyncio.sleep(0.05)
        assert sent - before <= 64 * 1024
        unsent = client._wire._transport.get_write_buffer_size()  # type: ignore[union-attr]
        assert unsent < wire.MAX_UNSENT_BYTES + 128 * 1024
        publishing.cancel()
        await asyncio.wait([publishing])
        client._abort()
        await client.close()


async def test_a_publisher_that_waits_continues_when_the_connection_is_lost() -> None:
    async with deaf_server(takes=1) as (url, _):
        client = Connection()
        await client.connect([url], allow_reconnect=False)
        while not client._wire.is_full:
            client.send("test", bytes(64 * 1024))
        publishing = asyncio.create_task(client.publish("test"))
        await asyncio.sleep(0)
        client._abort()
        async with asyncio.timeout(30):
            await publishing
        # the command is kept for the next connection, since it was not sent
        assert client._pending == [b"PUB test  0\r\n\r\n"]
        await client.close()


async def test_messages_of_one_turn_are_written_together_and_large_ones_at_once(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    await bus.listen(f"test.{run_id}", heard)
    transport = bus.client._wire._transport
    writes: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(transport, name)

        def write(self, data: bytes) -> None:
            writes.append(len(data))
            transport.write(data)  # type: ignore[union-attr]

    monkeypatch.setattr(bus.client._wire, "_transport", Counting())
    for payload in numbers(100):
        bus.client.send(f"test.{run_id}", payload)
    assert not writes
    assert await heard.until(100) == numbers(100)
    assert len(writes) == 1
    bus.client.send(f"test.{run_id}", bytes(wire.MAX_JOINED_BYTES))
    assert len(writes) == 2
    await heard.until(101)


async def test_what_is_sent_without_a_connection_is_kept_up_to_a_limit(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    heard = Heard()
    await own_bus.listen(f"test.{run_id}", heard)
    await asyncio.to_thread(fresh_nats.stop)

    async def away() -> bool:
        return not own_bus.client.is_connected

    await eventually(away)
    own_bus.client.send(f"test.{run_id}", b"kept")
    own_bus.client.send(f"other.{run_id}", bytes(1024 * 1024))
    with pytest.raises(NatsError):
        own_bus.client.send(f"other.{run_id}", bytes(1024 * 1024))
    await asyncio.to_thread(fresh_nats.start)
    assert await heard.until(1) == [b"kept"]


async def test_many_unread_messages_of_an_own_subscription_stop_the_reading(
    nats_server: NatsServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unread bytes stay in the operating system's buffers, so this process's memory is bounded."""
    monkeypatch.setattr("penstock.bus.connection.nats_client.MAX_UNREAD_BYTES", 100)
    held: list[int] = []
    hold = Wire.hold

    def noted(self: Wire) -> None:
        held.append(1)
        hold(self)

    monkeypatch.setattr(Wire, "hold", noted)
    heard = Heard()

    async def on_message(msg: Msg) -> None:
        heard.data.append(msg.data)

    async with connected(nats_server.url) as bus:
        await bus.subscribe(f"test.{run_id}", on_message)
        for payload in numbers(2000):
            bus.client.send(f"test.{run_id}", payload)
        assert await heard.until(2000) == numbers(2000)
        assert held
        assert bus.client._unread_bytes == 0


async def test_bytes_of_another_protocol_end_in_a_reconnect(bus: Bus, run_id: str) -> None:
    again = asyncio.Event()
    bus.on_reconnect(again.set)
    bus.client._wire.data_received(b"HTTP/1.1 400 Bad Request\r\n")
    async with asyncio.timeout(30):
        await again.wait()
    assert bus.is_ready


async def test_a_server_that_greets_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_GREETING_BYTES", 1000)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(100_000))
        await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(close_after(serve), "127.0.0.1", 0)
    client = Connection()
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def ignore(error: Exception) -> None:
        return

    with pytest.raises(NatsError):
        await client.connect([url], allow_reconnect=False, error_cb=ignore)
    await client.close()
    server.close()


def test_a_wire_that_never_connected_can_be_used_and_closed() -> None:
    idle: Any = Wire()
    idle.close()
    idle.abort()
    assert not idle.at_eof()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_wire_whose_connection_is_cancelled_as_it_is_made_can_be_closed(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """A bus that is closed while it reconnects would otherwise never be closed."""

    async def cancelled_and_closed() -> None:
        server = socket.create_server(("127.0.0.1", 0))  # the system accepts the connection
        host, port = server.getsockname()
        made = Wire()
        taken = made.connection_made

        def take_and_cancel(transport: asyncio.BaseTransport) -> None:
            taken(transport)
            connecting.cancel()

        made.connection_made = take_and_cancel  # type: ignore[method-assign]
        connecting = asyncio.create_task(made.connect(urlparse(f"nats://{host}:{port}"), 0, 5))
        await asyncio.wait([connecting])
        assert connecting.cancelled()
        made.close()
        async with asyncio.timeout(30):
            await made.wait_closed()
        server.close()

    run(cancelled_and_closed())
