"""Nobody decides what he has asked for himself: attacks on separate services with real agents.

Frank and the attackers have the role `finance`. `four-eyes` asks finance without the requester,
`two` asks two people of finance, and `broken` has a rule that rejects, whose condition fails.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.drive.access import AGUI
from support.drive.bus import connected
from support.drive.secured import bearer
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.drive.workflows import define, definition
from support.fakes.issuer import SECRET
from support.fakes.policies import written
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

POLICY = """\
rules:
  - {id: large, match: {agent: broken}, when: args.title > 1000.0, outcome: reject}
  - {id: two, match: {agent: two}, outcome: ask, need: 2, deciders: {roles: [finance]}}
  - id: four-eyes
    match: {agent: [four-eyes, adk, outer]}
    outcome: ask
    deciders: {roles: [finance], not: [requester]}
"""
# `outer` asks itself, and then runs `inner`, whose step is a run of `four-eyes`.
INNER = definition("name: inner\nsteps: {pay: {run: {agent: four-eyes, message: '\"confirm A\"'}}}")
OUTER = definition(
    "name: outer\nsteps: {sign: {approve: {title: '\"Pay?\"', show: '{\"sum\": 5}'}},"
    " below: {needs: [sign], workflow: {workflow: inner}}}"
)
SERVICES = dict.fromkeys(("workflows", "automations", "normalizer", "approvals"), 1)
SCOPES = "start read raw decide"
FRANK = bearer("frank", scope=SCOPES, roles=["finance"])
MALLORY = bearer("mallory", scope=f"{SCOPES} act-as automate", roles=["finance"], org="acme")
ROOT = bearer("root", scope=f"{SCOPES} administer", roles=["finance"])
MALLORY_ADMIN = bearer("mallory", scope=f"{SCOPES} administer", org="acme")
Caller = dict[str, str]


@dataclass
class Office:
    """The deployment, as its users see it."""

    penstock: Deployment

    def url(self, service: str, path: str) -> str:
        return f"{self.penstock.of(service)[0].url}{path}"

    async def post(self, service: str, path: str, who: Caller, body: Any) -> httpx.Response:
        return await self.penstock.http.post(self.url(service, path), json=body, headers=who)

    async def start(self, agent: str, who: Caller, **body: Any) -> str:
        """Start a run over /v1; return its id."""
        asked = {"agent": agent, "message": "confirm A", **body}
        answer = await self.post("edge", "/v1/runs", who, asked)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    async def asks(self, run_id: str) -> dict[str, Any]:
        """Wait until the run asks; return the record of its pending approval."""
        url = self.url("approvals", f"/v1/approvals?run_id={run_id}&status=pending")

        async def found() -> dict[str, Any] | None:
            answer = await self.penstock.http.get(url, headers=ROOT)
            records = answer.json()["approvals"]
            return records[0] if records else None

        return await eventually(found, 30, f"an approval of run {run_id}")

    async def decide(self, record: dict[str, Any], who: Caller, **more: str) -> httpx.Response:
        body = {"approved": True, "digest": record["digest"], **more}
        path = f"/v1/approvals/{record['approval_id']}/decision"
        return await self.post("approvals", path, who, body)

    async def waits_for(self, who: Caller) -> list[str]:
        url = self.url("approvals", "/v1/approvals?waits_for=me&limit=1000")
        answer = await self.penstock.http.get(url, headers=who)
        return [each["approval_id"] for each in answer.json()["approvals"]]

    async def token(self, maker: Caller, name: str, **rights: Any) -> Caller:
        body = {"name": name, "scopes": ["decide", "read"], "roles": ["finance"], **rights}
        answer = await self.post("edge", "/v1/service-tokens", maker, body)
        assert answer.status_code == 201, answer.text
        return {"authorization": f"Bearer {answer.json()['token']}"}

    async def link(self, record: dict[str, Any], maker: Caller, user: str) -> httpx.Response:
        path = f"/v1/approvals/{record['approval_id']}/links"
        return await self.post("approvals", path, maker, {"user": user, "role": "finance"})

    async def form(self, link: httpx.Response) -> Callable[[], Awaitable[httpx.Response]]:
        """Open the page of a link; return a function that sends its form."""
        url = self.url("approvals", link.json()["url"])
        page = await self.penstock.http.get(url)
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
        assert found is not None, page.text
        data = {"csrf": found[1], "decision": "approve"}
        return lambda: self.penstock.http.post(url, data=data)

    async def votes(self, record: dict[str, Any]) -> list[str]:
        url = self.url("approvals", f"/v1/approvals/{record['approval_id']}")
        shown = (await self.penstock.http.get(url, headers=ROOT)).json()
        return [each["by"] for each in shown["votes"]]

    async def audit(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        url = self.url("approvals", f"/v1/approvals/{record['approval_id']}/audit")
        records: list[dict[str, Any]] = (await self.penstock.http.get(url, headers=ROOT)).json()[
            "records"
        ]
        return records


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def office(
    nats_server: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Office]:
    folder = tmp_path_factory.mktemp("office")
    agno = {"protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    agents: list[dict[str, Any]] = [
        *({"id": id, **agno} for id in ("four-eyes", "two", "broken", "free")),
        {"id": "outer", "protocol": "workflow"},
        {"id": "adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
    ]
    services = {**SERVICES, "connector": 1, "edge": 1}
    policy = written(folder, POLICY)
    async with deployment(
        nats_server.url,
        folder,
        agents,
        services,
        auth_jwt_secret=SECRET,
        auth_tenant_claim="org",
        policy=policy,
    ) as running:
        async with connected(nats_server.url) as bus:
            await define(bus, INNER)
            await define(bus, OUTER)
        yield Office(running)


# Somebody starts a run for another user ----------------------------------------------------------


async def by_v1(office: Office) -> str:
    return await office.start("four-eyes", MALLORY, user_id="bob")


async def by_agno(office: Office) -> str:
    answer = await office.penstock.http.post(
        office.url("edge", "/agents/four-eyes/runs"),
        data={"message": "confirm A", "stream": "false", "background": "true", "user_id": "bob"},
        headers=MALLORY,
    )
    assert answer.is_success, answer.text
    return str(answer.json()["run_id"])


async def by_adk(office: Office) -> str:
    path = "/apps/demo/users/bob/sessions/s-mallory"
    await office.post("edge", path, MALLORY, {})
    message = {"role": "user", "parts": [{"text": "confirm"}]}
    body = {"appName": "demo", "userId": "bob", "sessionId": "s-mallory", "newMessage": message}
    answer = await office.post("edge", "/run_sse", MALLORY, body)
    assert answer.is_success, answer.text
    return answer.headers["penstock-run-id"]


async def by_legacy_adk(office: Office) -> str:
    path = "/apps/four-eyes/users/bob/sessions/s-legacy"
    await office.post("edge", path, MALLORY, {})
    answer = await office.post("edge", f"{path}/run", MALLORY, {"query": "confirm A"})
    assert answer.is_success, answer.text
    return answer.headers["penstock-run-id"]


async def by_workflow_name(office: Office) -> str:
    answer = await office.post("workflows", "/v1/workflows/outer/runs", MALLORY, {"user_id": "bob"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


@pytest.mark.parametrize(
    "start",
    in_short([by_v1, by_agno, by_adk, by_legacy_adk, by_workflow_name], [by_v1, by_workflow_name]),
)
async def test_who_starts_a_run_for_another_does_not_decide_it(
    office: Office, start: Callable[[Office], Awaitable[str]]
) -> None:
    run_id = await start(office)
    run = await office.penstock.http.get(office.url("edge", f"/v1/runs/{run_id}"), headers=MALLORY)
    assert (run.json()["user_id"], run.json()["started_by"]) == ("bob", ["mallory"])
    record = await office.asks(run_id)
    refused = await office.decide(record, MALLORY)
    assert refused.status_code == 403, refused.text
    assert "mallory, who started the run" in refused.text
    for user in ("carol", "bob"):
        assert (await office.decide(record, MALLORY, by=user)).status_code == 403
    assert record["approval_id"] not in await office.waits_for(MALLORY)
    assert record["approval_id"] in await office.waits_for(FRANK)
    assert (await office.decide(record, FRANK)).status_code == 200
    requested, *_ = await office.audit(record)
    assert (requested["by"], requested["started_by"]) == ("bob", ["mallory"])


async def test_the_answers_of_agent_protocols_do_not_walk_round_it(office: Office) -> None:
    run_id = await by_v1(office)
    record = await office.asks(run_id)
    item_id = record["items"][0]["item_id"]
    body = {"tools": [{"tool_call_id": item_id, "confirmed": True}], "stream": True}
    path = f"/agents/four-eyes/runs/{run_id}/continue"
    answer = await office.post("edge", path, MALLORY, body)
    assert answer.status_code == 403, answer.text

    resumed = [{"interruptId": f"{record['approval_id']}/{item_id}", "status": "resolved"}]
    resumed[0]["payload"] = True  # type: ignore[assignment]
    body = AGUI | {"threadId": record["session_id"], "runId": "r2", "resume": resumed}
    answer = await office.post("edge", "/agui/four-eyes", MALLORY, body)
    assert answer.status_code in (403, 404, 409), answer.text

    run_id = await by_adk(office)
    adk = await office.asks(run_id)
    part = {"name": "adk_request_confirmation", "response": {"confirmed": True}}
    message = {
        "role": "user",
        "parts": [{"functionResponse": {"id": adk["items"][0]["item_id"], **part}}],
    }
    body = {"appName": "demo", "userId": "bob", "sessionId": "s-mallory", "newMessage": message}
    answer = await office.post("edge", "/run_sse", MALLORY, body)
    assert answer.status_code == 403, answer.text
    for each in (record, adk):
        assert await office.votes(each) == []
        assert (await office.decide(each, FRANK)).status_code == 200


async def test_the_requester_of_a_childs_approval_is_who_started_the_root(office: Office) -> None:
    outer = await office.start("outer", MALLORY, user_id="bob", input={})
    signing = await office.asks(outer)
    assert (await office.decide(signing, MALLORY)).status_code == 403
    assert (await office.decide(signing, FRANK)).status_code == 200

    async def child() -> dict[str, Any] | None:
        url = office.url("approvals", "/v1/approvals?agent=four-eyes&status=pending&limit=1000")
        found = (await office.penstock.http.get(url, headers=ROOT)).json()["approvals"]
        for each in found:
            run = await office.penstock.http.get(
                office.url("edge", f"/v1/runs/{each['run_id']}"), headers=ROOT
            )
            if run.json().get("root_run_id") == outer:
                return {**each, "tenant": run.json()["tenant"]}
        return None

    paying = await eventually(child, 30, "the approval of the inner workflow's step")
    assert paying["tenant"] == "acme"
    assert (paying["user_id"], paying["started_by"]) == ("bob", ["mallory"])
    assert (await office.decide(paying, MALLORY)).status_code == 403
    assert (await office.decide(paying, FRANK)).status_code == 200


# Tokens, links and rules of a requester or a voter -----------------------------------------------


async def test_tokens_and_links_of_the_requester_give_no_vote_beside_his_own(
    office: Office,
) -> None:
    record = await office.asks(await office.start("two", ROOT))
    tokens = [await office.token(ROOT, name) for name in ("first", "second")]
    for token in tokens:
        assert (await office.decide(record, token)).status_code == 404
        assert record["approval_id"] not in await office.waits_for(token)
    link = await office.link(record, ROOT, "frank")
    assert link.status_code == 422, link.text
    assert "the user whose run asks" in link.text
    assert (await office.decide(record, ROOT)).json()["status"] == "pending"
    assert await office.votes(record) == ["root"]
    assert (await office.decide(record, FRANK)).json()["status"] == "decided"


@pytest.mark.parametrize(
    "first", in_short(["his own vote", "his token", "his link"], ["his token"])
)
async def test_tokens_and_links_of_a_voter_give_no_vote_beside_his_own(
    office: Office, first: str
) -> None:
    record = await office.asks(await office.start("two", bearer("bob")))
    token = await office.token(ROOT, "voters", on_behalf_of=["frank"])
    link = await office.link(record, ROOT, "grace")
    assert link.status_code == 201, link.text
    send_form = await office.form(link)

    async def own() -> int:
        return (await office.decide(record, ROOT)).status_code

    async def by_token() -> int:
        return (await office.decide(record, token, by="frank")).status_code

    async def by_link() -> int:
        return (await send_form()).status_code

    ways = {"his own vote": own, "his token": by_token, "his link": by_link}
    assert await ways.pop(first)() in (200, 303)
    # The token and the link are for two other people, so they may vote beside one another.
    if first == "his own vote":
        assert await by_token() == 409
        assert await by_link() == 409
    else:
        assert await own() == 409
    assert len(await office.votes(record)) == 1
    carol = bearer("carol", scope=SCOPES, roles=["finance"])
    assert (await office.decide(record, carol)).json()["status"] == "decided"
    told = [each for each in await office.audit(record) if each.get("token_id")]
    assert [each["token_maker"] for each in told] == ["root"] * len(told)
    assert len(told) >= (first != "his own vote")


async def test_a_machine_of_the_requester_does_not_make_two_people_of_him(office: Office) -> None:
    machine = await office.token(ROOT, "erp", scopes=["start"], roles=[])
    run_id = await office.start("four-eyes", machine)
    record = await office.asks(run_id)
    assert (record["user_id"], record["started_by"]) == ("service-token:erp", ["root"])
    assert (await office.decide(record, ROOT)).status_code == 403
    assert (await office.decide(record, FRANK)).status_code == 200


async def test_a_rule_of_the_requester_decides_nothing_for_him(office: Office) -> None:
    requester = bearer("bob", scope=f"{SCOPES} automate", roles=["finance"])
    rule = {
        "id": "yes-to-all",
        "subjects": ["approval.requested"],
        "action": {"decide": {"decision": "approve"}},
    }
    made = await office.post("automations", "/v1/automations", requester, rule)
    assert made.status_code == 201, made.text
    asked = [
        await office.asks(await office.start(agent, requester)) for agent in ("four-eyes", "two")
    ]
    url = office.url("automations", "/v1/automations/yes-to-all/deliveries")

    async def tried() -> bool:
        found = (await office.penstock.http.get(url, headers=requester)).json()["deliveries"]
        return len([each for each in found if each["status"] in ("failed", "delivered")]) == 2

    await eventually(tried, 30, "the rule has tried both")
    assert [await office.votes(each) for each in asked] == [[], ["bob"]]
    assert (await office.decide(asked[1], requester)).status_code == 409
    for each in asked:
        assert (await office.decide(each, FRANK)).json()["status"] == "decided"
    gone = office.url("automations", "/v1/automations/yes-to-all")
    assert (await office.penstock.http.delete(gone, headers=requester)).status_code == 200


async def test_who_makes_anothers_rule_start_a_run_does_not_decide_it(office: Office) -> None:
    owner = bearer("bob", scope=f"{SCOPES} act-as automate", roles=["finance"], org="umbrella")
    rule = {
        "id": "pay-after",
        "subjects": ["lifecycle.started"],
        "where": "event.data.agent == 'free'",
        "action": {"run": {"agent": "four-eyes", "message": "confirm A"}},
    }
    made = await office.post("automations", "/v1/automations", owner, rule)
    assert made.status_code == 201, made.text
    root = await office.start("free", FRANK, message="hello")

    async def started() -> str | None:
        url = office.url("edge", "/v1/runs?agent=four-eyes&limit=100")
        found = (await office.penstock.http.get(url, headers=ROOT)).json()["runs"]
        return next((each["run_id"] for each in found if each.get("root_run_id") == root), None)

    run_id = await eventually(started, 30, "the rule's run")
    run = await office.penstock.http.get(office.url("edge", f"/v1/runs/{run_id}"), headers=ROOT)
    assert run.json()["tenant"] == "umbrella"
    record = await office.asks(run_id)
    assert (record["user_id"], record["started_by"]) == ("bob", ["frank"])
    for requester in (FRANK, owner):
        assert (await office.decide(record, requester)).status_code in (403, 404)
    carol = bearer("carol", scope=SCOPES, roles=["finance"])
    assert (await office.decide(record, carol)).status_code == 200


# Tenants -----------------------------------------------------------------------------------------


async def test_a_run_and_its_costs_count_for_the_tenant_of_whoever_started_it(
    office: Office,
) -> None:
    run_id = await office.start("free", MALLORY, user_id="bob", message="hello")
    pages = {"accept": "application/json"}
    events = office.url("edge", f"/v1/runs/{run_id}/events")

    async def costs() -> list[Any]:
        sums = await office.penstock.http.get(
            office.url("edge", "/v1/costs?by=tenant&user=bob&agent=free"), headers=ROOT
        )
        return [each for each in sums.json()["costs"] if each["tenant"]]

    [sums] = await eventually(costs, 30, "the costs of the run")
    assert (sums["tenant"], sums["calls"]) == ("acme", 1)
    started = (await office.penstock.http.get(events, headers=ROOT | pages)).json()["events"][0]
    assert started["data"]["tenant"] == "acme"
    machine = await office.token(MALLORY_ADMIN, "meter", scopes=["start", "read"], roles=[])
    of_machine = await office.start("free", machine, message="hello")
    run = await office.penstock.http.get(office.url("edge", f"/v1/runs/{of_machine}"), headers=ROOT)
    assert run.json()["tenant"] == "acme"


# A rule that cannot be evaluated -----------------------------------------------------------------


async def test_an_argument_that_breaks_a_rejecting_rule_leaves_the_requester_no_vote(
    office: Office,
) -> None:
    for who, more in ((bearer("bob", scope=SCOPES), {}), (MALLORY, {"user_id": "bob"})):
        record = await office.asks(await office.start("broken", who, **more))
        refused = await office.decide(record, who)
        assert refused.status_code == 403, refused.text
        assert await office.votes(record) == []
        assert (await office.decide(record, ROOT)).status_code == 200
