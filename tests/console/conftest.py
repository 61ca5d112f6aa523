"""One demo, one Penstock that asks who calls, and one browser for all tests of the console."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import yaml

from support.fakes.issuer import SECRET
from support.real import up, upstreams
from support.real.servers import SharedRun
from support.real.upstreams import Upstream


@pytest.fixture(scope="session")
def demo(test_run: SharedRun, agno_server: Upstream, adk_server: Upstream) -> str:
    """Return the address of the demo, with the tests' Agno server as the further agent `tester`.

    The demo's own servers run in the environments of the tests' servers. All workers share it, so a
    test must not rely on what is the newest, the only or the last.
    """
    config = test_run.folder / "console.yaml"
    tester = {"id": "tester", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    away = {"id": "away", "protocol": "agui", "url": "http://127.0.0.1:9/"}
    config.write_text(yaml.safe_dump({"agents": [tester, away]}))
    return up.shared(
        test_run,
        "demo",
        "--demo",
        *("--config", str(config)),
        PENSTOCK_DEMO_AGNO_PYTHON=str(upstreams.AGNO.python),
        PENSTOCK_DEMO_ADK_PYTHON=str(upstreams.ADK.python),
    )


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
