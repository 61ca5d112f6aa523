"""A workflow's run with the runs of its steps is one stream: live, replayed, and cut anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import orjson
import pytest

from penstock.bus import Bus, BusError, BusSettings
from penstock.bus.streams import EVENTS, Retention
from penstock.settings import Config
from penstock.sse import Frame, Parser
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources import feed
from penstock_edge.sources.locate import locate
from penstock_edge.stream.responses.pages import page
from penstock_edge.views.cursor import Cursor
from penstock_edge.views.framing import PageItems
from support.drive.bus import make_streams
from support.drive.short import in_short
from support.drive.trees import DIALECTS, TreeReader, taken
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun
from support.fakes.pretend_tree import PretendTree
from support.real.nats import NatsServer


@asynccontextmanager
async def readers(url: str, **settings: Any) -> AsyncIterator[tuple[Bus, TreeReader, TreeReader]]:
    """Run two edges, each on a connection of its own; the first connection is returned, too."""
    buses = [await Bus.connect(BusSettings(url=url, **settings)) for _ in range(2)]
    edges = [Edge.of(bus, Config(), EdgeSettings()) for bus in buses]
    try:
        yield buses[0], TreeReader(edges[0]), TreeReader(edges[1])
    finally:
        for edge, bus in zip(edges, buses, strict=True):
            await edge.hubs.close()
            await edge.many.feeds.close()
            await bus.close()


@pytest.fixture
async def reader(bus: Bus) -> AsyncIterator[TreeReader]:
    edge = Edge.of(bus, Config(), EdgeSettings())
    yield TreeReader(edge)
    await edge.hubs.close()
    await edge.many.feeds.close()


@pytest.fixture
async def tree(bus: Bus) -> PretendTree:
    tree = PretendTree(bus)
    await tree.begin()
    return tree


def bodies(frames: list[Frame]) -> list[dict[str, Any]]:
    return [orjson.loads(frame.data) for frame in frames]


@pytest.mark.parametrize("dialect", in_short(DIALECTS, ("executions", "agui", "a2a")))
async def test_a_live_stream_equals_its_replay_cut_at_every_frame(
    bus: Bus, tree: PretendTree, reader: TreeReader, dialect: str
) -> None:
    run_id = tree.root.run_id
    live = asyncio.create_task(taken(await reader.join(run_id, dialect)))
    await tree.diagnosis()
    uncut = await live
    assert len(uncut) > 10
    other = Edge.of(bus, Config(), EdgeSettings(ring_bytes=1, max_ring_bytes=1))
    try:
        # This edge keeps one item in memory, so it reads each client's part from the stream.
        replayed = TreeReader(other)
        assert await replayed.frames(run_id, dialect) == uncut
        for at, frame in enumerate(uncut):
            assert frame.id is not None
            assert await replayed.frames(run_id, dialect, frame.id) == uncut[at + 1 :], frame
    finally:
        await other.hubs.close()
        await other.many.feeds.close()


async def test_the_events_are_those_of_one_run(tree: PretendTree, reader: TreeReader) -> None:
    await tree.diagnosis()
    events = bodies(await reader.frames(tree.root.run_id, "canonical"))
    assert {event["run_id"] for event in events} == {tree.root.run_id}
    assert {event["session_id"] for event in events} == {"thread-1"}
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)
    assert not any("parent_run_id" in event for event in events)


async def test_the_begin_and_the_end_of_a_steps_run_are_left_out(
    tree: PretendTree, reader: TreeReader
) -> None:
    await tree.diagnosis()
    events = bodies(await reader.frames(tree.root.run_id, "canonical"))
    actions = [
        each["event"]["action"] for each in events if each["event"]["category"] == "lifecycle"
    ]
    assert actions == ["started", "paused", "resumed", "completed"]
    assert "automation" not in {event["event"]["category"] for event in events}


async def test_a_live_stream_continues_after_nats_has_restarted(fresh_nats: NatsServer) -> None:
    await make_streams(fresh_nats.url)
    async with readers(fresh_nats.url) as (bus, reader, other):
        tree = PretendTree(bus)
        await tree.begin()

        async def answers() -> bool:
            with suppress(BusError):
                return bool(await bus.api(f"STREAM.INFO.{EVENTS}"))
            return False

        async def restart() -> None:
            fresh_nats.restart()
            await eventually(answers, what="an answer of NATS")

        tree.on_pause = restart
        live = asyncio.create_task(reader.frames(tree.root.run_id, "canonical"))
        await tree.diagnosis()
        assert await live == await other.frames(tree.root.run_id, "canonical")


@pytest.mark.parametrize("dialect", ["executions", "agui"])
async def test_another_edge_continues_where_the_first_one_was_killed(
    nats_server: NatsServer, dialect: str
) -> None:
    async with readers(nats_server.url) as (bus, reader, other):
        tree = PretendTree(bus)
        await tree.begin()
        run_id = tree.root.run_id
        live = asyncio.create_task(reader.frames(run_id, dialect))

        async def kill() -> None:
            await asyncio.sleep(0.1)  # some frames come to the client
            await reader.edge.hubs.close()

        tree.on_pause = kill
        await tree.diagnosis()
        before = await live
        assert before
        after = await other.frames(run_id, dialect, before[-1].id)
        assert before + after == await other.frames(run_id, dialect)


async def test_a_client_that_reads_slowly_gets_everything(bus: Bus, tree: PretendTree) -> None:
    """The ring keeps one item, so the client reads the stream again each time."""
    edge = Edge.of(bus, Config(), EdgeSettings(ring_bytes=1, max_ring_bytes=1))
    try:
        reader = TreeReader(edge)
        run_id = tree.root.run_id
        client = await reader.join(run_id, "unified")
        parser, frames = Parser(), []
        publishing = asyncio.create_task(tree.diagnosis())
        while (body := await client.take()) is not None:
            frames += parser.feed(body)
            await asyncio.sleep(0.01)
        await publishing
        client.leave()
        assert frames == await reader.frames(run_id, "unified")
    finally:
        await edge.hubs.close()
        await edge.many.feeds.close()


async def test_a_page_of_a_tree_ends_where_the_next_one_begins(
    bus: Bus, tree: PretendTree, reader: TreeReader
) -> None:
    await tree.diagnosis()
    whole = bodies(await reader.frames(tree.root.run_id, "canonical"))
    view = reader.edge.view(tree.root.run_id, "canonical", PageItems(), children=True)
    pages: list[dict[str, Any]] = []
    after: Cursor | None = None
    while True:
        position = await locate(bus, view, after)
        one = await page(bus, view, position, 5, reader.edge.allowance(), nullcontext)
        pages += one["events"]
        if one["next"] is None:
            break
        after = Cursor.parse(one["next"])
    assert pages == whole


async def test_a_cursor_of_another_tree_is_refused(
    bus: Bus, tree: PretendTree, reader: TreeReader
) -> None:
    await tree.diagnosis()
    other = PretendTree(bus)
    await other.begin()
    await other.diagnosis()
    child = other.runs["logs"].places[-1]
    with pytest.raises(Problem) as refused:
        await reader.join(tree.root.run_id, "canonical", f"{child}-0")
    assert refused.value.status == 400


async def test_the_runs_of_a_further_shard_are_one_stream_too(fresh_nats: NatsServer) -> None:
    async with readers(fresh_nats.url, retention=Retention(shards=2)) as (bus, reader, _):
        tree = PretendTree(bus, shard=1)
        await tree.begin()
        live = asyncio.create_task(reader.frames(tree.root.run_id, "canonical"))
        await tree.diagnosis()
        names = {each["subrun"]["name"] for each in bodies(await live) if each.get("subrun")}
        assert names == {"plan", "team", "other", "w"}


async def test_a_client_that_comes_at_any_moment_gets_every_event_once(
    bus: Bus, tree: PretendTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed remembers few messages, so readers of stored events may not reach it at once."""
    monkeypatch.setattr(feed, "RECENT", 2)
    monkeypatch.setattr(feed, "KEPT", 4)
    noise = [PretendRun(bus) for _ in range(3)]
    edges: list[Edge] = []
    reading: list[asyncio.Task[list[Frame]]] = []
    publishing = asyncio.create_task(tree.diagnosis())
    try:
        while not publishing.done():
            edges.append(Edge.of(bus, Config(), EdgeSettings()))
            reader = TreeReader(edges[-1])
            reading.append(asyncio.create_task(reader.frames(tree.root.run_id, "canonical")))
            for run in noise:
                await run.text("noise")
        await publishing
        *others, last = await asyncio.gather(*reading)
        assert len(others) > 3
        assert all(each == last for each in others)
        assert last == await TreeReader(edges[0]).frames(tree.root.run_id, "canonical")
    finally:
        for edge in edges:
            await edge.hubs.close()
            await edge.many.feeds.close()
