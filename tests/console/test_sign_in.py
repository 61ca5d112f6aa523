"""People sign in at a real OpenID Connect provider in a real browser."""

from __future__ import annotations

import pytest
import yaml

from support.real import up, upstreams
from support.real.devtools import Page, page_at
from support.real.servers import SharedRun
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.console, pytest.mark.timeout(180)]


@pytest.fixture
def signed(test_run: SharedRun, agno_server: Upstream) -> str:
    """Return the address of a Penstock at which people sign in with a provider."""
    config = test_run.folder / "signed.yaml"
    agent = {"id": "tester", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    config.write_text(yaml.safe_dump({"agents": [agent]}))
    return up.shared(
        test_run,
        "signed",
        *("--config", str(config)),
        PENSTOCK_OIDC_ISSUER=upstreams.shared(upstreams.OIDC, test_run).url,
        PENSTOCK_OIDC_CLIENT_ID="penstock",
        PENSTOCK_OIDC_CLIENT_SECRET="a-secret-of-the-client/+%",
        PENSTOCK_AUTH_COOKIE_SECURE="false",
        PENSTOCK_AUTH_LEEWAY_S="0",
    )


LINKS = "[...document.querySelectorAll('.top nav a')].map((each) => each.textContent)"
TITLE = "document.querySelector('h1')?.innerText"


async def sign_in(page: Page, user: str) -> None:
    """Go to the provider, and be this user there."""
    await page.click(".provider")
    await page.click(f"button[value={user}]")
    await page.until(f"document.querySelector('.user')?.textContent === '{user}'")


async def test_a_person_comes_back_to_the_page_that_asked_and_signs_out(signed: str) -> None:
    async with page_at(f"{signed}/console/runs?status=paused") as page:
        await page.until("!!document.querySelector('.provider')")
        await sign_in(page, "alice")
        assert await page.value("location.pathname + location.search") == (
            "/console/runs?status=paused"
        )
        await page.until(f"{TITLE} === 'Runs'")
        assert "token" not in await page.value("document.cookie")
        await page.click(".user + button")
        await page.until(f"{TITLE} === 'Who are you?'")
        # The provider asks again, because the person has signed out there, too.
        await page.click(".provider")
        await page.until("!!document.querySelector('button[value=nobody]')")
        await page.click("button[value=nobody]")
        await page.until(
            "document.querySelector('.sign-in .error')?.innerText.includes('let you in')"
        )


async def test_a_sign_in_that_has_ended_says_so_and_one_click_goes_on(signed: str) -> None:
    async with page_at(f"{signed}/console/inbox") as page:
        await page.until("!!document.querySelector('.provider')")
        await sign_in(page, "brief")
        await page.until("document.querySelector('.sign-in')?.innerText.includes('has ended')")
        assert await page.value("!document.querySelector('.user')")
        await page.click(".provider")
        await page.until("document.querySelector('.user')?.textContent === 'brief'")
        assert await page.value("location.pathname") == "/console/inbox"


async def test_each_sees_the_screens_of_their_scopes(signed: str) -> None:
    for user, seen in {
        "dora": ["Runs", "Inbox", "Workflows", "API"],
        "root": ["Start", "Runs", "Inbox", "Workflows", "Automations"],
    }.items():
        async with page_at(f"{signed}/") as page:
            await page.until("!!document.querySelector('.provider')")
            await sign_in(page, user)
            found = await page.value(LINKS)
            assert [each for each in found if each in seen] == seen
            assert ("Automations" in found) == ("Automations" in seen)
            if user == "dora":
                # Whoever cannot start a run begins where decisions are.
                await page.until("location.pathname === '/console/inbox'")
                await page.go(f"{signed}/console/automations")
                await page.until("document.body.innerText.includes('needs the scope automate')")
