"""A user who may only start and read runs cannot have a tool run that waits for a decision.

Nor can the user enter a conversation of another user. The agent servers are real and have scripted
models: LangGraph's adapter and Agno's interface for AG-UI, pydantic-ai's adapter, an Agno AgentOS
and an ADK server.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio

from penstock.bus import Bus, BusSettings
from penstock.bus.records.legs import SessionRecord
from penstock.bus.records.runs import StartCommand
from penstock.bus.subjects import session_key
from penstock.settings import AguiAgent, AuthSettings, Config, Settings
from penstock.sse import Parser
from penstock_approvals.service import ApprovalsService
from penstock_connector.service import ConnectorService
from penstock_connector.upstreams.base import thread_id
from penstock_edge.service import EdgeService
from penstock_normalizer.service import NormalizerService
from support.drive.agui_requests import run_input, tool, user
from support.drive.bus import make_streams
from support.drive.pipeline import Pipeline
from support.drive.secured import served
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET, token
from support.real.nats import NatsServer
from support.real.ports import free_port
from support.real.upstreams import Upstream

# The timeout is long because the first test waits until five agent servers have started.
pytestmark = [
    *(pytest.mark.real, pytest.mark.timeout(300)),
    pytest.mark.asyncio(loop_scope="module"),
]

SERVICES = [NormalizerService, ApprovalsService, ConnectorService, EdgeService]
YES = {"approved": True}
ENDED = ("completed", "failed", "cancelled")


@dataclass(slots=True)
class Site:
    """Penstock with authentication, and the agent servers behind it."""

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
        """Start a run with POST /v1/runs; return its id."""
        answer = await self.ask("POST", "/v1/runs", who, json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    async def comes_to(self, run_id: str, *wanted: str, who: str = "alice") -> dict[str, Any]:
        """Return the run's record as soon as the run has one of these statuses."""

        async def look() -> dict[str, Any] | None:
            record = (await self.ask("GET", f"/v1/runs/{run_id}", who)).json()
            return record if record["status"] in wanted else None

        found = await eventually(look, 30, f"run {run_id} to be {wanted}")
        assert found is not None
        return found

    async def paused(
        self, agent: str, who: str = "alice", session: str = ""
    ) -> tuple[str, str, str]:
        """Start a run that pauses before it deletes a path; return run, session and path."""
        path, session = f"/tmp/{uuid.uuid4().hex[:8]}", session or uuid.uuid4().hex
        run_id = await self.start(who, agent=agent, message=f"delete {path}", session_id=session)
        await self.comes_to(run_id, "paused", who=who)
        return run_id, session, path

    def deleted(self, path: str) -> int:
        """Return how often a tool has deleted the path, counted over all agent servers."""
        return sum(
            run["args"].get("path") == path
            for server in self.servers.values()
            for run in server.tool_runs()
        )

    async def told(self, run_id: str, who: str = "alice") -> str:
        """Return the run's events, in one text, as its owner reads them."""
        path = f"/v1/runs/{run_id}/events"
        headers = {"accept": "application/json"}
        answer = await self.ask("GET", path, who, scope="read", headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def approve(self, run_id: str, who: str = "alice") -> None:
        """Approve the one approval of the run, so that the run continues."""
        scope = "read decide"
        listed = await self.ask("GET", f"/v1/approvals?run_id={run_id}", who, scope)
        (approval,) = listed.json()["approvals"]
        items = [
            {"item_id": each["item_id"], "decision": "approve"}
            | ({} if each["kind"] == "confirmation" else {"value": YES})
            for each in approval["items"]
        ]
        path = f"/v1/approvals/{approval['approval_id']}/decision"
        body = {"items": items, "digest": approval["digest"]}
        answer = await self.ask("POST", path, who, scope, json=body)
        assert answer.status_code == 200, answer.text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(
    nats_server: NatsServer,
    langgraph_server: Upstream,
    agno_agui_server: Upstream,
    pydantic_ai_server: Upstream,
    agno_server: Upstream,
    adk_server: Upstream,
) -> AsyncIterator[Site]:
    servers = {
        "langgraph": langgraph_server,
        "agno_agui": agno_agui_server,
        "pydantic_ai": pydantic_ai_server,
        "agno": agno_server,
        "adk": adk_server,
    }
    urls = {
        "graph": f"{langgraph_server.url}/delete",
        "graph-std": f"{langgraph_server.url}/delete_std",
        "interface": f"{agno_agui_server.url}/approval/agui",
        "adapter": f"{pydantic_ai_server.url}/approval",
    }
    urls["trusting"] = urls["graph"]
    agents: list[dict[str, Any]] = [
        {"id": id, "protocol": "agui", "url": url} for id, url in urls.items()
    ]
    agents[-1]["thread_ids"] = "verbatim"
    agents += [
        {"id": "agno", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"},
        {"id": "adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
    ]
    settings = Settings(
        nats_url=nats_server.url,
        port=free_port(),
        probe_port=free_port(),
        auth=AuthSettings(jwt_secret=SECRET, leeway_s=0),
    )
    await make_streams(nats_server.url)
    async with AsyncExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("ENABLE_ADK_CANONICAL_STREAM", "true")
        config = Config.model_validate({"agents": agents})
        await stack.enter_async_context(served(settings, config, SERVICES))
        bus = await Bus.connect(BusSettings(url=nats_server.url, name="test"))
        stack.push_async_callback(bus.close)
        url = f"http://127.0.0.1:{settings.port}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        yield Site(http, Pipeline(bus, [], http), servers)


AGENTS = ["graph", "graph-std", "interface", "adapter"]


def answers(agent: str, session: str, path: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return requests that start a run and carry an answer, by the way in which they carry it."""
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
    # AG-UI's own endpoint takes an answer as a decision, which needs the scope `decide`.
    entry = {"interruptId": "x", "status": "resolved", "payload": YES}
    answer = await site.ask("POST", f"/agui/{agent}", json=run_input(session, resume=[entry]))
    assert answer.status_code in (403, 404), answer.text
    assert (await site.comes_to(run_id, "paused"))["status"] == "paused"
    assert site.deleted(path) == 0
    # A decision lets the tool run once.
    await site.approve(run_id)
    await site.comes_to(run_id, "completed")
    assert site.deleted(path) == 1


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_command_that_carries_an_answer_ends_its_run_and_nothing_is_sent(
    site: Site, agent: str
) -> None:
    """The connector applies the same table as the edge to every command on the bus."""
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


async def test_a_pause_of_another_user_under_the_same_names_keeps_nobody_from_answering(
    site: Site,
) -> None:
    """Scripted models repeat their call ids, and two users may give sessions the same id."""
    run_id, session, path = await site.paused("interface")
    _, _, other = await site.paused("interface", "bob", session)
    scope = "start read decide"
    listed = await site.ask("GET", f"/v1/approvals?run_id={run_id}", scope=scope)
    (approval,) = listed.json()["approvals"]
    (item,) = approval["items"]
    answered = {
        "id": f"{approval['approval_id']}/{item['item_id']}",
        "name": "adk_request_confirmation",
        "response": {"confirmed": True},
    }
    body = {
        **{"appName": "interface", "userId": "alice", "sessionId": session},
        "newMessage": {"role": "user", "parts": [{"functionResponse": answered}]},
    }
    answer = await site.ask("POST", "/run_sse", scope=scope, json=body)
    assert answer.status_code == 200, answer.text
    await site.comes_to(run_id, "completed")
    assert (site.deleted(path), site.deleted(other)) == (1, 0)


@pytest.mark.parametrize("agent", ["graph", "graph-std"])
async def test_what_runs_is_what_was_approved_and_not_what_came_after_it(
    site: Site, agent: str
) -> None:
    """A graph has one pause for its whole thread, and does not check which run an answer is for."""
    session = uuid.uuid4().hex
    first = run_input(session, user("hello", "u0"))
    assert (await site.ask("POST", f"/agui/{agent}", json=first)).status_code == 200
    run_id, _, path = await site.paused(agent, session=session)
    other = f"/tmp/{uuid.uuid4().hex[:8]}"
    # The request repeats the first message with a different text, so the graph would restart from
    # that message.
    bait = run_input(session, user(f"delete {other}", "u0"))
    answer = await site.ask("POST", f"/agui/{agent}", json=bait)
    assert "waits for a decision" in answer.text
    await site.approve(run_id)
    await site.comes_to(run_id, "completed")
    assert (site.deleted(path), site.deleted(other)) == (1, 0)
    # After the decision, the pause no longer blocks the thread.
    assert "I know" in await said(site, agent, session, "what do you know?")


async def test_a_start_that_interrupts_a_pause_begins_when_the_thread_waits_no_more(
    site: Site,
) -> None:
    """A start in a thread that waits is not accepted, so the cancel must be over before it."""
    run_id, session, path = await site.paused("graph")
    body = {"agent": "graph", "message": "hello", "session_id": session}
    after = await site.start(**body, when_busy="interrupt")
    assert (await site.comes_to(after, *ENDED, "paused"))["status"] != "failed"
    assert (await site.comes_to(run_id, *ENDED))["status"] == "cancelled"
    assert site.deleted(path) == 0


async def test_a_pause_keeps_its_thread_when_its_run_is_not_listed_any_more(site: Site) -> None:
    """The list of runs keeps a run for 30 days, but a run may wait for longer."""
    run_id, session, path = await site.paused("graph")
    await site.bus.bus.bucket("runs").delete(run_id)
    other = f"/tmp/{uuid.uuid4().hex[:8]}"
    bait = run_input(session, user(f"delete {other}", "u0"))
    answer = await site.ask("POST", "/agui/graph", json=bait)
    assert "waits for a decision" in answer.text
    assert (site.deleted(path), site.deleted(other)) == (0, 0)


def _text(body: dict[str, Any]) -> str:
    return httpx.Request("POST", "http://x", json=body).content.decode()


DIALECTS = ["canonical", "executions", "unified", "agui", "agui+runs", "adk", "agno"]


async def said(site: Site, agent: str, session: str, message: str, who: str = "alice") -> str:
    """Run one message to its end; return all events of the run as text."""
    run_id = await site.start(who, agent=agent, message=message, session_id=session)
    await site.comes_to(run_id, "completed", who=who)
    return await site.told(run_id, who)


@pytest.mark.parametrize("agent", ["graph", "graph-std"])
async def test_another_users_thread_is_not_entered_by_its_name(site: Site, agent: str) -> None:
    run_id, session, path = await site.paused(agent)
    before = f"secret {uuid.uuid4().hex[:8]}"
    other = uuid.uuid4().hex
    await said(site, agent, other, before)
    assert before in await said(site, agent, other, "and now?")  # alice's runs share one thread
    for whose in (session, other):
        told = await said(site, agent, whose, "what do you know?", "bob")
        assert "what do you know?" in told
        assert path not in told
        assert before not in told
    # The server's own id of the thread is no secret; the thread must not be entered by that id
    # either.
    config = AguiAgent(id=agent, protocol="agui", url="http://127.0.0.1:9")
    command = StartCommand(
        run_id="r", agent=agent, session_id=other, user_id="alice", created_at="now"
    )
    derived = thread_id(config, command, callers_known=True)
    assert before not in await said(site, agent, derived, "what do you know?", "bob")
    assert (await site.comes_to(run_id, "paused"))["status"] == "paused"
    assert site.deleted(path) == 0


async def test_a_session_that_the_older_pair_begins_is_kept_apart_too(site: Site) -> None:
    """On this surface, the edge writes the session's record before a connector takes the run."""
    session, before = uuid.uuid4().hex, f"secret {uuid.uuid4().hex[:8]}"
    await said(site, "trusting", session, before)  # the server uses this very id for the thread
    path = f"/apps/graph/users/bob/sessions/{session}/run"
    answer = await site.ask("POST", path, "bob", json={"query": "what do you know?"})
    run_id = answer.headers["penstock-run-id"]
    await site.comes_to(run_id, "completed", who="bob")
    told = await site.told(run_id, "bob")
    assert "what do you know?" in told
    assert before not in told


async def test_where_the_server_checks_users_itself_the_id_goes_as_it_is(site: Site) -> None:
    session, before = uuid.uuid4().hex, f"shared {uuid.uuid4().hex[:8]}"
    await said(site, "trusting", session, before)
    assert before in await said(site, "trusting", session, "what do you know?", "bob")


@pytest.mark.parametrize("agent", ["graph", "interface", "adapter", "agno"])
async def test_clients_see_their_own_id_in_every_dialect(site: Site, agent: str) -> None:
    session = f'my "thread" {uuid.uuid4().hex[:8]}'
    message = {"agno": "text", "graph": "hello"}.get(agent, "delete nothing")
    run_id = await site.start(agent=agent, message=message, session_id=session)
    await site.comes_to(run_id, *ENDED, "paused")
    headers = {"accept": "application/json"}
    record = await site.bus.bus.bucket("sessions").get(session_key("alice", agent, session))
    assert record is not None
    theirs = SessionRecord.model_validate_json(record.value).thread_id
    assert theirs not in (None, "", session)
    for dialect in DIALECTS:
        path = f"/v1/runs/{run_id}/events?dialect={dialect.replace('+', '%2B')}"
        answer = await site.ask("GET", path, headers=headers)
        assert answer.status_code == 200, answer.text
        assert str(theirs) not in answer.text, dialect
    # The raw dialect has the server's own bytes, and so the server's own id.
    frames = [frame.payload for frame in await site.bus.raw(run_id) if frame.kind == "bytes"]
    assert str(theirs).encode() in b"".join(frames)


async def test_users_of_an_agno_server_do_not_meet_in_a_session(site: Site) -> None:
    """Agno 3 answers 404 to a user who names another user's session, which shows that it exists."""
    session = uuid.uuid4().hex
    await said(site, "agno", session, "text")
    await said(site, "agno", session, "text", "bob")
    # On Agno's own surface, the stream has the client's session id, and a paused run continues with
    # that id.
    form = {"message": f"confirm {session}", "stream": "true", "session_id": session}
    scope = "start read raw decide"
    answer = await site.ask("POST", "/agents/agno/runs", scope=scope, data=form)
    run_id = answer.headers["penstock-run-id"]
    ids = {frame["session_id"] for frame in _frames(answer.text) if "session_id" in frame}
    assert ids == {session}
    (paused,) = [frame for frame in _frames(answer.text) if frame["event"] == "RunPaused"]
    tools = [{**tool, "confirmed": True} for tool in paused["tools"]]
    continued = {"tools": orjson.dumps(tools).decode(), "session_id": session, "stream": "true"}
    path = f"/agents/agno/runs/{run_id}/continue"
    # The edge waits two seconds for the record of the pause. A loaded machine may take longer.
    async with asyncio.timeout(60):
        while (
            "is not paused"
            in (answer := await site.ask("POST", path, scope=scope, data=continued)).text
        ):
            await asyncio.sleep(0.1)
    assert "RunCompleted" in answer.text
    ids = {frame["session_id"] for frame in _frames(answer.text) if "session_id" in frame}
    assert ids == {session}


async def test_users_of_an_adk_server_do_not_meet_in_a_session(site: Site) -> None:
    """The ADK server keeps sessions by user, and no user may name another user."""
    session = uuid.uuid4().hex
    for who in ("alice", "bob"):
        await said(site, "adk", session, f"weather, says {who}", who)
    async with httpx.AsyncClient(base_url=site.servers["adk"].url, timeout=30) as server:
        for who, other in (("alice", "bob"), ("bob", "alice")):
            kept = (await server.get(f"/apps/demo/users/{who}/sessions/{session}")).text
            assert f"says {who}" in kept
            assert f"says {other}" not in kept
    parts = [{"text": "what do you know?"}]
    body = {
        **{"appName": "demo", "userId": "alice", "sessionId": session},
        "newMessage": {"role": "user", "parts": parts},
    }
    for path, request in (("/run_sse", body), (f"/apps/demo/users/alice/sessions/{session}", None)):
        method = "POST" if request else "GET"
        answer = await site.ask(method, path, "bob", scope="start read raw", json=request)
        assert answer.status_code == 403, answer.text


def _frames(text: str) -> list[dict[str, Any]]:
    """Return the events of an SSE body."""
    return [orjson.loads(frame.data) for frame in Parser().feed(text.encode())]
