"""The start screen and the API's screen in a real browser, over `penstock up --demo`."""

from __future__ import annotations

import json

import httpx
import pytest

from support.drive.waiting import eventually
from support.fakes.issuer import token
from support.real import up, upstreams
from support.real.consoles import (
    HOSTILE,
    SHOTS,
    SHOWN,
    approve,
    is_accessible,
    is_clean,
    sign_in,
)
from support.real.devtools import Page, page_at
from support.real.servers import SharedRun

# The demo starts two agent servers, which takes long on a busy machine.
pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

STREAMED, ASKS, LEFT = (f"#trial-{number}" for number in (1, 2, 3))


async def ready(page: Page, agent: str) -> None:
    await page.until(f"!!document.querySelector('.trial option[value={agent}]')")


async def starts(page: Page, card: str, agent: str, message: str | None = None) -> None:
    await page.choose(f"{card} select", agent)
    if message is not None:
        await page.type(f"{card} textarea", message)
    await page.click(f"{card} form button")


async def says(page: Page, card: str, words: str) -> None:
    state = f"document.querySelector('{card} > .foot [role=status]').textContent"
    await page.until(f"{state}.includes({json.dumps(words)})")


async def story(page: Page, card: str) -> str:
    return str(await page.value(f"document.querySelector('{card} .transcript').innerText"))


async def is_in_view(page: Page, selector: str) -> None:
    """Wait until nothing covers or cuts the middle of an element in its scrolled box."""
    await page.until(
        f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
        "one.closest('.stage').scrollIntoView({block: 'center'});"
        "const box = one.getBoundingClientRect();"
        "const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];"
        "return document.elementFromPoint(x, y) === one;"
        "})()"
    )


# Has the page get lists in which every run is still running, as from a service that lags behind.
OLD_LISTS = """
const fetched = window.fetch;
window.fetch = async (path, options) => {
  const answer = await fetched(path, options);
  if (!path.startsWith("/v1/runs?")) return answer;
  const { runs, next } = await answer.json();
  const old = runs.map((each) => ({ ...each, status: "running", sequence: 1 }));
  return new Response(JSON.stringify({ runs: old, next }), answer);
};
"""


# Has the page get no answer about the services, as while the edge has no connection to NATS.
NO_HEALTH = """
const asked = window.fetch;
window.fetch = async (path, options) => path === "/v1/health"
  ? new Response(JSON.stringify({ detail: "not connected to NATS" }), { status: 503 })
  : asked(path, options);
"""


async def test_health_says_when_the_services_answered_and_that_it_is_not_known(demo: str) -> None:
    health = "document.querySelector('aside').textContent"
    async with page_at(f"{demo}/") as page:
        await page.until("!!document.querySelector('#health')")
        assert await page.value(f"/All services answer[.]\\s*as of \\d/.test({health})")
        await page.value(f"{{ {NO_HEALTH} }}")
        await page.value("document.dispatchEvent(new Event('visibilitychange'))")
        await page.until(
            f"{health}.includes('not known whether the services answer: not connected')"
        )
        assert "All services answer" not in await page.value(health)


async def test_a_streamed_run_is_shown_as_it_comes_and_in_the_list(demo: str) -> None:
    async with page_at("about:blank") as page:
        await page.send("Page.addScriptToEvaluateOnNewDocument", source=OLD_LISTS)
        await page.go(f"{demo}/")
        await page.resize(1280)
        await ready(page, "assistant")
        await starts(page, STREAMED, "assistant", "What is the weather in Oslo?")
        await says(page, STREAMED, "completed with event")
        told = await story(page, STREAMED)
        assert "get_weather" in told
        assert '"Oslo"' in told
        assert "It is 21 degrees and clear in Oslo." in told
        # The lists that the API gives are behind, and the events are not.
        link = await page.value(f"document.querySelector('{STREAMED} > .foot a').pathname")
        row = f"document.querySelector('tr[data-run=\"{link.split('/')[-1]}\"]')?.innerText"
        await page.until(f"/completed\\s.*weather in Oslo/s.test({row})")
        await is_accessible(page, "start")
        await page.click(f"{STREAMED} > .foot a")
        await page.until("!!document.querySelector('main.run .item-end')")
        assert await page.value("location.pathname") == link
        await page.value("setTimeout(() => history.back()); null")
        await ready(page, "assistant")
        asked = [each for each in page.requested if "/v1/runs?" in each and "limit=50" in each]
        assert len(asked) == 2  # no list is asked for again and again
        is_clean(page, demo)


