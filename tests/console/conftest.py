"""One Penstock that asks who calls, and one browser for all tests of the console."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import yaml

from support.fakes.issuer import SECRET
from support.real import up
from support.real.servers import SharedRun
from support.real.upstreams import Upstream


@pytest.fixture(scope="session")
def asking(test_run: SharedRun, agno_server: Upstream) -> str:
    """Return the address of a Penstock that requires authentication."""
    config = test_run.folder / "asking.yaml"
    agent = {"id": "tester", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    config.write_text(yaml.safe_dump({"agents": [agent]}))
    return up.shared(test_run, "asking", "--config", str(config), PENSTOCK_AUTH_JWT_SECRET=SECRET)


@pytest.fixture
async def http(demo: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=demo, timeout=30) as client:
        yield client
