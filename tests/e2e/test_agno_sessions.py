"""Agno's own client reads sessions from Penstock as it reads them from the Agno server."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from typing import Any

import pytest

from support.real.deployment import Deployment
from support.real.upstreams import AGNO, Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

# The same agent, team and workflow: first Penstock's path, then the Agno server's path.
PATHS = (
    ("/agents/assistant", "/agents/demo-agent"),
    ("/teams/team", "/teams/demo-team"),
    ("/workflows/flow", "/workflows/simple-wf"),
)

# This script reads all that the client offers about a user's one session. The client's models
# validate each answer.
READ = """
import asyncio, json, sys
from agno.client import AgentOSClient

async def read(url, user):
    session_id = user  # called the same
    client = AgentOSClient(url)
    page = await client.get_sessions(user_id=user)
    session = await client.get_session(session_id, user_id=user)
    runs = await client.get_session_runs(session_id, user_id=user)
    previews = await client.aget_session_run_previews(session_id, user_id=user)
    one = await client.get_session_run(session_id, runs[0].run_id, user_id=user)
    try:
        await client.get_session(session_id, user_id=user + "2")
        foreign = 200
    except Exception as error:
        foreign = error.response.status_code
    history = [(each["role"], each["content"]) for each in getattr(session, "chat_history", ())]
    return {
        "listed": [(each.session_id, each.session_name, each.session_type) for each in page.data],
        "count": page.meta.total_count,
        "session": (session.session_id, session.session_name, session.user_id),
        "history": [each for each in history if each[1]],
        "runs": [(type(run).__name__, run.run_input, run.content, run.status) for run in runs],
        "messages": [
            (each["role"], each.get("content"), [c["function"] for c in each.get("tool_calls", ())])
            for run in runs for each in getattr(run, "messages", None) or []
            if each["role"] != "system"
        ],
        "previews": [(each.run_input, each.content_preview, each.status) for each in previews],
        "one": (one.run_id == runs[0].run_id, one.content),
        "foreign": foreign,
        "created": await create(url, user),
    }

async def create(url, user):
    client = AgentOSClient(url)
    agent = "assistant" if url == sys.argv[1] else "demo-agent"
    named = {"session_id": f"{user}-new", "user_id": user}
    created = await client.create_session(agent_id=agent, **named)
    runs = await client.get_session_runs(created.session_id, user_id=user)
    return created.session_id, created.user_id, created.chat_history, runs

async def main():
    asked = zip(sys.argv[1::2], sys.argv[2::2])
    print(json.dumps(await asyncio.gather(*(read(url, user) for url, user in asked))))

asyncio.run(main())
"""


async def read(*asked: str) -> list[dict[str, Any]]:
    """Return what Agno's client reads; `asked` alternates the address of a server and a user."""
    environment = {**os.environ, "NO_PROXY": "*", "PYTHONPATH": ""}
    asking = await asyncio.create_subprocess_exec(
        *(str(AGNO.python), "-c", READ, *asked), stdout=asyncio.subprocess.PIPE, env=environment
    )
    told, _ = await asking.communicate()
    assert asking.returncode == 0
    found: list[dict[str, Any]] = json.loads(told.decode().splitlines()[-1])
    return found


# Importing Agno takes seconds, and longer on a busy machine, so one process of Agno's client reads
# everything.
@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_agnos_client_reads_the_same_from_penstock_as_from_agno(
    penstock: Deployment, agno_server: Upstream
) -> None:
    mark = uuid.uuid4().hex[:8]

    async def run(url: str, path: str) -> str:
        """Make two runs in a session; return its user, whose name is also the session's id.

        The Agno server behind Penstock also keeps the sessions that Penstock's runs make, so each
        user has a name of its own.
        """
        user = f"{path.replace('/', '-')}-{mark}"
        for message in ("text one", "tool two"):
            form = {"message": message, "stream": "false", "session_id": user, "user_id": user}
            answer = await penstock.http.post(f"{url}{path}/runs", data=form)
            assert answer.status_code == 200, answer.text
        return user

    asked: list[str] = []
    for ours, theirs in PATHS:
        asked += [penstock.edge(1), await run(penstock.edge(), ours)]
        asked += [agno_server.url, await run(agno_server.url, theirs)]
    told = [
        json.loads(json.dumps(found).replace(user, "user"))
        for found, user in zip(await read(*asked), asked[1::2], strict=True)
    ]
    for ours, theirs in zip(told[::2], told[1::2], strict=True):
        assert ours == theirs
        assert ours["foreign"] == 404
        assert [run[3] for run in ours["runs"]] == ["COMPLETED"] * 2
