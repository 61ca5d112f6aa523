"""The runs below a root are counted exactly, also by several processes."""

from __future__ import annotations

import asyncio

from penstock.bus.bus import Bus
from penstock.bus.state.run_trees import RunTrees
from support.drive.pipeline import new_run_id


async def test_two_processes_together_let_exactly_the_limit_begin(bus: Bus) -> None:
    processes, root = (RunTrees(bus), RunTrees(bus)), new_run_id()
    runs = [new_run_id() for _ in range(40)]
    # Each process starts each run, as after a kill.
    results = await asyncio.gather(
        *(each.add(root, run_id, 25) for run_id in runs for each in processes)
    )
    assert results[::2] == results[1::2]
    assert sum(results[::2]) == 25
    again = await asyncio.gather(*(processes[0].add(root, run_id, 25) for run_id in runs))
    assert again == results[::2]
    assert await processes[1].add(new_run_id(), runs[-1], 25)


async def test_a_run_hears_of_its_outermost_workflow_that_stops(bus: Bus) -> None:
    trees, outer, inner = RunTrees(bus), new_run_id(), new_run_id()
    assert await trees.stopped_among([outer, inner]) is None
    await trees.mark_stopped(inner, "workflow", "timeout")
    await trees.mark_stopped(outer, "ann", "user_stop")
    stopped = await trees.stopped_among([outer, inner])
    assert stopped is not None
    assert (stopped.by, stopped.reason) == ("ann", "user_stop")
    assert await trees.stopped_among([]) is None
