"""The clients of Python and Node follow runs of a real agent server while their edge is killed."""

from __future__ import annotations

import asyncio
import json
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock_client import AsyncClient, AsyncRun, Client, Notice
from support.drive.waiting import wait_for
from support.fakes.issuer import SECRET, token
from support.real import node
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real
SCOPES = "start read decide"


@pytest.fixture(scope="module")
async def penstock(
    nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory, agno_server: Upstream
) -> AsyncIterator[Deployment]:
    agents = [
        {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    ]
    folder = tmp_path_factory.mktemp("client")
    async with deployment(nats_server.url, folder, agents, auth_jwt_secret=SECRET) as running:
        yield running


def short_lived() -> str:
    """Return a token that ends while runs are followed."""
    return token(sub="alice", scope=SCOPES, exp=int(time.time()) + 3)


async def test_runs_are_whole_while_the_edge_is_killed_and_tokens_end(
    penstock: Deployment, tmp_path: Path
) -> None:
    """Python's client follows three runs with tokens that end, and Node's a fourth one."""
    folder = node.project(tmp_path, Path(__file__).parent / "javascript/client.mjs")
    words = ["tests/client.mjs", penstock.edge(), "killed", token(sub="alice", scope=SCOPES)]
    in_node = await asyncio.create_subprocess_exec("node", *words, cwd=folder, stdout=PIPE)
    assert in_node.stdout is not None
    try:
        async with AsyncClient(penstock.edge(), token=short_lived) as client, asyncio.timeout(90):
            runs = [client.run("assistant", "slow", session_id=f"s{n}") for n in range(3)]
            following = [asyncio.create_task(follow(run)) for run in runs]
            fourth = client.follow((await in_node.stdout.readline()).decode().strip())
            for _ in range(3):
                await asyncio.sleep(0.7)  # at any moment of the runs
                [edge] = penstock.of("edge")
                await penstock.kill(edge)
                await penstock.start("edge", edge.port)
            for run in (*runs, fourth):
                await run.cancel()
            seen = [*await asyncio.gather(*following), json.loads(await in_node.stdout.read())]
            for run, found in zip((*runs, fourth), seen, strict=True):
                assert found == [*range(1, len(found) + 1)]
                record = await client.record(await run.start())
                assert (record["status"], record["sequence"]) == ("cancelled", len(found))
    finally:
        if in_node.returncode is None:
            in_node.kill()
        await in_node.wait()


async def follow(run: AsyncRun) -> list[int]:
    """Return the sequences of all events."""
    return [each.sequence async for each in run if not isinstance(each, Notice)]


def test_an_approval_is_decided_and_everything_is_listed(penstock: Deployment) -> None:
    alice = token(sub="alice", scope=SCOPES)
    deciding = Client(penstock.approvals, token=alice)
    with Client(penstock.edge(), token=alice) as client, deciding:
        types = []
        run = client.run("assistant", "confirm A note", session_id="mine", tags={"team": "a"})
        for event in run:
            types.append(event.type)
            if event.type == "lifecycle.paused":
                approval = deciding.approval(event.data["approval_id"])
                assert deciding.decide(approval, True)["status"] == "decided"
        assert types[-1] == "lifecycle.completed"
        assert types.index("approval.decided") < types.index("lifecycle.resumed")
        [record] = client.runs(session_id="mine", tag=["team=a"])
        assert (record["status"], record["run_id"]) == ("completed", run.run_id)
        assert client.state(run.start())["status"] == "completed"
        assert [each["status"] for each in deciding.approvals(run_id=run.run_id)] == ["decided"]
        wait_for(lambda: [*client.costs(by="agent")], 30, "the costs of the runs")
