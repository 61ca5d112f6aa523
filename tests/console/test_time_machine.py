"""Run again and compare, in a real browser, over `penstock up --demo`."""

from __future__ import annotations

import json

import httpx
import pytest

from support.real.consoles import (
    HOSTILE,
    SHOWN,
    approve,
    decided,
    has_status,
    is_accessible,
    is_clean,
    started,
)
from support.real.devtools import page_at

# The demo starts two agent servers, which takes long on a busy machine.
pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

HERE = "location.pathname.split('/').at(-1)"


async def completed(http: httpx.AsyncClient, message: str) -> str:
    """Start a run that asks a person, allow it, and return its id when it has completed."""
    run_id = await started(http, message)
    await decided(http, run_id)
    await has_status(http, run_id, "completed")
    return run_id


async def test_a_run_is_run_again_after_what_it_called_was_named(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await completed(http, f"textconfirm first {HOSTILE}")
    async with page_at(f"{demo}/console/runs/{run_id}") as page:
        await page.resize(1280)
        await page.until("!!document.querySelector('.item-end')")
        await page.click(".run-again")
        await page.until("document.activeElement.id === 'again-text'")
        calls = await page.text(".again .called")
        [call] = (await http.get(f"/v1/runs/{run_id}/state")).json()["tool_calls"]
        assert calls.strip() == call["tool"]
        assert await page.value("document.activeElement.value") == f"textconfirm first {HOSTILE}"
        assert SHOWN in await page.text(".again")
        await is_accessible(page, "again")
        await page.type("#again-text", "textconfirm second")
        await page.click(".again button[type=submit]")
        await page.until(f"{HERE} !== '{run_id}'")
        again = await page.value(HERE)
        # The tool has not run: a person is asked again.
        await page.until("!!document.querySelector('.decision button.approve')")
        record = (await http.get(f"/v1/runs/{again}")).json()
        assert record["forked_from"] == {"run_id": run_id, "sequence": 0}
        assert record["message"] == "textconfirm second"
        await page.click(".decision button.approve")
        await page.until("!!document.querySelector('.item-end')")
        events = (
            await http.get(f"/v1/runs/{again}/events", headers={"accept": "application/json"})
        ).json()
        assert events["events"][0]["data"]["forked_from"] == {"run_id": run_id, "sequence": 0}
        # Both are compared: the same items, whose texts and arguments differ.
        await page.click(".crumbs a.forked + a")
        await page.until("!!document.querySelector('.rows li')")
        assert await page.value("location.pathname") == f"/console/compare/{run_id}/{again}"
        assert await page.value("document.querySelectorAll('.is-missing').length") == 0
        first = "document.querySelector('.rows li').innerText"
        assert SHOWN in await page.value(first)
        assert "textconfirm second" in await page.value(first)
        equal = (
            "[...document.querySelectorAll('.rows li:not(.is-different)')].map((e) => e.innerText)"
        )
        assert any("I will create it now." in each for each in await page.value(equal))
        await page.click(".bar input[type=checkbox]")
        await page.until("!document.querySelector('.rows li:not(.is-different)')")
        await is_accessible(page, "compare")
        assert await page.value("document.querySelectorAll('main img, main script').length") == 0
        assert "\u202e" not in await page.value("document.documentElement.outerHTML")
        is_clean(page, demo)


@pytest.mark.console
async def test_a_workflow_is_run_again_with_an_edited_input(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, "+password = 3", "code_review")
    await decided(http, run_id)
    await has_status(http, run_id, "completed")
    async with page_at(f"{demo}/console/runs/{run_id}") as page:
        await page.until("!!document.querySelector('.run-again')")
        await page.click(".run-again")
        await page.until("!!document.querySelector('#again-text')")
        told = json.loads(await page.value("document.querySelector('#again-text').value"))
        assert told["message"] == "+password = 3"
        await page.type("#again-text", "{")
        await page.click(".again button[type=submit]")
        await page.until("document.querySelector('.again .error').innerText.includes('no JSON')")
        await page.type("#again-text", json.dumps({**told, "message": "+password = 4"}))
        await page.click(".again button[type=submit]")
        await page.until(f"{HERE} !== '{run_id}'")
        record = (await http.get(f"/v1/runs/{await page.value(HERE)}")).json()
        assert record["forked_from"] == {"run_id": run_id, "sequence": 0}
        await page.until("!!document.querySelector('.decision button.reject')")
        story = await page.value("document.querySelector('.transcript').innerText")
        assert "+password = 4" in story
        await page.click(".decision button.reject")
        is_clean(page, demo)


@pytest.mark.console
async def test_runs_that_did_different_things_stand_beside_each_other(
    demo: str, http: httpx.AsyncClient
) -> None:
    one = await completed(http, "textconfirm one")
    other = await started(http, "What is the weather in Rome?", "assistant")
    await has_status(http, other, "completed")
    async with page_at(f"{demo}/console/runs/{one}") as page:
        # The latest runs of the same agent can be chosen, any other one by its id.
        await page.until("!!document.querySelector('#other option')")
        listed = "[...document.querySelectorAll('#other option')].map((each) => each.value)"
        await page.until(f"{listed}.length > 2")
        assert one not in await page.value(listed)
        await page.choose("#other", "further")
        await page.until("document.activeElement.id === 'other-run'")
        await page.type("#other-run", other)
        await page.press("Enter")
        await page.until("!!document.querySelector('.rows li')")
        rows = "[...document.querySelectorAll('.rows li')].map((e) => e.innerText)"
        lonely = [each for each in await page.value(rows) if "not in this run" in each]
        assert any("get_weather" in each for each in lonely)
        # Every item of both runs is in a row.
        text = "\n".join(await page.value(rows))
        assert "textconfirm one" in text
        assert "It is 21 degrees and clear in Rome." in text
        await page.go(f"{demo}/console/compare/{one}/{one}")
        await page.until(
            "document.querySelector('.bar [role=status]')?.innerText === 'Nothing differs'"
        )
        is_clean(page, demo)


@pytest.mark.console
async def test_a_workflow_is_forked_before_a_step_and_says_what_is_not_done_again(
    demo: str, http: httpx.AsyncClient
) -> None:
    message = f"+password = 5 {HOSTILE}"
    run_id = await started(http, message, "code_review")
    await decided(http, run_id)
    await has_status(http, run_id, "completed")
    steps = {
        each["step_id"]: each
        for each in (await http.get(f"/v1/runs/{run_id}/state")).json()["steps"]
    }
    async with page_at(f"{demo}/console/runs/{run_id}") as page:
        await page.resize(1280)
        await page.until("!!document.querySelector('.run-fork:not([disabled])')")
        # The last step, from its panel in the graph.
        last = [*steps][-1].removeprefix("step_")
        await page.click(f"[data-step={last}] button")
        await page.until("!!document.querySelector('.step-panel .fork-before')")
        await page.click(".step-panel .fork-before")
        await page.until("!!document.querySelector('.forecast .called')")
        forecast = await page.text(".forecast")
        assert forecast.index("Not done again") < forecast.index("step_") < forecast.index(last)
        await is_accessible(page, "fork")
        await page.click(".again button[type=submit]")
        await page.until(f"{HERE} !== '{run_id}'")
        forked = await page.value(HERE)
        # A person is asked again before what the decision allows.
        await approve(page, ".decision")
        await page.until("!!document.querySelector('.item-end')")
        assert "goes on after event" in await page.text(".crumbs")
        assert await page.value("document.querySelectorAll('.item-step .taken').length") >= 2
        record = await has_status(http, forked, "completed")
        assert record["forked_from"]["run_id"] == run_id
        below = (await http.get("/v1/runs", params={"parent_run_id": forked})).json()["runs"]
        assert [each["step_id"] for each in below] == [f"step_{last}"]
        await page.click("#tab-timeline")
        await page.until("document.querySelectorAll('.lane .bars li').length > 3")
        kinds = "[...document.querySelectorAll('.lane-name .dim')].map((e) => e.innerText)"
        assert {"step", "approval", "agent"} <= {*await page.value(kinds)} | {"agent"}
        await is_accessible(page, "timeline")
        await page.click("#tab-costs")
        await page.until("!!document.querySelector('.story p.dim, .story table.costs')")
        await page.click("#tab-state")
        await page.until("!!document.querySelector('.state-at')")
        # The stream counts the events of the steps' runs, too; the state those of the run itself.
        last = int(await page.value("document.querySelector('.state-at').dataset.at"))
        path = f"/v1/runs/{forked}/state"
        states = [(await http.get(path, params={"at": at})).json() for at in (last - 1, last)]
        assert [each["status"] for each in states] == ["running", "completed"]
        await page.click("#tab-raw")
        await page.until("document.querySelector('.story').innerText.includes('have the bytes')")
        assert await page.value("document.querySelectorAll('main img, main script').length") == 0
        assert "\u202e" not in await page.value("document.documentElement.outerHTML")
        is_clean(page, demo)


async def test_an_agents_run_is_forked_after_the_result_of_a_tool(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await completed(http, f"textconfirm fork {HOSTILE}")
    events = (
        await http.get(f"/v1/runs/{run_id}/events", headers={"accept": "application/json"})
    ).json()["events"]
    result = next(each for each in events if each["event"]["action"] == "tool_result")
    async with page_at(f"{demo}/console/runs/{run_id}?at={result['sequence']}") as page:
        await page.until("!!document.querySelector('.run-fork:not([disabled])')")
        await page.click("#tab-raw")
        await page.until("document.querySelector('.bytes')?.innerText.includes('RunCompleted')")
        await page.go(f"{demo}/console/runs/{run_id}?at={result['sequence']}")
        await page.until("!!document.querySelector('.run-fork:not([disabled])')")
        await page.click(".run-fork")
        await page.until("document.activeElement.id === 'fork-sequence'")
        assert await page.value("document.activeElement.value") == str(result["sequence"])
        await page.until("document.querySelector('.forecast').innerText.includes('one tool')")
        await page.click(".again button[type=submit]")
        await page.until(f"{HERE} !== '{run_id}'")
        forked = await page.value(HERE)
        await page.until("!!document.querySelector('.item-end')")
        state = (await http.get(f"/v1/runs/{forked}/state")).json()
        assert (state["status"], state["tool_calls"]) == ("completed", [])
        is_clean(page, demo)
