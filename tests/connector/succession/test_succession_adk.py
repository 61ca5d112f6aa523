"""ADK 2.x: a resumable app continues after its abort, and runs no tool twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.settings import Config
from penstock_connector.service import ConnectorService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Event, new_run_id, pipeline, types
from support.fakes.cutter import cutter
from support.real.connectors import FAST, connector_process
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real

# Two connections come before that of the run: the requests for the version and for the session.
BEFORE = [10_000_000] * 2
ABORTED = "{'error': 'Invocation was aborted by client.'}"


def config(url: str) -> Config:
    common = {"protocol": "adk", "url": url, "agent": "resumable"}
    agents = [{"id": "again", "resumable": True, **common}, {"id": "once", **common}]
    return Config.model_validate({"agents": agents})


async def session(server: Upstream, session_id: str) -> list[dict[str, Any]]:
    """Return the events of the session on the server."""
    async with httpx.AsyncClient() as client:
        url = f"{server.url}/apps/resumable/users/u1/sessions/{session_id}"
        events: list[dict[str, Any]] = (await client.get(url)).json()["events"]
        return events


def texts(events: list[Event], attempt: int) -> str:
    return "".join(
        event.data["content"]
        for event in events
        if event.type == "llm.stream" and event.body.get("attempt", 1) == attempt
    )


async def test_killed_while_a_tool_runs_the_run_continues_and_the_tool_does_not_run_again(
    nats_server: NatsServer, adk_server: Upstream, tmp_path: Path
) -> None:
    agents, session_id = config(adk_server.url), new_run_id()
    async with (
        pipeline(nats_server.url, agents, (NormalizerService,)) as penstock,
        connector_process(penstock.bus, agents, tmp_path) as connector,
    ):
        run_id = await penstock.start_run("again", "slowtool", session_id=session_id)
        await penstock.events_until(run_id, "llm.tool_call")
        await connector.kill()
        async with pipeline(nats_server.url, agents, (ConnectorService,), **FAST):
            events = await penstock.ended(run_id)
    assert types(events)[-1] == "lifecycle.completed", events[-1].data
    assert events[-1].data["summary"] == f"Done with slow_tool: {ABORTED}"
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert types(events).count("llm.tool_call") == 1
    kept = [part for each in await session(adk_server, session_id) for part in parts(each)]
    [result] = [part["functionResponse"] for part in kept if "functionResponse" in part]
    assert str(result["response"]) == ABORTED


def parts(event: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (event.get("content") or {}).get("parts") or []
    return found


async def test_what_is_said_again_is_another_attempt(
    nats_server: NatsServer, adk_server: Upstream
) -> None:
    async with (
        cutter(adk_server.url, [*BEFORE, 4000]) as proxy,
        pipeline(nats_server.url, config(proxy.url)) as penstock,
    ):
        run_id = await penstock.start_run("again", "slow 12 50")
        events = await penstock.ended(run_id)
    ticks = "".join(f"tick {n} " for n in range(12))
    first, second = texts(events, 1), texts(events, 2)
    assert types(events)[-1] == "lifecycle.completed", events[-1].data
    assert events[-1].data["summary"] == ticks
    assert ticks.startswith(first)
    assert "" != first != ticks
    assert second == ticks
    [warning] = [event.data for event in events if event.type == "system.warning"]
    assert warning["code"] == "produced_again"
    said = [event.data["message_id"] for event in events if event.type == "llm.message_completed"]
    assert len(said) == len(set(said)) == 2


async def test_an_app_that_is_not_called_resumable_is_not_gone_on_with(
    nats_server: NatsServer, adk_server: Upstream
) -> None:
    async with (
        cutter(adk_server.url, [*BEFORE, 4000]) as proxy,
        pipeline(nats_server.url, config(proxy.url)) as penstock,
    ):
        run_id = await penstock.start_run("once", "slow 12 50")
        *_, last = await penstock.ended(run_id)
    assert last.data["code"] == "upstream_lost"
