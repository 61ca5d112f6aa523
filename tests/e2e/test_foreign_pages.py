"""Without authentication, a page on another port of this machine changes nothing in any service.

Chromium opens the page. The services are separate processes on localhost, as in development.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from support.drive.short import in_short
from support.real import browser
from support.real.browser import Site
from support.real.deployment import Deployment, deployment
from support.real.devtools import Page, page_at
from support.real.nats import NatsServer

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SERVICES = {"edge": 1, "approvals": 1, "automations": 1, "workflows": 1}
NOWHERE = "http://127.0.0.1:9"
UNKNOWN = "00000000-0000-4000-8000-000000000000"
# A request of each service that changes something, and whose body a form can send (AgentOS's API
# takes forms) or that needs no body.
# The edge gets every kind of form.
CHANGES = {
    "edge": "/agents/assistant/runs",
    "approvals": f"/v1/approvals/{UNKNOWN}/decision",
    "automations": "/v1/automations/replay",
    "workflows": "/v1/workflows/flow/runs",
}
FORM = """
<form method="post" enctype="{kind}"><input name="message" value="Hello"></form>
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    kinds = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
    forms = "".join(FORM.format(kind=kind) for kind in kinds)
    with browser.site(f"<!doctype html><title>foreign</title>{forms}".encode()) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    agents: list[dict[str, Any]] = [
        {"id": "assistant", "protocol": "agno", "url": NOWHERE, "agent": "demo-agent"}
    ]
    folder = tmp_path_factory.mktemp("foreign")
    async with deployment(nats_server.url, folder, agents, SERVICES) as running:
        yield running


async def submitted(page: Page, site: Site, form: int, url: str) -> str:
    """Submit a form of the foreign page to a URL; return the text of the answer's page."""
    await page.navigate(f"{site.url}/")
    await page.until(f"document.forms.length === 3 && document.title === {json.dumps('foreign')}")
    place = f"document.forms[{form}]"
    await page.value(f"({place}.action = {json.dumps(url)}, {place}.submit(), true)")
    await page.until("document.title !== 'foreign' && document.readyState === 'complete'")
    return str(await page.value("document.body.textContent"))


@pytest.mark.parametrize("service", in_short(CHANGES, ("edge", "approvals")))
async def test_a_form_on_another_port_is_refused_by_every_service(
    penstock: Deployment, site: Site, service: str
) -> None:
    url = penstock.of(service)[0].url.replace("127.0.0.1", "localhost") + CHANGES[service]
    async with page_at(f"{site.url}/") as page:
        for form in range(3 if service == "edge" else 1):
            text = await submitted(page, site, form, url)
            assert "neither ours nor among PENSTOCK_AUTH_CORS_ORIGINS" in text, text
    runs = await penstock.http.get(f"{penstock.edge()}/v1/runs")
    assert runs.json()["runs"] == []


async def test_a_client_that_is_no_page_is_answered(penstock: Deployment) -> None:
    """The same form starts a run where no browser sends it, so the refusal is for the page."""
    url = penstock.edge() + CHANGES["edge"]
    form = {"message": "Hello", "stream": "false", "background": "true"}
    answer = await penstock.http.post(url, data=form)
    assert answer.is_success, answer.text
    runs = await penstock.http.get(f"{penstock.edge()}/v1/runs")
    assert len(runs.json()["runs"]) == 1
