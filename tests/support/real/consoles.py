"""The console in a real browser, and what its tests ask of Penstock over HTTP."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from support.drive.waiting import eventually
from support.real import node
from support.real.devtools import Page

# A right-to-left override, a zero-width space and markup: a page must show them as plain text.
HOSTILE = "a\u202ecod.exe\u200b <img src=x onerror=alert(1)><script>alert(2)</script>"
SHOWN = HOSTILE.replace("\u202e", "U+202E").replace("\u200b", "U+200B")
SHOTS = os.environ.get("PENSTOCK_SHOTS")  # a folder that gets the pictures of the screens


async def started(http: httpx.AsyncClient, message: str, agent: str = "tester", **body: Any) -> str:
    """Start a run; return its id."""
    answer = await http.post("/v1/runs", json={"agent": agent, "message": message, **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


async def has_status(http: httpx.AsyncClient, run_id: str, *wanted: str) -> dict[str, Any]:
    """Return the run's record when it has one of these statuses."""

    async def found() -> dict[str, Any] | None:
        run: dict[str, Any] = (await http.get(f"/v1/runs/{run_id}")).json()
        return run if run["status"] in wanted else None

    return await eventually(found, 60)


async def decided(http: httpx.AsyncClient, run_id: str, *, approved: bool = True) -> None:
    """Decide the approval for which the run waits."""
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    digest = (await http.get(f"/v1/approvals/{approval_id}")).json()["digest"]
    body = {"approved": approved, "digest": digest}
    answer = await http.post(f"/v1/approvals/{approval_id}/decision", json=body)
    assert answer.status_code == 200, answer.text


async def sign_in(page: Page, token: str) -> None:
    """Paste the token into the page that asks who the caller is."""
    await page.until("!!document.querySelector('#token')")
    await page.type("#token", token)
    await page.click(".sign-in button")
    await page.until("!!document.querySelector('.user')")


def is_clean(page: Page, url: str) -> None:
    """Check that all requests stayed on the origin and that the browser logged nothing.

    The browser would log exceptions and violations of the content security policy (CSP).
    """
    # The browser's own icons, such as that of a field for times, are `data:` addresses.
    sent = [each for each in page.requested if not each.startswith("data:")]
    assert {urlsplit(each).netloc for each in sent} == {urlsplit(url).netloc}
    # Where callers are asked who they are, the first request of a page that was opened anew is 401.
    assert [each for each in page.logged if "401" not in each] == [], page.logged


async def is_accessible(page: Page, name: str) -> None:
    """Check the page with axe-core, and its width in a narrow window.

    `make test` does so with one screen, because axe-core takes seconds. `make console-check` does
    so with each, also in a dark scheme, and takes pictures.
    """
    if not SHOTS and name != "run":
        return
    axe = (node.packages("console") / "axe-core/axe.min.js").read_text()
    for dark in (False, True) if SHOTS else (False,):
        await page.scheme(dark=dark)
        if SHOTS:
            await page.screenshot(Path(SHOTS) / f"{name}-{'dark' if dark else 'light'}.png")
        await page.value(f"{axe};null")
        found = await page.value(
            "axe.run().then(({violations}) => violations.map(({id, impact, nodes}) =>"
            " [id, impact, nodes.map((each) => each.html.slice(0, 200))]))"
        )
        assert found == [], json.dumps(found, indent=1)
    await page.resize(360)
    if SHOTS:
        await page.scheme(dark=False)
        await page.screenshot(Path(SHOTS) / f"{name}-narrow.png")
    assert await page.value("document.documentElement.scrollWidth") == 360
    await page.resize(1280)


def note(what: str, **numbers: float) -> None:
    """Write numbers beside the pictures of the screens."""
    if SHOTS:
        with (Path(SHOTS) / "numbers.txt").open("a") as file:
            file.write(f"{what}: {', '.join(f'{k} {v:.2f}' for k, v in numbers.items())}\n")


async def longest_task_ms(page: Page) -> float:
    """Return how long the page's longest task since its start took; 0 if none took 50 ms."""
    return float(
        await page.value(
            "new Promise((done) => { const found = [0]; new PerformanceObserver((list) =>"
            " found.push(...list.getEntries().map((each) => each.duration)))"
            ".observe({ type: 'longtask', buffered: true });"
            " setTimeout(() => done(Math.max(...found)), 100); })"
        )
    )


async def approve(page: Page, within: str) -> None:
    """Look at all that a decision is about, as the page demands, and approve it."""
    decision = f"document.querySelector({json.dumps(within)})"
    await page.until(
        f"({decision}?.querySelector('.unseen button')?.click(), "
        f"!!{decision}?.querySelector('button.approve:enabled'))"
    )
    await page.click(f"{within} button.approve")


async def frames_of(page: Page, seconds: float, move: str = "") -> tuple[float, float]:
    """Draw frames for some seconds, and run `move` in each; return the longest time between two
    frames in milliseconds, and how many there are in a second."""
    longest_ms, per_s = await page.value(
        "new Promise((done) => { const begin = performance.now(); let [last, longest, count] ="
        " [begin, 0, 0]; const look = (now) => { longest = Math.max(longest, now - last);"
        f" last = now; count += 1; {move}; if (now - begin < {seconds} * 1000)"
        f" requestAnimationFrame(look); else done([longest, count / {seconds}]); }};"
        " requestAnimationFrame(look); })"
    )
    return longest_ms, per_s
