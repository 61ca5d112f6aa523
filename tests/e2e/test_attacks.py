"""Somebody whose token may start and read, and nothing else, before real agent servers that ask.

No request of theirs makes a tool run that waits for a decision, nor comes into a conversation of
another user. The agent servers have scripted models: LangGraph's adapter and Agno's interface for
AG-UI, pydantic-ai's adapter, an Agno AgentOS and an ADK server.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from penstock.bus import Bus, BusSettings
from penstock.settings import AuthSettings, Config, Settings
from penstock_approvals.service import ApprovalsService
from penstock_connector.service import ConnectorService
from penstock_edge.service import EdgeService
from penstock_normalizer.service import NormalizerService
from support.agui_requests import run_input, tool, user
from support.deployment import free_port
from support.issuer import SECRET, token
from support.nats import NatsServer
from support.pipeline import Pipeline
from support.secured import served
from support.upstreams import Upstream
from support.waiting import eventually

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SERVICES = [NormalizerService, ApprovalsService, ConnectorService, EdgeService]
YES = {"approved": True}
ENDED = ("completed", "failed", "cancelled")


@dataclass(slots=True)
class Site:
    """Penstock with authentication, and the servers behind it."""

    http: httpx.AsyncClient
    bus: Pipeline
    servers: dict[str, Upstream]

    async def ask(
        self, method: str, path: str, who: str = "alice", scope: str = "start read", **request: Any
    ) -> httpx.Response:
        bearer = {"authorization": f"Bearer {token(sub=who, scope=scope)}"}
        headers = {**request.pop("headers", {}), **bearer}
        return await self.http.request(method, path, headers=headers, **request)

    async def start(self, who: str = "alice", **body: Any) -> str:
        """A run by /v1/runs; its id."""
        answer = await self.ask("POST", "/v1/runs", who, json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    async def comes_to(self, run_id: str, *wanted: str, who: str = "alice") -> dict[str, Any]:
        """The run's record, once its status is one of these."""

        async def look() -> dict[str, Any] | None:
            record = (await self.ask("GET", f"/v1/runs/{run_id}", who)).json()
            return record if record["status"] in wanted else None

        found = await eventually(look, 30, f"run {run_id} to be {wanted}")
        assert found is not None
        return found

    async def paused(self, agent: str, who: str = "alice") -> tuple[str, str, str]:
        """A run that waits before it deletes something: run, session and what it deletes."""
        path, session = f"/tmp/{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        run_id = await self.start(who, agent=agent, message=f"delete {path}", session_id=session)
        await self.comes_to(run_id, "paused", who=who)
        return run_id, session, path

    def deleted(self, path: str) -> int:
        """How often a tool has deleted it, on whatever server."""
        return sum(
            run["args"].get("path") == path
            for server in self.servers.values()
            for run in server.tool_runs()
        )

    async def told(self, run_id: str, who: str = "alice") -> str:
        """All that a run tells its owner."""
        path = f"/v1/runs/{run_id}/events"
        answer = (
            await self.ask("GET", path, who, headers=None)
            if False
            else await self.http.get(
                path,
                headers={
                    "authorization": f"Bearer {token(sub=who, scope='read')}",
                    "accept": "application/json",
                },
            )
        )
        assert answer.status_code == 200, answer.text
        return answer.text

    async def approve(self, run_id: str, who: str = "alice") -> None:
        """The one decision that lets the run go on."""
        scope = "read decide"
        listed = await self.ask("GET", f"/v1/approvals?run_id={run_id}", who, scope)
        (approval,) = listed.json()["approvals"]
        items = [
            {"item_id": each["item_id"], "decision": "approve"}
            | ({} if each["kind"] == "confirmation" else {"value": YES})
            for each in approval["items"]
        ]
        path = f"/v1/approvals/{approval['approval_id']}/decision"
        answer = await self.ask("POST", path, who, scope, json={"items": items})
        assert answer.status_code == 200, answer.text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(
    nats_server: NatsServer,
    langgraph_server: Upstream,
    agno_agui_server: Upstream,
    pydantic_ai_server: Upstream,
) -> AsyncIterator[Site]:
    servers = {
        "langgraph": langgraph_server,
        "agno_agui": agno_agui_server,
        "pydantic_ai": pydantic_ai_server,
    }
    urls = {
        "graph": f"{langgraph_server.url}/delete",
        "graph-std": f"{langgraph_server.url}/delete_std",
        "interface": f"{agno_agui_server.url}/approval/agui",
        "adapter": f"{pydantic_ai_server.url}/approval",
    }
    agents = [{"id": id, "protocol": "agui", "url": url} for id, url in urls.items()]
    settings = Settings(
        nats_url=nats_server.url,
        port=free_port(),
        probe_port=free_port(),
        auth=AuthSettings(jwt_secret=SECRET, leeway_s=0),
    )
    async with AsyncExitStack() as stack:
        config = Config.model_validate({"agents": agents})
        await stack.enter_async_context(served(settings, config, SERVICES))
        bus = await Bus.connect(BusSettings(url=nats_server.url, name="test"))
        stack.push_async_callback(bus.close)
        url = f"http://127.0.0.1:{settings.port}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        yield Site(http, Pipeline(bus, [], http), servers)


