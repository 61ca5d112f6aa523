"""The workflows of deploy/n8n in a real n8n, against a real Penstock. Run by `make n8n-check`.

docs/n8n.md says what is tried here.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import httpx
import pytest
import yaml
from standardwebhooks.webhooks import Webhook

from support.drive.repository import ROOT
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET as JWT_SECRET
from support.fakes.issuer import token
from support.fakes.receiver import SECRET, Receiver, receiver
from support.real.n8n import PROGRAM, N8n
from support.real.up import Up
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.n8n, pytest.mark.timeout(600)]

FILES = ROOT / "deploy" / "n8n"
ANSWERS = "the-secret-of-the-wait-node"
RULES = """
rules:
  - id: finished
    subjects: [lifecycle.*]
    action: {{webhook: {{url: "{n8n}/webhook/penstock", secrets: ["{secret}"], expect: accepted}}}}
  - id: ask
    subjects: [approval.requested]
    where: 'event.data.items.exists(i, i.tool == "delete_document")'
    action: {{webhook: {{url: "{n8n}/webhook/penstock-approvals", secrets: ["{secret}"]}}}}
"""
POLICY = """
version: 1
rules: []
default: {outcome: ask, deciders: {users: ["service-token:n8n", requester]}}
"""


@dataclass
class World:
    """Penstock, n8n, and a receiver that stands for what a workflow does."""

    up: Up
    n8n: N8n
    http: httpx.AsyncClient
    work: Receiver

    async def run(self, message: str) -> str:
        body = {"agent": "assistant", "message": message}
        answer = await self.http.post("/v1/runs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    async def decision(self, run_id: str) -> dict[str, Any]:
        async def decided() -> dict[str, Any] | None:
            listed = (await self.http.get("/v1/approvals", params={"status": "decided"})).json()
            for each in listed["approvals"]:
                if each["run_id"] == run_id:
                    shown = await self.http.get(f"/v1/approvals/{each['approval_id']}")
                    return dict(shown.json()["decision"])
            return None

        return await eventually(decided, 60, "a decision")


def bearer(user: str, **claims: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {token(sub=user, **claims)}"}


def flow(name: str, penstock: str, stream_token: str, work: str) -> dict[str, Any]:
    """Return a workflow of deploy/n8n, with this Penstock, and with a receiver as its work."""
    text = (FILES / f"{name}.json").read_text()
    text = text.replace("https://penstock.example", penstock).replace("STREAM_TOKEN", stream_token)
    found: dict[str, Any] = json.loads(text)
    for node in found["nodes"]:
        if node["name"] in ("Your work", "Tell somebody"):
            node["type"], node["typeVersion"] = "n8n-nodes-base.httpRequest", 4.2
            node["parameters"] = {
                "method": "POST",
                "url": f"{work}{node['name'].replace(' ', '-')}",
                "sendBody": True,
                "specifyBody": "json",
                "jsonBody": "={{ $json }}",
                "options": {},
            }
    return found


def credentials(service_token: str) -> list[dict[str, Any]]:
    secret = base64.b64decode(SECRET.removeprefix("whsec_")).decode()
    answers = {"name": "X-Answer", "value": ANSWERS}
    penstock = {"name": "Authorization", "value": f"Bearer {service_token}"}
    return [
        {
            "id": id,
            "name": name,
            "type": type,
            "data": data,
        }
        for id, name, type, data in (
            ("penstock-webhook", "Penstock webhook secret", "crypto", {"hmacSecret": secret}),
            ("penstock-token", "Penstock service token", "httpHeaderAuth", penstock),
            ("penstock-answer", "Penstock answers", "httpHeaderAuth", answers),
        )
    ]


@pytest.fixture(scope="module")
async def world(
    agno_server: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    if not PROGRAM.exists():
        pytest.skip("no n8n: run `make n8n-packages`")
    folder = tmp_path_factory.mktemp("n8n")
    n8n = N8n(folder / "n8n")
    config, rules, policy = folder / "penstock.yaml", folder / "rules.yaml", folder / "policy.yaml"
    agent = {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    config.write_text(yaml.safe_dump({"agents": [agent]}))
    rules.write_text(RULES.format(n8n=n8n.url, secret=SECRET))
    policy.write_text(POLICY)
    up = Up(folder, "--config", str(config))
    environment = {
        "PENSTOCK_RULES": str(rules),
        "PENSTOCK_POLICY": str(policy),
        "PENSTOCK_WEBHOOK_ALLOW_HOSTS": "127.0.0.1",
        "PENSTOCK_AUTH_JWT_SECRET": JWT_SECRET,
        "PENSTOCK_RETRY_DELAYS_S": "[1, 2, 3, 5, 8, 13]",
        "PENSTOCK_CURSOR_SETTLE_S": "2",
    }
    await asyncio.to_thread(lambda: up.start(**environment))
    alice = bearer("alice", scope="start read decide")
    async with (
        receiver() as work,
        httpx.AsyncClient(base_url=up.url, headers=alice, timeout=20) as http,
    ):
        try:
            subjects = ["approval.requested", "lifecycle.*"]
            made = await http.post("/v1/tokens", json={"name": "n8n", "subjects": subjects})
            expiring = await http.post(
                "/v1/tokens", json={"name": "expiring", "subjects": subjects, "lifetime_s": 900}
            )
            service = await http.post(
                "/v1/service-tokens",
                json={"name": "n8n", "scopes": ["decide", "read"]},
                headers=bearer("root", scope="administer"),
            )
            assert (made.status_code, service.status_code) == (201, 201), service.text
            names = ("receive-webhook", "decide-by-rule", "ask-a-person")
            flows = {
                name: flow(name, up.url, made.json()["token"], work.url("/")) for name in names
            }
            flows["expiring"] = flow("decide-by-rule", up.url, expiring.json()["token"], "")
            await asyncio.to_thread(n8n.install, flows, credentials(service.json()["token"]))
            await asyncio.to_thread(n8n.start)
            yield World(up, n8n, http, work)
        finally:
            await asyncio.to_thread(n8n.stop)
            await asyncio.to_thread(up.signal, signal.SIGTERM)


async def came(world: World, path: str, run_id: str, count: int) -> list[Any]:
    """Wait for what the workflow has sent about a run."""

    def about() -> list[Any]:
        sent = [each.json for each in world.work.requests if each.path == path]
        return [each for each in sent if run_id in json.dumps(each)]

    async def enough() -> bool:
        return len(about()) >= count

    await eventually(enough, 60, f"{count} at {path} (n8n: {world.n8n.log()[-500:]})")
    return about()


async def test_a_signed_webhook_is_checked_and_worked_on_once(world: World) -> None:
    run_id = await world.run("Hello")
    sent = await came(world, "/Your-work", run_id, 2)
    assert [each["type"] for each in sent] == ["lifecycle.started", "lifecycle.completed"]
    body = json.dumps({"type": "t", "timestamp": "now", "data": {"run_id": "by-hand"}})
    now = datetime.now(UTC)

    async def post(id: str, at: datetime, sent: str, signed: str = SECRET) -> int:
        headers = {
            "webhook-id": id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Webhook(signed).sign(id, at, body),
            "content-type": "application/json",
        }
        async with httpx.AsyncClient() as http:
            url = f"{world.n8n.url}/webhook/penstock"
            return (await http.post(url, content=sent, headers=headers)).status_code

    other = "whsec_" + base64.b64encode(b"another secret of the same form").decode()
    assert await post("a", now, body) == 200
    assert await post("a", now, body) == 200  # a repetition is accepted, and not worked on
    assert await post("b", now, body.replace("by-hand", "tampered")) == 401
    assert await post("c", now, body, other) == 401
    assert await post("d", now - timedelta(minutes=20), body) == 401
    await asyncio.sleep(2)
    assert len(await came(world, "/Your-work", "by-hand", 1)) == 1
    assert "tampered" not in json.dumps([each.json for each in world.work.requests])


async def test_a_harmless_request_is_approved_over_the_event_stream_also_after_a_restart(
    world: World,
) -> None:
    run_id = await world.run("confirm A note")
    decision = await world.decision(run_id)
    assert (decision["outcome"], decision["by"]) == ("approved", "service-token:n8n")

    await asyncio.sleep(3)  # the event has settled
    before = len(world.n8n.executions("decide-by-rule"))
    await asyncio.to_thread(world.n8n.stop)
    missed = [await world.run(f"confirm Note {number}") for number in range(3)]
    for each in missed:
        await eventually(partial(waiting, world, each), 30, "an approval")
    await asyncio.to_thread(world.n8n.start)
    for each in missed:
        assert (await world.decision(each))["by"] == "service-token:n8n"
    await asyncio.sleep(2)
    assert len(world.n8n.executions("decide-by-rule")) == before + 3, "nothing is repeated"


async def test_a_person_answers_the_wait_node_and_the_workflow_decides(world: World) -> None:
    run_id = await world.run("confirm2")
    pause = await eventually(lambda: waiting(world, run_id), 30, "an approval")
    [question] = await came(world, "/Tell-somebody", pause["approval_id"], 1)
    assert "delete_document" in [each["tool"] for each in question["tools"]]
    assert (await waiting(world, run_id)) is not None, "the other workflow leaves it to people"
    url, answer = question["resume_url"], {"approved": True, "comment": "fine"}
    async with httpx.AsyncClient(timeout=20) as http:
        assert (await http.post(url, json=answer)).status_code == 403
        headers = {"X-Answer": ANSWERS}
        assert (await http.post(url, json=answer, headers=headers)).status_code == 200
        decision = await world.decision(run_id)
        assert (await http.post(url, json=answer, headers=headers)).status_code == 409
    assert (decision["outcome"], decision["by"]) == ("approved", "service-token:n8n")
    events = await world.http.get(
        f"/v1/runs/{run_id}/events", headers={"accept": "application/json"}
    )
    assert '"lifecycle"' in events.text


async def test_a_token_that_is_about_to_expire_fails_an_execution_that_says_so(
    world: World,
) -> None:
    async def failed() -> bool:
        return "error" in [status for _, status in world.n8n.executions("expiring")]

    await eventually(failed, 60, "a failed execution")
    assert "error" not in [status for _, status in world.n8n.executions("decide-by-rule")]


async def waiting(world: World, run_id: str) -> dict[str, Any] | None:
    listed = (await world.http.get("/v1/approvals")).json()
    found = [each for each in listed["approvals"] if each["run_id"] == run_id]
    return next((each for each in found if each["status"] == "pending"), None)
