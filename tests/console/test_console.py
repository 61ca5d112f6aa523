"""The console in a real browser, over `penstock up --demo` and a real agent server."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from support.drive.waiting import eventually
from support.fakes.issuer import token
from support.real.consoles import (
    HOSTILE,
    SHOWN,
    approve,
    decided,
    frames_of,
    has_status,
    is_accessible,
    is_clean,
    longest_task_ms,
    note,
    started,
)
from support.real.devtools import Page, page_at, pages_at
from support.real.up import Up
from support.real.upstreams import Upstream

# The demo starts two agent servers, which takes long on a busy machine.
pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

# All rows of the list of events, which has only those in view in the page: it is scrolled through.
ALL_ROWS = """(async () => {
  const list = document.querySelector('.events .list');
  const found = new Map();
  const frame = () => new Promise((done) => setTimeout(done, 50));
  for (let top = 0; top <= list.scrollHeight; top += list.clientHeight / 2) {
    list.scrollTop = top;
    await frame();
    for (const row of list.querySelectorAll('.event')) {
      const [sequence, type] = ['.sequence', '.type'].map((each) => row.querySelector(each));
      found.set(
        Number(row.id.slice('event-'.length)), [Number(sequence.textContent), type.textContent]);
    }
  }
  return [...found.keys()].sort((one, other) => one - other).map((each) => found.get(each));
})()"""


async def events_of(http: httpx.AsyncClient, run_id: str) -> list[list[Any]]:
    """Return sequence and type of every event of the run and of the runs below it."""
    found: list[list[Any]] = []
    after = None
    while True:
        answer = await http.get(
            f"/v1/runs/{run_id}/events",
            params={"include": "children", "limit": "1000", **({"after": after} if after else {})},
            headers={"accept": "application/json"},
        )
        page = answer.json()
        found += [
            [each["sequence"], f"{each['event']['category']}.{each['event']['action']}"]
            for each in page["events"]
        ]
        if page["next"] is None or page["next"] == after:
            return found
        after = page["next"]


async def row_of(page: Page, run_id: str, *words: str) -> None:
    """Wait until the row of the run has these words."""
    row = f"document.querySelector('tr[data-run=\"{run_id}\"]')?.innerText ?? ''"
    for word in words:
        await page.until(f"({row}).includes({json.dumps(word)})")


async def test_the_list_shows_runs_as_they_happen_without_polling(
    demo: str, http: httpx.AsyncClient
) -> None:
    async with page_at(f"{demo}/console/runs") as page:
        await page.resize(1280)
        await page.until("document.querySelector('.live').textContent === 'live'")
        run_id = await started(http, "confirm from the list")
        await row_of(page, run_id, "confirm from the list", "waits for a person", "tester")
        await decided(http, run_id)
        await row_of(page, run_id, "completed")
        asked = [urlsplit(each).path for each in page.requested]
        assert asked.count("/v1/runs") == 1
        assert asked.count("/v1/events") == 1
        await is_accessible(page, "runs")
        is_clean(page, demo)


@pytest.mark.console
async def test_a_list_that_cannot_be_read_says_so_and_is_read_again(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "text for later")
    async with page_at(f"{demo}/docs") as page:
        await page.send("Network.setBlockedURLs", urls=["*/v1/runs?*", "*/v1/approvals?*"])
        for screen in ("runs", "inbox"):
            await page.go(f"{demo}/console/{screen}")
            await page.until("document.querySelector('.notice')?.innerText.includes('not answer')")
        await page.send("Network.setBlockedURLs", urls=[])
        await page.until("!document.querySelector('.notice')")
        await page.go(f"{demo}/console/runs?agent=tester")
        await row_of(page, run_id, "text for later")


@pytest.mark.console
async def test_an_argument_of_a_million_characters_is_folded_and_whole(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, f"confirm {'x' * 1_000_000}\u202e{HOSTILE}")
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    async with page_at(f"{demo}/console/inbox/{approval_id}") as page:
        await page.until("!!document.querySelector('.chosen .tree details')")
        assert "characters" in await page.text(".chosen .tree summary")
        assert (await page.text(".chosen .tree .value")).endswith(f'U+202E{SHOWN}"')
        await page.resize(360)
        assert await page.value("document.documentElement.scrollWidth") == 360
        await page.click(".chosen button.reject")
        await page.until("!!document.querySelector('.chosen .outcome')")
        is_clean(page, demo)


@pytest.mark.console
async def test_a_hundred_thousand_characters_that_cannot_be_seen_do_not_stop_a_page(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, f"confirm {(chr(0x200B) + chr(0x2060)) * 50_000}")
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    for place in (f"inbox/{approval_id}", f"runs/{run_id}", f"runs/{run_id}?tab=events"):
        async with page_at(f"{demo}/console/{place}") as page:
            await page.until("!!document.querySelector('.chosen, .decision, .event')")
            assert await page.value("document.querySelectorAll('main mark').length") < 5000
            assert "\u200b" not in await page.value("document.documentElement.outerHTML")
            is_clean(page, demo)
    async with page_at(f"{demo}/console/inbox/{approval_id}") as page:
        await page.until("!!document.querySelector('.chosen .tree .value')")
        text = await page.text(".chosen .tree .value")
        assert text.endswith('[U+2060]"')
        assert text.count("U+200B") == text.count("U+2060") == 50_000
        await page.click(".chosen button.reject")
        await page.until("!!document.querySelector('.chosen .outcome')")
    await has_status(http, run_id, "completed")


@pytest.mark.console
async def test_an_argument_of_a_megabyte_stops_no_screen(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, f"confirm {'x' * 500_000}{' x y' * 125_000}")
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    await decided(http, run_id)
    await has_status(http, run_id, "completed")
    places = {
        "runs?agent=tester": f"tr[data-run='{run_id}']",
        f"runs/{run_id}": ".item-end",
        f"runs/{run_id}?tab=timeline": ".bar-of",
        f"runs/{run_id}?tab=events": ".event",
        f"runs/{run_id}?tab=raw": ".bytes",
        f"runs/{run_id}?tab=state": ".state-at",
        f"runs/{run_id}?tab=links": ".asked",
        f"inbox/{approval_id}": ".chosen .outcome",
        "inbox/earlier?agent=tester": "tbody tr",
        f"compare/{run_id}/{run_id}": ".rows li",
    }
    for place, selector in places.items():
        async with page_at(f"{demo}/docs") as page:
            await page.go(f"{demo}/console/{place}")
            shown = f"document.querySelector({json.dumps(selector)}) && performance.now()"
            shown_ms = await page.until(shown)
            if place.endswith("tab=raw"):
                # An Agno server repeats the arguments in many frames.
                await page.until("document.querySelector('.raw').innerText.includes('4 MiB')")
            # Opens what is folded, and goes to the end of what scrolls.
            move = (
                "document.querySelectorAll('details').forEach((each) => (each.open = true));"
                "document.querySelectorAll('.bytes, html')"
                ".forEach((each) => (each.scrollTop += 4e3))"
            )
            longest_ms, per_s = await frames_of(page, 2, move)
            task_ms = await longest_task_ms(page)
            note(
                f"a megabyte at {place.replace(run_id, 'RUN').replace(approval_id, 'APPROVAL')}",
                **{"shown_ms": shown_ms, "longest_ms": longest_ms, "frames_per_s": per_s},
                longest_task_ms=task_ms,
            )
            assert task_ms < 2000
            is_clean(page, demo)


@pytest.mark.console
async def test_updates_can_be_paused_and_then_nothing_is_missing(
    demo: str, http: httpx.AsyncClient
) -> None:
    async with page_at(f"{demo}/console/runs") as page:
        await page.until("document.querySelector('.live').textContent === 'live'")
        await page.click("button[aria-pressed]")
        run_id = await started(http, "text while paused")
        await has_status(http, run_id, "completed")
        button = "document.querySelector('button[aria-pressed]').innerText"
        await page.until(f"/Show \\d+ changes/.test({button})")
        assert not await page.value(f"!!document.querySelector('tr[data-run=\"{run_id}\"]')")
        await page.click("button[aria-pressed]")
        await row_of(page, run_id, "completed")
        is_clean(page, demo)


@pytest.mark.console
async def test_older_runs_come_page_by_page(demo: str, http: httpx.AsyncClient) -> None:
    made = [await started(http, f"text {number}", "away") for number in range(51)]
    await has_status(http, made[0], "failed")
    async with page_at(f"{demo}/console/runs?agent=away") as page:
        rows = "[...document.querySelectorAll('tr[data-run]')].map((each) => each.dataset.run)"
        await page.until(f"{rows}.length === 50")
        await page.click(".more button")
        await page.until(f"{rows}.length === 51")
        assert await page.value(rows) == made[::-1]
        await page.until("!document.querySelector('.more button')")
        # j and k choose a run, Enter opens it.
        await page.press("j")
        await page.press("j")
        await page.press("Enter")
        await page.until(f"location.pathname === '/console/runs/{made[-2]}'")
        is_clean(page, demo)


@pytest.mark.console
async def test_filters_are_in_the_address_and_stay_after_a_reload(
    demo: str, http: httpx.AsyncClient
) -> None:
    done, waits = await started(http, "text for the filter"), await started(http, "confirm filter")
    await has_status(http, done, "completed")
    await has_status(http, waits, "paused")
    async with page_at(f"{demo}/console/runs?agent=tester") as page:
        await row_of(page, done, "completed")
        await page.choose("#filter-status", "paused")
        await page.until("location.search === '?status=paused&agent=tester'")
        await page.until(f"!document.querySelector('tr[data-run=\"{done}\"]')")
        # Further statuses may fit, too; each can be taken away.
        await page.choose("#filter-status", "completed")
        await page.until("location.search === '?status=paused&status=completed&agent=tester'")
        await row_of(page, done, "completed")
        await row_of(page, waits, "waits for a person")
        await page.click("[aria-label='Remove the filter completed']")
        await page.until("location.search === '?status=paused&agent=tester'")
        assert await page.value("document.activeElement.id") == "filter-status"
        await page.until(f"!document.querySelector('tr[data-run=\"{done}\"]')")
        await page.send("Page.reload")
        await row_of(page, waits, "waits for a person")
        assert not await page.value(f"!!document.querySelector('tr[data-run=\"{done}\"]')")
        # A run that comes to wait appears in the list of those that wait.
        later = await started(http, "confirm later")
        await row_of(page, later, "waits for a person")
        await page.choose("#filter-agent", "linter")
        await page.until("document.querySelector('.empty')?.innerText.includes('No run fits')")
        await page.go(f"{demo}/console/runs?agent=tester&status=paused")
        await page.choose("#filter-since", "2020-01-01T00:00")
        await page.until("new URLSearchParams(location.search).get('since') === '2020-01-01T00:00'")
        await row_of(page, waits, "waits for a person")
        await page.choose("#filter-until", "2020-01-02T00:00")
        await page.until("document.querySelector('.empty')?.innerText.includes('No run fits')")
        is_clean(page, demo)


@pytest.mark.console
async def test_tags_and_texts_filter_the_list_also_as_runs_come(
    demo: str, http: httpx.AsyncClient
) -> None:
    tags = {"team": f"pay {HOSTILE[:9]}", "env": "test"}
    tagged = await started(http, "text of Quarterly numbers", tags=tags)
    plain = await started(http, "text of quarterly weather")
    async with page_at(f"{demo}/console/runs?text=QUARTERLY") as page:
        await page.resize(1280)
        await row_of(page, tagged, "env=test", "team=pay aU+202Ecod", "completed")
        await row_of(page, plain, "completed")
        await is_accessible(page, "tags")
        await page.click(f"tr[data-run='{tagged}'] a.tag:last-of-type")
        await page.until("location.search === '?text=QUARTERLY&tag=env%3Dtest'")
        await page.until(f"!document.querySelector('tr[data-run=\"{plain}\"]')")
        await row_of(page, tagged, "completed")
        # A run that comes is shown if it fits, also with tags of its own beside.
        other = await started(http, "text of quarterly", tags={"env": "live"})
        later = await started(http, "text of quarterly", tags={"a": "b", "env": "test"})
        await row_of(page, later, "a=b")
        assert not await page.value(f"!!document.querySelector('tr[data-run=\"{other}\"]')")
        await page.click("button.tag")
        await row_of(page, other, "env=live")
        await page.value("document.querySelector('#filter-tag').focus()")
        await page.type("#filter-tag", "a=b")
        await page.press("Enter")
        await page.until("location.search === '?text=QUARTERLY&tag=a%3Db'")
        await page.until(f"!document.querySelector('tr[data-run=\"{other}\"]')")
        await page.send("Page.reload")
        await row_of(page, later, "a=b")
        is_clean(page, demo)


@pytest.mark.console
async def test_the_badge_of_a_run_that_waits_leads_to_its_decision(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "confirm by the badge")
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    async with page_at(f"{demo}/console/runs?agent=tester") as page:
        await row_of(page, run_id, "waits for a person")
        await page.click(f"tr[data-run='{run_id}'] a.waits")
        await page.until(f"location.pathname === '/console/inbox/{approval_id}'")
        await page.until("!!document.querySelector('.chosen button.approve')")
        is_clean(page, demo)


@pytest.mark.console
async def test_runs_of_steps_are_folded_under_their_run(demo: str, http: httpx.AsyncClient) -> None:
    run_id = await started(http, "+password = 1", "code_review")
    await has_status(http, run_id, "paused")
    async with page_at(f"{demo}/console/runs?agent=code_review") as page:
        await row_of(page, run_id, "code_review", "waits for a person")
        agents = "[...document.querySelectorAll('tbody td:nth-child(3)')].map((e) => e.innerText)"
        assert not [each for each in await page.value(agents) if "linter" in each]
        await page.click(f"tr[data-run='{run_id}'] .fold")
        await page.until(f"{agents}.some((each) => each.includes('linter'))")
        assert [each for each in await page.value(agents) if "scanner" in each]
        is_clean(page, demo)


async def test_a_run_is_followed_and_decided_where_it_asks(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "textconfirm Quarterly report")
    async with page_at(f"{demo}/console/runs?agent=tester") as page:
        await page.resize(1280)
        await row_of(page, run_id, "waits for a person")
        await page.click(f"tr[data-run='{run_id}'] a.run-link")
        await page.until("!!document.querySelector('.decision button.approve')")
        assert await page.value("location.pathname") == f"/console/runs/{run_id}"
        story = "document.querySelector('.transcript').innerText"
        assert "I will create it now." in await page.value(story)
        assert "Quarterly report" in await page.text(".decision .tree")
        # The numbers of the tests' model, which no table of prices has.
        assert "102 in, 11 out" in await page.text(".facts")
        assert "1 of 1 call has no known price" in await page.text(".facts")
        await is_accessible(page, "run")
        await page.click(".decision button.approve")
        await page.until("!!document.querySelector('.transcript .item-end')")
        assert "approved by anonymous" in await page.value(story)
        assert "completed" in await page.text(".bar .status")
        await page.click("#tab-events")
        await page.until("!!document.querySelector('.events .event')")
        assert await page.value(ALL_ROWS) == await events_of(http, run_id)
        await page.value("document.querySelector('.events .list').scrollTop = 0")
        await page.click("#event-0")
        await page.until("document.querySelector('.detail').innerText.includes('textconfirm')")
        await is_accessible(page, "events")
        await page.value("setTimeout(() => history.back()); null")
        await page.until("document.querySelector('[aria-selected=true]').id === 'tab-transcript'")
        is_clean(page, demo)


@pytest.mark.console
async def test_a_run_is_watched_again_to_any_of_its_events(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "textconfirm Watched again")
    other = await started(http, "text not watched")
    await decided(http, run_id)
    await has_status(http, other, "completed")
    await has_status(http, run_id, "completed")
    events = await events_of(http, run_id)
    asked = [type_ for _, type_ in events].index("approval.requested") + 1
    story = "document.querySelector('.transcript').innerText"
    async with page_at(f"{demo}/console/runs/{run_id}?at={asked}") as page:
        await page.until("!!document.querySelector('.watch')")
        await page.until(f"{story}.includes('not decided at this point')")
        # What is beside it is of the same time.
        assert f"as it was after event {asked}" in await page.text("aside")
        assert "Requests to the agent" not in await page.text("aside")
        assert not await page.value("!!document.querySelector('.item-end, button.approve')")
        await page.value(
            "(() => { const one = document.querySelector('.watch input');"
            f"one.value = {asked - 1}; one.dispatchEvent(new Event('input')); }})()"
        )
        await page.until(f"location.search === '?at={asked - 1}'")
        await page.until("!document.querySelector('.decision')")
        await page.click(".watch button:nth-of-type(2)")
        await page.until("!!document.querySelector('.item-end')")
        assert await page.value("location.search") == f"?at={len(events)}"
        again = await page.value(story)
        await page.click(".watch button:last-of-type")
        await page.until("location.search === ''")
        assert await page.value(story) == again
        # The same place, as the API tells it.
        await page.go(f"{demo}/console/runs/{run_id}?tab=state&at={asked}")
        told = (await http.get(f"/v1/runs/{run_id}/state", params={"at": asked})).json()
        assert told["approvals"][0]["status"] == "pending"
        await page.until(f"document.querySelector('.state-at')?.dataset.at === '{asked}'")
        keys = (
            "[...document.querySelectorAll('.state-at > .tree > div > dt')].map((e) => e.innerText)"
        )
        assert await page.value(keys) == sorted(told)
        await is_accessible(page, "state")
        await page.click(".watch button:last-of-type")
        await page.until(f"document.querySelector('.state-at')?.dataset.at === '{len(events)}'")
        assert '"completed"' in await page.text(".state-at .tree")
        # Another run is not watched because this one is.
        await page.click(".watch button")
        moved = "dispatchEvent(new CustomEvent('penstock-moved', { detail: {} }))"
        await page.value(f"history.pushState(null, '', '/console/runs/{other}'); {moved}")
        await page.until("document.querySelector('h1').innerText === 'text not watched'")
        await page.until("!!document.querySelector('.watch')")
        assert not await page.value("!!document.querySelector('.watch [aria-pressed=true]')")
        is_clean(page, demo)


def seen(is_hidden: bool) -> str:
    return (
        "Object.defineProperty(document, 'hidden', "
        f"{{value: {json.dumps(is_hidden)}, configurable: true}});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )


@pytest.mark.console
async def test_a_page_behind_others_has_no_stream_and_goes_on_when_it_is_seen(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "Tell me a slow story", "assistant")

    async with page_at(f"{demo}/console/runs/{run_id}?tab=events") as page:
        count = "parseInt(document.querySelector('.events .dim')?.textContent)"
        await page.until(f"{count} > 5")
        await page.value(seen(is_hidden=True))
        before = await page.value(count)
        after = before + 5

        async def further() -> bool:
            return len(await events_of(http, run_id)) > int(after)

        await eventually(further, 30)
        assert await page.value(count) <= before + 1  # one event may have been on its way
        await page.value(seen(is_hidden=False))
        await page.until(f"{count} > {after}")
        assert (await http.post(f"/v1/runs/{run_id}/cancel", json={})).is_success
        await page.until("document.querySelector('.bar .status')?.textContent === 'cancelled'")
        assert await page.value(ALL_ROWS) == await events_of(http, run_id)
        streams = [each for each in page.requested if "/events?names=off" in each]
        assert len(streams) == 2
        assert "after=" in streams[1]
        is_clean(page, demo)


@pytest.mark.console
async def test_a_reload_in_the_middle_of_a_run_loses_and_repeats_nothing(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "Tell me a slow story", "assistant")
    async with page_at(f"{demo}/console/runs/{run_id}?tab=events") as page:
        count = "document.querySelector('.events .dim')?.textContent"
        await page.until(f"parseInt({count}) > 8")
        await page.send("Page.reload")
        await page.until(f"parseInt({count}) > 12")
        assert (await http.post(f"/v1/runs/{run_id}/cancel", json={})).is_success
        await page.until("document.querySelector('.bar .status')?.textContent === 'cancelled'")
        assert await page.value(ALL_ROWS) == await events_of(http, run_id)
        is_clean(page, demo)


@pytest.mark.console
async def test_pages_that_were_left_hold_no_connection(demo: str, http: httpx.AsyncClient) -> None:
    run_id = await started(http, "confirm the way back")
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    async with page_at(f"{demo}/console/runs") as page:
        for _ in range(8):  # a browser has six connections to a host
            await page.go(f"{demo}/console/inbox/{approval_id}")
            await page.until("document.querySelector('.live').textContent === 'live'")
            await page.go(f"{demo}/console/runs/{run_id}")
            await page.until("!!document.querySelector('.decision')")
        await page.value("setTimeout(() => history.back()); null")
        await page.until("location.pathname.startsWith('/console/inbox')")
        await page.until("document.querySelector('.live')?.textContent === 'live'")
        is_clean(page, demo)


@pytest.mark.console
async def test_seven_windows_of_one_browser_all_go_on_and_requests_are_answered(
    demo: str, http: httpx.AsyncClient
) -> None:
    runs = [await started(http, f"confirm window {number}") for number in range(7)]
    places = [f"{demo}/console/runs/{run_id}" for run_id in runs]
    for run_id in runs:
        await has_status(http, run_id, "paused")
    async with pages_at(places) as pages:
        for page in pages:
            await page.until("!!document.querySelector('.decision button.approve:enabled')")
            assert not await page.value("document.hidden")
        # HTTP/1.1 has six connections, of which streams leave some to requests.
        asked_ms = (
            "(async () => { const begin = performance.now();"
            "await (await fetch('/v1/me')).json(); return performance.now() - begin; })()"
        )
        note("seven windows", request_ms=max([await page.value(asked_ms) for page in pages]))
        held = "navigator.locks.query().then(({held, pending}) => [held.length, pending.length])"
        connections, waiting = await pages[0].value(held)
        assert connections <= 4
        assert waiting > 0
        for page in pages:
            await page.value("document.querySelector('.decision button.approve').click()")
        for page, run_id in zip(pages, runs, strict=True):
            await page.until("document.querySelector('.bar .status')?.textContent === 'completed'")
            await page.value("document.querySelector('#tab-events').click()")
            await page.until("!!document.querySelector('.events .event')")
            assert await page.value(ALL_ROWS) == await events_of(http, run_id)
            is_clean(page, demo)


@pytest.mark.console
async def test_the_bytes_of_a_run_that_waits_take_turns_with_other_streams(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "confirm the bytes")
    await has_status(http, run_id, "paused")
    async with page_at(f"{demo}/console/runs/{run_id}") as page:
        await page.until("!!document.querySelector('.decision')")
        # A page that is not seen has no stream.
        await page.value(seen(is_hidden=True))
        await page.value("document.querySelector('#tab-raw').click()")
        await page.until("!!document.querySelector('.bytes')")
        await page.value(seen(is_hidden=False))
        await page.until("document.querySelector('.bytes').textContent.includes('RunPaused')")
        assert len([each for each in page.requested if "dialect=raw" in each]) == 1
        # Other windows take all four connections, and give them back.
        await page.value(
            "window.taken = []; for (const number of [0, 1, 2, 3])"
            " navigator.locks.request(`penstock-stream-${number}`,"
            " () => new Promise((giveBack) => taken.push(giveBack))); null"
        )
        await page.until("taken.length === 4")
        await decided(http, run_id)
        await has_status(http, run_id, "completed")
        await page.value("taken.forEach((giveBack) => giveBack())")
        await page.until("document.querySelector('.bar .status').textContent === 'completed'")
        await page.until("document.querySelector('.bytes').textContent.includes('RunCompleted')")
        whole = await http.get(f"/v1/runs/{run_id}/events", params={"dialect": "raw"})
        assert await page.text(".bytes") == whole.text
        is_clean(page, demo)


@pytest.mark.console
async def test_a_browser_that_refuses_locks_follows_a_run_all_the_same(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "confirm without locks")
    async with page_at(f"{demo}/docs") as page:
        refuse = (
            "navigator.locks.request = async () => { throw new DOMException('', 'SecurityError') }"
        )
        await page.send("Page.addScriptToEvaluateOnNewDocument", source=refuse)
        await page.go(f"{demo}/console/runs/{run_id}")
        await page.until("!!document.querySelector('.decision')")
        is_clean(page, demo)


@pytest.mark.console
async def test_a_run_can_be_cancelled_on_its_page(demo: str, http: httpx.AsyncClient) -> None:
    run_id = await started(http, "Tell me a slow story", "assistant")
    async with page_at(f"{demo}/console/runs/{run_id}") as page:
        await page.until("!!document.querySelector('.item-message')")
        await page.click(".cancel")
        await page.until("document.querySelector('.bar .status')?.textContent === 'cancelled'")
        await page.until("!document.querySelector('.cancel')")
        assert (await has_status(http, run_id, "cancelled"))["status"] == "cancelled"
        is_clean(page, demo)


async def test_hostile_text_is_text_on_every_screen(demo: str, http: httpx.AsyncClient) -> None:
    run_id = await started(http, f"confirm {HOSTILE}")
    run = await has_status(http, run_id, "paused")
    places = {
        "/console/runs?agent=tester": f"tr[data-run='{run_id}']",
        f"/console/runs/{run_id}": ".transcript .decision",
        f"/console/runs/{run_id}?tab=events": ".events .event",
        f"/console/runs/{run_id}?tab=state": ".state-at",
        f"/console/inbox/{run['approval_id']}": ".chosen .decision",
        "/console/runs/..%2f..%2fv1%2flogout": "h1",
        f"/console/inbox/{'%3Cscript%3E'}": ".notice",
    }
    async with page_at(f"{demo}/console") as page:
        for place, selector in places.items():
            await page.go(demo + place)
            await page.until(f"!!document.querySelector({json.dumps(selector)})")
            if run_id in place or place.startswith("/console/runs?"):
                await page.until(f"document.body.innerText.includes({json.dumps(SHOWN)})")
            assert (
                await page.value("document.querySelectorAll('main img, main script').length") == 0
            )
            assert "\u202e" not in await page.value("document.documentElement.outerHTML")
            assert "\u202e" not in await page.value("document.title")
        complaints = [each for each in page.logged if "404" not in each]
        assert complaints == []


async def test_the_inbox_is_used_with_the_keyboard_alone(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "confirm by keys")
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    async with page_at(f"{demo}/console/runs") as page:
        await page.resize(1280)
        await page.navigate(f"{demo}/console/inbox")  # which goes on to the first that waits
        await page.until("!!document.querySelector('.chosen .decision')")
        while not await page.value(f"location.pathname.endsWith('{approval_id}')"):
            await page.press("j")
        await page.until("document.querySelector('.chosen .tree').innerText.includes('by keys')")
        await page.until("document.querySelector('.lines')?.innerText.includes('confirm by keys')")
        await is_accessible(page, "inbox")
        await page.press("a")
        await page.until("document.activeElement.matches('.chosen button.approve')")
        # The key led to the button, and decided nothing.
        assert (await http.get(f"/v1/approvals/{approval_id}")).json()["status"] == "pending"
        await page.press("Enter")
        await page.until(
            "document.querySelector('.chosen .outcome')?.innerText === 'approved by anonymous'"
        )
        await has_status(http, run_id, "completed")
        is_clean(page, demo)


@pytest.mark.console
async def test_two_people_who_decide_at_once_are_told_who_was_first(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "confirm a race")
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    place = f"{demo}/console/inbox/{approval_id}"
    async with page_at(place) as page:
        await page.until("!!document.querySelector('.chosen button.reject')")
        # The other decides, and this page does not know it yet.
        await page.value("EventSource.prototype.addEventListener = () => {}")
        await page.send("Network.setBlockedURLs", urls=["*/v1/approvals/events*"])
        [approval] = (await http.get("/v1/approvals", params={"run_id": run_id})).json()[
            "approvals"
        ]
        body = {"approved": True, "digest": approval["digest"]}
        both = await asyncio.gather(
            http.post(f"/v1/approvals/{approval_id}/decision", json=body),
            # Where the page knows already, it has no button any more.
            page.value("document.querySelector('.chosen button.reject')?.click()"),
        )
        await page.until("!!document.querySelector('.chosen .outcome')")
        record = (await http.get(f"/v1/approvals/{approval_id}")).json()
        said = await page.text(".chosen .outcome")
        assert said == f"{record['decision']['outcome']} by anonymous"
        assert both[0].status_code == (200 if record["decision"]["outcome"] == "approved" else 409)
        await page.until("!!document.querySelector('.cards .is-settled')")
        await is_accessible(page, "inbox-settled")


@pytest.mark.console
async def test_a_decision_with_a_note_reaches_the_record(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "confirm with a note")
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    async with page_at(f"{demo}/console/inbox/{approval_id}") as page:
        await page.until("!!document.querySelector('.chosen .foot input')")
        await page.type(".chosen .foot input", "not on a Friday")
        await page.click(".chosen button.reject")
        await page.until(
            "document.querySelector('.chosen .outcome')?.innerText.startsWith('rejected')"
        )
        record = (await http.get(f"/v1/approvals/{approval_id}")).json()
        assert record["decision"]["note"] == "not on a Friday"
        is_clean(page, demo)


@pytest.mark.console
async def test_a_question_is_answered_by_the_form_of_its_schema(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "getinput")
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    async with page_at(f"{demo}/console/inbox/{approval_id}") as page:
        await page.until("!!document.querySelector('.answer textarea')")
        assert not await page.value("!!document.querySelector('.chosen button.reject')")
        assert await page.value("document.querySelector('.chosen button.approve').disabled")
        await page.type(".answer textarea", "Lima")
        await approve(page, ".chosen")
        await page.until("!!document.querySelector('.chosen .outcome')")
        record = (await http.get(f"/v1/approvals/{approval_id}")).json()
        assert record["decision"]["items"][0]["value"] == {"city": "Lima"}
        await has_status(http, run_id, "completed")
        is_clean(page, demo)


@pytest.mark.console
async def test_a_penstock_that_is_killed_in_the_middle_loses_and_repeats_nothing(
    agno_server: Upstream, tmp_path: Path
) -> None:
    config = tmp_path / "penstock.yaml"
    agent = {"id": "tester", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    config.write_text(yaml.safe_dump({"agents": [agent]}))
    up = Up(tmp_path, "--config", str(config))
    up.start()
    async with httpx.AsyncClient(base_url=up.url, timeout=30) as http:
        run_id = await started(http, "slow and killed")
        async with (
            page_at(f"{up.url}/console/runs/{run_id}?tab=events") as page,
            page_at(f"{up.url}/console/runs") as runs,
        ):
            await page.until("parseInt(document.querySelector('.events .dim')?.textContent) > 20")
            await row_of(runs, run_id, "running")
            up.signal(signal.SIGKILL)
            for each in (page, runs):
                await each.until("document.querySelector('.live').innerText.includes('lost')")
            up.start()
            ended = await has_status(http, run_id, "completed", "failed")
            status = "document.querySelector('.bar .status')?.textContent"
            await page.until(f"{status} === '{ended['status']}'")
            assert await page.value(ALL_ROWS) == await events_of(http, run_id)
            await row_of(runs, run_id, ended["status"])
            rows = f"document.querySelectorAll('tr[data-run=\"{run_id}\"]').length"
            assert await runs.value(rows) == 1
    assert up.signal(signal.SIGTERM) == 0


@pytest.mark.console
async def test_pages_of_a_machine_that_was_asleep_show_what_happened_meanwhile(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "Tell me a slow story", "assistant")
    asking = await started(http, "confirm in the night")
    approval_id = (await has_status(http, asking, "paused"))["approval_id"]
    async with (
        page_at(f"{demo}/console/runs/{run_id}?tab=events") as page,
        page_at(f"{demo}/console/runs") as runs,
        page_at(f"{demo}/console/inbox/{approval_id}") as inbox,
    ):
        await page.until("parseInt(document.querySelector('.events .dim')?.textContent) > 5")
        await row_of(runs, run_id, "running")
        await inbox.until("!!document.querySelector('.chosen button.approve')")
        for each in (page, runs, inbox):
            await each.send("Debugger.enable")
            await each.send("Debugger.pause")
        # Each stops at this statement, in view, as pages stop whose machine is asleep.
        asleep = [asyncio.create_task(each.value("1")) for each in (page, runs, inbox)]
        await decided(http, asking)
        assert (await http.post(f"/v1/runs/{run_id}/cancel", json={})).is_success
        await has_status(http, run_id, "cancelled")
        await has_status(http, asking, "completed")
        later = await started(http, "in the morning")
        await has_status(http, later, "completed")
        assert not any(each.done() for each in asleep)
        for each in (page, runs, inbox):
            await each.send("Debugger.disable")
        assert await asyncio.gather(*asleep) == [1, 1, 1]
        await page.until("document.querySelector('.bar .status')?.textContent === 'cancelled'")
        assert await page.value(ALL_ROWS) == await events_of(http, run_id)
        for each_id, status in ((run_id, "cancelled"), (asking, "completed"), (later, "completed")):
            await row_of(runs, each_id, status)
            rows = f"document.querySelectorAll('tr[data-run=\"{each_id}\"]').length"
            assert await runs.value(rows) == 1
        await inbox.until(
            "document.querySelector('.chosen .outcome')?.innerText === 'approved by anonymous'"
        )
        for each in (page, runs, inbox):
            is_clean(each, demo)


@pytest.mark.console
async def test_whoever_is_not_signed_in_is_asked_and_comes_back_to_the_same_screen(
    asking: str,
) -> None:
    async with page_at(f"{asking}/console/runs?status=paused") as page:
        await page.until("!!document.querySelector('#token')")
        await page.type("#token", token(sub="zoe", secret="another secret, of 32 bytes and more"))
        await page.click(".sign-in button")
        await page.until("document.querySelector('.sign-in .error').textContent !== ''")
        await page.type("#token", token(sub="zoe"))
        await page.click(".sign-in button")
        await page.until("document.querySelector('.empty')?.innerText.includes('No run fits')")
        assert await page.value("location.search") == "?status=paused"
        assert await page.text(".user") == "zoe"
        # The cookie ends while the page is open.
        await page.send("Network.clearBrowserCookies")
        await page.choose("#filter-status", "failed")
        await page.until("!!document.querySelector('#token')")


@pytest.mark.console
async def test_a_workflow_is_started_by_its_form_and_its_steps_are_seen_at_work(
    demo: str, http: httpx.AsyncClient
) -> None:
    async with page_at(f"{demo}/console/workflows") as page:
        await page.resize(1280)
        await page.until("document.querySelector('table')?.innerText.includes('code_review')")
        await is_accessible(page, "workflows")
        await page.click("a[href='/console/workflows/code_review']")
        await page.until("document.querySelectorAll('.node').length === 4")
        await is_accessible(page, "workflow")
        assert await page.value("document.querySelector('.start button').disabled")
        await page.type(".start textarea", "+password = 2")
        await page.click(".start button")
        await page.until("location.pathname.startsWith('/console/runs/')")
        states = "[...document.querySelectorAll('.node')].map((e) => [e.dataset.step, e.innerText])"
        await page.until(
            f"{states}.some(([id, text]) => id === 'sign_off' && /waits for a person/.test(text))"
        )
        await page.until("!!document.querySelector('.decision button.approve')")
        await is_accessible(page, "workflow-run")
        await approve(page, ".decision")
        await page.until("document.querySelector('.bar .status')?.textContent === 'completed'")
        await page.until(f"{states}.every(([, text]) => /completed, \\d[\\d.]* m?s/.test(text))")
        # A run without a message is known by its workflow and by what its input says.
        assert await page.text("h1") == "code_review: +password = 2"
        await page.go(f"{demo}/console/runs?text=PASSWORD+%3D+2")
        await page.until("!!document.querySelector('.run-link')")
        assert await page.text(".run-link") == "code_review: +password = 2"
        is_clean(page, demo)


@pytest.mark.console
async def test_a_rule_shows_its_deliveries_and_is_paused(
    demo: str, http: httpx.AsyncClient
) -> None:
    webhook = {"url": "https://nobody.invalid/hook"}
    rule = {
        "id": "nobody",
        "name": f"Nobody {HOSTILE}",
        "subjects": ["lifecycle.completed"],
        "action": {"webhook": webhook},
    }
    assert (await http.post("/v1/automations", json=rule)).status_code == 201
    await has_status(http, await started(http, "text for nobody"), "completed")
    async with page_at(f"{demo}/console/automations") as page:
        await page.resize(1280)
        await page.until(
            f"document.querySelector('table')?.innerText.includes({json.dumps(SHOWN)})"
        )
        await is_accessible(page, "automations")

        async def failing() -> bool:
            await page.go(f"{demo}/console/automations?{next(times)}")
            await page.until("!!document.querySelector(\"a[href$='/nobody']\")")
            read = "performance.getEntriesByType('resource').map((each) => each.name)"
            await page.until(f"{read}.filter((each) => each.includes('/deliveries?')).length === 2")
            await page.value("new Promise((done) => requestAnimationFrame(done))")
            row = "document.querySelector(\"a[href$='/nobody']\").closest('tr')"
            shown = await page.value(f"{row}.querySelector('.outcomes').textContent")
            return re.search(r"\d+ waiting the latest failure: .*resolved", shown) is not None

        times = itertools.count()
        await eventually(failing, 30)
        # The link has two lines, so its middle may be beside it.
        await page.value("document.querySelector(\"a[href$='/nobody']\").click()")
        await page.until("!!document.querySelector('nav.choices')")

        async def listed() -> bool:
            await page.value("document.querySelector('nav.choices + button').click()")
            return bool(await page.value("document.querySelectorAll('tbody tr').length > 0"))

        await eventually(listed, 30)
        assert "waiting" in await page.text("tbody tr")
        await is_accessible(page, "automation")
        await page.click("button.pause")
        await page.until("document.querySelector('button.pause').innerText === 'Resume the rule'")
        assert (await http.get("/v1/automations/nobody")).json()["paused"]
        await page.click("button.pause")
        await page.until("document.querySelector('button.pause').innerText === 'Pause the rule'")
        is_clean(page, demo)
    assert (await http.delete("/v1/automations/nobody")).status_code == 200


async def test_a_run_whose_content_was_erased_says_so(demo: str, http: httpx.AsyncClient) -> None:
    run_id = await started(http, "a secret", agent="assistant")
    await has_status(http, run_id, "completed")
    why = {"reason": "asked for <b>it</b>"}
    erased = await http.delete(f"/v1/runs/{run_id}/content", params=why)
    assert erased.is_success, erased.text
    async with page_at(f"{demo}/console/runs/{run_id}") as page:
        await page.until("!!document.querySelector('.item-end')")
        said = "The content of this run was erased by anonymous: asked for <b>it</b>"
        assert said in await page.text(".transcript")
        assert "a secret" not in await page.text("main")
        is_clean(page, demo)
