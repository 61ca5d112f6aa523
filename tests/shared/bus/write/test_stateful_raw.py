"""Each source frame is stored once, although writers are cut off, cancelled and taken over."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)
from nats.errors import Error as NatsError

from fuzz.cases import examples
from penstock.bus import Bus, FenceConflict, RawWriter, messages, streams, subjects
from penstock.bus.read import direct
from support.drive.bus import connected, new_run_id
from support.real.nats import NatsServer

PART_BYTES = 64  # bytes; so small that a small payload is written as parts in an atomic batch


class Wire:
    """A proxy between a client and NATS.

    `mute` drops the server's answers, `cut` ends the connections.
    """

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.mute = False
        self.url = ""

    async def open(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def cut(self) -> None:
        self.mute = False
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._writers |= {writer, server[1]}
        for source, sink, answers in ((reader, server[1], False), (server[0], writer, True)):
            task = asyncio.create_task(self._carry(source, sink, answers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if not (answers and self.mute):
                    sink.write(data)
        sink.transport.abort()
        self._writers.discard(sink)


class World:
    """A server, one client behind a proxy that breaks, one direct client, and their event loop."""

    def __init__(self, server: NatsServer) -> None:
        self.runner = asyncio.Runner()
        self.wire = Wire(server.url)
        self.listening = self.runner.run(self.wire.open())
        self.contexts = [
            connected(self.wire.url, publish_timeout_s=2),
            connected(server.url, publish_timeout_s=2),
        ]
        self.buses: list[Bus] = [self.runner.run(each.__aenter__()) for each in self.contexts]

    def close(self) -> None:
        for context in self.contexts:
            self.runner.run(context.__aexit__(None, None, None))
        self.listening.close()
        self.runner.close()


@pytest.fixture
def world(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("penstock.bus.write.fence.MAX_MESSAGE_BYTES", PART_BYTES)
    world = World(nats_server)
    yield world
    world.close()


class Writing(RuleBasedStateMachine):
    """The model: `accepted` holds the payloads whose writes have returned without an error."""

    world: World
    writers = Bundle("writers")

    @initialize(target=writers)
    def begin(self) -> object:
        self.run_id = new_run_id()
        self.names = itertools.count(1)
        self.numbers = itertools.count(1)
        self.accepted: list[bytes] = []
        self.maybe: set[bytes] = set()  # writes that were cancelled or refused and may be stored
        self.lost: set[str] = set()  # connection ids of writers that were refused
        self.cancelled_last: set[str] = set()
        return multiple(self._writer(0), self._writer(1))

    def _writer(self, bus: int) -> RawWriter:
        resume = RawWriter.resume(
            self.world.buses[bus], self.run_id, "upstream", f"pod/{next(self.names)}"
        )
        return self.world.runner.run(resume)

    def _payload(self, size: int) -> bytes:
        return f"<{next(self.numbers)}>".encode().ljust(size, b".")

    async def _write(self, writer: RawWriter, payload: bytes) -> None:
        try:
            await writer.write("bytes", payload, leg=1)
        except FenceConflict:
            self.lost.add(writer.connection)
            self.maybe.add(payload)
        else:
            assert writer.connection not in self.lost, "a writer that was refused wrote again"
            self.accepted.append(payload)

    @rule(target=writers, bus=st.sampled_from([0, 1]))
    def take_over(self, bus: int) -> RawWriter:
        """Open a new writer, as a successor does, or the same service after a restart."""
        return self._writer(bus)

    @rule(writer=writers, size=st.sampled_from([1, 60, 65, 500]))
    def write(self, writer: RawWriter, size: int) -> None:
        self.world.runner.run(self._write(writer, self._payload(size)))

    @rule(one=writers, other=writers, size=st.sampled_from([5, 200]))
    def write_at_once(self, one: RawWriter, other: RawWriter, size: int) -> None:
        async def both() -> None:
            payloads = [self._payload(size), self._payload(size)]
            await asyncio.gather(*map(self._write, (one, other), payloads))

        self.world.runner.run(both())

    @rule(writer=writers, size=st.sampled_from([5, 200]), mute=st.booleans())
    def write_while_the_wire_breaks(self, writer: RawWriter, size: int, mute: bool) -> None:
        """Lose either the answer or the frame during a write: the writer must find out which."""

        async def broken() -> None:
            self.world.wire.mute = mute
            writing = asyncio.create_task(self._write(writer, self._payload(size)))
            for _ in range(3):
                await asyncio.sleep(0)
            if mute:
                await asyncio.wait([writing], timeout=0.02)  # by now the frame is usually stored
            self.world.wire.cut()
            await writing

        self.world.runner.run(broken())

    @rule(writer=writers, size=st.sampled_from([5, 200]), steps=st.integers(0, 6))
    def a_write_is_cancelled(self, writer: RawWriter, size: int, steps: int) -> None:
        """Cancel a write: the frame may be stored or not, and the next write continues after it."""
        payload = self._payload(size)

        async def cancelled() -> None:
            writing = asyncio.create_task(writer.write("bytes", payload, leg=1))
            for _ in range(steps):
                await asyncio.sleep(0)
            writing.cancel()
            with suppress(asyncio.CancelledError, FenceConflict):
                await writing
                self.accepted.append(payload)
            # The server has stored or refused all that was sent before it answers this flush.
            with suppress(NatsError):  # the frame may also be lost with the connection
                await self.world.buses[0].client.flush()
            await self.world.buses[1].client.flush()

        self.maybe.add(payload)
        self.world.runner.run(cancelled())

    def teardown(self) -> None:
        if hasattr(self, "run_id"):
            self.world.runner.run(self._check())

    async def _check(self) -> None:
        pattern = subjects.raw_stored(self.run_id, "upstream")
        stored: list[bytes] = []
        parts = b""
        async for each in direct.replay(self.world.buses[1], streams.RAW, pattern):
            number, _, count = each.headers.get(messages.PART, "1/1").partition("/")
            parts += each.payload
            if number == count:
                stored.append(parts)
                parts = b""
        assert not parts, "a part of a frame"
        assert len(set(stored)) == len(stored), "stored twice"
        known = set(self.accepted)
        assert set(stored) <= known | self.maybe, "stored, but refused"
        assert [each for each in stored if each in known] == self.accepted, "lost, or out of order"


@pytest.mark.timeout(300)  # Hypothesis needs time to shrink a failure
@examples(15)
def test_every_accepted_frame_is_stored_once_and_in_order(world: World, count: int) -> None:
    machine = type("Writers", (Writing,), {"world": world})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count, stateful_step_count=15)
    )
