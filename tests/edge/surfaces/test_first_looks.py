"""The first requests of official clients, and Agno's runs in the background."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from penstock.bus import Bus
from penstock.settings import Config
from support.drive.agno_surface import CONFIG
from support.drive.clients import Client
from support.fakes.pretend import command_of
from support.real.upstreams import AGNO

ASK = """
import asyncio, json, sys
from agno.client import AgentOSClient

async def main():
    client = AgentOSClient(sys.argv[1])
    config = await client.aget_config()
    kinds = (config.agents, config.teams, config.workflows)
    print(json.dumps([[each.id for each in kind] for kind in kinds]))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


@pytest.fixture
def agno_python() -> str:
    """Return the path of the Python interpreter that has Agno's own client."""
    if not AGNO.python.exists():
        reason = "no environment of the real Agno: run `make upstreams`"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    return str(AGNO.python)


def ids(kind: str) -> list[str]:
    return [agent.id for agent in CONFIG.agents if agent.kind == kind]


@pytest.mark.real
async def test_agnos_own_client_reads_what_there_is(edge: Client, agno_python: str) -> None:
    environment = {**os.environ, "NO_PROXY": "*", "PYTHONPATH": ""}
    asking = await asyncio.create_subprocess_exec(
        *(agno_python, "-c", ASK, str(edge.base_url)),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    told, _ = await asking.communicate()
    assert asking.returncode == 0
    last = told.decode().splitlines()[-1]
    assert json.loads(last) == [ids("agent"), ids("team"), ids("workflow")]


async def test_the_health_is_ok_since_the_start(edge: Client) -> None:
    told = (await edge.get("/health")).json()
    assert (told["status"], set(told)) == ("ok", {"status", "instantiated_at"})
    assert (await edge.get("/health")).json() == told


async def test_each_listed_app_can_be_called_by_its_name(edge: Client) -> None:
    names = (await edge.get("/list-apps")).json()
    assert names == sorted(
        agent.agent if agent.protocol == "adk" else agent.id for agent in CONFIG.agents
    )
    for name in names:
        # For an ADK app, the edge passes on the answer of its server, or 502. An unknown app gets
        # 404.
        answer = await edge.get(f"/apps/{name}/users/anonymous/sessions")
        assert answer.status_code in (200, 502), name


async def test_a_run_in_the_background_is_answered_at_once(edge: Client, bus: Bus) -> None:
    form = {"message": "hello", "stream": "false", "background": "true", "session_id": "s1"}
    answer = await edge.post("/agents/assistant/runs", data=form)
    assert answer.status_code == 202
    run_id = answer.headers["penstock-run-id"]
    assert answer.json() == {"run_id": run_id, "session_id": "s1", "status": "PENDING"}
    assert await command_of(bus, run_id, "start")
