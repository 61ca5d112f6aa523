"""All services are killed while a workflow's agents work: no agent is called a second time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from e2e.workflows.conftest import SERVICES
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.drive.workflows import CountingServer, counting, define, definition
from support.real.deployment import deployment
from support.real.nats import NatsServer

# `never` gives no byte of an answer, `begins` gives one word and then nothing.
FLOW = """
name: four
steps:
  a: {run: {agent: worker, message: '"a never"'}, retry: {attempts: 3}, on_failure: continue}
  b: {run: {agent: worker, message: '"b never"'}, retry: {attempts: 3}, on_failure: continue}
  c: {run: {agent: worker, message: '"c begins"'}, retry: {attempts: 3}, on_failure: continue}
  d: {run: {agent: worker, message: '"d begins"'}, retry: {attempts: 3}, on_failure: continue}
"""


async def has_calls(server: CountingServer, count: int) -> bool:
    return server.calls.total() == count


@pytest.mark.timeout(240)
async def test_calls_that_were_under_way_when_everything_was_killed_are_not_made_again(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with counting() as server:
        agents = [
            *server.config.model_dump(mode="json", exclude_unset=True)["agents"],
            {"id": "four", "protocol": "workflow"},
        ]
        async with deployment(fresh_nats.url, tmp_path, agents, SERVICES) as penstock:
            async with connected(fresh_nats.url) as bus:
                await define(bus, definition(FLOW))
            run_id = await penstock.run("four", "go")

            children: dict[str, str] = {}
            async for event in penstock.events(run_id):
                if event.type == "workflow.step_started":
                    name = event.data["step_id"].removeprefix("step_")
                    children[name] = event.data["child_run_id"]
                if len(children) == 4:
                    break
            await eventually(lambda: has_calls(server, 4), 60, "the four calls")
            for step in ("c", "d"):
                await penstock.until(children[step], "llm.stream")
            for instance in list(penstock.instances):
                await penstock.kill(instance)
            for service in SERVICES:
                await penstock.start(service)
            events = await penstock.all(run_id)
        assert events[-1].type == "lifecycle.completed"
        codes = [e.data["error"]["code"] for e in events if e.type == "workflow.step_failed"]
        assert sorted(codes) == ["outcome_unknown"] * 2 + ["upstream_lost"] * 2
        assert "lifecycle.retrying" not in {event.type for event in events}
        assert server.calls == Counter(["a never", "b never", "c begins", "d begins"])
