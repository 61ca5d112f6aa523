"""The screens of the system, of costs, of rules and of definitions, in a real browser."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from penstock.bus import Bus, BusSettings
from penstock.bus.admin.permissions import OPERATOR, inbox_prefix
from penstock.bus.state import deadletters
from penstock_cli.local.embedded_nats import credentials, running
from support.drive.dead_letters import a_cancel, buried, letter_about
from support.drive.waiting import eventually
from support.fakes.issuer import token
from support.real.consoles import (
    HOSTILE,
    SHOWN,
    decided,
    has_status,
    is_accessible,
    is_clean,
    sign_in,
    started,
)
from support.real.devtools import page_at
from support.real.servers import SharedRun

# The demo starts two agent servers, which takes long on a busy machine.
pytestmark = [pytest.mark.real, pytest.mark.timeout(180), pytest.mark.console]

ROOT = token(sub="root", scope="administer read start decide automate workflow")


async def test_an_administrator_sees_the_checks_and_what_waits_and_others_are_told_why_not(
    asking: str, test_run: SharedRun
) -> None:
    data = test_run.folder / "asking" / "data"
    async with page_at(f"{asking}/console/system") as page:
        await page.resize(1280)
        await sign_in(page, ROOT)
        await page.until("document.querySelectorAll('.system table').length >= 2")
        shown = await page.text("main")
        assert "every stream and bucket of every shard exists" in shown
        assert "run penstock doctor in a terminal" in shown
        assert "partitions are worked on" in shown
        assert "There are no dead letters." in shown
        async with operator_of(data) as bus:
            error = ValueError(f"<script>alert(1)</script> {'x' * 500}")
            letter = await buried(bus, letter_about(a_cancel(), error=error))
        await page.click(".system .bar button")
        row = f"tr[data-letter='{letter.number}']"
        await page.until(f"!!document.querySelector({json.dumps(row)})")
        assert "<script>alert(1)</script>" in await page.text(row)
        assert "there is a dead letter" in await page.text("main")
        await is_accessible(page, "system")
        await page.click(f"{row} button")
        await page.until(
            f"document.querySelector({json.dumps(row)}).innerText.includes('replayed, as command.')"
        )
        await page.click(".system .bar button")
        await page.until(f"!document.querySelector({json.dumps(f'{row} button')})")
        async with operator_of(data) as bus:
            assert await deadletters.drop(bus, letter)
        is_clean(page, asking)
    async with page_at(f"{asking}/console/system") as page:
        await sign_in(page, token(sub="eve"))
        await page.until("document.querySelector('.notice')?.innerText.includes('administer')")


@asynccontextmanager
async def operator_of(data: Path) -> AsyncIterator[Bus]:
    """Connect as the operator to the NATS server of a `penstock up`."""
    url, password = running(data), (credentials(data) / OPERATOR).read_text().strip()
    assert url is not None
    settings = BusSettings(
        url, "test", user=OPERATOR, password=password, inbox_prefix=inbox_prefix(OPERATOR)
    )
    bus = await Bus.connect(settings, ensure=False)
    try:
        yield bus
    finally:
        await bus.close()


async def test_costs_are_summed_by_what_the_address_says(asking: str) -> None:
    headers = {"authorization": f"Bearer {ROOT}"}
    budget = {
        **{"id": "of-root", "match": {"user": "root"}, "per": "user", "window": "day"},
        **{"limit": {"tokens": 100}, "at": [{"share": 1.0, "do": "warn"}]},
    }
    async with httpx.AsyncClient(base_url=asking, headers=headers, timeout=30) as http:
        put = await http.put("/v1/budgets", json={"version": 1, "budgets": [budget]})
        assert put.is_success, put.text
        await has_status(http, await started(http, "text that costs"), "completed")

        async def counted() -> bool:
            sums = (await http.get("/v1/costs?by=user&user=root")).json()["costs"]
            accounts = (await http.get("/v1/budgets/accounts")).json()["accounts"]
            return bool(sums) and any(each["budget"] == "of-root" for each in accounts)

        await eventually(counted, 30)  # the page reads both once
    async with page_at(f"{asking}/console/costs") as page:
        await page.resize(1280)
        await sign_in(page, ROOT)
        await page.until("document.querySelector('.sums tbody')?.innerText.includes('tester')")
        await page.until("document.querySelector('.accounts')?.innerText.includes('of-root')")
        assert " of 100" in await page.text(".accounts")
        assert await page.value("!!document.querySelector('.accounts .share.is-full')")
        await is_accessible(page, "costs")
        await page.click("a[href='/console/costs?by=user']")
        await page.until("document.querySelector('.sums tbody')?.innerText.includes('root')")
        assert "without a price" in await page.text(".sums tfoot")
        await page.choose("#costs-last", "hour")
        await page.until("location.search === '?by=user&last=hour'")
        await page.until("!document.querySelector('#costs-until')")
        assert [each for each in page.requested if "runs_since=" in each]
        await page.until("document.querySelector('.sums tbody')?.innerText.includes('root')")
        await page.choose("#costs-last", "")
        await page.until("location.search === '?by=user'")
        await page.choose("#costs-until", "2020-01-01")
        await page.until("location.search === '?by=user&until=2020-01-01'")
        await page.until("document.querySelector('.empty')?.innerText.includes('No run')")
        is_clean(page, asking)


async def test_a_rule_is_tried_on_past_events_and_a_delivery_shows_its_attempts(
    demo: str, http: httpx.AsyncClient
) -> None:
    webhook = {"url": "https://nobody.invalid/tried"}
    rule = {"id": "tried", "subjects": ["lifecycle.completed"], "action": {"webhook": webhook}}
    assert (await http.post("/v1/automations", json=rule)).status_code == 201
    await has_status(http, await started(http, "text for the rule"), "completed")
    async with page_at(f"{demo}/console/automations/tried") as page:
        await page.resize(1280)
        await page.click("button.dry-run")
        await page.until("document.querySelector('.tried')?.innerText.includes('would fire it')")
        assert "Nothing was sent." in await page.text(".tried")

        async def attempted() -> bool:
            await page.value("document.querySelector('nav.choices + button').click()")
            return bool(await page.value("!!document.querySelector('.attempts-of')"))

        await eventually(attempted, 30)
        await page.click(".attempts-of")
        await page.until(
            "document.querySelector('.attempts')?.innerText.includes('cannot be resolved')"
        )
        await is_accessible(page, "automation-attempts")
        is_clean(page, demo)
    assert (await http.delete("/v1/automations/tried")).status_code == 200


async def test_mistakes_of_a_definition_are_marked_at_their_lines(demo: str) -> None:
    text = "\n".join(
        (
            "dsl: penstock/1",
            "name: hello",
            'version: "1"',
            f"description: {json.dumps(HOSTILE, ensure_ascii=False)}",
            "steps:",
            "  one: {run: {agent: nobody, message: '\"Hi\"'}}",
            "  two: {needs: [three], run: {agent: assistant, message: '\"Hi\"'}}",
        )
    )
    async with page_at(f"{demo}/console/workflows") as page:
        await page.resize(1280)
        await page.until("!!document.querySelector('.check')")
        await page.value("document.querySelector('.check summary').click()")
        await page.type("#definition", text)
        await page.click(".check button")
        await page.until("document.querySelectorAll('.source .is-wrong').length > 0")
        marked = await page.value(
            "[...document.querySelectorAll('.source .is-wrong')].map((each) => each.innerText)"
        )
        assert any("needs: [three]" in each and "three" in each for each in marked)
        assert SHOWN in await page.text(".source")
        await is_accessible(page, "workflow-check")
        await page.type(
            "#definition", text.replace("needs: [three], ", "").replace("nobody", "vana")
        )
        await page.click(".check button")
        await page.until(
            "document.querySelector('.check [role=status]').innerText.includes('no mistakes')"
        )
        [complaint] = page.logged
        assert "422" in complaint


async def test_what_is_written_for_one_version_is_not_sent_with_another(
    demo: str, http: httpx.AsyncClient
) -> None:
    for version, name in (("1", "path"), ("2", "folder")):
        schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
        flow = {"dsl": "penstock/1", "name": "versions", "version": version, "input": schema}
        body = {**flow, "steps": {"a": {"set": f"input.{name}"}}, "output": "a.output"}
        answer = await http.put(f"/v1/workflows/versions/versions/{version}", json=body)
        assert answer.is_success, answer.text
    async with page_at(f"{demo}/console/workflows/versions?version=1") as page:
        await page.until("document.querySelector('.start label')?.innerText.includes('path')")
        await page.type(".start textarea", "of the first\nin two lines")
        assert await page.value("document.querySelector('.start textarea').rows") == 2
        await page.until("!!document.querySelector('.start button:enabled')")
        await page.click("aside a[href$='version=2']")
        await page.until("document.querySelector('.start label')?.innerText.includes('folder')")
        assert await page.value("document.querySelector('.start button').disabled")
        assert await page.value("document.querySelector('.start textarea').value") == ""
        is_clean(page, demo)


async def test_what_left_penstock_for_a_run_is_beside_it(
    demo: str, http: httpx.AsyncClient
) -> None:
    webhook = {"url": "https://nobody.invalid/links"}
    rule = {"id": "links", "subjects": ["lifecycle.completed"], "action": {"webhook": webhook}}
    rule |= {"retry_delays_s": []}
    assert (await http.post("/v1/automations", json=rule)).status_code == 201
    run_id = await started(http, f"confirm {HOSTILE}")
    await decided(http, run_id)
    await has_status(http, run_id, "completed")
    async with page_at(f"{demo}/console/runs/{run_id}?tab=links") as page:
        await page.resize(1280)

        async def delivered() -> bool:
            await page.send("Page.reload")
            await page.until("!!document.querySelector('.links-of .asked, .links-of .notice')")
            found = "document.querySelector('.deliveries')?.innerText ?? ''"
            return "failed" in await page.value(found)

        await eventually(delivered, 60)
        assert "lifecycle.completed" in await page.text(".deliveries")
        assert "approved by anonymous through the API" in await page.text(".asked summary")
        trace = (await http.get(f"/v1/runs/{run_id}")).json()["trace_id"]
        assert trace in await page.text(".links-of")
        await page.value("document.querySelector('.asked summary').click()")
        await page.until("document.querySelectorAll('.audit li').length >= 3")
        audit = await page.text(".audit")
        assert audit.index("requested") < audit.index("decided") < audit.index("ran")
        rule_link = ".deliveries a[href='/console/automations/links']"
        await page.until(f"!!document.querySelector({json.dumps(rule_link)})")
        await is_accessible(page, "links")
        # A rule that the reader may not see, or that is gone, has no page: its name is no link.
        assert (await http.delete("/v1/automations/links")).status_code == 200
        await page.send("Page.reload")
        await page.until("document.querySelector('.deliveries')?.innerText.includes('links')")
        await page.until("!!document.querySelector('.links-of .asked')")
        assert not await page.value(f"!!document.querySelector({json.dumps(rule_link)})")
        is_clean(page, demo)


async def test_what_waits_for_a_person_is_counted_on_every_screen(asking: str) -> None:
    """It is in the title of the page, too, for whoever looks at another window."""
    mine = token(sub="counter", scope="read start decide")
    headers = {"authorization": f"Bearer {mine}"}
    async with (
        httpx.AsyncClient(base_url=asking, headers=headers, timeout=30) as http,
        page_at(f"{asking}/console/costs") as page,
    ):
        await sign_in(page, mine)
        await page.until("document.title === 'Costs - Penstock'")
        waiting = [await started(http, f"confirm number {number}") for number in range(2)]
        for run_id in waiting:
            await has_status(http, run_id, "paused")
        await page.click("nav a[href='/console/runs']")
        await page.value("document.dispatchEvent(new Event('visibilitychange'))")
        await page.until("document.title === '(2) Runs - Penstock'")
        inbox = "document.querySelector(\"nav a[href='/console/inbox']\").innerText"
        assert await page.value(inbox) == "Inbox (2)"
        # A decision on this page changes it at once.
        await page.go(f"{asking}/console/runs/{waiting[0]}")
        await page.until("!!document.querySelector('.decision button.reject')")
        await page.click(".decision button.reject")
        await page.until("document.title === '(1) confirm number 0 - Penstock'")
        assert await page.value(inbox) == "Inbox (1)"
        await decided(http, waiting[1])
        is_clean(page, asking)


async def test_a_person_who_may_only_read_begins_with_the_runs(asking: str) -> None:
    async with page_at(f"{asking}/") as page:
        await sign_in(page, token(sub="reader", scope="read"))
        await page.until("document.title === 'Runs - Penstock'")
        assert await page.value("location.pathname") == "/console/runs"
        await page.go(f"{asking}/console/system")
        await page.until("document.body.innerText.includes('needs the scope administer')")


PLACES = {
    "/": "Start",
    "/console/runs": "Runs",
    "/console/inbox": "Inbox",
    "/console/workflows": "Workflows",
    "/console/automations": "Automations",
    "/console/costs": "Costs",
    "/docs": "API",
}


async def test_every_screen_is_reached_by_the_keyboard_and_by_its_address(demo: str) -> None:
    async with page_at(f"{demo}/console/runs") as page:
        await page.resize(1280)
        for place, name in PLACES.items():
            # The links are there when the page knows who the caller is.
            await page.until(f"!!document.querySelector('nav a[href=\"{place}\"]')")
            await page.value("document.activeElement?.blur(); scrollTo(0, 0)")
            await page.value("document.querySelector('.brand').focus()")
            for _ in range(len(PLACES) + 1):
                await page.press("Tab")
                if await page.value(f"document.activeElement.matches('nav a[href=\"{place}\"]')"):
                    break
            await page.press("Enter")
            await page.until(f"location.pathname.startsWith({json.dumps(place)})")
            await page.until(f"document.title.endsWith({json.dumps(f'{name} - Penstock')})")
            # The heading has the focus, so that the screen is read from its beginning.
            await page.until("document.activeElement.matches('h1')")
            await page.value("window.isBefore = true")
            await page.send("Page.reload")
            await page.until("!window.isBefore && document.readyState === 'complete'")
            await page.until(f"document.title.endsWith({json.dumps(f'{name} - Penstock')})")
        is_clean(page, demo)


async def test_motion_is_reduced_and_times_have_utc_where_the_reader_needs_it(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "Tell me a slow story", "assistant")
    async with page_at(f"{demo}/console/runs") as page:
        motion = "getComputedStyle(document.querySelector('.is-running'), '::before').animationName"
        await page.until("!!document.querySelector('.status.is-running')")
        assert await page.value(motion) == "pulse"
        reduced = {"name": "prefers-reduced-motion", "value": "reduce"}
        await page.send("Emulation.setEmulatedMedia", features=[reduced])
        assert await page.value(motion) == "none"
        await page.send("Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
        await page.go(f"{demo}/console/runs/{run_id}")
        await page.until("!!document.querySelector('.facts time')")
        began = (await http.get(f"/v1/runs/{run_id}")).json()["created_at"]
        # Also with the day, where it is another in Tokyo.
        assert f"{began[11:16]} UTC)" in await page.text(".facts time")
        await page.go(f"{demo}/console/runs")
        await page.until("!!document.querySelector('td time')")
        assert f"{began[11:16]} UTC)" in await page.text(f"tr[data-run='{run_id}'] time")
        is_clean(page, demo)
    await http.post(f"/v1/runs/{run_id}/cancel", json={})