@pytest.mark.parametrize(
    ("button", "ends"),
    [
        ("approve", "Done: report.txt is gone"),
        pytest.param("reject", "stays where it is", marks=pytest.mark.console),
    ],
)
async def test_a_run_is_approved_or_rejected_by_a_click(demo: str, button: str, ends: str) -> None:
    async with page_at(f"{demo}/") as page:
        await ready(page, "assistant")
        await starts(page, ASKS, "assistant")
        await page.until(f"!!document.querySelector('{ASKS} .decision button.{button}')")
        assert await page.text(f"{ASKS} .decision .tool") == "delete_file"
        assert await page.text(f"{ASKS} .decision .tree") == 'path"report.txt"'
        await page.click(f"{ASKS} .decision .{button}")
        await says(page, ASKS, "completed with event")
        assert ends in await story(page, ASKS)
        link = await page.value(f"document.querySelector('{ASKS} > .foot a').pathname")
        query = {"run_id": link.split("/")[-1]}
        async with httpx.AsyncClient(base_url=demo, timeout=30) as http:
            [asked] = (await http.get("/v1/approvals", params=query)).json()["approvals"]
        assert asked["decision"]["decider"]["channel"] == "page"
        is_clean(page, demo)


@pytest.mark.console
async def test_a_workflow_shows_its_agents_and_asks(demo: str) -> None:
    async with page_at(f"{demo}/") as page:
        await ready(page, "code_review")
        await starts(page, ASKS, "code_review", "+password = 1")
        await page.until(f"!!document.querySelector('{ASKS} .decision button.approve')")
        told = await story(page, ASKS)
        assert "Scan this change:" in told
        # What is asked is in view together with the buttons.
        for part in (".tool", ".approve", ".reject"):
            await is_in_view(page, f"{ASKS} .decision {part}")
        await approve(page, f"{ASKS} .decision")
        await says(page, ASKS, "completed with event")
        assert "Code review finished successfully." in await story(page, ASKS)
        is_clean(page, demo)


@pytest.mark.console
async def test_a_stream_that_was_left_is_come_back_to_and_cancelled(demo: str) -> None:
    async with page_at(f"{demo}/") as page:
        await ready(page, "assistant")
        await starts(page, LEFT, "assistant")
        state = f"document.querySelector('{LEFT} > .foot [role=status]').textContent"
        await page.until(f"/event [5-9]/.test({state})")
        await page.click(f"{LEFT} > .foot button:first-of-type")
        await says(page, LEFT, "left after event")
        left = int((await page.value(state)).split("event ")[1].split(";")[0])
        await page.click(f"{LEFT} > .foot button:first-of-type")
        await page.until(f"Number(/event (\\d+), back since/.exec({state})?.[1]) > {left}")
        await page.click(f"{LEFT} > .foot button.reject")
        await says(page, LEFT, "cancelled with event")
        run_id = next(each for each in page.requested if "/events?" in each and "/runs/" in each)
        async with httpx.AsyncClient(headers={"accept": "application/json"}, timeout=30) as http:
            path = f"{demo}/v1/runs/{run_id.split('/')[5]}/events"
            events = (await http.get(path)).json()["events"]
        pieces = [each["data"]["content"] for each in events if each["event"]["action"] == "stream"]
        assert "".join(pieces) == await page.text(f"{LEFT} .item-message .text")
        assert f"cancelled with event {len(events)}" == await page.value(state)
        assert len([each for each in page.requested if "/runs/" in each and "after=" in each]) == 1
        is_clean(page, demo)


