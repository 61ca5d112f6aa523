"""Penstock with a content key that OpenBao opens (`make faults`; skipped without OpenBao)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.service.key_service import wrapped_key
from penstock.settings import Settings
from support.drive.erasing import streams_with
from support.drive.waiting import eventually
from support.fakes.misbehaving import misbehaving, plays
from support.fakes.raw import agno_text
from support.real.bao import bao
from support.real.deployment import Deployment, Event, deployment
from support.real.nats import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


async def test_runs_go_on_while_openbao_is_sealed_and_only_a_starting_service_waits(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    secret = f"secret-{uuid4().hex}"
    async with bao(tmp_path) as server, misbehaving() as upstream:
        upstream.script(plays(agno_text(secret)))
        agents = [{"id": "agent", "protocol": "agno", "url": upstream.url}]
        maker = Settings(kms_url=server.key, kms_token=await server.token("encrypt", "decrypt"))
        named: dict[str, Any] = {
            "content_keys": await wrapped_key(maker),
            "kms_url": server.key,
            "kms_token": await server.token("decrypt"),
        }
        async with deployment(fresh_nats.url, tmp_path / "p", agents, **named) as penstock:
            first = await said(penstock, secret)
            await server.seal()
            await said(penstock, secret)
            [edge] = penstock.of("edge")
            await penstock.kill(edge)
            starting = asyncio.create_task(penstock.start("edge"))
            await eventually(lambda: waits_for_openbao(penstock), 30, "the edge says why it waits")
            assert not starting.done()
            await server.unseal()
            await starting
            again = [event.data for event in await penstock.all(first[0].body["run_id"])]
            assert again == [event.data for event in first]
        assert streams_with(fresh_nats, secret) == set()


async def said(penstock: Deployment, secret: str) -> list[Event]:
    """Return the events of a new run, which say the secret."""
    seen = await penstock.all(await penstock.run("agent", f"say {secret}"))
    assert seen[-1].type == "lifecycle.completed"
    assert secret in str([event.data for event in seen])
    return seen


async def waits_for_openbao(penstock: Deployment) -> bool:
    log = penstock.of("edge")[-1].process.log.read_text() if penstock.of("edge") else ""
    return "edge waits: the key service at" in log and "sealed" in log
