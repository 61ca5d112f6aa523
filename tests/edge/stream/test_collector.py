"""The edge's garbage collector pauses only briefly, and nothing depends on a full collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from penstock.bus import Bus
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.feed import Feeds
from penstock_edge.sources.locate import locate, start_from_now
from penstock_edge.sources.many_runs import ManyRunViews
from penstock_edge.sources.sessions import RunRecords
from penstock_edge.stream.collector import Collector
from penstock_edge.stream.hub import Hub
from penstock_edge.stream.hubs import Hubs
from penstock_edge.views.dialects import run_view
from penstock_edge.views.framing import Sse
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun

Uncollected = Callable[[], list[object]]


class Node:
    """An object that is part of a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def uncollected() -> Iterator[Uncollected]:
    """Disable the collector; return a function that returns what a collection finds."""

    def found() -> list[object]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        found = list(gc.garbage)
        gc.garbage.clear()
        return found

    gc.collect()
    gc.disable()
    yield found
    gc.enable()
    gc.collect()
    gc.freeze()  # as tests/conftest.py does; `Collector.uninstall` has undone it


@pytest.fixture
def collector(uncollected: Uncollected) -> Iterator[Collector]:
    collector = Collector(full_collection_s=3600)
    collector.install()
    yield collector
    collector.uninstall()


def garbage() -> weakref.ref[Node]:
    return weakref.ref(Node())


def test_a_checked_item_is_not_checked_again(collector: Collector) -> None:
    node = Node()
    known = weakref.ref(node)
    gc.collect()
    assert not any(each is node for each in gc.get_objects())
    del node
    gc.collect()
    assert known() is not None


def test_new_cycles_are_collected(collector: Collector) -> None:
    new = garbage()
    gc.collect()
    assert new() is None


def test_all_clients_are_checked_in_the_end(uncollected: Uncollected) -> None:
    collector = Collector(full_collection_s=0)
    node = Node()
    known = weakref.ref(node)
    collector.install()
    try:
        assert gc.get_freeze_count() > 0
        del node
        gc.collect()
        assert known() is None
        assert gc.get_freeze_count() > 0
    finally:
        collector.uninstall()


@pytest.mark.parametrize("dialect", ["canonical", "unified", "raw"])
async def test_a_stream_that_is_over_leaves_nothing_to_the_collector(
    bus: Bus, run: PretendRun, uncollected: Uncollected, dialect: str
) -> None:
    """A cycle would keep the ring until the next full collection, perhaps an hour later."""
    await run.record()
    await run.started()
    hubs = Hubs(bus, EdgeSettings(hub_grace_s=0))
    shown = run_view(run.run_id, dialect)
    client = await hubs.join(shown, await locate(bus, shown, None))
    await run.text("a piece")
    if dialect != "raw":
        assert await client.take()
    hub: weakref.ref[Hub] = weakref.ref(client.hub)
    client.leave()
    del client

    async def gone() -> bool:
        return hub() is None

    await eventually(gone, 30, "the hub is freed")
    await hubs.close()
    assert not [each for each in uncollected() if type(each).__module__.startswith("penstock")]


async def test_a_stream_over_many_runs_leaves_nothing_either(
    bus: Bus, run: PretendRun, uncollected: Uncollected
) -> None:
    await run.record()
    feeds = Feeds(bus)
    hubs = Hubs(bus, EdgeSettings(hub_grace_s=0))
    all_runs = ManyRunViews(bus, feeds, RunRecords(bus)).of_types(["*.*"], None, Sse())
    client = await hubs.join(all_runs, await start_from_now(bus))
    await run.started()
    assert await client.take()
    hub: weakref.ref[Hub] = weakref.ref(client.hub)
    client.leave()
    del client

    async def gone() -> bool:
        return hub() is None

    await eventually(gone, 30, "the hub is freed")
    await hubs.close()
    await feeds.close()
    assert not [each for each in uncollected() if type(each).__module__.startswith("penstock")]
