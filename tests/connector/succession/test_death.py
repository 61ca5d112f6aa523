"""Peers ask a silent connector: a killed one is found, a paused or cut-off one is not.

All leases here last for two minutes, so no result of these tests comes from an expired lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_connector import service as connector_service
from penstock_connector.service import ConnectorService
from penstock_connector.succession.reaper import Reaper
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, pipeline, types
from support.fakes.cutter import Gate
from support.fakes.misbehaving import Answer, Misbehaving, agents, plays
from support.fakes.raw import agno, agno_text
from support.real.connectors import claimed_by_the_dead, connector_process
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

LONG: dict[str, Any] = {"pod_ttl_s": 120, "pod_renew_s": 40, "ack_wait_s": 120}
WITHOUT_CONNECTOR = (NormalizerService, ApprovalsService)


@asynccontextmanager
async def peer(fresh_nats: NatsServer, config: Config) -> AsyncIterator[None]:
    """Run another connector in this process."""
    async with pipeline(fresh_nats.url, config, (ConnectorService,), **LONG):
        yield


class Held:
    """An upstream that sends a few words, and the rest when the test allows it."""

    def __init__(self, upstream: Misbehaving) -> None:
        self.goes_on = asyncio.Event()
        upstream.script(self._answer)

    async def _answer(self, answer: Answer) -> None:
        await answer.head()
        await answer.send(agno("RunStarted") + agno("RunContent", content="x"))
        await self.goes_on.wait()
        await answer.send(agno("RunContent", content="y") + agno("RunCompleted", content="xy"))
        await answer.end()


async def holders(penstock: Pipeline, run_id: str) -> set[str]:
    """Return the connectors that wrote frames of the run."""
    return {frame.connection.partition("/")[0] for frame in await penstock.raw(run_id)}


async def test_the_run_of_a_killed_connector_is_ended_long_before_its_lease_is_over(
    fresh_nats: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    Held(upstream)
    config = agents(upstream)
    async with (
        pipeline(fresh_nats.url, config, WITHOUT_CONNECTOR) as penstock,
        connector_process(penstock.bus, config, tmp_path, **LONG) as victim,
    ):
        run_id = await penstock.start_run("agno")
        await penstock.events_until(run_id, "llm.stream")
        async with peer(fresh_nats, config):
            await victim.kill()
            *_, last = await penstock.ended(run_id)
            assert await penstock.bus.bucket("leases").get(f"pod.{victim.pod}") is None
    assert last.data["code"] == "upstream_lost"


async def test_a_new_connector_deals_with_the_run_of_one_that_died_alone(
    fresh_nats: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    Held(upstream)
    config = agents(upstream)
    async with pipeline(fresh_nats.url, config, WITHOUT_CONNECTOR) as penstock:
        async with connector_process(penstock.bus, config, tmp_path, **LONG) as victim:
            run_id = await penstock.start_run("agno")
            await penstock.events_until(run_id, "llm.stream")
            await victim.kill()
        async with peer(fresh_nats, config):
            *_, last = await penstock.ended(run_id)
    assert last.data["code"] == "upstream_lost"


@pytest.mark.real
async def test_a_run_that_can_be_attached_to_again_does_not_wait_until_that_is_sure(
    fresh_nats: NatsServer,
    agno_server: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connector_service, "CONFIRM_S", 3600.0)
    agent = {"id": "agent", "protocol": "agno", "agent": "demo-agent", "url": agno_server.url}
    config = Config.model_validate({"agents": [agent]})
    async with (
        pipeline(fresh_nats.url, config, WITHOUT_CONNECTOR) as penstock,
        connector_process(penstock.bus, config, tmp_path, **LONG) as victim,
    ):
        run_id = await penstock.start_run("agent", "long")
        await penstock.events_until(run_id, "llm.stream")
        async with peer(fresh_nats, config):
            await victim.kill()
            events = await penstock.ended(run_id)
            assert len(await holders(penstock, run_id)) == 2
    assert types(events)[-1] == "lifecycle.completed"


async def test_a_connector_that_hangs_keeps_its_runs(
    fresh_nats: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    held = Held(upstream)
    config = agents(upstream)
    folders = [tmp_path / name for name in ("hangs", "dies")]
    for folder in folders:
        folder.mkdir()
    async with (
        pipeline(fresh_nats.url, config, WITHOUT_CONNECTOR) as penstock,
        connector_process(penstock.bus, config, folders[0], max_legs=1, **LONG) as hangs,
    ):
        kept = await penstock.start_run("agno")
        await penstock.events_until(kept, "llm.stream")
        async with connector_process(penstock.bus, config, folders[1], **LONG) as dies:
            lost = await penstock.start_run("agno")
            await penstock.events_until(lost, "llm.stream")
            async with peer(fresh_nats, config):
                hangs.sleep()
                await dies.kill()
                await penstock.ended(lost)  # the peer asked both connectors
                hangs.wake()
                held.goes_on.set()
                events = await penstock.ended(kept)
                assert await holders(penstock, kept) == {hangs.pod}
    assert types(events)[-1] == "lifecycle.completed"


async def test_a_connector_that_was_cut_off_for_a_moment_finds_its_runs_its_own(
    fresh_nats: NatsServer,
    upstream: Misbehaving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The time is long enough that a busy machine does not exceed it.
    monkeypatch.setattr(connector_service, "CONFIRM_S", 30.0)
    missed = asyncio.Event()
    mark_silent = Reaper.mark_silent

    def noted(reaper: Reaper, pod: str) -> None:
        mark_silent(reaper, pod)
        missed.set()

    monkeypatch.setattr(Reaper, "mark_silent", noted)
    held = Held(upstream)
    config = agents(upstream)
    gate = Gate(fresh_nats.port)
    await gate.serve()
    through: dict[str, Any] = {"nats_url": f"nats://127.0.0.1:{gate.port}"}
    async with (
        pipeline(fresh_nats.url, config, WITHOUT_CONNECTOR) as penstock,
        connector_process(penstock.bus, config, tmp_path, **LONG, **through) as cut,
    ):
        run_id = await penstock.start_run("agno")
        await penstock.events_until(run_id, "llm.stream")
        async with peer(fresh_nats, config):
            gate.cut()
            await asyncio.wait_for(missed.wait(), 30)
            gate.open()
            held.goes_on.set()
            events = await penstock.ended(run_id)
            assert await holders(penstock, run_id) == {cut.pod}
    await gate.close()
    assert types(events)[-1] == "lifecycle.completed"


async def test_a_start_whose_taker_died_before_it_began_is_begun_by_another_at_once(
    fresh_nats: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(plays(agno_text("x")))
    config = agents(upstream)
    async with pipeline(fresh_nats.url, config, (NormalizerService,)) as penstock:
        async with connector_process(penstock.bus, config, tmp_path, **LONG) as connector:
            await penstock.ended(await penstock.start_run("agno", "first"))
            await connector.kill()
        run_id = await penstock.start_run("agno", "second")
        taker = await penstock.bus.jetstream.nats.pull_subscribe_bind(
            "connector-start", stream="COMMANDS"
        )
        [_] = await taker.fetch(1)
        await claimed_by_the_dead(penstock.bus, run_id)
        await taker.unsubscribe()
        async with peer(fresh_nats, config):
            *_, last = await penstock.ended(run_id)
    assert last.type == "lifecycle.completed"
    assert len([call for call in upstream.calls if call.form["message"] == "second"]) == 1