@pytest.fixture
def own_demo(test_run: SharedRun) -> str:
    """Return the address of a demo whose connector no other test needs."""
    return up.shared(
        test_run,
        "own-demo",
        "--demo",
        PENSTOCK_DEMO_AGNO_PYTHON=str(upstreams.AGNO.python),
        PENSTOCK_DEMO_ADK_PYTHON=str(upstreams.ADK.python),
    )


@pytest.mark.console
async def test_a_killed_connector_is_replaced_and_the_run_goes_on_without_a_gap(
    own_demo: str,
) -> None:
    async with page_at(f"{own_demo}/") as page:
        await ready(page, "assistant")
        await starts(page, LEFT, "assistant")
        state = f"document.querySelector('{LEFT} > .foot [role=status]').textContent"
        await page.until(f"/event [5-9]/.test({state})")
        await page.value(
            f"[...document.querySelectorAll('{LEFT} > .foot button')]"
            ".find((each) => each.innerText === 'End the connector').click()"
        )
        await says(page, LEFT, "the connector was killed")
        await says(page, LEFT, "completed with event")
        told = await page.text(f"{LEFT} .item-message .text")
        assert told.startswith("Once upon a time")
        assert told.endswith("the wheel turned once.")
        is_clean(page, own_demo)


async def test_elsewhere_nothing_can_be_ended(asking: str) -> None:
    async with httpx.AsyncClient(base_url=asking, timeout=30) as http:
        headers = {"authorization": f"Bearer {token(sub='dora')}"}
        answer = await http.post("/v1/demo/connector/end", json={}, headers=headers)
        assert answer.status_code == 404
        assert "END_CONNECTOR = null" in (await http.get("/assets/demo.js")).text


@pytest.mark.console
async def test_hostile_arguments_are_text_and_what_cannot_be_seen_is_named(demo: str) -> None:
    async with page_at(f"{demo}/") as page:
        await ready(page, "tester")
        await starts(page, ASKS, "tester", f"confirm {HOSTILE}")
        await page.until(f"!!document.querySelector('{ASKS} .decision button.reject')")
        assert SHOWN in await page.text(f"{ASKS} .decision .tree")
        marks = f"[...document.querySelectorAll('{ASKS} .decision .tree mark')]"
        assert await page.value(f"{marks}.map((each) => each.textContent)") == ["U+202E", "U+200B"]
        await page.until(
            f"document.querySelector('table.runs').innerText.includes({json.dumps(SHOWN)})"
        )
        assert await page.value("document.querySelectorAll('main img, main script').length") == 0
        assert "\u202e" not in await page.text("body")
        await page.click(f"{ASKS} .decision .reject")
        await says(page, ASKS, "completed with event")
        is_clean(page, demo)


# Has the page get agents whose server is still being set up, for the first two times.
BEING_SET_UP = """
const fetched = window.fetch;
let times = 0;
window.fetch = async (path, options) => {
  const answer = await fetched(path, options);
  if (path !== "/v1/agents") return answer;
  const { agents } = await answer.json();
  times += 1;
  const states = times > 2 ? {} : { answers: false, starting: true };
  const all = agents.map((each) => ({ ...each, ...states }));
  return new Response(JSON.stringify({ agents: all }), answer);
};
"""


@pytest.mark.console
async def test_agents_are_shown_as_they_answer(demo: str) -> None:
    async with page_at("about:blank") as page:
        await page.send("Page.addScriptToEvaluateOnNewDocument", source=BEING_SET_UP)
        await page.go(f"{demo}/")
        rows = "[...document.querySelectorAll('.agents li')].map(each => each.innerText)"
        await page.until(f"{rows}.some(row => /Vana.*adk.*is being set up/s.test(row))")
        await page.until(f"{rows}.some(row => /Vana.*adk.*answers/s.test(row))")
        assert any("does not answer" in row and "away" in row for row in await page.value(rows))
        assert len([each for each in page.requested if each.endswith("/v1/agents")]) >= 3
        await page.until("document.querySelector('aside').innerText.includes('services answer')")
        is_clean(page, demo)


