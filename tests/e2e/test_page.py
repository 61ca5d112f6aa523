"""The first page and /docs work in a real browser, over `penstock up --demo`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from support.fakes.issuer import SECRET, token
from support.real import upstreams
from support.real.devtools import Page, page_at
from support.real.up import Up
from support.real.upstreams import Upstream

# The demo starts two agent servers, which takes long on a busy machine.
pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

STREAMED, ASKS, LEFT = (f".trial:nth-of-type({number})" for number in (1, 2, 3))
# A right-to-left override, a zero-width space and markup: the page must show them as plain text.
HOSTILE = "a\u202ecod.exe\u200b <img src=x onerror=alert(1)><script>alert(2)</script>"


class NotYet(BaseHTTPRequestHandler):
    """Answers as a demo server does whose environment is being made."""

    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("Retry-After", "5")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def demo(
    agno_server: Upstream, adk_server: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Up]:
    """Run the demo, with the tests' Agno server as the additional agent `tester`.

    The demo's own servers run in the environments of the tests' servers.
    """
    folder = tmp_path_factory.mktemp("demo")
    config = folder / "penstock.yaml"
    tester = {"id": "tester", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    away = {"id": "away", "protocol": "agui", "url": "http://127.0.0.1:9/"}
    with HTTPServer(("127.0.0.1", 0), NotYet) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        later = away | {"id": "later", "url": f"http://127.0.0.1:{server.server_port}/"}
        config.write_text(yaml.safe_dump({"agents": [tester, away, later]}))
        up = Up(folder, "--demo", "--config", str(config))
        up.start(
            PENSTOCK_DEMO_AGNO_PYTHON=str(upstreams.AGNO.python),
            PENSTOCK_DEMO_ADK_PYTHON=str(upstreams.ADK.python),
        )
        yield up
        assert up.signal(signal.SIGTERM) == 0
        server.shutdown()


@pytest.fixture(scope="module")
def asking(agno_server: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Run a Penstock that requires authentication."""
    folder = tmp_path_factory.mktemp("asking")
    config = folder / "penstock.yaml"
    agent = {"id": "tester", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    config.write_text(yaml.safe_dump({"agents": [agent]}))
    up = Up(folder, "--config", str(config))
    up.start(PENSTOCK_AUTH_JWT_SECRET=SECRET)
    yield up
    assert up.signal(signal.SIGTERM) == 0


async def ready(page: Page, agent: str) -> None:
    await page.until(f"!!document.querySelector('.trial option[value={agent}]')")


async def starts(page: Page, card: str, agent: str, message: str | None = None) -> None:
    await page.value(f"document.querySelector('{card} select').value = '{agent}'")
    if message is not None:
        await page.fill(f"{card} input", message)
    await page.click(f"{card} form button")


async def says(page: Page, card: str, words: str) -> None:
    state = f"document.querySelector('{card} .state').textContent"
    await page.until(f"{state}.includes({json.dumps(words)})")


async def is_in_view(page: Page, selector: str) -> bool:
    """Return whether nothing covers or cuts the middle of an element in its scrolled box."""
    return bool(
        await page.value(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.closest('.stage').scrollIntoView({block: 'center'});"
            "const box = one.getBoundingClientRect();"
            "const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];"
            "return document.elementFromPoint(x, y) === one;"
            "})()"
        )
    )


def is_clean(page: Page, url: str) -> None:
    """Check that all requests stayed on the origin and that the browser logged nothing.

    The browser would log exceptions and violations of the content security policy (CSP).
    """
    assert {urlsplit(each).netloc for each in page.requested} == {urlsplit(url).netloc}
    assert page.logged == []


async def test_a_streamed_run_is_shown_as_it_comes(demo: Up) -> None:
    async with page_at(f"{demo.url}/") as page:
        await ready(page, "assistant")
        await starts(page, STREAMED, "assistant")
        await says(page, STREAMED, "completed with event")
        log = await page.text(f"{STREAMED} .log")
        assert '→ get_weather(city="Paris")' in log
        assert "It is 21 degrees and clear in Paris." in log
        runs = "document.querySelector('#runs').textContent"
        await page.until(f"/What is the weather in Paris\\?.*completed/.test({runs})")
        is_clean(page, demo.url)


# Has the page get lists in which every run is still running, as from a service that lags behind.
OLD_LISTS = """
const fetched = window.fetch;
window.fetch = async (path, options) => {
  const answer = await fetched(path, options);
  if (!path.startsWith("/v1/runs?")) return answer;
  const text = (await answer.text()).replaceAll('"status":"completed"', '"status":"running"');
  return new Response(text, { status: answer.status });
};
undefined
"""


async def test_a_run_that_its_card_shows_as_completed_is_not_running_in_the_list(demo: Up) -> None:
    async with page_at(f"{demo.url}/") as page:
        await ready(page, "assistant")
        await page.value(OLD_LISTS)
        await starts(page, STREAMED, "assistant", "What is the weather in Oslo?")
        await says(page, STREAMED, "completed with event")
        row = "document.querySelector('#runs li').innerText"
        await page.until(f"/weather in Oslo.*completed/s.test({row})")
        others = "[...document.querySelectorAll('#runs li')].slice(1).map(each => each.innerText)"
        assert not [each for each in await page.value(others) if "completed" in each]


@pytest.mark.parametrize(
    ("button", "ends"), [("approve", "Done: report.txt is gone"), ("reject", "stays where it is")]
)
async def test_a_run_is_approved_or_rejected_by_a_click(demo: Up, button: str, ends: str) -> None:
    async with page_at(f"{demo.url}/") as page:
        await ready(page, "assistant")
        await starts(page, ASKS, "assistant")
        await says(page, ASKS, "waits for a person")
        assert await page.text(f"{ASKS} .asked .tool") == "delete_file"
        assert await page.text(f"{ASKS} .asked .args") == 'path"report.txt"'
        # The approval is also in the list of all waiting approvals, which is updated by the
        # decision.
        await page.until("!!document.querySelector('#approvals .asked:last-child:not(.settled)')")
        await page.click(f"{ASKS} .asked .{button}")
        await says(page, ASKS, "completed with event")
        assert ends in await page.text(f"{ASKS} .log")
        # What is decided does not stay under "Waiting for a person".
        await page.until("!document.querySelector('#approvals .asked')")
        await page.until("!document.querySelector('#no-approvals').hidden")
        is_clean(page, demo.url)


async def test_a_workflow_shows_its_agents_and_asks(demo: Up) -> None:
    async with page_at(f"{demo.url}/") as page:
        await ready(page, "code_review")
        await starts(page, ASKS, "code_review", "+password = 1")
        await says(page, ASKS, "waits for a person")
        log = await page.text(f"{ASKS} .log")
        assert "⇒ scanner: Scan this change:" in log
        assert '{"score": 82}' in log  # the linter's own words
        for button in (".approve", ".reject"):
            assert await is_in_view(page, f"{ASKS} .asked {button}")
        await page.click(f"{ASKS} .asked .approve")
        await says(page, ASKS, "completed with event")
        assert "Code review finished successfully." in await page.text(f"{ASKS} .log")
        # The runs of the workflow's steps belong to it, and are not in the list.
        runs = "[...document.querySelectorAll('#runs li')].map(each => each.innerText)"
        await page.until(f"/password = 1.*code_review.*completed/s.test({runs}[0])")
        assert not [each for each in await page.value(runs) if "Scan this change" in each]
        is_clean(page, demo.url)


async def test_a_run_of_the_list_is_shown_with_all_its_events(demo: Up) -> None:
    async with page_at(f"{demo.url}/") as page:
        await ready(page, "assistant")
        await starts(page, STREAMED, "assistant", "What is the weather in Lima?")
        await says(page, STREAMED, "completed with event")
        link = "document.querySelector('#runs li a')"
        await page.until(f"{link}.textContent === 'What is the weather in Lima?'")
        await page.click("#runs li a")
        chosen = "section[aria-labelledby=runs-title] .trial"
        await says(page, chosen, "completed with event")
        assert await page.text(f"{chosen} h3") == "What is the weather in Lima?"
        assert await page.text(f"{chosen} .log") == await page.text(f"{STREAMED} .log")
        await page.value("history.back()")
        await page.until(f"document.querySelector('{chosen}').hidden")
        is_clean(page, demo.url)


async def test_an_automation_that_cannot_deliver_is_named_until_it_is_deleted(demo: Up) -> None:
    webhook = {"url": "https://nobody.invalid/hook"}
    rule = {"id": "nobody", "subjects": ["lifecycle.completed"], "action": {"webhook": webhook}}
    async with (
        page_at(f"{demo.url}/") as page,
        httpx.AsyncClient(base_url=demo.url) as http,
    ):
        made = await http.post("/v1/automations", json=rule)
        assert made.status_code == 201, made.text
        await ready(page, "assistant")
        await starts(page, STREAMED, "assistant")
        await says(page, STREAMED, "completed with event")
        log = f"document.querySelector('{STREAMED} .log').textContent"
        await page.until(f"{log}.includes('automation nobody: waiting')")
        failing = "document.getElementById('automations')"
        await page.until(f"{failing}.textContent.includes('nobody1 waiting, 0 failed')")
        assert (await http.delete("/v1/automations/nobody")).status_code == 200
        await page.until(f"{failing}.hidden")


async def test_a_stream_that_was_left_is_come_back_to_and_cancelled(demo: Up) -> None:
    async with page_at(f"{demo.url}/") as page:
        await ready(page, "assistant")
        await starts(page, LEFT, "assistant")
        await page.until(f"/event [5-9]/.test(document.querySelector('{LEFT} .state').textContent)")
        await page.click(f"{LEFT} .leave")
        await says(page, LEFT, "left after event")
        left = int((await page.text(f"{LEFT} .state")).rsplit(" ", 1)[1])
        await page.click(f"{LEFT} .back")
        state = f"document.querySelector('{LEFT} .state').textContent"
        await page.until(f"Number(/event (\\d+)$/.exec({state})?.[1]) > {left}")
        await page.click(f"{LEFT} .cancel")
        await says(page, LEFT, "cancelled with event")
        log = await page.text(f"{LEFT} .log")
        before, after = log.split(f"you left after event {left}; the run goes on")
        marker = f"you are back, from event {left + 1} on"
        assert after.startswith(marker)
        run_id = next(each for each in page.requested if "/events?" in each).split("/")[5]
        async with httpx.AsyncClient(headers={"accept": "application/json"}, timeout=30) as http:
            events = (await http.get(f"{demo.url}/v1/runs/{run_id}/events")).json()["events"]
        pieces = [each["data"]["content"] for each in events if each["event"]["action"] == "stream"]
        said = before.removeprefix("▶ assistant") + after.removeprefix(marker)
        assert said == "".join(pieces) + "cancelled"
        ids = [each for each in page.requested if "after=" in each]
        assert len(ids) == 1
        is_clean(page, demo.url)


async def test_hostile_arguments_are_text_and_what_cannot_be_seen_is_named(demo: Up) -> None:
    async with page_at(f"{demo.url}/") as page:
        await ready(page, "tester")
        await starts(page, ASKS, "tester", f"confirm {HOSTILE}")
        await says(page, ASKS, "waits for a person")
        shown = HOSTILE.replace("\u202e", "U+202E").replace("\u200b", "U+200B")
        await page.until("!!document.querySelector('#approvals .asked:last-child:not(.settled)')")
        for box in (f"{ASKS} .asked", "#approvals .asked:last-child"):
            assert shown in await page.text(f"{box} .args")
            marks = f"[...document.querySelectorAll('{box} .args mark')].map(m => m.textContent)"
            assert await page.value(marks) == ["U+202E", "U+200B"]
        assert await page.value("document.querySelectorAll('main img, main script').length") == 0
        assert "\u202e" not in await page.text("body")
        await page.click(f"{ASKS} .asked .reject")
        await says(page, ASKS, "completed with event")
        is_clean(page, demo.url)


async def test_an_agent_whose_server_is_away_is_shown_so(demo: Up) -> None:
    async with page_at(f"{demo.url}/") as page:
        rows = "[...document.querySelectorAll('#agents li')].map(each => each.innerText)"
        await page.until(f"{rows}.some(row => /Vana.*adk.*answers/s.test(row))")
        assert any("does not answer" in row and "away" in row for row in await page.value(rows))


async def test_an_agent_whose_server_is_being_set_up_is_shown_so(demo: Up) -> None:
    async with page_at(f"{demo.url}/") as page:
        agents = "document.querySelector('#agents').textContent"
        await page.until(f"/later\\s*agui\\s*is being set up/.test({agents})")
        is_clean(page, demo.url)


async def test_it_is_used_with_the_keyboard_alone(demo: Up) -> None:
    async with page_at(f"{demo.url}/") as page:
        await ready(page, "assistant")
        for _ in range(10):
            await page.press("Tab")
            if await page.value(f"document.activeElement.matches('{STREAMED} form button')"):
                break
        await page.press("Enter")
        await says(page, STREAMED, "completed with event")


async def test_it_fits_a_narrow_window_in_light_and_dark(demo: Up) -> None:
    async with page_at(f"{demo.url}/") as page:
        for path in ("/", "/docs"):
            await page.go(demo.url + path)
            await page.until("document.querySelectorAll('option, details').length > 2")
            await page.value("document.querySelectorAll('details').forEach(d => d.open = true)")
            await page.resize(360)
            assert await page.value("document.documentElement.scrollWidth") == 360
            for dark in (False, True):
                await page.scheme(dark=dark)
                ground = await page.value("getComputedStyle(document.body).backgroundColor")
                assert ground == ("rgb(16, 21, 28)" if dark else "rgb(244, 246, 249)")


async def test_docs_show_every_request_of_the_document(demo: Up) -> None:
    async with httpx.AsyncClient(timeout=30) as http:
        told = (await http.get(f"{demo.url}/openapi.json")).json()
    async with page_at(f"{demo.url}/docs") as page:
        count = sum(len(item) for item in told["paths"].values()) + len(
            told["components"]["schemas"]
        )
        await page.until(f"document.querySelectorAll('details').length === {count}")
        headings = "[...document.querySelectorAll('main h2')].map(each => each.innerText)"
        assert {"Runs", "ADK", "Agno", "AG-UI", "Schemas"} <= set(await page.value(headings))
        paths = "[...document.querySelectorAll('.method + .path')].map(each => each.textContent)"
        assert set(await page.value(paths)) == set(told["paths"])
        await page.fill("#filter", "post /v1/runs")
        await page.value("document.querySelector('#filter').dispatchEvent(new Event('input'))")
        shown = "[...document.querySelectorAll('details:not([hidden])')].map(each => each.id)"
        assert await page.value(shown) == ["post_v1_runs", "post_v1_runs_run_id_cancel"]
        is_clean(page, demo.url)


async def test_where_callers_are_asked_a_pasted_token_opens_it_until_the_sign_out(
    asking: Up,
) -> None:
    async with page_at(f"{asking.url}/") as page:
        await page.until("!document.querySelector('#sign-in').hidden")
        await page.fill("#token", token(sub="alice", secret="another secret, of 32 bytes and more"))
        await page.click("#sign-in button")
        await page.until("document.querySelector('#sign-in .outcome').textContent !== ''")
        await page.fill("#token", token(sub="alice"))
        await page.click("#sign-in button")
        await ready(page, "tester")
        await page.until("document.querySelector('#sign-in').hidden")
        await page.until("document.querySelector('#who span').textContent === 'Signed in as alice'")
        assert "penstock_token" not in await page.value("document.cookie")
        await starts(page, ASKS, "tester", "confirm this one")
        await says(page, ASKS, "waits for a person")
        await page.click(f"{ASKS} .asked .approve")
        await says(page, ASKS, "completed with event")
        assert "approved by alice" in await page.text(f"{ASKS} .log")
        await page.click("#who button")
        await page.until("document.querySelector('#sign-in')?.hidden === false")
        assert "this one" not in await page.text("main")


async def test_a_decision_that_is_refused_says_so_in_view(asking: Up) -> None:
    async with page_at(f"{asking.url}/") as page:
        await page.until("!document.querySelector('#sign-in').hidden")
        await page.fill("#token", token(sub="bob", scope="start read"))
        await page.click("#sign-in button")
        await ready(page, "tester")
        await starts(page, ASKS, "tester", "confirm " + "a long argument " * 60)
        await says(page, ASKS, "waits for a person")
        await page.click(f"{ASKS} .asked .approve")
        outcome = f"{ASKS} .asked .outcome"
        await page.until(f"document.querySelector('{outcome}').textContent !== ''")
        assert "scope" in await page.text(outcome)
        assert await is_in_view(page, outcome)
        assert await is_in_view(page, f"{ASKS} .asked .reject")
