"""Steps with `always`, carried out by the real services: once, after failure, cancel and kills."""

from __future__ import annotations

import asyncio

from penstock.bus.records.runs import RunRecord
from penstock.web.auth import Identity
from penstock_edge.runs.cancel import Canceller
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

# `outer` has an inner workflow, which has a step to clean up, too.
INNER = """
name: inner
steps:
  work: {run: {agent: worker, message: 'input.id + " " + input.does'}}
  clean: {needs: [work], always: true, run: {agent: worker, message: 'input.id + " inner clean"'}}
"""
OUTER = """
name: outer
steps:
  part: {workflow: {workflow: inner, input: input}}
  later: {needs: [part], run: {agent: worker, message: 'input.id + " later"'}}
  clean:
    needs: [part]
    always: true
    run: {agent: worker, message: 'input.id + " clean " + part.status'}
"""


# Two steps clean up, one after the other; the second begins after a cancel has waited enough.
SLOW = """
name: slow
steps:
  work: {run: {agent: worker, message: 'input.id + " never"'}}
  first: {needs: [work], always: true, run: {agent: worker, message: 'input.id + " slow-1"'}}
  second: {needs: [first], always: true, run: {agent: worker, message: 'input.id + " last"'}}
"""


async def start(penstock: Pipeline, id_: str, does: str) -> str:
    for text in (INNER, OUTER):
        await define(penstock.bus, definition(text))
    return await start_workflow(penstock.bus, "outer", {"id": id_, "does": does})


async def test_it_runs_once_after_a_failure_and_after_a_cancel_also_in_a_nested_workflow(
    nats_server: NatsServer, server: CountingServer
) -> None:
    async with workflows(nats_server.url, server) as penstock:
        failed = await start(penstock, "f", "fails")
        cancelled = await start(penstock, "c", "never")

        async def works() -> bool:
            return server.calls["c never"] == 1

        await eventually(works)
        await cancel_workflow(penstock.bus, cancelled)
        events = await penstock.ended(failed, 60)
        assert types(events)[-1] == "lifecycle.failed"
        assert events[-1].data["step"] == "part"
        events = await penstock.ended(cancelled, 60)
        assert types(events)[-1] == "lifecycle.cancelled"
        assert events[-1].data["by"] == "u1"
        assert server.calls == {
            "f fails": 1,
            "f inner clean": 1,
            "f clean failed": 1,
            "c never": 1,
            "c inner clean": 1,
            "c clean cancelled": 1,
        }


async def test_a_cancel_over_http_does_not_cut_it_off(
    nats_server: NatsServer, server: CountingServer
) -> None:
    async with workflows(nats_server.url, server) as penstock:
        await define(penstock.bus, definition(SLOW))
        run_id = await start_workflow(penstock.bus, "slow", {"id": "d"})
        await eventually(server.was_called, what="the step runs")
        canceller = Canceller(penstock.bus, 0.3)
        for _ in range(2):  # a second cancel changes nothing
            cancelled = await canceller.cancel(run_id, Identity("u1", frozenset(), "bearer"))
            assert cancelled.at is None
        events = await penstock.ended(run_id, 60)
        assert types(events)[-1] == "lifecycle.cancelled"
        assert server.calls == {"d never": 1, "d slow-1": 1, "d last": 1}


async def test_it_runs_once_when_the_service_dies_while_it_runs(
    fresh_nats: NatsServer, server: CountingServer
) -> None:
    async with (
        workflows(fresh_nats.url, server, PIPELINE) as penstock,
        instances(fresh_nats.url, server.config) as made,
    ):
        first = await made.start()
        run_id = await start(penstock, "slow-1", "never")

        async def works() -> bool:
            return server.calls["slow-1 never"] == 1

        await eventually(works)
        await cancel_workflow(penstock.bus, run_id)

        async def cleans() -> bool:
            return server.calls["slow-1 clean cancelled"] == 1

        await eventually(cleans, 60)
        made.let_die(first)
        replacing = asyncio.create_task(made.died())
        await made.start()
        events = await penstock.ended(run_id, 60)
        assert types(events)[-1] == "lifecycle.cancelled"
        assert set(server.calls.values()) == {1}
        replacing.cancel()
        record = await penstock.bus.bucket("runs").load(run_id, RunRecord)
        assert record is not None
        assert record.status == "cancelled"