@pytest.mark.console
async def test_it_is_used_with_the_keyboard_alone(demo: str) -> None:
    async with page_at(f"{demo}/") as page:
        await ready(page, "assistant")
        for _ in range(20):
            await page.press("Tab")
            if await page.value(f"document.activeElement.matches('{STREAMED} form button')"):
                break
        await page.press("Enter")
        await says(page, STREAMED, "completed with event")


@pytest.mark.console
async def test_docs_show_every_request_of_the_document(demo: str) -> None:
    async with httpx.AsyncClient(timeout=30) as http:
        told = (await http.get(f"{demo}/openapi.json")).json()
    async with page_at(f"{demo}/docs") as page:
        count = sum(len(item) for item in told["paths"].values()) + len(
            told["components"]["schemas"]
        )
        await page.until(f"document.querySelectorAll('details').length === {count}")
        headings = "[...document.querySelectorAll('main h2')].map(each => each.innerText)"
        assert {"Runs", "ADK", "Agno", "AG-UI", "Schemas"} <= set(await page.value(headings))
        paths = "[...document.querySelectorAll('.method + .path')].map(each => each.textContent)"
        assert set(await page.value(paths)) == set(told["paths"])
        await page.type("#filter", "post /v1/runs")
        shown = "[...document.querySelectorAll('details:not([hidden]) > summary')]"
        found = await page.value(f"{shown}.map((each) => each.textContent)")
        assert found[0].startswith("POST/v1/runs ")
        assert all(each.startswith("POST/v1/runs") for each in found)
        assert len(found) < 10
        assert not await page.value("!!document.querySelector('.empty')")
        assert "`" not in await page.text("main")
        await page.type("#filter", "post /v1/runs and no such word")
        await page.until("document.querySelector('.empty')?.innerText.startsWith('Nothing here')")
        if SHOTS:  # `make console-check`
            await page.type("#filter", "get")
            # axe-core takes a minute for all requests, which are alike.
            alike = "#operations section:not(:first-child, :last-child)"
            await page.value(f"document.querySelectorAll('{alike}').forEach((e) => e.remove())")
            await is_accessible(page, "docs")
        is_clean(page, demo)


@pytest.mark.console
async def test_where_callers_are_asked_a_pasted_token_opens_it_until_the_sign_out(
    asking: str,
) -> None:
    async with page_at(f"{asking}/") as page:
        await sign_in(page, token(sub="dora"))
        await ready(page, "tester")
        assert await page.text(".user") == "dora"
        assert "penstock_token" not in await page.value("document.cookie")
        await starts(page, ASKS, "tester", "confirm this one")
        await page.until(f"!!document.querySelector('{ASKS} .decision button.approve')")
        await page.click(f"{ASKS} .decision .approve")
        await says(page, ASKS, "completed with event")
        assert "approved by dora" in await story(page, ASKS)
        headers = {"authorization": f"Bearer {token(sub='dora')}"}
        async with httpx.AsyncClient(base_url=asking, headers=headers, timeout=30) as http:

            async def costs() -> int:
                total = (await http.get("/v1/costs")).json()["total"]
                return int(total["input_tokens"] if total["calls"] > 1 else 0)

            read = await eventually(costs, 30, "the sums of both legs")
        await page.go(f"{asking}/")
        await page.until("!!document.querySelector('#spent')")
        assert f"{read} tokens read" in await page.text("aside")
        await page.click(".user + button")
        await page.until("!!document.querySelector('#token')")
        assert "this one" not in await page.text("body")


@pytest.mark.console
async def test_a_decision_that_is_refused_says_so_in_view(asking: str) -> None:
    async with page_at(f"{asking}/") as page:
        await sign_in(page, token(sub="bob", scope="start read"))
        await ready(page, "tester")
        await starts(page, ASKS, "tester", "confirm " + "a long argument " * 60)
        await page.until(f"!!document.querySelector('{ASKS} .decision button.approve')")
        await approve(page, f"{ASKS} .decision")
        await page.until(f"document.querySelector('{ASKS} .decision .error').textContent !== ''")
        assert "scope" in await page.text(f"{ASKS} .decision .error")
        await is_in_view(page, f"{ASKS} .decision .error")
        await is_in_view(page, f"{ASKS} .decision .reject")
