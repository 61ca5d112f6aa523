"""The streams of workflows that the real services run: live, replayed and cut at every frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from penstock.bus import Bus, streams, subjects
from penstock.bus.read import direct
from penstock.settings import Config
from penstock.sse import Frame
from penstock_edge.edge import Edge
from penstock_edge.settings import EdgeSettings
from support.drive.pipeline import Pipeline
from support.drive.trees import DIALECTS, TreeReader
from support.drive.workflows import (
    CountingServer,
    counting,
    define,
    definition,
    start_workflow,
    workflows,
)
from support.real.nats import NatsServer

OUTER = """
name: outer
steps:
  first: {run: {agent: worker, message: '"first"'}, output: 'result.text'}
  fails:
    run: {agent: worker, message: '"slow-0.1 fails"'}
    on_failure: continue
    retry: {attempts: 2, backoff: 0.1s, codes: [upstream_error]}
  late:
    run: {agent: worker, message: '"slow-20 late"'}
    timeout: 0.5s
    on_failure: continue
  teams:
    needs: [first]
    for_each: {in: '["red", "blue"]', as: team, limit: 2}
    dispatch: {team: team, task: '"Look at " + team'}
    workflow: {workflow: inner, input: '{"team": team}'}
    output: 'result.data'
  last:
    needs: [teams, fails, late]
    run: {agent: worker, message: '"last"'}
output: 'last.output'
"""
INNER = """
name: inner
input: {type: object, properties: {team: {type: string}}}
steps:
  workers:
    for_each: {in: '["one", "two"]', as: worker, limit: 2}
    dispatch: {worker: worker, task: '"Work"'}
    run: {agent: worker, message: '"slow-0.1 " + input.team + " " + worker'}
"""


@pytest.fixture
async def server() -> AsyncIterator[CountingServer]:
    async with counting() as made:
        yield made


@pytest.fixture
async def penstock(nats_server: NatsServer, server: CountingServer) -> AsyncIterator[Pipeline]:
    async with workflows(nats_server.url, server) as running:
        await define(running.bus, definition(INNER))
        await define(running.bus, definition(OUTER))
        yield running


async def test_a_real_tree_is_the_same_live_replayed_and_cut_at_every_frame(
    penstock: Pipeline,
) -> None:
    bus = penstock.bus
    edge, other = (Edge.of(bus, Config(), settings) for settings in _SETTINGS)
    live, replayed = TreeReader(edge), TreeReader(other)
    run_id = await start_workflow(bus, "outer")
    reading = {dialect: asyncio.create_task(live.frames(run_id, dialect)) for dialect in DIALECTS}
    try:
        await penstock.ended(run_id, 40)
        await _check_canonical(bus, run_id, await reading["canonical"])
        for dialect, task in reading.items():
            uncut = await task
            assert await replayed.frames(run_id, dialect) == uncut, dialect
            for at in range(0, len(uncut), 1 if dialect == "unified" else 7):
                rest = await replayed.frames(run_id, dialect, uncut[at].id)
                assert rest == uncut[at + 1 :], (dialect, uncut[at])
    finally:
        for each in (edge, other):
            await each.hubs.close()
            await each.many.feeds.close()


_SETTINGS = (EdgeSettings(), EdgeSettings(ring_bytes=1, max_ring_bytes=1))


async def _check_canonical(bus: Bus, run_id: str, frames: list[Frame]) -> None:
    events = [orjson.loads(frame.data) for frame in frames]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    texts = [_told(event) for event in events if event["event"]["action"] == "message_completed"]
    assert ("worker", None, "done first") in texts
    for team in ("red", "blue"):
        for worker in ("one", "two"):
            assert ("worker", team, f"done slow-0.1 {team} {worker}") in texts
    assert texts[-1] == ("worker", None, "done last")
    ids = [event["data"]["message_id"] for event in events if "message_id" in event["data"]]
    assert len(set(ids)) == len(texts)
    types = {f"{event['event']['category']}.{event['event']['action']}" for event in events}
    assert {"dispatch.team", "lifecycle.retrying", "workflow.step_failed"} <= types
    stored = [each async for each in direct.replay(bus, streams.EVENTS, ">")]
    places = [int((frame.id or "").partition("-")[0]) for frame in frames]
    assert places == sorted(places)
    own = [each for each in stored if subjects.run_id_of(each.subject) == run_id]
    [end] = [each.sequence for each in own if each.subject.startswith("lifecycle.completed")]
    assert {each.sequence for each in own if each.sequence <= end} <= set(places)


def _told(event: dict[str, Any]) -> tuple[str, str | None, str]:
    source = event["source"]
    return source["agent_type"], source["team_name"], event["data"]["content"]
