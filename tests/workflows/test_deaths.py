"""The workflows service dies at any write: each step's run is called once, and each run ends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from penstock.bus import Bus, Message, OutcomeUnknown, streams, subjects
from penstock.bus.read import direct
from penstock.bus.write import fence
from penstock.dialects.workflow import WRITER
from penstock_workflows.engine.inputs import Input
from penstock_workflows.engine.projection import projection
from penstock_workflows.engine.records import End, Record, Scheduled
from penstock_workflows.engine.state import State, fold
from penstock_workflows.inputs.decisions import Decisions
from penstock_workflows.journal.journal import RECORD, Journals, Position
from support.drive.dying import Instances, instances
from support.drive.pipeline import PIPELINE, Pipeline
from support.drive.waiting import eventually
from support.drive.workflows import (
    CountingServer,
    define,
    definition,
    start_workflow,
    workflows,
)
from support.real.nats import NatsServer

# Two branches and a join: `b` fails once and is tried again after a timer, `c` has two rounds, `w`
# waits, `d` is last.
FLOW = """
exclusive: {key: input.id}
steps:
  a: {run: {agent: worker, message: 'input.id + " a"'}, output: result.text}
  b:
    needs: [a]
    run: {agent: worker, message: 'input.id + " b fails-once"'}
    retry: {attempts: 3, backoff: 1s, codes: [broken]}
  c:
    needs: [a]
    repeat: {until: 'last.endsWith("c2")', rounds: 3}
    run: {agent: worker, message: 'input.id + " c" + string(round)'}
    output: result.text
  w: {needs: [b], wait: 1s}
  d: {needs: [w, c], run: {agent: worker, message: 'c.output[1] + " d"'}, output: result.text}
output: d.output
"""
WRITES = 55  # a whole run has about so many writes
DEATHS = 15
STORMS = 5  # at most, until a run stands still because of a mutant


async def start(bus: Bus, count: int) -> list[str]:
    """Start this many runs of the workflow; return their ids."""
    await define(bus, definition(FLOW))
    return [await start_workflow(bus, "flow", {"id": f"{n}"}) for n in range(count)]


async def check(penstock: Pipeline, server: CountingServer, runs: list[str]) -> None:
    """Check that every run is complete, that nothing was called twice, and what RAW has of it."""
    journals = Journals(penstock.bus)
    for number, run_id in enumerate(runs):
        events = await penstock.ended(run_id, 60)
        assert events[-1].type == "lifecycle.completed", events[-1].data
        assert events[-1].data["summary"] == f"done done {number} c2 d"
        records, _ = await journals.read(run_id)
        assert isinstance(records[-1], End)
        assert len([each for each in records if isinstance(each, Scheduled)]) == 6
        state: State | None = None
        frames = []
        for record in records:
            frames += projection(state, record)
            state = fold(state, record)
        stored = direct.replay(
            penstock.bus, streams.raw_for(run_id), subjects.raw_stored(run_id, WRITER)
        )
        written = [each.headers[RECORD] async for each in stored]
        assert written == [f"{frame.record}/{frame.part}" for frame in frames]
    for number in range(len(runs)):
        called = [f"{number} a", f"{number} c1", f"{number} c2", f"done {number} c2 d"]
        assert [server.calls[text] for text in called] == [1, 1, 1, 1]
        assert server.calls[f"{number} b fails-once"] == 2  # the second one is the retry


async def storm(
    penstock: Pipeline, made: Instances, numbers: random.Random, runs: int, timeout_s: float
) -> list[str]:
    """Start runs while three instances die again and again; return their ids when all ended."""
    for _ in range(3):
        await made.start(numbers.randint(1, WRITES))
    replacing = asyncio.create_task(made.replace_dead(numbers, WRITES, DEATHS))
    try:
        started = await start(penstock.bus, runs)
        async with asyncio.timeout(timeout_s):
            for run_id in started:
                await penstock.ended(run_id, timeout_s)
    finally:
        while not replacing.done():  # a library may swallow the first cancellation
            replacing.cancel()
            await asyncio.wait([replacing], timeout=1)
    return started


@pytest.mark.chaos
@pytest.mark.timeout(360)  # it takes 10 s alone; each instance that replaces a dead one must start
async def test_instances_that_die_again_and_again_finish_all_runs_without_a_second_call(
    fresh_nats: NatsServer, server: CountingServer
) -> None:
    async with (
        workflows(fresh_nats.url, server, PIPELINE) as penstock,
        instances(fresh_nats.url, server.config) as made,
    ):
        runs = await storm(penstock, made, random.Random(14), 12, 240)
        assert made.deaths >= 5
        await check(penstock, server, runs)


async def test_the_inputs_of_an_instance_that_is_stopped_are_taken_by_another(
    fresh_nats: NatsServer, server: CountingServer
) -> None:
    """An input that was on its way to the instance is delivered after the acknowledgement wait."""
    async with (
        workflows(fresh_nats.url, server, PIPELINE) as penstock,
        instances(fresh_nats.url, server.config, input_ack_wait_s=5) as made,
    ):
        first = await made.start()
        runs = await start(penstock.bus, 8)
        await eventually(server.was_called)
        await made.end(first)
        await made.start()
        async with asyncio.timeout(60):
            await check(penstock, server, runs)


async def test_records_whose_acknowledgement_is_lost_have_their_effects_all_the_same(
    nats_server: NatsServer, server: CountingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, lost = Journals.append, Counter[str]()

    async def unheard(
        self: Journals, run_id: str, after: Position, records: Sequence[Record]
    ) -> Position:
        end = await append(self, run_id, after, records)
        lost[run_id] += 1
        raise OutcomeUnknown(f"the acknowledgement of {end} is lost")

    monkeypatch.setattr(Journals, "append", unheard)
    async with workflows(nats_server.url, server) as penstock:
        runs = await start(penstock.bus, 3)
        await check(penstock, server, runs)
    assert all(lost[run_id] > 5 for run_id in runs)


# The mutants show that the storm finds a service that leaves out a rule of the protocol.


async def stands_still(nats: NatsServer, server: CountingServer) -> bool:
    """Return whether some run does not end although instances are running.

    A death must come between two certain writes, so one storm alone may miss the mutant.
    """
    async with workflows(nats.url, server, PIPELINE) as penstock:
        for seed in range(14, 14 + STORMS):
            async with instances(nats.url, server.config) as made:
                try:
                    await storm(penstock, made, random.Random(seed), 12, 30)
                except TimeoutError:
                    return True
    return False


@pytest.mark.chaos
async def test_without_the_fence_of_the_journal_runs_block(
    fresh_nats: NatsServer, server: CountingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = fence.append

    async def unfenced(bus: Bus, subject: str, batch: Sequence[Message], last: int) -> int:
        if not subject.startswith("journal."):
            return await append(bus, subject, batch, last)
        assert len(batch) == 1
        return await bus.publisher.publish(batch[0])

    monkeypatch.setattr(fence, "append", unfenced)
    assert await stands_still(fresh_nats, server)


@pytest.mark.chaos
async def test_without_the_effects_of_open_steps_after_a_repeated_delivery_runs_block(
    fresh_nats: NatsServer, server: CountingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgetful(self: Decisions, run_id: str, given: Input, *, repeated: bool) -> None:
        async with self._runs.take(run_id) as run:
            run.owes_effects = False
            await self._take(run, given, repeated=False)

    monkeypatch.setattr(Decisions, "take", forgetful)
    assert await stands_still(fresh_nats, server)
