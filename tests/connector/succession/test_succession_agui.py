"""Two bridges in a row: the outer one reconnects to the run that the inner one keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_connector.service import ConnectorService
from penstock_edge.service import EdgeService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import PIPELINE, Event, Pipeline, Services, pipeline, types
from support.fakes.cutter import cutter
from support.fakes.misbehaving import Answer, Misbehaving, agents, plays
from support.fakes.raw import agno, agno_approved, agno_pause
from support.real.connectors import FAST, connector_process
from support.real.nats import NatsServer

INNER: Services = (*PIPELINE, EdgeService)
WORDS = [f"word {n} " for n in range(60)]


async def speaks(answer: Answer) -> None:
    await answer.head()
    await answer.send(agno("RunStarted"))
    for word in WORDS:
        await answer.send(agno("RunContent", content=word))
        await asyncio.sleep(0.03)
    await answer.send(agno("RunCompleted", content="".join(WORDS)))
    await answer.end()


def outer(url: str) -> Config:
    return Config.model_validate(
        {"agents": [{"id": "bridged", "protocol": "agui", "url": f"{url}/agui/agno"}]}
    )


def text(events: list[Event]) -> str:
    return "".join(event.data["content"] for event in events if event.type == "llm.stream")


def in_order(events: list[Event]) -> bool:
    return [event.sequence for event in events] == list(range(1, len(events) + 1))


def url_of(penstock: Pipeline) -> str:
    return str(penstock.http.base_url).rstrip("/")


async def test_a_connection_that_breaks_is_come_back_to(
    nats_server: NatsServer, fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(speaks)
    async with (
        pipeline(fresh_nats.url, agents(upstream), INNER) as inner,
        cutter(url_of(inner), [2000, 3000]) as proxy,
        pipeline(nats_server.url, outer(proxy.url)) as penstock,
    ):
        run_id = await penstock.start_run("bridged", "hello")
        events = await penstock.ended(run_id)
        frames = await penstock.raw(run_id)
    assert proxy.cut == 2
    assert types(events)[-1] == "lifecycle.completed"
    assert text(events) == "".join(WORDS)
    assert in_order(events)
    assert len({frame.connection for frame in frames if frame.kind == "bytes"}) == 3
    assert len(upstream.calls) == 1


async def test_a_peer_comes_back_to_the_run_of_a_dead_connector(
    nats_server: NatsServer, fresh_nats: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(speaks)
    async with pipeline(fresh_nats.url, agents(upstream), INNER) as inner:
        config = outer(url_of(inner))
        async with (
            pipeline(nats_server.url, config, (NormalizerService, ApprovalsService)) as penstock,
            connector_process(penstock.bus, config, tmp_path) as connector,
        ):
            run_id = await penstock.start_run("bridged", "hello", session_id="s-killed")
            await penstock.events_until(run_id, "llm.stream")
            await connector.kill()
            async with pipeline(nats_server.url, config, (ConnectorService,), **FAST):
                events = await penstock.ended(run_id)
                upstream.script(plays(agno("RunStarted") + agno("RunCompleted", content="x")))
                following = await penstock.start_run("bridged", "and?", session_id="s-killed")
                *_, last = await penstock.ended(following)
                thread = await penstock.bus.bucket("threads").entries("thread.>")
    assert types(events)[-1] == "lifecycle.completed"
    assert text(events) == "".join(WORDS)
    assert in_order(events)
    assert last.type == "lifecycle.completed"
    assert b"word 59" in b"".join(entry.value for entry in thread), "the conversation is whole"
    assert len(upstream.calls) == 2


@pytest.mark.parametrize("leg", [1, 2])
async def test_a_leg_that_was_come_back_to_ends_where_the_inner_run_waits(
    nats_server: NatsServer,
    fresh_nats: NatsServer,
    upstream: Misbehaving,
    leg: int,
) -> None:
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    after = [700] if leg == 1 else [10_000_000, 700]
    async with (
        pipeline(fresh_nats.url, agents(upstream), INNER) as inner,
        cutter(url_of(inner), after) as proxy,
        pipeline(nats_server.url, outer(proxy.url)) as penstock,
    ):
        run_id = await penstock.start_run("bridged", "delete")
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        await penstock.decide(paused.data["approval_id"])
        events = await penstock.ended(run_id)
    assert proxy.cut == 1
    assert types(events)[-1] == "lifecycle.completed"
    assert in_order(events)
    assert len(upstream.calls) == 2
