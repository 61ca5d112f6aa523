"""Runs of a workflow with `exclusive`: one at a time for each key, in one order, despite deaths."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.bus import Bus
from penstock.bus.subjects import key_of
from penstock.runs.workflows import BUCKET
from penstock_workflows.effects.turns import Queue
from penstock_workflows.engine.records import End, TurnTaken
from penstock_workflows.journal.journal import Journals
from support.drive.bus import new_run_id
from support.drive.dying import instances
from support.drive.pipeline import PIPELINE, Pipeline, types
from support.drive.waiting import eventually
from support.drive.workflows import (
    CountingServer,
    cancel_workflow,
    define,
    definition,
    start_workflow,
    workflows,
)
from support.real.nats import NatsServer

FLOW = """
name: %s
exclusive: {key: input.key, when_busy: %s}
steps:
  a: {run: {agent: worker, message: 'input.say'}}
  b: {needs: [a], run: {agent: worker, message: 'input.say + " again"'}}
  clean: {needs: [b], always: true, set: '1'}
"""


@pytest.fixture
async def penstock(nats_server: NatsServer, server: CountingServer) -> AsyncIterator[Pipeline]:
    async with workflows(nats_server.url, server) as running:
        yield running


async def start(bus: Bus, name: str, key: str, say: str) -> str:
    return await start_workflow(bus, name, {"key": key, "say": say})


async def asked(bus: Bus, run_id: str) -> None:
    """Wait until the run is in the queue. It is written after the record of the question."""

    async def is_in_the_queue() -> bool:
        for key in await bus.bucket(BUCKET).keys("turn.>"):
            queue = await bus.bucket(BUCKET).load(key, Queue)
            if queue is not None and run_id in queue.runs:
                return True
        return False

    await eventually(is_in_the_queue, what="that the run waits for its turn, or has it")


async def turns(bus: Bus, runs: Sequence[str]) -> list[tuple[int, int]]:
    """Return when these runs began and ended, in the order in which they began."""
    found = []
    for run_id in runs:
        records, _ = await Journals(bus).read(run_id)
        began = [each.at for each in records if isinstance(each, TurnTaken)]
        [end] = [each.at for each in records if isinstance(each, End)]
        found += [(at, end) for at in began]
    return sorted(found)


def check_one_at_a_time(turns: Sequence[tuple[int, int]]) -> None:
    for (_, end), (began, _) in itertools.pairwise(turns):
        assert end <= began, "two runs with one key were under way at the same time"


async def test_runs_with_one_key_follow_each_other_and_others_do_not_wait(
    penstock: Pipeline,
) -> None:
    bus = penstock.bus
    await define(bus, definition(FLOW % ("line", "queue")))
    first = await start(bus, "line", "x", "never")
    await eventually(lambda: has_its_turn(penstock, first), what="that the first run works")
    waiting = []
    for number in range(3):
        waiting.append(await start(bus, "line", "x", f"x{number}"))
        await asked(bus, waiting[-1])
    path = f"/v1/workflows/line/runs/{waiting[2]}/turn"
    turn = {"key": "x", "before": 3, "runs": [first, *waiting[:2]]}
    assert (await penstock.http.get(path)).json() == turn
    for missing in (path.replace("line", "other"), path.replace(waiting[2], new_run_id())):
        assert (await penstock.http.get(missing)).status_code == 404
    other = await start(bus, "line", "y", "y")
    assert (await penstock.ended(other))[-1].type == "lifecycle.completed"
    # One that waits is cancelled, then the first one: the others follow in their order.
    await cancel_workflow(bus, waiting[1])
    assert types(await penstock.ended(waiting[1])) == ["lifecycle.started", "lifecycle.cancelled"]
    await cancel_workflow(bus, first)
    for run_id in (waiting[0], waiting[2]):
        events = types(await penstock.ended(run_id))
        assert events[:2] == ["lifecycle.started", "workflow.started"]
        assert events[-1] == "lifecycle.completed"
    mine = [first, waiting[0], waiting[2]]
    began = await turns(bus, [*mine, waiting[1]])
    assert began == [(await turns(bus, [run_id]))[0] for run_id in mine]
    check_one_at_a_time(began)


async def test_a_run_that_is_about_to_enter_the_queue_is_behind_all_in_it(
    penstock: Pipeline,
) -> None:
    await define(penstock.bus, definition(FLOW % ("line", "queue")))
    first, second = [await start(penstock.bus, "line", "x", "never") for _ in range(2)]
    for run_id in (first, second):
        await asked(penstock.bus, run_id)
    queue = await queue_of(penstock.bus, "line", "x")
    waits = queue.runs[1]
    path = f"/v1/workflows/line/runs/{waits}/turn"
    place = (await penstock.http.get(path)).json()
    assert place["runs"] == queue.runs[:1]
    # What the bus has after the record of the question and before the entry in the queue.
    key = f"turn.{key_of('turn', '', 'line', 'x')}"
    await penstock.bus.bucket(BUCKET).change(key, Queue, lambda queue: queue.keep(queue.runs[:1]))
    assert (await penstock.http.get(path)).json() == place


async def has_its_turn(penstock: Pipeline, run_id: str) -> bool:
    records, _ = await Journals(penstock.bus).read(run_id)
    return any(isinstance(each, TurnTaken) for each in records)


async def test_the_runs_of_one_user_leave_places_in_the_queue_for_others(
    penstock: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_workflows.effects.turns.MAX_OF_USER", 2)
    bus = penstock.bus
    await define(bus, definition(FLOW % ("shared", "queue")))
    mine = []
    for _ in range(2):
        mine.append(await start(bus, "shared", "x", "never"))
        await asked(bus, mine[-1])
    refused = (await penstock.ended(await start(bus, "shared", "x", "x")))[-1]
    assert refused.data["code"] == "limit_exceeded"
    words = {"key": "x", "say": "x"}
    of_another = await start_workflow(bus, "shared", words, user_id="u2")
    await asked(bus, of_another)
    for run_id in mine:
        await cancel_workflow(bus, run_id)
    assert (await penstock.ended(of_another))[-1].type == "lifecycle.completed"


async def test_a_start_interrupts_those_before_it_or_is_refused(penstock: Pipeline) -> None:
    bus = penstock.bus
    await define(bus, definition(FLOW % ("deploy", "interrupt")))
    first = await start(bus, "deploy", "x", "never")
    await asked(bus, first)
    second = await start(bus, "deploy", "x", "second")
    ended = (await penstock.ended(first))[-1]
    assert (ended.type, ended.data["reason"]) == ("lifecycle.cancelled", "superseded")
    assert (await penstock.ended(second))[-1].type == "lifecycle.completed"
    check_one_at_a_time(await turns(bus, [first, second]))
    await define(bus, definition(FLOW % ("single", "refuse")))
    holder = await start(bus, "single", "x", "never")
    await asked(bus, holder)
    refused = (await penstock.ended(await start(bus, "single", "x", "x")))[-1]
    assert refused.data["code"] == "busy"
    assert holder in refused.data["error"]
    others = await start_workflow(bus, "single", {"key": "x", "say": "x"}, user_id="u2")
    refused = (await penstock.ended(others))[-1]
    assert refused.data["error"] == "a run of another user has the key 'x'"
    await cancel_workflow(bus, holder)
    await penstock.ended(holder)
    last = await start(bus, "single", "x", "x")
    assert (await penstock.ended(last))[-1].type == "lifecycle.completed"


async def test_a_workflow_does_not_wait_for_the_run_that_it_is_inside_of(
    penstock: Pipeline,
) -> None:
    flow = """
    name: %s
    exclusive: {key: '"one"'}
    steps:
      again: {workflow: {workflow: %s}, always: %s}
    """
    for name, always in (("inside", "false"), ("after", "true")):
        await define(penstock.bus, definition(flow % (name, name, always)))
        run_id = await start_workflow(penstock.bus, name)
        events = await penstock.ended(run_id)
        [failed] = [each.data["error"] for each in events if each.type == "workflow.step_failed"]
        assert failed["code"] == "busy"
        assert "inside of which it is" in failed["message"]


async def queue_of(bus: Bus, name: str, key: str) -> Queue:
    return await bus.bucket(BUCKET).load(f"turn.{key_of('turn', '', name, key)}", Queue) or Queue()


async def test_a_run_that_waits_for_longer_than_records_are_kept_has_its_turn(
    penstock: Pipeline,
) -> None:
    """As with an approval after a month: the record of the run has aged out, its journal not."""
    bus = penstock.bus
    await define(bus, definition(FLOW % ("month", "queue")))
    first = await start(bus, "month", "x", "never")
    await eventually(lambda: has_its_turn(penstock, first), what="that the first run works")
    await bus.bucket("runs").delete(first)
    second = await start(bus, "month", "x", "x")

    async def waits() -> bool:
        return (await queue_of(bus, "month", "x")).runs == [first, second]

    await eventually(waits, what="that the second run waits for the first one")
    await cancel_workflow(bus, first)
    assert (await penstock.ended(second))[-1].type == "lifecycle.completed"
    check_one_at_a_time(await turns(bus, [first, second]))


async def test_of_runs_that_would_wait_for_each_other_the_last_one_fails_and_names_the_keys(
    penstock: Pipeline, server: CountingServer
) -> None:
    """Each of three runs has its own key, and then wants that of the next one."""
    bus = penstock.bus
    flow = """
    name: ring%d
    exclusive: {key: '"key%d"'}
    steps:
      hold: {run: {agent: worker, message: '"gate-" + input.gate'}}
      next:
        needs: [hold]
        when: 'input.gate != "open"'
        workflow: {workflow: ring%d, input: '{"gate": "open"}'}
    """
    for number in range(3):
        await define(bus, definition(flow % (number, number, (number + 1) % 3)))
    server.gates["open"].set()
    runs = []
    for number in range(3):
        runs.append(await start_workflow(bus, f"ring{number}", {"gate": f"{number}"}))
        await eventually(lambda: has_its_turn(penstock, runs[-1]), what="that it has its key")
    for number in range(2):
        server.gates[f"{number}"].set()

        async def waits(name: str = f"ring{number + 1}", key: str = f"key{number + 1}") -> bool:
            return bool((await queue_of(bus, name, key)).inside)

        await eventually(waits, what="that it waits for the next key")
    server.gates["2"].set()
    events = await penstock.ended(runs[2])
    [failed] = [each.data["error"] for each in events if each.type == "workflow.step_failed"]
    assert failed["code"] == "busy"
    for part in ("would wait for ever", "'key0' of the workflow ring0", "'key2' of the workflow"):
        assert part in failed["message"]
    for run_id in runs[:2]:
        assert (await penstock.ended(run_id))[-1].type == "lifecycle.completed"


@pytest.mark.chaos
@pytest.mark.timeout(360)
@pytest.mark.parametrize("seed", range(3))
async def test_instances_that_die_again_and_again_let_every_run_have_its_turn(
    fresh_nats: NatsServer, server: CountingServer, seed: int
) -> None:
    numbers = random.Random(seed)
    async with (
        workflows(fresh_nats.url, server, PIPELINE) as penstock,
        instances(fresh_nats.url, server.config) as made,
    ):
        bus = penstock.bus
        await define(bus, definition(FLOW % ("line", "queue")))
        for _ in range(3):
            await made.start(numbers.randint(1, 45))
        replacing = asyncio.create_task(made.replace_dead(numbers, 45, 15))
        try:
            runs = [await start(bus, "line", f"k{n % 2}", f"{n}") for n in range(12)]
            for run_id in runs:
                events = await penstock.ended(run_id, 240)
                assert events[-1].type == "lifecycle.completed"
        finally:
            while not replacing.done():
                replacing.cancel()
                await asyncio.wait([replacing], timeout=1)
        assert made.deaths >= 5
        for key in range(2):
            check_one_at_a_time(await turns(bus, runs[key::2]))
        assert all(server.calls[f"{n}"] == server.calls[f"{n} again"] == 1 for n in range(12))
