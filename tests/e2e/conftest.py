"""Run Penstock as separate processes, two of each service, with the real Agno and ADK servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from support.real.deployment import CONTENT_KEY, Deployment, deployment
from support.real.nats import NatsServer
from support.real.upstreams import Upstream


@pytest.fixture(scope="package")
def penstocks_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    nats = NatsServer(tmp_path_factory.mktemp("penstocks-nats"))
    nats.start()
    yield nats
    nats.remove()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def penstock(
    tmp_path_factory: pytest.TempPathFactory,
    penstocks_nats: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
) -> AsyncIterator[Deployment]:
    """Run a deployment on its own NATS server, with the agents that are listed here.

    The deployment ends with the last test of this folder: ten idle processes and their NATS server
    would take a tenth of a core until the end of all tests.
    """
    agno = {"protocol": "agno", "url": agno_server.url}
    agents: list[dict[str, Any]] = [
        {
            **{"id": "assistant", "agent": "demo-agent", "topology_id": 123, **agno},
            "accepts": ["dependencies"],
        },
        {"id": "hasty", "agent": "demo-agent", "timeout_s": 2, **agno},
        {"id": "team", "agent": "demo-team", "kind": "team", **agno},
        {"id": "flow", "agent": "simple-wf", "kind": "workflow", **agno},
        {"id": "adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
        # the budgets of test_budgets.py match these only
        {"id": "runaway", "agent": "demo-agent", **agno},
        {"id": "runaway-adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
        {"id": "nobody", "protocol": "adk", "url": "http://127.0.0.1:1", "agent": "gone"},
    ]
    # The content of the runs is sealed in NATS. No test of a client notices.
    async with deployment(
        penstocks_nats.url,
        tmp_path_factory.mktemp("penstock"),
        agents,
        2,
        log_format="json",
        content_keys=CONTENT_KEY,
    ) as running:
        yield running
