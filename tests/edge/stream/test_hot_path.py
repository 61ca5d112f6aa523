"""The cost of one live event in function calls, which do not depend on the machine.

A count that grows needs a reason.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import orjson
import pytest

from penstock.dialects.agui.encode import PROFILES, AguiEncoder
from penstock_edge.views.framing import Sse
from support.drive.waiting import eventually
from support.fakes.connections import Connection, World, stored

EVENTS = 20


def calls(work: Callable[[], Any]) -> int:
    """Return how many Python and C functions the work calls."""
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count - 1  # without the call of `sys.setprofile`


class Quiet(Connection):
    """A connection whose `write` does nothing and costs one call."""

    def write(self, chunk: bytes) -> None:
        self.writes += 1


async def calls_per_event(clients: int, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(Connection, "write", Quiet.write)
    world = World()
    connections = [await world.join() for _ in range(clients)]
    world.say("first")

    async def all_in_sync() -> bool:
        return all(each.is_in_sync for each in connections)

    await eventually(all_in_sync)
    before = connections[0].writes
    hub, source = connections[0].client.hub, world.sources[0]
    queued: list[Callable[[], object]] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_soon", lambda callback, *_: queued.append(callback))
    events = [stored(number, "a piece of text") for number in range(2, EVENTS + 2)]

    def work() -> None:
        for event in events:
            hub.flush_at = 0.0
            source.deliver([event])
            while queued:
                queued.pop()()

    count = calls(work)
    monkeypatch.undo()
    assert connections[0].writes == before + EVENTS
    await world.close()
    return count / EVENTS


async def test_an_event_for_one_client_is_at_most_50_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    count = await calls_per_event(1, monkeypatch)
    assert count <= 50


async def test_each_further_client_is_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = await calls_per_event(1, monkeypatch), await calls_per_event(51, monkeypatch)
    assert many - few <= 50 * 2 + 2  # the path for a single client needs two calls less


def test_an_agui_event_is_at_most_27_calls() -> None:
    encoder, framing = AguiEncoder(PROFILES["agui"], "t1", lambda leg: "r1"), Sse()
    encoder.feed(event(1, "lifecycle.started", agent="assistant"))
    encoder.feed(event(2, "llm.stream", content="a", message_id="m1"))
    bodies = [
        orjson.dumps(event(number, "llm.stream", content="a piece", message_id="m1"))
        for number in range(3, EVENTS + 3)
    ]

    def work() -> None:
        for body in bodies:
            for frame in encoder.feed(orjson.loads(body)):
                framing.event(frame, "7-0")

    count = calls(work) / EVENTS
    assert count <= 27


def event(sequence: int, type: str, **data: Any) -> dict[str, Any]:
    category, _, action = type.partition(".")
    return {
        "run_id": "0199aaaa-0000-7000-8000-000000000001",
        "timestamp": "2026-11-22T10:00:00.000Z",
        "sequence": sequence,
        "source": None,
        "event": {"category": category, "action": action},
        "data": data,
        "session_id": "s1",
        "leg": 1,
    }


async def test_a_client_in_sync_has_no_task() -> None:
    world = World()
    before = len(asyncio.all_tasks())
    connections = [await world.join() for _ in range(10)]
    world.say("first")

    async def all_in_sync() -> bool:
        return all(each.is_in_sync for each in connections)

    await eventually(all_in_sync)
    assert len(asyncio.all_tasks()) == before
    await world.close()


async def test_the_garbage_collector_tracks_no_event_of_a_ring() -> None:
    """Each object that the cycle collector tracks brings the next full collection closer."""
    world = World()
    connection = await world.join()
    world.say("first")

    async def in_sync() -> bool:
        return connection.is_in_sync

    await eventually(in_sync)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(2, 502):
        world.sources[0].deliver([stored(number, "a piece of text")])
        await asyncio.sleep(0)

    async def all_there() -> bool:
        return connection.client.hub.ring.end == 501

    await eventually(all_there)
    gc.collect()
    assert len(gc.get_objects()) - before < 50
    await world.close()
