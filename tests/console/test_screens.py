"""The screens of the system, of costs, of rules and of definitions, in a real browser."""

from __future__ import annotations

import json

import httpx
import pytest

from support.drive.waiting import eventually
from support.fakes.issuer import token
from support.real.consoles import (
    HOSTILE,
    SHOWN,
    has_status,
    is_accessible,
    is_clean,
    sign_in,
    started,
)
from support.real.devtools import page_at

# The demo starts two agent servers, which takes long on a busy machine.
pytestmark = [pytest.mark.real, pytest.mark.timeout(180), pytest.mark.console]

ROOT = token(sub="root", scope="administer read start decide automate workflow")


async def test_an_administrator_sees_the_checks_and_what_waits_and_others_are_told_why_not(
    asking: str,
) -> None:
    async with page_at(f"{asking}/console/system") as page:
        await page.resize(1280)
        await sign_in(page, ROOT)
        await page.until("document.querySelectorAll('.system table').length >= 2")
        shown = await page.text("main")
        assert "every stream and bucket of every shard exists" in shown
        assert "run `penstock doctor` in a terminal" in shown
        assert "partitions are worked on" in shown
        assert "There are no dead letters." in shown
        await is_accessible(page, "system")
        is_clean(page, asking)
    async with page_at(f"{asking}/console/system") as page:
        await sign_in(page, token(sub="eve"))
        await page.until("document.querySelector('.notice')?.innerText.includes('administer')")


async def test_costs_are_summed_by_what_the_address_says(asking: str) -> None:
    headers = {"authorization": f"Bearer {ROOT}"}
    async with httpx.AsyncClient(base_url=asking, headers=headers, timeout=30) as http:
        await has_status(http, await started(http, "text that costs"), "completed")

        async def summed() -> bool:
            return bool((await http.get("/v1/costs?by=user&user=root")).json()["costs"])

        await eventually(summed, 30)
    async with page_at(f"{asking}/console/costs") as page:
        await page.resize(1280)
        await sign_in(page, ROOT)
        await page.until("document.querySelector('.sums tbody')?.innerText.includes('tester')")
        await is_accessible(page, "costs")
        await page.click("a[href='/console/costs?by=user']")
        await page.until("document.querySelector('.sums tbody')?.innerText.includes('root')")
        assert "without a price" in await page.text(".sums tfoot")
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
            return bool(await page.value("!!document.querySelector('tbody details')"))

        await eventually(attempted, 30)
        await page.value("document.querySelector('tbody details summary').click()")
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
