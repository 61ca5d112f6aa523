"""@penstock/react in a page in a real browser, over a real agent server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock_client import AsyncClient
from support.drive.repository import ROOT
from support.drive.waiting import eventually
from support.real import browser, node
from support.real.browser import Site
from support.real.up import Up
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with React, and with both packages installed as the README says."""
    packages, compilers = node.packages("react"), node.packages("contract")
    folder = tmp_path_factory.mktemp("react")
    (folder / "penstock").symlink_to(ROOT)
    folder /= "project"
    folder.mkdir()
    (folder / "package.json").write_text('{"type": "module"}')
    readme = (ROOT / "clients/react/README.md").read_text()
    [install] = re.findall(r"```sh\n(npm install .*)\n```", readme)
    # React itself comes from the packages of the tests, and nothing from an index.
    options = ["--offline", "--legacy-peer-deps", "--no-audit", "--no-fund"]
    subprocess.run([*install.split(), *options], cwd=folder, check=True, timeout=100)
    installed = folder / "node_modules"
    for each in packages.iterdir():
        if not each.name.startswith("."):
            (installed / each.name).symlink_to(each)
    (installed / "typescript").symlink_to(compilers / "typescript")
    for name in ("page.jsx", "types.tsx"):
        shutil.copy(HERE / name, folder)
    return folder


@pytest.fixture(scope="module")
def site(project: Path) -> Iterator[Site]:
    bundle = node.run(
        "node_modules/esbuild/bin/esbuild",
        *("page.jsx", "--bundle", "--minify", "--jsx=automatic"),
        cwd=project,
    )
    assert not bundle.returncode, bundle.stderr
    with browser.site(f"<div id=root></div><script>{bundle.stdout}</script>".encode()) as served:
        yield served


@pytest.fixture(scope="module")
async def url(
    tmp_path_factory: pytest.TempPathFactory, agno_server: Upstream, site: Site
) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("up")
    agents = [
        {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    ]
    config = folder / "penstock.yaml"
    config.write_text(json.dumps({"agents": agents}))
    up = Up(folder, "--config", str(config))
    up.start(PENSTOCK_AUTH_CORS_ORIGINS=site.url)
    try:
        yield up.url
    finally:
        up.signal(15)


async def test_a_page_shows_a_run_decides_by_a_click_and_is_loaded_again_meanwhile(
    url: str, site: Site, tmp_path: Path
) -> None:
    async with AsyncClient(url) as client:
        run_id = (await client.start("assistant", "confirm A note"))["run_id"]
        site.reports.clear()
        with browser.opened(f"{site.url}/?url={url}&run={run_id}", tmp_path):
            ended = await eventually(lambda: ended_of(site), 60, "the page shows the end")
        record = await client.follow(run_id).wait()
        [approval] = [each async for each in client.approvals(run_id=run_id)]
    assert record["status"] == "completed"
    assert (ended["result"], ended["error"]) == (record.get("summary"), None)
    assert ended["sequences"] == [*range(1, len(ended["sequences"]) + 1)]
    assert approval["decision"] is not None
    assert approval["decision"]["note"] == "seen"
    shown = next(each["shown"] for each in site.reports if "shown" in each)
    assert shown == 'create_document {"title":"A note"}'
    assert {each["open"] for each in site.reports if "open" in each} >= {1, 0}


async def test_a_run_with_many_events_is_shown_at_once(site: Site, tmp_path: Path) -> None:
    """To copy the list of events for each event would take most of a minute."""
    site.reports.clear()
    with browser.opened(f"{site.url}/?events=50000&run=many", tmp_path):
        shown = await eventually(lambda: shown_of(site), 60, "the page shows the run")
    assert shown["count"] == 50_000
    assert shown["ms"] < 30_000


async def shown_of(site: Site) -> dict[str, Any] | None:
    return next((each for each in site.reports if "ms" in each), None)


async def ended_of(site: Site) -> dict[str, Any] | None:
    ends = (each for each in site.reports if each.get("status") == "completed")
    return next((each for each in ends if each["open"] == 0), None)


@pytest.mark.chaos
def test_its_types_fit_what_it_does(project: Path) -> None:
    options = {
        **{"strict": True, "target": "es2022", "module": "nodenext", "noEmit": True},
        "skipDefaultLibCheck": True,
        **{"jsx": "react-jsx", "lib": ["es2024", "dom", "dom.asynciterable"], "types": []},
    }
    config = {"compilerOptions": options, "files": ["types.tsx"]}
    (project / "tsconfig.json").write_text(json.dumps(config))
    found = node.run("node_modules/typescript/bin/tsc", cwd=project).stdout
    assert found == ""
