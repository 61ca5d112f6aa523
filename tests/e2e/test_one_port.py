"""The services of docker-compose.yml as separate processes, behind its proxy, with JWKS."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from typer.testing import CliRunner

from penstock_cli.demo import RECIPES, DemoServer
from penstock_cli.main import app
from support.drive.repository import ROOT
from support.drive.short import in_short
from support.fakes.issuer import JwksServer, Key
from support.real import upstreams
from support.real.caddy import caddy
from support.real.consoles import sign_in
from support.real.deployment import Deployment, deployment
from support.real.devtools import page_at
from support.real.forked import finished
from support.real.nats import NatsServer, write_passwords

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

COMPOSE = ROOT / "deploy/compose"
WITH_API = ("edge", "approvals", "automations", "workflows", "console")
ONE_OF_EACH = dict.fromkeys((*WITH_API, "connector", "normalizer"), 1)
SECRET = "a-csrf-secret-that-all-services-share"


@dataclass
class Scene:
    penstock: Deployment
    key: Key

    def token(self) -> str:
        return self.key.token(sub="alice", scope="start read decide automate workflow")

    async def sign_in(self) -> dict[str, str]:
        """Sign in at the edge; return the headers with its cookies and its CSRF token."""
        http, edge = self.penstock.http, self.penstock.edge()
        # An address of another machine, as a proxy names it: local callers need no CSRF token.
        headers = {"x-forwarded-for": "192.0.2.1"}
        bearer = {**headers, "authorization": f"Bearer {self.token()}"}
        signed = await http.post(f"{edge}/v1/login", headers=bearer)
        assert signed.is_success, signed.text
        # (The client itself does not send cookies that are for TLS to a plain URL.)
        headers["cookie"] = "; ".join(f"{name}={value}" for name, value in signed.cookies.items())
        told = await http.get(f"{edge}/v1/csrf", headers=headers)
        headers["cookie"] += "".join(f"; {name}={value}" for name, value in told.cookies.items())
        return {**headers, "x-csrf-token": told.json()["csrf_token"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(
    nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("one-port")
    agents = yaml.safe_load((COMPOSE / "penstock.yaml").read_text())["agents"]
    async with AsyncExitStack() as stack:
        issuer = JwksServer()
        issuer.keys = [Key("first")]
        await issuer.start()
        stack.push_async_callback(issuer.stop)
        for recipe, python in zip(
            RECIPES, (upstreams.AGNO.python, upstreams.ADK.python), strict=True
        ):
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv(f"PENSTOCK_DEMO_{recipe.name.upper()}_PYTHON", str(python))
                demo = DemoServer(recipe)
                await demo.start(folder)
            stack.push_async_callback(demo.stop)
            await demo.healthy()
            for agent in agents:
                if agent["protocol"] == recipe.name:
                    agent["url"] = demo.url
        yield Scene(
            await stack.enter_async_context(
                deployment(
                    nats_server.url,
                    folder / "penstock",
                    agents,
                    ONE_OF_EACH,
                    auth_jwks_url=issuer.url,
                    auth_csrf_secret=SECRET,
                    nats_passwords=write_passwords(folder / "passwords"),
                    workflows=ROOT / "services/cli/penstock_cli/demo/workflows",
                )
            ),
            issuer.keys[0],
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Run the proxy of docker-compose.yml with its own configuration; return its URL."""
    places = {name.upper(): f"127.0.0.1:{scene.penstock.of(name)[0].port}" for name in WITH_API}
    folder = tmp_path_factory.mktemp("caddy")
    async with caddy(folder, COMPOSE / "Caddyfile", "/console/runs", **places) as found:
        yield found


async def test_a_cookie_and_a_csrf_token_of_one_service_are_accepted_by_every_service(
    scene: Scene,
) -> None:
    headers = await scene.sign_in()
    for name, path in (
        ("approvals", "/v1/approvals/unknown/decision"),
        ("automations", "/v1/automations"),
        ("workflows", "/v1/workflows/code_review/runs"),
    ):
        place = scene.penstock.of(name)[0].url
        answer = await scene.penstock.http.post(place + path, json={}, headers=headers)
        assert answer.status_code in (400, 404, 422), (name, answer.text)
        wrong = {**headers, "x-csrf-token": "wrong"}
        refused = await scene.penstock.http.post(place + path, json={}, headers=wrong)
        assert refused.status_code == 403


