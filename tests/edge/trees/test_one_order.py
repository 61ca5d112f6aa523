"""A workflow's run with the runs of its steps is one stream: live, replayed, and cut anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.dialects.agui.encode import PROFILES
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.settings import Config
from penstock.sse import Frame, Parser
from penstock_edge.edge import Edge
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.locate import locate
from penstock_edge.stream.client import Client
from penstock_edge.views.cursor import Cursor
from penstock_edge.views.framing import NAMED_SSE
from penstock_edge.views.view import View
from support.fakes.pretend_tree import PretendTree

DIALECTS = (*CLIENT_DIALECTS, *PROFILES)
JOINED_S = 20


@dataclass
class Reader:
    """Reads trees by the hubs of one edge."""

    edge: Edge

    def view(self, tree: PretendTree, dialect: str) -> View:
        return self.edge.view(tree.root.run_id, dialect, NAMED_SSE, children=True)

    async def join(self, view: View, after: str | None = None) -> Client:
        position = await locate(self.edge.bus, view, Cursor.parse(after) if after else None)
        return await self.edge.hubs.join(view, position)

    async def frames(self, view: View, after: str | None = None) -> list[Frame]:
        return await taken(await self.join(view, after))


async def taken(client: Client) -> list[Frame]:
    """Return all frames up to the end of the client's stream."""
    parser, frames = Parser(), []
    async with asyncio.timeout(JOINED_S):
        while (body := await client.take()) is not None:
            frames += parser.feed(body)
    client.leave()
    return frames


@pytest.fixture
async def reader(bus: Bus) -> AsyncIterator[Reader]:
    edge = Edge.of(bus, Config(), EdgeSettings())
    yield Reader(edge)
    await edge.hubs.close()
    await edge.many.feeds.close()


@pytest.fixture
async def tree(bus: Bus) -> PretendTree:
    tree = PretendTree(bus)
    await tree.begin()
    return tree


def bodies(frames: list[Frame]) -> list[dict[str, Any]]:
    return [orjson.loads(frame.data) for frame in frames]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_live_stream_equals_its_replay_cut_at_every_frame(
    bus: Bus, tree: PretendTree, reader: Reader, dialect: str
) -> None:
    view = reader.view(tree, dialect)
    client = await reader.join(view)
    live = asyncio.create_task(taken(client))
    await tree.diagnosis()
    uncut = await live
    assert len(uncut) > 10
    other = Edge.of(bus, Config(), EdgeSettings(ring_bytes=1, max_ring_bytes=1))
    try:
        # This edge keeps one item in memory, so it reads each client's part from the stream.
        replayed = Reader(other)
        view = replayed.view(tree, dialect)
        assert await replayed.frames(view) == uncut
        for at, frame in enumerate(uncut):
            assert frame.id is not None
            assert await replayed.frames(view, frame.id) == uncut[at + 1 :], frame
    finally:
        await other.hubs.close()
        await other.many.feeds.close()


async def test_the_events_are_those_of_one_run(tree: PretendTree, reader: Reader) -> None:
    await tree.diagnosis()
    events = bodies(await reader.frames(reader.view(tree, "canonical")))
    assert {event["run_id"] for event in events} == {tree.root.run_id}
    assert {event["session_id"] for event in events} == {"thread-1"}
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)
    assert not any("parent_run_id" in event for event in events)


async def test_the_begin_and_the_end_of_a_steps_run_are_left_out(
    tree: PretendTree, reader: Reader
) -> None:
    await tree.diagnosis()
    events = bodies(await reader.frames(reader.view(tree, "canonical")))
    actions = [
        each["event"]["action"] for each in events if each["event"]["category"] == "lifecycle"
    ]
    assert actions == ["started", "paused", "resumed", "completed"]
    assert "automation" not in {event["event"]["category"] for event in events}
