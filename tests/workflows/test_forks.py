"""Forks of workflows, carried out by the real services: no completed step is called again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from penstock.bus.records.runs import ForkedFrom, TakenOver
from penstock_workflows.journal.journal import Journals
from support.drive.dying import instances
from support.drive.pipeline import PIPELINE, Event, Pipeline, types
from support.drive.workflows import (
    CountingServer,
    define,
    definition,
    start_workflow,
    workflows,
)
from support.real.nats import NatsServer

# `b` is large, so its output is a value of its own; `c` fails at its first call.
FLOW = """
steps:
  a: {run: {agent: worker, message: 'input.id + " a"'}, output: result.text}
  b: {needs: [a], set: input.text}
  c:
    needs: [b]
    run: {agent: worker, message: 'input.id + " c fails-once"'}
    output: result.text
  d: {needs: [c], run: {agent: worker, message: 'a.output + " d"'}, output: result.text}
output: '[d.output, string(b.output.size())]'
"""
STEPS = ["step_a", "step_b"]
LARGE = "x" * 100_000


async def failed_run(penstock: Pipeline, number: int) -> str:
    """Run the workflow to its end, which is the failure of `c`."""
    run_id = await start_workflow(penstock.bus, "flow", {"id": f"{number}", "text": LARGE})
    events = await penstock.ended(run_id, 60)
    assert events[-1].type == "lifecycle.failed", events[-1].data
    return run_id


async def fork(penstock: Pipeline, run_id: str, number: int) -> str:
    return await start_workflow(
        penstock.bus,
        "flow",
        {"id": f"{number}", "text": LARGE},
        forked_from=ForkedFrom(run_id=run_id, sequence=9),
        taken_over=TakenOver(steps=STEPS),
        version="1",
        workflow="flow",
    )


async def check(penstock: Pipeline, server: CountingServer, run_id: str, number: int) -> None:
    events = await penstock.ended(run_id, 60)
    assert events[-1].type == "lifecycle.completed", events[-1].data
    assert events[-1].data["value"] == [f"done done {number} a d", "100000"]
    assert events[0].data["forked_from"]["sequence"] == 9
    assert server.calls[f"{number} a"] == 1
    assert server.calls[f"{number} c fails-once"] == 2
    assert server.calls[f"done {number} a d"] == 1


async def test_a_fork_calls_no_completed_step_again_and_outlives_its_first_run(
    nats_server: NatsServer, server: CountingServer
) -> None:
    async with workflows(nats_server.url, server) as penstock:
        await define(penstock.bus, definition(FLOW))
        first = await failed_run(penstock, 1)
        forked = await fork(penstock, first, 1)
        await check(penstock, server, forked, 1)
        journals = Journals(penstock.bus)
        await journals.purge(first)
        # A fork of the fork has all that it needs in the journal of the fork.
        again = await fork(penstock, forked, 1)
        events = await penstock.ended(again, 60)
        taken = {e.data["step_id"]: e.data["taken_from"] for e in events if "taken_from" in e.data}
        assert taken["step_b"] == {"run_id": first}
        assert taken["step_a"]["run_id"] == first
        assert server.calls["1 a"] == 1
        # Without a journal there is nothing to take over, and nothing is called again.
        lost = await fork(penstock, first, 1)
        events = await penstock.ended(lost, 60)
        assert types(events) == ["lifecycle.started", "lifecycle.failed"]
        assert "no longer kept" in events[-1].data["error"]
        assert server.calls["1 a"] == 1


# The inner workflow asks, and does what was allowed; `later` is what the outer one does then.
GATE = """
name: gate
steps:
  before: {run: {agent: worker, message: 'input.id + " before"'}}
  ask: {needs: [before], approve: {title: '"Go on?"'}}
  act: {needs: [ask], run: {agent: worker, message: 'input.id + " act"'}}
output: ask.output.decision
"""
BEHIND = """
name: behind
steps:
  part: {workflow: {workflow: gate, input: input}}
  later: {needs: [part], run: {agent: worker, message: 'input.id + " later"'}}
  end: {needs: [later], run: {agent: worker, message: 'input.id + " end fails-once"'}}
"""


async def test_a_decision_in_a_nested_workflow_allows_no_fork(
    nats_server: NatsServer, server: CountingServer
) -> None:
    async with workflows(nats_server.url, server) as penstock:
        for text in (GATE, BEHIND):
            await define(penstock.bus, definition(text))

        async def until_pause(run_id: str) -> list[Event]:
            return await penstock.events_until(run_id, lambda e: e.type == "lifecycle.paused")

        async def decide(run_id: str, decision: str) -> str:
            """Decide in the run's nested run, and return the id of this one."""
            outer = await until_pause(run_id)
            [nested] = [e.data["child_run_id"] for e in outer if e.type == "workflow.step_started"]
            approval = (await until_pause(nested))[-1].data["approval_id"]
            assert (await penstock.decide(approval, decision)).status == 200
            return str(nested)

        first = await start_workflow(penstock.bus, "behind", {"id": "1"})
        inner = await decide(first, "approve")
        assert (await penstock.ended(first, 60))[-1].type == "lifecycle.failed"
        # A new version of the nested workflow has no part in the fork.
        newer = {"version": "2", "steps": {"z": {"set": "1"}}, "output": "z.output"}
        await define(penstock.bus, {**definition(GATE), **newer})
        called = Counter({f"1 {each}": 1 for each in ("before", "act", "later")})
        for decision, end, ends in (("reject", "failed", 1), ("approve", "completed", 2)):
            again = await start_workflow(
                penstock.bus,
                "behind",
                {"id": "1"},
                forked_from=ForkedFrom(run_id=first, sequence=5),
                taken_over=TakenOver(steps=["step_part", "step_later"]),
                version="1",
                workflow="behind",
            )
            nested = await decide(again, decision)
            assert (await penstock.ended(again, 60))[-1].type == f"lifecycle.{end}"
            forked = (await penstock.ended(nested))[0].data["forked_from"]
            assert forked == {"run_id": inner, "sequence": forked["sequence"]}
            assert forked["sequence"] == (await penstock.ended(inner))[-1].sequence
            assert server.calls == called + Counter({"1 end fails-once": ends})


@pytest.mark.chaos
@pytest.mark.timeout(360)
async def test_instances_that_die_at_any_write_finish_all_forks_without_a_second_call(
    fresh_nats: NatsServer, server: CountingServer
) -> None:
    numbers = random.Random(30)
    async with (
        workflows(fresh_nats.url, server, PIPELINE) as penstock,
        instances(fresh_nats.url, server.config) as made,
    ):
        await define(penstock.bus, definition(FLOW))
        steady = await made.start()
        firsts = [await failed_run(penstock, number) for number in range(8)]
        await made.end(steady)
        for _ in range(3):
            await made.start(numbers.randint(1, 25))
        replacing = asyncio.create_task(made.replace_dead(numbers, 25, 12))
        try:
            forks = [await fork(penstock, first, n) for n, first in enumerate(firsts)]
            for number, run_id in enumerate(forks):
                await check(penstock, server, run_id, number)
        finally:
            while not replacing.done():  # a library may swallow the first cancellation
                replacing.cancel()
                await asyncio.wait([replacing], timeout=1)
        assert made.deaths >= 3
