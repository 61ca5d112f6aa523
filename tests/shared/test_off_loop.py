"""Long computations run in one thread, in which owners take turns."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator
from functools import partial

import pytest
from prometheus_client import REGISTRY

from penstock.off_loop import FairThread
from penstock.service import measuring
from penstock.turns import TenantUser
from support.drive.waiting import eventually

A, B = TenantUser("", "a"), TenantUser("", "b")


async def test_an_owner_with_many_calls_delays_another_one_by_one_call() -> None:
    thread, began, order = FairThread(), threading.Event(), list[str]()
    first = asyncio.create_task(thread.run(A, began.wait))
    await asyncio.sleep(0)
    calls = [thread.run(TenantUser("", owner), partial(order.append, owner)) for owner in "aaaaab"]
    tasks = [asyncio.create_task(each) for each in calls]
    await asyncio.sleep(0)
    assert thread.waiting == 6
    began.set()
    await asyncio.gather(first, *tasks)
    assert "".join(order) == "abaaaa"
    assert thread.waiting == 0


async def test_a_long_call_in_parts_lets_the_call_of_another_owner_come_first() -> None:
    thread, began, may_end = FairThread(), threading.Event(), threading.Event()

    def long() -> Generator[None, None, str]:
        began.set()
        while not may_end.is_set():
            time.sleep(0.001)
            yield
        return "done"

    first = asyncio.create_task(thread.run_in_parts(A, long()))
    await asyncio.to_thread(began.wait)
    async with asyncio.timeout(20):
        await thread.run(B, may_end.set)
        assert await first == "done"


async def test_a_cancelled_or_failed_call_passes_its_turn_on() -> None:
    thread, began = FairThread(), threading.Event()
    tasks = [asyncio.create_task(thread.run(A, began.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    for each in tasks[:2]:
        each.cancel()
    began.set()
    assert await tasks[2]
    with pytest.raises(ZeroDivisionError):
        await thread.run(A, lambda: 1 // 0)
    assert await thread.run(B, lambda: 7) == 7


async def test_the_longest_turn_of_the_event_loop_is_measured() -> None:
    measured = asyncio.create_task(measuring.measure_turns())
    await asyncio.sleep(0)
    threading.Event().wait(0.5)  # blocks the loop

    async def is_seen() -> bool:
        found = REGISTRY.get_sample_value("penstock_loop_longest_turn_seconds")
        return found is not None and found >= 0.5 - 1.5 * measuring.LOOK_S - 0.01

    await eventually(is_seen, 30, "the turn of 0.5 s")
    measured.cancel()