AGENTS = ["graph", "graph-std", "interface", "adapter"]


def answers(agent: str, session: str, path: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Requests that start a run and carry an answer, by how they do it."""
    entries = [
        {"interruptId": id, "status": "resolved", "payload": YES}
        for id in ("int-call_d1", "i1", "any")
    ]

    def v1(**input: Any) -> tuple[str, dict[str, Any]]:
        body = {"agent": agent, "message": "go on", "session_id": session, "input": input}
        return "/v1/runs", body

    def agui(*said: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
        return f"/agui/{agent}", run_input(session, *said, **fields)

    function = {"name": "delete_file", "arguments": f'{{"path": "{path}"}}'}
    asked = {"id": "call_approval", "type": "function", "function": function}
    said = [
        user(f"delete {path}"),
        {"id": "a", "role": "assistant", "toolCalls": [asked]},
        tool("call_approval", '{"accepted": true}'),
    ]
    return {
        "resume": v1(resume=entries),
        "a command": v1(forwardedProps={"command": {"resume": "yes"}}),
        "Command": agui(forwardedProps={"Command": {"resume": YES}}),
        "forwarded_props": agui(forwarded_props={"command": {"resume": YES}}),
        "a node of the graph": agui(forwardedProps={"nodeName": "ask"}, state={"answer": YES}),
        "a tool's result": v1(messages=said),
    }


@pytest.mark.parametrize("agent", AGENTS)
async def test_no_start_answers_a_pause(site: Site, agent: str) -> None:
    run_id, session, path = await site.paused(agent)
    for how, (route, body) in answers(agent, session, path).items():
        answer = await site.ask("POST", route, json=body)
        assert answer.status_code == 422, (how, answer.text)
    # told by the surface of its own, it is a decision, and needs the scope for one
    entry = {"interruptId": "x", "status": "resolved", "payload": YES}
    answer = await site.ask("POST", f"/agui/{agent}", json=run_input(session, resume=[entry]))
    assert answer.status_code in (403, 404), answer.text
    assert (await site.comes_to(run_id, "paused"))["status"] == "paused"
    assert site.deleted(path) == 0
    # and a decision does let it run, once
    await site.approve(run_id)
    await site.comes_to(run_id, "completed")
    assert site.deleted(path) == 1


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_command_that_carries_an_answer_ends_its_run_and_nothing_is_sent(
    site: Site, agent: str
) -> None:
    """Whatever way it came to the bus: the connector asks the same table."""
    paused, session, path = await site.paused(agent)
    for how, (_, body) in answers(agent, session, path).items():
        fields = {"input": body["input"]} if "input" in body else {"body": _text(body)}
        common: dict[str, Any] = {"session_id": session, "user_id": "alice"}
        run_id = await site.bus.start_run(agent, "go on", **common, **fields)
        record = await site.comes_to(run_id, *ENDED)
        assert record["status"] == "failed", how
        assert '"not_accepted"' in await site.told(run_id), how
    assert site.deleted(path) == 0
    assert (await site.comes_to(paused, "paused"))["status"] == "paused"


def _text(body: dict[str, Any]) -> str:
    return httpx.Request("POST", "http://x", json=body).content.decode()
