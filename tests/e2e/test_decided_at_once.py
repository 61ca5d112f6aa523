"""A client that has seen `approval.requested` can read and decide at once, with real agent servers
and separate processes."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.drive.secured import bearer
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET
from support.real.deployment import Deployment, deployment, frames
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real
ASKS = {"agno": "confirm A note", "adk": "confirm", "pydantic-ai": "Please delete report.txt"}
# The reads and writes of an approval. Each is the first request about one of the approvals.
FIRST = ("", "/audit", "/lines", "/links", "/decision", "/decision")


@pytest.fixture(scope="module")
async def penstock(
    nats_server: NatsServer,
    tmp_path_factory: pytest.TempPathFactory,
    agno_server: Upstream,
    adk_server: Upstream,
    pydantic_ai_server: Upstream,
) -> AsyncIterator[Deployment]:
    agents = [
        {"id": "agno", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"},
        {"id": "adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
        {"id": "pydantic-ai", "protocol": "agui", "url": f"{pydantic_ai_server.url}/approval"},
    ]
    services = {"normalizer": 1, "approvals": 1, "automations": 1, "connector": 1, "edge": 1}
    async with deployment(
        nats_server.url,
        tmp_path_factory.mktemp("at-once"),
        agents,
        services,
        auth_jwt_secret=SECRET,
    ) as running:
        yield running


@pytest.mark.parametrize("agent", in_short(ASKS, ("agno",)))
async def test_an_approval_is_known_to_whom_has_seen_its_event(
    penstock: Deployment, agent: str
) -> None:
    order = ["approval.requested", "lifecycle.paused", "approval.decided", "lifecycle.resumed"]
    for first in FIRST:
        statuses, types = await decided_at_once(penstock, agent, first)
        assert not set(statuses) - {200, 201}, (agent, first, statuses)
        assert [type_ for type_ in types if type_ in order] == order


async def decided_at_once(
    penstock: Deployment, agent: str, first: str, decider: dict[str, str] | None = None, **more: str
) -> tuple[list[int], list[str]]:
    """Start a run, make the first request when it asks, approve, and follow the run to its end.

    `decider` sends the requests in Alice's place, with `more` in their bodies. Return the statuses
    of the requests, and the types of the run's events.
    """
    http, alice = penstock.http, bearer("alice", scope="start read decide administer")
    runs = f"{penstock.edge()}/v1/runs"
    body = {"agent": agent, "message": ASKS[agent]}
    run_id = (await http.post(runs, json=body, headers=alice)).json()["run_id"]
    statuses, types = [], []
    url = f"{runs}/{run_id}/events"
    async with asyncio.timeout(60), http.stream("GET", url, headers=alice) as answer:
        async for frame in frames(answer):
            types.append(str(frame.event))
            if frame.event == "approval.requested":
                data = json.loads(frame.data)["data"]
                for path in (first,) if first == "/decision" else (first, "/decision"):
                    statuses.append(await asked(penstock, data, path, decider or alice, **more))
            if frame.event == "lifecycle.completed":
                return statuses, types
    raise AssertionError(f"the run did not complete: {types}")


@pytest.mark.chaos
async def test_service_tokens_and_rules_decide_at_once_too(penstock: Deployment) -> None:
    http, root = penstock.http, bearer("root", scope="administer")
    rights = {"name": "machine", "scopes": ["decide", "read"], "on_behalf_of": ["alice"]}
    made = await http.post(f"{penstock.edge()}/v1/service-tokens", json=rights, headers=root)
    token = {"authorization": f"Bearer {made.json()['token']}"}
    for agent in (*ASKS, *ASKS):
        statuses, _ = await decided_at_once(penstock, agent, "/decision", token, by="alice")
        assert statuses == [200], agent

    [automations] = penstock.of("automations")
    rules, bob = f"{automations.url}/v1/automations", bearer("bob", scope="automate decide start")
    rule = {
        "id": "gate",
        "subjects": ["approval.requested"],
        "action": {"decide": {"decision": "approve"}},
    }
    assert (await http.post(rules, json=rule, headers=bob)).status_code == 201
    asking = (*ASKS, *ASKS)
    for agent in asking:
        body = {"agent": agent, "message": ASKS[agent]}
        await http.post(f"{penstock.edge()}/v1/runs", json=body, headers=bob)

    async def delivered() -> list[dict[str, Any]] | None:
        found = (await http.get(f"{rules}/gate/deliveries", headers=bob)).json()["deliveries"]
        done = [each for each in found if each["status"] == "delivered"]
        return done if len(done) == len(asking) else None

    deliveries = await eventually(delivered, 60, "the rule has decided all")
    assert {each["attempts"] for each in deliveries} == {1}


async def asked(
    penstock: Deployment, data: dict[str, Any], path: str, caller: dict[str, str], **more: str
) -> int:
    url = f"{penstock.approvals}/v1/approvals/{data['approval_id']}{path}"
    items = [{"item_id": item["item_id"], "decision": "approve"} for item in data["items"]]
    bodies = {
        "/links": {"user": "alice"},
        "/decision": {"items": items, "digest": data["digest"], **more},
    }
    if path in bodies:
        return (await penstock.http.post(url, json=bodies[path], headers=caller)).status_code
    return (await penstock.http.get(url, headers=caller)).status_code


@pytest.mark.chaos
async def test_a_user_who_asks_for_unknown_ids_does_not_slow_another(penstock: Deployment) -> None:
    http, mallory = penstock.http, bearer("mallory")

    async def median_s() -> float:
        latencies_s = []
        for _ in range(30):
            begun = time.monotonic()
            listed = await http.get(f"{penstock.approvals}/v1/approvals", headers=bearer("alice"))
            latencies_s.append(time.monotonic() - begun)
            assert listed.status_code == 200
        return statistics.median(latencies_s)

    alone_s = await median_s()
    asking = [asyncio.create_task(_ask_for_unknown_ids(penstock, mallory)) for _ in range(90)]
    try:
        beside_s = await median_s()
        statuses, _ = await decided_at_once(penstock, "agno", "/decision")
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert statuses == [200]
    # On a machine that has no time, each request takes longer also without the other user.
    assert beside_s < max(1, 8 * alone_s)


async def _ask_for_unknown_ids(penstock: Deployment, caller: dict[str, str]) -> None:
    number = 0
    while True:
        number += 1
        unknown = f"00000000-0000-4000-8000-{number:012}"
        url = f"{penstock.approvals}/v1/approvals/{unknown}/decision"
        answer = await penstock.http.post(url, json={"approved": True}, headers=caller)
        assert answer.status_code in (404, 429)
