"""A one-time link in a real browser, about a run of a real agent server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.drive.waiting import eventually
from support.fakes.issuer import token
from support.fakes.serving import close_after
from support.real import consoles
from support.real.devtools import Page, page_at

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

# A text without a place to break, too.
HOSTILE = f"{consoles.HOSTILE} {'x' * 200}"
ADMIN = {"authorization": f"Bearer {token(sub='root', scope='administer read')}"}
ALICE = {"authorization": f"Bearer {token(sub='alice')}"}


@pytest.fixture
async def http(asking: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=asking, timeout=20) as client:
        yield client


async def linked(http: httpx.AsyncClient, message: str) -> tuple[str, str, str]:
    """Start a run of Alice's that asks; return its id, the approval's id and a link's address."""
    body = {"agent": "tester", "message": f"confirm {message}"}
    run_id = (await http.post("/v1/runs", json=body, headers=ALICE)).json()["run_id"]

    async def waiting() -> str | None:
        answer = await http.get("/v1/approvals", params={"run_id": run_id}, headers=ALICE)
        found = [each["approval_id"] for each in answer.json()["approvals"]]
        return found[0] if found else None

    approval_id = await eventually(waiting, 30)
    path = f"/v1/approvals/{approval_id}/links"
    made = await http.post(path, json={"user": "alice"}, headers=ADMIN)
    assert made.status_code == 201, made.text
    return run_id, approval_id, str(http.base_url.join(made.json()["url"]))


async def ended(http: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    async def end() -> dict[str, Any] | None:
        run = (await http.get(f"/v1/runs/{run_id}", headers=ALICE)).json()
        return run if run["status"] in ("completed", "failed", "cancelled") else None

    return await eventually(end, 30)


async def tab_to(page: Page, selector: str) -> list[str]:
    """Press Tab until the element has the focus; return the elements that had the focus before."""
    passed: list[str] = []
    for _ in range(20):
        await page.press("Tab")
        if await page.value(f"document.activeElement.matches('{selector}')"):
            return passed
        passed.append(await page.value("document.activeElement.localName"))
    raise AssertionError(f"the keyboard does not reach {selector}: {passed}")


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ("approve", "approved"),
        pytest.param("reject", "rejected", marks=pytest.mark.console),
    ],
)
async def test_it_is_decided_by_the_keyboard_alone_without_scripts(
    http: httpx.AsyncClient, value: str, outcome: str
) -> None:
    run_id, approval_id, url = await linked(http, HOSTILE)
    async with page_at("about:blank") as page:
        await page.send("Emulation.setScriptExecutionDisabled", value=True)
        await page.go(url)
        shown = HOSTILE.replace("\u202e", "\\u{202e}").replace("\u200b", "\\u{200b}")
        assert shown in await page.text("main")
        marks = "[...document.querySelectorAll('section mark')].map(each => each.textContent)"
        assert {"\\u{202e}", "\\u{200b}"} == set(await page.value(marks))
        assert await page.value("document.querySelectorAll('img, script, link').length") == 0
        passed = await tab_to(page, f"button[value={value}]")
        assert "textarea" in passed
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await page.value(outline) == "solid"
        await page.press("Enter")
        await page.until(f"document.querySelector('h1')?.textContent === 'You have {outcome} this'")
        assert await page.value("location.href") == url
        assert await page.value("document.querySelectorAll('form').length") == 0
        # Reloading shows the page again, and sends nothing.
        await page.send("Page.reload")
        await page.until(f"document.querySelector('h1')?.textContent === 'You have {outcome} this'")
        assert page.logged == []
        assert set(page.requested) <= {url}
    run = await ended(http, run_id)
    assert run["status"] == "completed"
    decided = (await http.get(f"/v1/approvals/{approval_id}", headers=ALICE)).json()["decision"]
    assert (decided["outcome"], decided["by"]) == (outcome, "alice")
    assert decided["decider"]["channel"] == "link"


@pytest.mark.console
async def test_it_fits_a_phone_in_light_and_dark(http: httpx.AsyncClient) -> None:
    _, _, url = await linked(http, HOSTILE)
    async with page_at(url) as page:
        for width in (360, 1200):
            await page.resize(width)
            for dark in (False, True):
                await page.scheme(dark=dark)
                assert await page.value("document.documentElement.scrollWidth") <= width
                ground = await page.value("getComputedStyle(document.body).backgroundColor")
                assert ground == ("rgb(16, 21, 28)" if dark else "rgb(244, 246, 249)")
                low = await page.value(LOW_CONTRAST)
                assert low == [], f"at {width} px, dark: {dark}"
                if consoles.SHOTS:
                    await page.screenshot(Path(consoles.SHOTS) / f"link-{width}-{dark}.png")
            small = "[...document.querySelectorAll('button')].map(b => b.offsetHeight)"
            assert min(await page.value(small)) >= 44
        assert page.logged == []


async def test_another_sites_form_decides_nothing(http: httpx.AsyncClient) -> None:
    """The attacker knows even the link and the form's signature, but is another origin."""
    _, approval_id, url = await linked(http, "this")
    shown = (await http.get(url)).text
    signature = shown.partition('name="csrf" value="')[2][:64]
    fields = f'<input name="csrf" value="{signature}"><input name="decision" value="approve">'
    script = "<script>document.forms[0].submit()</script>"
    evil = f'<form method="post" action="{url}">{fields}</form>{script}'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(evil)}\r\n\r\n"
        writer.write(f"{head}{evil}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(close_after(serve), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, page_at("about:blank") as page:
        await page.navigate(f"http://localhost:{port}/")
        await page.until(f"location.href === '{url}'")
        await page.until(
            "document.body?.innerText.includes('not from our page') ||"
            " document.body?.innerText.includes('neither ours')"
        )
    record = (await http.get(f"/v1/approvals/{approval_id}", headers=ALICE)).json()
    assert record["status"] == "pending"


# Texts whose contrast with their ground is below 4.5 (WCAG 2.1, AA).
LOW_CONTRAST = """(() => {
  const light = rgb => { const [r, g, b] = rgb.map(v => { v /= 255;
    return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b; };
  const read = color => (color.match(/[\\d.]+/g) ?? []).map(Number);
  const ground = element => { for (let each = element; each; each = each.parentElement) {
    const color = read(getComputedStyle(each).backgroundColor);
    if (color.length === 3 || color[3] > 0) return color.slice(0, 3); } return [255, 255, 255]; };
  return [...document.querySelectorAll('main *')].filter(each =>
    [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim())).filter(each => {
      const [a, b] = [light(read(getComputedStyle(each).color).slice(0, 3)), light(ground(each))];
      return (Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5;
  }).map(each => each.outerHTML.slice(0, 80)); })()"""
