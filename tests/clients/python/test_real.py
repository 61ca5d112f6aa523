"""penstock-client against separate services and a real agent server: its edge is killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from penstock_client import AsyncClient, AsyncRun, Client, Notice
from support.fakes.issuer import SECRET, token
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
    penstock: Deployment,
) -> None:
    async with AsyncClient(penstock.edge(), token=short_lived) as client:
        await client.record((await client.start("assistant", "hi"))["run_id"])  # it answers

        runs = [client.run("assistant", "slow", session_id=f"s{n}") for n in range(3)]

        async def follow(run: AsyncRun) -> list[int]:
            return [each.sequence async for each in run if not isinstance(each, Notice)]

        async with asyncio.timeout(90):
            following = [asyncio.create_task(follow(run)) for run in runs]
            for _ in range(3):
                await asyncio.sleep(0.7)  # at any moment of the runs
                [edge] = penstock.of("edge")
                await penstock.kill(edge)
                await penstock.start("edge", edge.port)
            for run in runs:
                await run.cancel()
            for run, found in zip(runs, await asyncio.gather(*following), strict=True):
                assert found == [*range(1, len(found) + 1)]
                record = await client.record(await run.start())
                assert (record["status"], record["sequence"]) == ("cancelled", len(found))


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
        assert [*client.costs(by="agent")]