@pytest.mark.chaos
async def test_services_with_secrets_of_their_own_are_found_by_the_doctor(scene: Scene) -> None:
    probes = [scene.penstock.of(name)[0].probes for name in WITH_API]

    async def found() -> tuple[str, str]:
        given = [word for probe in probes for word in ("--probe", probe)]
        nowhere = ("--nats", "nats://127.0.0.1:9", "--json")
        done = await asyncio.to_thread(CliRunner().invoke, app, ["doctor", *nowhere, *given])
        said = [json.loads(line) for line in done.stdout.splitlines()]
        [check] = [each for each in said if each["check"] == "csrf"]
        return check["verdict"], check["text"]

    assert (await found())[0] == "ok"
    other = {"PENSTOCK_AUTH_CSRF_SECRET": "another-secret-that-one-service-alone-has"}
    stranger = await scene.penstock.start("approvals", environment=other)
    probes.append(stranger.probes)
    verdict, text = await found()
    assert verdict == "wrong"
    assert stranger.probes in text
    assert SECRET not in text
    await scene.penstock.kill(stranger)


@pytest.mark.parametrize("service", in_short(WITH_API, ("edge",)))
async def test_a_separate_service_with_jwks_does_not_start_without_the_shared_secret(
    service: str,
) -> None:
    environment = {
        "PENSTOCK_AUTH_JWKS_URL": "https://issuer.example/keys",
        "PENSTOCK_NATS_URL": "nats://127.0.0.1:9",
        "PENSTOCK_CONFIG": os.devnull,
    }
    done = await asyncio.to_thread(finished, ["-m", f"penstock_{service}"], environment)
    assert done.returncode == 2
    assert "set PENSTOCK_AUTH_CSRF_SECRET" in done.stderr


@pytest.mark.chaos
async def test_a_signed_in_browser_starts_and_decides_through_the_one_port(
    scene: Scene, url: str
) -> None:
    card = "#trial-2"
    async with page_at(f"{url}/") as page:
        await sign_in(page, scene.token())
        assert await page.text(".user") == "alice"
        await page.until(f"!!document.querySelector('{card} option[value=vana]')")
        await page.choose(f"{card} select", "vana")
        await page.type(f"{card} input", "Please delete report.txt")
        await page.click(f"{card} form button")
        await page.until(f"!!document.querySelector('{card} .decision button.approve')")
        await page.click(f"{card} .decision .approve")
        await page.until(f"!!document.querySelector('{card} .item-end')")
        assert "completed" in await page.text(f"{card} .item-end")


# Decides with the code of the page when the event arrives, faster than a person could click.
DECIDE_AT_ONCE = """(async () => {
  const { post } = await import("/assets/api.js");
  const run = await post("/v1/runs", { agent: "vana", message: "Please delete report.txt" });
  const stream = new EventSource(`/v1/runs/${run.run_id}/events`);
  const { data } = JSON.parse(
    await new Promise((seen) => stream.addEventListener("approval.requested", (m) => seen(m.data))),
  );
  stream.close();
  const items = data.items.map(({ item_id }) => ({ item_id, decision: "approve" }));
  const path = `/v1/approvals/${data.approval_id}/decision`;
  return (await post(path, { items, digest: data.digest })).status;
})()"""


@pytest.mark.chaos
async def test_a_browser_that_sees_a_request_decides_it_at_once(scene: Scene, url: str) -> None:
    async with page_at(f"{url}/") as page:
        await sign_in(page, scene.token())
        assert await page.text(".user") == "alice"
        found = [await page.value(DECIDE_AT_ONCE) for _ in range(5)]
    assert found == ["decided"] * 5


@pytest.mark.parametrize(
    ("agent", "message"),
    in_short(
        [("assistant", "Please delete it"), ("code_review", "+password = 1")],
        [("assistant", "Please delete it")],
    ),
)
async def test_the_command_line_approves_through_the_one_port(
    scene: Scene, url: str, agent: str, message: str
) -> None:
    command = ["run", message, "--agent", agent, "--yes", "--url", url]
    done = await asyncio.to_thread(
        CliRunner().invoke, app, command, env={"PENSTOCK_TOKEN": scene.token()}
    )
    assert done.exit_code == 0, done.output
    assert "completed" in done.output
