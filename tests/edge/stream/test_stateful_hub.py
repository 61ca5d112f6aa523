"""Clients of one run connect, leave, reconnect with a cursor, and read at any pace.

Meanwhile the connection to NATS loses and repeats live messages, and the ring is too small for slow
clients.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import suppress

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

from fuzz.cases import examples
from penstock.bus import Follow, Incoming
from penstock.sse import Frame, Parser
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.locate import locate
from penstock_edge.stream.client import Client
from penstock_edge.stream.hubs import Hubs
from penstock_edge.views.cursor import Cursor
from penstock_edge.views.dialects import run_view
from support.drive.sync_bus import World
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer

READ_S = 0.03
RING_BYTES = 2_000  # room for a few frames


class Reader:
    """A client over all its connections; `frames` has all frames that the client has received."""

    def __init__(self, hubs: Hubs, run: PretendRun, dialect: str) -> None:
        self._hubs, self._run, self.dialect = hubs, run, dialect
        self.frames: list[Frame] = []
        self._client: Client | None = None
        self._taking: asyncio.Task[bytes | None] | None = None
        self._parser = Parser()

    async def come(self) -> None:
        if self._client is None:
            seen = run_view(self._run.run_id, self.dialect)
            last = self.frames[-1].id if self.frames else None
            after = Cursor.parse(last) if last else None
            place = await locate(self._run.bus, seen, after)
            self._client, self._parser = await self._hubs.join(seen, place), Parser()

    async def read(self, timeout_s: float = READ_S) -> bool:
        """Read one write of the server; return False at the stream's end."""
        await self.come()
        assert self._client is not None
        self._taking = self._taking or asyncio.create_task(self._client.take())
        await asyncio.wait([self._taking], timeout=timeout_s)
        if not self._taking.done():
            return True
        body, self._taking = self._taking.result(), None
        if body is not None:
            self.frames += self._parser.feed(body)
        return body is not None

    async def leave(self) -> None:
        """Lose what was on its way; the next connection continues after the last received frame."""
        if self._taking is not None:
            self._taking.cancel()
            with suppress(asyncio.CancelledError):
                await self._taking
            self._taking = None
        if self._client is not None:
            self._client.leave()
            self._client = None


class Reading(RuleBasedStateMachine):
    """A state machine whose reference is a client that reads the whole stream after its end."""

    world: World
    treat: list[str]
    readers = Bundle("readers")

    @initialize(target=readers)
    def begin(self) -> object:
        self.treat.clear()
        self.hubs = Hubs(self.world.bus, EdgeSettings(ring_bytes=RING_BYTES, hub_grace_s=0.05))
        self.run = PretendRun(self.world.bus)
        self.words = itertools.count(1)
        self.all: list[Reader] = []
        self.world.runner.run(self.run.record())
        self.world.runner.run(self.run.started())
        return multiple(self._reader("canonical"), self._reader("unified"))

    def _reader(self, dialect: str) -> Reader:
        self.all.append(Reader(self.hubs, self.run, dialect))
        return self.all[-1]

    @rule(target=readers, dialect=st.sampled_from(["canonical", "unified"]))
    def another_client(self, dialect: str) -> Reader:
        return self._reader(dialect)

    @rule(count=st.integers(1, 9))
    def words_come(self, count: int) -> None:
        pieces = [f"word {next(self.words)}" for _ in range(count)]
        self.world.runner.run(self.run.text(*pieces))

    @rule(reader=readers)
    def come(self, reader: Reader) -> None:
        self.world.runner.run(reader.come())

    @rule(reader=readers)
    def read(self, reader: Reader) -> None:
        self.world.runner.run(reader.read())

    @rule(reader=readers)
    def leave(self, reader: Reader) -> None:
        self.world.runner.run(reader.leave())

    @rule(treat=st.lists(st.sampled_from(["drop", "repeat", "deliver"]), min_size=1, max_size=6))
    def the_line_goes_wrong(self, treat: list[str]) -> None:
        self.treat += treat

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.world.runner.run(self._end())

    async def _end(self) -> None:
        await self.run.completed()
        self.treat.clear()
        try:
            for dialect in ("canonical", "unified"):
                whole = Reader(self.hubs, self.run, dialect)
                await self._to_the_end(whole)
                for reader in self.all:
                    if reader.dialect == dialect:
                        await self._to_the_end(reader)
                        assert reader.frames == whole.frames
                assert len(whole.frames) >= self.run.sequence
        finally:
            await self.hubs.close()

    async def _to_the_end(self, reader: Reader) -> None:
        async with asyncio.timeout(20):
            while await reader.read(timeout_s=1):
                pass
        await reader.leave()


@pytest.fixture
def world(nats_server: NatsServer) -> Iterator[World]:
    world = World(nats_server)
    yield world
    world.close()


@pytest.mark.timeout(300)  # Hypothesis shrinks a failing example before it reports it
@examples(12)
def test_each_client_gets_each_frame_once_and_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    treat: list[str] = []
    take = Follow._on_live

    def on_live(self: Follow, msg: Incoming) -> None:
        how = treat.pop(0) if treat else "deliver"
        for _ in range({"drop": 0, "repeat": 2}.get(how, 1)):
            take(self, msg)

    monkeypatch.setattr(Follow, "_on_live", on_live)
    monkeypatch.setattr(Follow.__init__, "__defaults__", (0.1,))  # probe_s
    machine = type("Readers", (Reading,), {"world": world, "treat": treat})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count, stateful_step_count=20)
    )
