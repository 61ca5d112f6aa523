"""The kinds that Agno 2.3 and ADK 1.16 have, ended in every way, on these real servers.

`make upstreams-older` makes the environments of the servers; without one, its rows are skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.settings import Config
from support.drive.pipeline import PIPELINE, Pipeline, pipeline
from support.fakes.policies import written
from support.kinds.table import ADK_OLDER, AGNO_OLDER, Row, Server, agents
from support.kinds.ways import POLICY, WAYS, every
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

Servers = dict[Server, Upstream]
SERVERS: dict[Server, str] = {"agno": "agno_older_server", "adk": "adk_older_server"}


@pytest.fixture(scope="module", params=SERVERS)
def servers(request: pytest.FixtureRequest) -> Servers:
    server: Server = request.param
    return {server: request.getfixturevalue(SERVERS[server])}


@pytest.fixture(scope="module")
async def penstock(
    nats_server: NatsServer, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pipeline]:
    policy = written(tmp_path_factory.mktemp("kinds"), POLICY)
    config = Config.model_validate({"agents": agents(servers)})
    given = {"policy": policy, "audit_details": True, "outbox_s": 0.2}
    async with pipeline(nats_server.url, config, PIPELINE, **given) as penstock:
        yield penstock


@pytest.mark.parametrize("way", WAYS)
async def test_each_kind_of_an_older_server_ends_in_each_way(
    penstock: Pipeline, servers: Servers, way: str
) -> None:
    rows: list[Row] = AGNO_OLDER if "agno" in servers else ADK_OLDER
    await every(penstock, rows, servers, way)
