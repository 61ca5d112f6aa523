"""The service's own NATS user may do all that workflows need, also with several shards."""

from __future__ import annotations

import time
from pathlib import Path

from penstock.bus.admin.migrate import reshard
from penstock.bus.shards import new_run_id
from penstock_workflows.service import WorkflowsService
from support.drive.bus import connected
from support.drive.pipeline import PIPELINE
from support.drive.workflows import (
    cancel_workflow,
    counting,
    define,
    definition,
    start_workflow,
    workflows,
)
from support.real.nats import NatsServer, write_passwords

INNER = """
name: inner
steps:
  a: {run: {agent: worker, message: 'input.id + " a"'}, timeout: 1h}
"""
FLOW = """
name: everything
timeout: 1h
steps:
  a:
    run: {agent: worker, message: 'input.id + " a fails-once"'}
    retry: {attempts: 2, backoff: 1s, codes: [upstream_error]}
  large: {set: 'input.text'}
  inner: {needs: [a], workflow: {workflow: inner, input: '{"id": input.id + " inner"}'}}
  hear: {listen: {event: custom.event}, timeout: 1s, on_failure: continue}
  last: {needs: [inner, hear, large], run: {agent: worker, message: 'input.id + " last"'}}
"""


async def test_the_services_own_nats_users_suffice_in_every_shard(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with connected(fresh_nats.url) as bus:
        await reshard(bus, 3, settle_s=0)
        for text in (INNER, FLOW):
            await define(bus, definition(text))
    async with (
        counting() as server,
        workflows(
            fresh_nats.url,
            server,
            (*PIPELINE, WorkflowsService, WorkflowsService),
            nats_passwords=write_passwords(tmp_path),
            journal_kept_s=1,
        ) as penstock,
    ):
        given = {"text": "x" * 100_000}
        ids = [new_run_id(shard, time.time()) for shard in range(3)]
        runs = [
            await start_workflow(
                penstock.bus,
                "everything",
                {**given, "id": f"{n}"},
                run_id=ids[n],
            )
            for n in range(3)
        ]
        stopped = await start_workflow(penstock.bus, "everything", {**given, "id": "never"})
        for number, run_id in enumerate(runs):
            events = await penstock.ended(run_id, 30)
            assert events[-1].type == "lifecycle.completed", events[-1].data
            assert server.calls[f"{number} inner a"] == server.calls[f"{number} last"] == 1
        await cancel_workflow(penstock.bus, stopped)
        assert (await penstock.ended(stopped))[-1].type == "lifecycle.cancelled"
    assert not fresh_nats.violations()
