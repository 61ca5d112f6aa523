"""The pictures of the README: made from the real pages by `make pictures`, and checked for drift.

Beside the pictures stands what they show in words: links, columns, tabs, agents, buttons. If a page
shows other words, its picture is out of date.
"""

from __future__ import annotations

import json
import os

import httpx
import pytest

from support.drive.repository import ROOT
from support.fakes.issuer import token
from support.real.consoles import has_status, started
from support.real.devtools import Page, page_at

# The demo starts two agent servers, which takes long on a busy machine.
pytestmark = [pytest.mark.real, pytest.mark.timeout(180), pytest.mark.console]

DOCS = ROOT / "docs"
SHOWN = DOCS / "pictures.json"
MAKES = "PENSTOCK_PICTURES" in os.environ
# Words that a picture shows and that do not change from one run to the next.
WORDS = """[...document.querySelectorAll(
  'nav a, th, [role=tab], .facts dt, dl.panel > dt, .node strong, .bar button, form button, '
  + 'label[for]'
)].map((each) => each.innerText.replace(/\\(\\d+\\)/, '').trim())"""


async def the_run_of_a_workflow(page: Page, demo: str) -> None:
    async with httpx.AsyncClient(base_url=demo, timeout=30) as http:
        run_id = await started(http, "+password = 1", "code_review")
        await has_status(http, run_id, "paused")
    await page.resize(1280, 720)
    await page.go(f"{demo}/console/runs/{run_id}")
    await page.until("!!document.querySelector('.decision button.approve:enabled')")
    await page.until("document.querySelectorAll('.node').length === 4")
    await page.until("!!document.querySelector('#other')")  # the demo has started such a run before
    await page.until("document.querySelector('.live').textContent === 'live'")
    await page.value("scrollTo(0, 0)")


async def the_page_of_a_link(page: Page, asking: str) -> None:
    def bearer(sub: str, scope: str) -> dict[str, str]:
        return {"authorization": f"Bearer {token(sub=sub, scope=scope)}"}

    alice, root = bearer("alice", "start read decide"), bearer("root", "administer read")
    async with httpx.AsyncClient(base_url=asking, timeout=30) as http:
        http.headers.update(alice)
        run_id = await started(http, "confirm the quarterly report")
        approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
        path = f"/v1/approvals/{approval_id}/links"
        made = await http.post(path, json={"user": "alice"}, headers=root)
        url = str(http.base_url.join(made.json()["url"]))
    await page.resize(640, 875)
    await page.go(url)
    await page.until("!!document.querySelector('button.reject')")


async def is_current(page: Page, name: str) -> None:
    """Check that the picture shows what the page shows; make the picture with `make pictures`."""
    shown = json.loads(SHOWN.read_text()) if SHOWN.exists() else {}
    # Another test may have given this Penstock a policy, whose rule the page then names.
    words = [each for each in dict.fromkeys(await page.value(WORDS)) if each != "Rule"]
    if MAKES:
        SHOWN.write_text(json.dumps({**shown, name: words}, indent=1, sort_keys=True) + "\n")
        await page.scheme(dark=False)
        await page.screenshot(DOCS / name, whole=False)
    else:
        assert words == shown.get(name), f"docs/{name} is out of date: run `make pictures`"


async def test_the_picture_of_a_run_shows_what_its_page_shows(demo: str) -> None:
    async with page_at("about:blank") as page:
        await the_run_of_a_workflow(page, demo)
        await is_current(page, "console.png")


async def test_the_picture_of_a_link_shows_what_its_page_shows(asking: str) -> None:
    async with page_at("about:blank") as page:
        await the_page_of_a_link(page, asking)
        await is_current(page, "approval-page.png")
