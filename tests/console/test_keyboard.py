"""Every task of the console is done with the keyboard alone, and what has the focus is seen."""

from __future__ import annotations

import json

import httpx
import pytest

from support.drive.waiting import eventually
from support.real.consoles import decided, has_status, is_clean, note, started
from support.real.devtools import Page, page_at

# The demo starts two agent servers, which takes long on a busy machine.
pytestmark = [pytest.mark.real, pytest.mark.timeout(180), pytest.mark.console]

# Whether a reader sees where the focus is: it has an outline, and nothing covers all of it.
IS_SEEN = """(() => {
  const one = document.activeElement, box = one.getBoundingClientRect();
  const middle = (from, to, most) => (Math.max(0, from) + Math.min(most, to)) / 2;
  const x = middle(box.left, box.right, innerWidth), y = middle(box.top, box.bottom, innerHeight);
  const top = document.elementFromPoint(x, y);
  return getComputedStyle(one).outlineStyle !== 'none' && (one.contains(top) || top?.contains(one));
})()"""
HERE = "location.pathname.split('/').at(-1)"


class Reader:
    """A person without a mouse. `keys` counts the pressed keys, without the letters of texts."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.keys = 0

    async def press(self, key: str, times: int = 1, *, shift: bool = False) -> None:
        for _ in range(times):
            await self.page.press(key, shift=shift)
            self.keys += 1

    async def to(self, selector: str, *, back: bool = False, most: int = 120) -> None:
        """Press Tab until the element has the focus."""
        passed: list[str] = []
        for _ in range(most):
            await self.press("Tab", shift=back)
            if await self.has(selector):
                assert await self.page.value(IS_SEEN), f"the focus on {selector} is not seen"
                return
            passed.append(await self.page.value("document.activeElement.outerHTML.slice(0, 80)"))
        raise AssertionError(f"the keyboard does not reach {selector}: {passed}")

    async def has(self, selector: str) -> bool:
        return bool(
            await self.page.value(f"document.activeElement.matches({json.dumps(selector)})")
        )

    async def gets(self, selector: str) -> None:
        """Wait until the element has the focus without a key."""
        await self.page.until(f"document.activeElement.matches({json.dumps(selector)})")

    async def open(self, selector: str) -> None:
        await self.page.until(f"!!document.querySelector({json.dumps(selector)})")
        await self.to(selector)
        await self.press("Enter")

    async def write(self, text: str) -> None:
        """Replace the text of the field."""
        select = {"key": "a", "code": "KeyA", "modifiers": 2, "commands": ["selectAll"]}
        await self.page.send("Input.dispatchKeyEvent", type="keyDown", **select)
        await self.page.send("Input.dispatchKeyEvent", type="keyUp", **select)
        await self.page.send("Input.insertText", text=text)

    def done(self, task: str) -> None:
        """Note how many keys the tasks of this reader took up to here."""
        note(task, keys=self.keys)


async def test_a_run_is_started_and_its_answer_read(demo: str) -> None:
    async with page_at(f"{demo}/") as page:
        reader = Reader(page)
        await page.until("!!document.querySelector('.trial option[value=assistant]')")
        await reader.to(".skip")
        await reader.press("Enter")
        await reader.gets("h1")
        await reader.to("#trial-1-message")
        await reader.write("What is the weather in Oslo?")
        await reader.press("Enter")
        await page.until("document.querySelector('#trial-1 .foot').innerText.includes('completed')")
        await reader.to("#trial-1 .stage")
        await reader.open("#trial-1 .foot a")
        await reader.gets("h1")
        await page.until(
            "document.querySelector('main.run .transcript')?.innerText.includes('in Oslo')"
        )
        reader.done("start a run and read its answer")
        is_clean(page, demo)


async def test_a_request_is_found_and_decided_with_a_note(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "confirm by the keyboard")
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    async with page_at(f"{demo}/console/runs") as page:
        reader = Reader(page)
        await page.resize(1280)
        await reader.open("nav a[href='/console/inbox']")
        await reader.gets("h1")
        await reader.open(f".cards a[href$='{approval_id}']")
        # The focus is in what was chosen, and not before the whole list again.
        await reader.gets(".chosen")
        await reader.to(".chosen .foot input")
        await reader.write("not on a Friday")
        await reader.to(".chosen button.reject")
        await reader.press("Enter")
        await reader.gets(".chosen .outcome")
        reader.done("reject a request with a note")
        decision = (await http.get(f"/v1/approvals/{approval_id}")).json()["decision"]
        assert (decision["outcome"], decision["note"]) == ("rejected", "not on a Friday")
        is_clean(page, demo)


async def test_the_run_that_deleted_a_file_is_found_and_run_again_without_and_both_compared(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "Please delete report.txt", "assistant")
    await decided(http, run_id)
    await has_status(http, run_id, "completed")
    async with page_at(f"{demo}/console/runs") as page:
        reader = Reader(page)
        await page.resize(1280)
        await reader.open("nav a[href='/console/inbox']")
        await reader.open("a[href='/console/inbox/earlier']")
        await reader.gets("h1")
        await page.until("!!document.querySelector('#earlier-tool option[value=delete_file]')")
        await reader.to("#earlier-tool")
        for key in "delete_f":
            await reader.press(key)
        await page.until("location.search === '?tool=delete_file'")
        link = f"tbody a[href='/console/runs/{run_id}']"
        await page.until(f"!!document.querySelector({json.dumps(link)})")
        row = f"document.querySelector({json.dumps(link)})?.closest('tr').innerText"
        await page.until(f"{row}?.includes('delete_file(path=\"report.txt\")')")
        assert "approved by anonymous" in await page.value(row)
        await reader.open(link)
        reader.done("find the run that deleted a file, and who allowed it")
        await reader.gets("h1")
        await reader.open(".run-again")
        await reader.gets("#again-text")
        await reader.write("What is the weather in Rome?")
        await reader.to(".again button[type=submit]")
        await reader.press("Enter")
        await page.until(f"{HERE} !== '{run_id}'")
        await page.until("!!document.querySelector('.item-end')")
        reader.done("… and run it again without the tool")
        again = await page.value(HERE)
        await reader.open("a.forked + a")
        await page.until("!!document.querySelector('.rows li')")
        assert await page.value("location.pathname") == f"/console/compare/{run_id}/{again}"
        assert "differ" in await page.text(".bar [role=status]")
        reader.done("… and compare both")
        is_clean(page, demo)


async def test_a_run_is_found_by_its_message_and_watched_again(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "textconfirm watched by keys")
    await decided(http, run_id)
    await has_status(http, run_id, "completed")
    async with page_at(f"{demo}/console/runs") as page:
        reader = Reader(page)
        await page.resize(1280)
        await page.until("!!document.querySelector('#filter-text')")
        await reader.press("/")
        await reader.gets("#filter-text")
        await reader.write("watched by keys")
        await reader.press("Enter")
        await page.until("document.querySelectorAll('tbody tr').length === 1")
        await reader.open(f"a.run-link[href$='{run_id}']")
        await reader.gets("h1")
        await page.until("!!document.querySelector('.watch')")
        await reader.to(".watch input")
        await reader.press("ArrowLeft", 3)
        await page.until("document.querySelector('.watch').innerText.includes('after event')")
        await reader.to("[role=tab][aria-selected=true]", back=True)
        await reader.press("End")
        await reader.gets("#tab-links")
        await reader.press("ArrowLeft", 2)
        await reader.gets("#tab-state")
        await page.until("!!document.querySelector('.state-at')")
        reader.done("find a run by its message, and see its state three events before the end")
        is_clean(page, demo)


async def test_the_events_and_the_bars_of_a_run_are_one_stop_each(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "textconfirm of bars")
    await decided(http, run_id)
    await has_status(http, run_id, "completed")
    async with page_at(f"{demo}/console/runs/{run_id}?tab=events") as page:
        reader = Reader(page)
        await page.resize(1280)
        await page.until("!!document.querySelector('.item-end, .events .event')")
        await reader.to(".events .list")
        await reader.press("End")
        await page.until("document.querySelector('.detail').innerText.includes('completed')")
        await reader.press("Home")
        await page.until("document.querySelector('.detail').innerText.includes('of bars')")
        await reader.to(".events .detail")
        await reader.to("#tab-events", back=True)
        await reader.press("ArrowLeft")
        await reader.gets("#tab-timeline")
        await page.until("document.querySelectorAll('.bar-of').length > 2")
        await reader.to(".bar-of")
        bars = "[...document.querySelectorAll('.bar-of')]"
        assert await page.value(f"{bars}.filter((each) => each.tabIndex === 0).length") == 1
        await reader.press("End")
        assert await page.value(f"{bars}.indexOf(document.activeElement)") == (
            await page.value(f"{bars}.length - 1")
        )
        await reader.press("ArrowUp")
        words = await page.value("document.activeElement.ariaLabel")
        assert words
        assert await page.text(".bar-words") == words
        await reader.press("Enter")
        await reader.gets(".transcript > li")
        await reader.to(".run-again", back=True)
        reader.done("read the first event, and find a bar of the timeline in the transcript")
        is_clean(page, demo)


async def test_a_workflow_is_forked_before_a_step(demo: str, http: httpx.AsyncClient) -> None:
    run_id = await started(http, "+password = 7", "code_review")
    await decided(http, run_id)
    await has_status(http, run_id, "completed")
    async with page_at(f"{demo}/console/runs/{run_id}") as page:
        reader = Reader(page)
        await page.resize(1280)
        await page.until("!!document.querySelector('.run-fork:not([disabled])')")
        await reader.open(".node:last-child button")
        await reader.gets(".step-panel h2")
        await reader.press("Escape")
        await reader.gets(".node:last-child button")
        await reader.press("Enter")
        await reader.gets(".step-panel h2")
        await reader.to(".fork-before")
        await reader.press("Enter")
        await reader.gets("#fork-sequence")
        await page.until("!!document.querySelector('.again button[type=submit]:enabled')")
        await reader.to(".again button[type=submit]")
        await reader.press("Enter")
        await page.until(f"{HERE} !== '{run_id}'")
        await reader.open(".decision button.approve:enabled")
        await reader.gets(".decision .outcome")
        await page.until("!!document.querySelector('.item-end')")
        reader.done("fork a workflow before its last step, and allow what it asks")
        is_clean(page, demo)


async def test_a_rule_that_fails_is_found_and_paused(demo: str, http: httpx.AsyncClient) -> None:
    webhook = {"url": "https://nobody.invalid/keys"}
    rule = {"id": "keys", "subjects": ["lifecycle.completed"], "action": {"webhook": webhook}}
    assert (await http.post("/v1/automations", json=rule)).status_code == 201
    await has_status(http, await started(http, "text for keys"), "completed")
    async with page_at(f"{demo}/console/runs") as page:
        reader = Reader(page)
        await page.resize(1280)
        await reader.open("nav a[href='/console/automations']")
        await reader.open("a[href='/console/automations/keys']")
        await reader.gets("h1")
        while not await page.value("!!document.querySelector('.attempts-of')"):
            await reader.open("nav.choices + button")
        await reader.open(".attempts-of")
        await page.until("document.querySelector('.attempts')?.innerText.includes('resolved')")
        await reader.to("button.pause", back=True)
        await reader.press("Enter")
        await page.until("document.querySelector('button.pause').innerText === 'Resume the rule'")
        reader.done("find out why a webhook fails, and pause its rule")
        is_clean(page, demo)
    assert (await http.delete("/v1/automations/keys")).status_code == 200


async def test_a_workflow_is_started_by_its_form_and_cancelled(demo: str) -> None:
    async with page_at(f"{demo}/console/runs") as page:
        reader = Reader(page)
        await page.resize(1280)
        await reader.open("nav a[href='/console/workflows']")
        await reader.open("a[href='/console/workflows/code_review']")
        await reader.gets("h1")
        await page.until("!!document.querySelector('.start textarea')")
        await reader.to(".start textarea")
        await reader.write("+password = 8")
        await reader.to(".start button")
        await reader.press("Enter")
        await page.until("location.pathname.startsWith('/console/runs/')")
        await page.until("!!document.querySelector('.decision button.approve')")
        await reader.open(".cancel")
        await page.until("document.querySelector('.bar .status').textContent === 'cancelled'")
        await page.until("!document.querySelector('.cancel')")
        reader.done("start a workflow by its form, and cancel its run")
        is_clean(page, demo)


async def test_costs_of_a_user_lead_to_the_runs(demo: str, http: httpx.AsyncClient) -> None:
    run_id = await started(http, "text that costs", user_id="kay")
    await has_status(http, run_id, "completed")

    async def summed() -> bool:
        return bool((await http.get("/v1/costs?by=user&user=kay")).json()["costs"])

    await eventually(summed, 30)
    async with page_at(f"{demo}/console/runs") as page:
        reader = Reader(page)
        await page.resize(1280)
        await reader.open("nav a[href='/console/costs']")
        await reader.open("a[href='/console/costs?by=user']")
        await reader.open("tbody a[href='/console/runs?user_id=kay']")
        await page.until(f"!!document.querySelector('tr[data-run=\"{run_id}\"]')")
        reader.done("from what a user costs to the user's runs")
        is_clean(page, demo)


async def test_keys_of_one_letter_are_listed_and_can_be_switched_off(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "text for letters")
    await has_status(http, run_id, "completed")
    async with page_at(f"{demo}/console/runs") as page:
        reader = Reader(page)
        await page.resize(1280)
        await page.until("!!document.querySelector('a.run-link')")
        await reader.press("j")
        await reader.gets("a.run-link")
        await reader.press("?")
        await page.until("document.querySelector('dialog').open")
        assert "the next or the previous run" in await page.text("dialog")
        await reader.press("j")  # of the dialog, not of the list behind it
        assert not await reader.has("a.run-link")
        while not await reader.has("#keys-on"):
            await reader.press("Tab")
        await reader.press(" ")
        await reader.press("Escape")
        await reader.gets("a.run-link")
        first = await page.value("document.activeElement.href")
        for key in ("j", "?", "/"):
            await reader.press(key)
        assert await page.value("document.activeElement.href") == first
        assert not await page.value("document.querySelector('dialog').open")
        await page.send("Page.reload")
        await page.until("!!document.querySelector('a.run-link')")
        await reader.press("j")
        assert not await reader.has("a.run-link")
        await reader.open("header button[aria-haspopup]")
        while not await reader.has("#keys-on"):
            await reader.press("Tab")
        await reader.press(" ")
        await reader.press("Escape")
        await reader.gets("header button[aria-haspopup]")
        await reader.press("j")
        await reader.gets("a.run-link")
        is_clean(page, demo)
