"""The run of an input that cannot be processed fails, beside the dead letter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.bus import Message, streams, subjects
from penstock.bus.admin.replay import replay_letter
from penstock.bus.state import deadletters
from penstock_workflows.engine.inputs import ChildInput, Input, TimerInput
from penstock_workflows.engine.records import Scheduled
from penstock_workflows.inputs.decisions import Decisions
from penstock_workflows.journal.journal import Journals
from support.drive.pipeline import Pipeline
from support.drive.waiting import eventually
from support.drive.workflows import (
    counting,
    define,
    definition,
    start_workflow,
    workflows,
)
from support.real.nats import NatsServer

FLOW = """
name: poisoned
steps:
  child: {when: input.ends, run: {agent: worker, message: '"hello"'}}
  never: {when: '!input.ends', run: {agent: worker, message: '"never"'}}
"""
TIMED = "{name: timed, steps: {soon: {wait: 100ms}, never: {wait: 1h}}}"


@pytest.fixture
async def penstock(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pipeline]:
    take = Decisions.take

    async def defective(self: Decisions, run_id: str, given: Input, *, repeated: bool) -> None:
        if (isinstance(given, TimerInput) and given.timer.startswith("wait-")) or (
            isinstance(given, ChildInput) and given.type == "lifecycle.completed"
        ):
            raise ValueError("a defect of this process")
        await take(self, run_id, given, repeated=repeated)

    monkeypatch.setattr(Decisions, "take", defective)
    async with counting() as server, workflows(nats_server.url, server) as running:
        yield running


async def test_the_run_of_an_input_that_is_given_up_fails_and_names_the_dead_letter(
    penstock: Pipeline,
) -> None:
    bus, journals = penstock.bus, Journals(penstock.bus)
    await define(bus, definition(FLOW))
    await define(bus, definition(TIMED))
    poisoned: dict[str, str] = {}  # the runs, and the run id of the dead letter
    children: list[str] = []

    async def child_of(run_id: str) -> str:
        found: list[str] = []

        async def began() -> bool:
            records, _ = await journals.read(run_id)
            found[:] = [each.child for each in records if isinstance(each, Scheduled)]
            return bool(found)

        await eventually(began)
        return found[0]

    for kind in ("continue", "called", "cancel"):
        run_id = await start_workflow(bus, "poisoned", {"ends": False})
        children.append(await child_of(run_id))
        poisoned[run_id] = run_id
        subject = subjects.command("workflows", kind, run_id)
        await bus.publisher.publish(Message(subject, b"{}", {}))
    run_id = await start_workflow(bus, "poisoned", {"ends": True})
    poisoned[run_id] = await child_of(run_id)
    run_id = await start_workflow(bus, "timed")
    poisoned[run_id] = run_id

    for run_id, about in poisoned.items():
        last = (await penstock.ended(run_id))[-1]
        assert (last.type, last.data["code"]) == ("lifecycle.failed", "internal")
        letter = subjects.deadletter("workflows", about)
        assert letter in last.data["error"]
        assert await bus.tail(streams.DEADLETTERS, letter) is not None
    for child in children:
        assert (await penstock.ended(child))[-1].type == "lifecycle.cancelled"

    # The child's end is replayed: nothing changes.
    ended = {run_id: (await journals.read(run_id))[0] for run_id in poisoned}
    about = next(letter for run_id, letter in poisoned.items() if run_id != letter)
    async for found in deadletters.letters(bus, "workflows", about):
        await replay_letter(bus, found)
    await asyncio.sleep(0.2)
    assert {run_id: (await journals.read(run_id))[0] for run_id in poisoned} == ended
