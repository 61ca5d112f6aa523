"""A process says that it is ready when it answers requests, and not earlier."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from penstock.service.process import serve
from penstock.service.stopping import Stop
from penstock.settings import Config
from penstock.web.server import Server
from penstock_approvals.service import ApprovalsService
from support.drive.bus import make_streams
from support.drive.waiting import eventually
from support.real.nats import NatsServer
from support.real.ports import free_port


async def test_a_service_is_not_ready_before_its_port_is_open(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_streams(fresh_nats.url)
    probe_port, asked, opens = free_port(), asyncio.Event(), asyncio.Event()
    start = Server.start

    async def start_late(self: Server) -> None:
        if self.port != probe_port:
            asked.set()
            await opens.wait()
        await start(self)

    monkeypatch.setattr(Server, "start", start_late)
    settings = ApprovalsService.settings_type(
        nats_url=fresh_nats.url, port=free_port(), probe_port=probe_port, drain_s=0.1
    )
    until = Stop()
    process = asyncio.create_task(serve([ApprovalsService], settings, Config(), until=until))
    async with httpx.AsyncClient() as http:

        async def readiness() -> httpx.Response:
            return await http.get(f"http://127.0.0.1:{probe_port}/readyz")

        await asyncio.wait_for(asked.wait(), 60)
        early = await readiness()
        assert (early.status_code, early.json()["services"]) == (
            503,
            {"approvals": ["it has not started yet"]},
        )
        opens.set()

        async def is_ready() -> bool:
            return (await readiness()).status_code == 200

        await eventually(is_ready)
        answer = await http.get(f"http://127.0.0.1:{settings.port}/v1/approvals")
        assert answer.status_code == 200
    until.asked.set()
    await process
