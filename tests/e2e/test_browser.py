"""A real browser with a plain EventSource reads from a page of another origin."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from penstock.events.catalogue import CATALOGUE
from support.drive.waiting import eventually
from support.real import browser
from support.real.browser import Site
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PAGE = Path(__file__).with_name("follow.html")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with browser.site(PAGE.read_bytes()) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    nats_server: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
    site: Site,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Deployment]:
    """Run one process of each service; pages of the site's origin may read."""
    agents = [
        {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"},
        {"id": "adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
    ]
    folder = tmp_path_factory.mktemp("penstock")
    async with deployment(nats_server.url, folder, agents, auth_cors_origins=site.url) as running:
        yield running


def follows(
    penstock: Deployment, site: Site, run_id: str, folder: Path
) -> AbstractContextManager[None]:
    """Open a browser whose page follows the run."""
    return opens(site, f"{penstock.edge()}/v1/runs/{run_id}/events", CATALOGUE, folder)


def opens(
    site: Site, stream: str, types: Iterable[str], folder: Path
) -> AbstractContextManager[None]:
    """Open a browser whose page follows the stream's events of these types."""
    site.reports.clear()
    query = urlencode({"url": stream, "types": ",".join(types)})
    return browser.opened(f"{site.url}/?{query}", folder)


async def seen(site: Site, count: int) -> None:
    async def enough() -> bool:
        return any(len(report["seen"]) >= count for report in site.reports)

    await eventually(enough, 30, f"the page has seen {count} events")


async def closed(site: Site) -> dict[str, Any]:
    """Return the page's report, once its EventSource is closed for good."""

    async def told() -> dict[str, Any] | None:
        return next((report for report in site.reports if report["closed"]), None)

    report = await eventually(told, 30, "the page's EventSource is closed")
    assert report is not None
    return report


async def test_an_eventsource_loses_its_edge_comes_back_and_misses_nothing(
    penstock: Deployment, site: Site, tmp_path: Path
) -> None:
    run_id = await penstock.run("adk", "slow 60 100")
    with follows(penstock, site, run_id, tmp_path):
        await seen(site, 8)
        (edge,) = penstock.of("edge")
        await penstock.kill(edge)
        await penstock.start("edge", edge.port)
        report = await closed(site)
    whole = await penstock.all(run_id)
    assert whole[-1].type == "lifecycle.completed"
    assert [each["id"] for each in report["seen"]] == [event.id for event in whole]
    assert [each["type"] for each in report["seen"]] == [event.type for event in whole]
    assert report["opened"] == 2
    url = f"{penstock.edge()}/v1/runs/{run_id}/events"
    again = await penstock.http.get(url, headers={"last-event-id": str(whole[-1].id)})
    assert again.status_code == 204


@pytest.mark.parametrize(
    "path",
    ["/api/v1/agent/runs/{thread}/events", "/agui/assistant/threads/{thread}/events?names=on"],
)
async def test_an_eventsource_that_waits_for_a_thread_sees_both_of_its_runs(
    penstock: Deployment, site: Site, tmp_path: Path, path: str
) -> None:
    thread = str(uuid.uuid4())
    url = penstock.edge() + path.format(thread=thread)
    with opens(site, url, ("RUN_STARTED", "RUN_FINISHED"), tmp_path):

        async def open() -> bool:
            return any(report["opened"] for report in site.reports)

        await eventually(open, 30, "the stream of a thread without runs is open")
        runs = []
        for number in (1, 2):
            runs.append(await penstock.run("assistant", f"echoed {number}", session_id=thread))
            await seen(site, 2 * number)
    last = max(site.reports, key=lambda report: len(report["seen"]))
    told = [json.loads(each["data"]) for each in last["seen"]]
    assert [(each["type"], each["runId"]) for each in told] == [
        (type, run) for run in runs for type in ("RUN_STARTED", "RUN_FINISHED")
    ]
    assert (last["opened"], last["closed"]) == (1, False)


async def test_markup_and_fields_of_sse_in_what_is_said_are_text(
    penstock: Deployment, site: Site, tmp_path: Path
) -> None:
    call = f"{site.url}/called"
    said = (
        f"<img src={call}> <script>fetch('{call}')</script>"
        "\n\nevent: lifecycle.failed\ndata: {}\n\n&lt;\u2028</pre>"
    )
    run_id = await penstock.run("assistant", f"echoed {said}")
    with follows(penstock, site, run_id, tmp_path):
        report = await closed(site)
    assert report["text"] == f"echo: echoed {said}"
    assert report["elements"] == 0
    assert "/called" not in site.asked
    assert [each["type"] for each in report["seen"]].count("lifecycle.failed") == 0
    assert report["seen"][-1]["type"] == "lifecycle.completed"
