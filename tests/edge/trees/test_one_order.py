"""A workflow's run with the runs of its steps is one stream: live, replayed, and cut anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.settings import Config
from penstock.sse import Frame
from penstock_edge.edge import Edge
from penstock_edge.settings import EdgeSettings
from support.drive.trees import DIALECTS, TreeReader, taken
from support.fakes.pretend_tree import PretendTree


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


@pytest.mark.parametrize("dialect", DIALECTS)
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
