"""Real AG-UI clients talk to real Agno and ADK servers, with Penstock between them.

Each client is strict: a warning, a frame that violates the schema, or an end without a terminal
event fails the test. With two edges, the requests alternate between them.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from support.drive.waiting import eventually
from support.real.agui_client import VERSIONS, visit
from support.real.deployment import Deployment
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

Report = dict[str, Any]

ALL = pytest.mark.parametrize("version", VERSIONS)


class Visitor:
    """A client of one thread, which keeps its messages from one request to the next."""

    def __init__(self, penstock: Deployment, agent: str, version: str, folder: Path) -> None:
        self.penstock = penstock
        self.agent = agent
        self.version = version
        self.folder = folder
        self.thread = f"t-{uuid.uuid4().hex[:8]}"
        self.messages: list[dict[str, Any]] = []
        self.requests = 0

    async def run(self, expect: str, **asked: Any) -> Report:
        """Call runAgent once, with a new runId."""
        self.requests += 1
        url = f"{self.penstock.edge(self.requests)}/agui/{self.agent}"
        given = {"threadId": self.thread, "runId": uuid.uuid4().hex, "messages": self.messages}
        report = await visit(self.version, url, {**given, **asked}, self.folder, "--expect", expect)
        assert report["ok"], {name: report[name] for name in ("errors", "warnings", "terminal")}
        for event in report["events"]:
            if event["type"] in ("RUN_STARTED", "RUN_FINISHED"):
                assert (event["threadId"], event["runId"]) == (self.thread, given["runId"])
        self.messages = report["messages"]
        return report

    async def say(self, text: str, expect: str = "finished") -> Report:
        """Add a user message with this text and run the agent."""
        self.messages.append({"id": uuid.uuid4().hex, "role": "user", "content": text})
        return await self.run(expect)

    async def answer(self, pending: list[dict[str, Any]], approved: bool) -> Report:
        """Give every pending interrupt the same answer."""
        resume = [
            {"interruptId": each["id"], "status": "resolved", "payload": {"approved": approved}}
            for each in pending
        ]
        return await self.run("finished", resume=resume, pendingInterrupts=pending)

    def said(self, role: str = "assistant") -> list[str]:
        """Return the texts of all messages of this role, without empty texts."""
        return [
            each["content"]
            for each in self.messages
            if each["role"] == role and each.get("content")
        ]


@pytest.fixture
def visitor(penstock: Deployment, tmp_path: Path) -> Any:
    return lambda agent, version: Visitor(penstock, agent, version, tmp_path)


def runs_of(server: Upstream, mark: str) -> int:
    """Return how often a tool ran whose arguments or session contain this mark."""
    return sum(mark in json.dumps(run) for run in server.tool_runs())


@ALL
@pytest.mark.parametrize(("agent", "words"), [("assistant", "text"), ("adk", "plain hi")])
async def test_text(visitor: Any, agent: str, words: str, version: str) -> None:
    client = visitor(agent, version)
    await client.say(words)
    (answer,) = client.said()
    assert answer
    await client.say(words)
    assert client.said() == [answer, answer]
    assert [each["role"] for each in client.messages] == ["user", "assistant"] * 2


@ALL
@pytest.mark.parametrize(("agent", "words"), [("assistant", "tool"), ("adk", "weather")])
async def test_a_tool_and_its_result(visitor: Any, agent: str, words: str, version: str) -> None:
    client = visitor(agent, version)
    await client.say(words)
    (call,) = [call for each in client.messages for call in each.get("toolCalls", ())]
    (result,) = [each for each in client.messages if each["role"] == "tool"]
    assert result["toolCallId"] == call["id"]
    assert isinstance(json.loads(call["function"]["arguments"]), dict)


@ALL
@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("agent", ["assistant", "adk"])
async def test_a_tool_that_needs_approval_runs_once_or_never(
    visitor: Any,
    agent: str,
    approved: bool,
    version: str,
    agno_server: Upstream,
    adk_server: Upstream,
) -> None:
    client = visitor(agent, version)
    title = f"Doc {client.thread}"
    report = await client.say(
        f"confirm {title}" if agent == "assistant" else "confirm", "interrupt"
    )
    (pending,) = report["pendingInterrupts"]
    server = agno_server if agent == "assistant" else adk_server
    assert runs_of(server, client.thread) == 0
    await client.answer([pending], approved)
    assert runs_of(server, client.thread) == (1 if approved else 0)
    ids = [each["id"] for each in client.messages]
    assert len(set(ids)) == len(ids)
    resume = [{"interruptId": pending["id"], "status": "resolved", "payload": {"approved": True}}]
    again = {"threadId": client.thread, "runId": "r", "messages": [], "resume": resume}
    url = f"{client.penstock.edge()}/agui/{agent}"
    late = await client.penstock.http.post(url, json=again)
    assert late.status_code == 409, late.text
    assert runs_of(server, client.thread) == (1 if approved else 0)


@ALL
async def test_a_tool_that_runs_elsewhere_is_the_frontends(visitor: Any, version: str) -> None:
    client = visitor("assistant", version)
    report = await client.say("external")
    (call,) = [call for each in client.messages for call in each.get("toolCalls", ())]
    outcome = report["events"][-1]["outcome"]
    assert outcome["type"] == "success"
    assert outcome.get("pendingToolCallIds") == ([call["id"]] if version == "1.0.0" else None)
    result = {"id": uuid.uuid4().hex, "role": "tool", "toolCallId": call["id"], "content": "done"}
    client.messages.append(result)
    await client.run("finished")
    assert client.said()


@ALL
@pytest.mark.parametrize(("agent", "words"), [("assistant", "failmid"), ("adk", "midstream")])
async def test_an_error_in_mid_stream(visitor: Any, agent: str, words: str, version: str) -> None:
    client = visitor(agent, version)
    report = await client.say(words, "error")
    assert report["runError"]["code"] == "upstream_error"
    assert client.said()


@ALL
@pytest.mark.parametrize(("agent", "words"), [("assistant", "slow"), ("adk", "slow 50 100")])
async def test_a_cancel_is_no_success(visitor: Any, agent: str, words: str, version: str) -> None:
    client = visitor(agent, version)
    expect = "cancelled" if version == "1.0.0" else "error"
    running = asyncio.create_task(client.say(words, expect))
    http, edge = client.penstock.http, client.penstock.edge()

    async def started() -> str | None:
        listed = await http.get(f"{edge}/v1/runs", params={"session_id": client.thread})
        found = [run["run_id"] for run in listed.json()["runs"] if run["status"] == "running"]
        return found[0] if found else None

    run_id = await eventually(started, what="a run of the thread")
    await client.penstock.until(run_id, "llm.stream")
    cancelled = await http.post(f"{edge}/v1/runs/{run_id}/cancel")
    assert cancelled.status_code == 200, cancelled.text
    await running


@ALL
async def test_a_client_that_reconnects_has_what_a_client_that_stayed_has(
    visitor: Any, version: str
) -> None:
    client = visitor("adk", version)
    penstock = client.penstock
    await client.say("plain hi")
    run_id = await penstock.run("adk", "slow 25 60", session_id=client.thread)
    await penstock.until(run_id, "llm.stream")
    url = f"{penstock.edge(1)}/agui/adk/threads/{client.thread}/events?prelude=1&until=idle"
    options = ("--method", "GET", "--bypass", "--expect", "finished")
    report = await visit(version, url, {"threadId": client.thread}, client.folder, *options)
    assert report["ok"], report
    events = await penstock.all(run_id)
    (whole,) = [each.data["content"] for each in events if each.type == "llm.message_completed"]
    words = [each.get("content") for each in report["messages"]]
    assert words == ["plain hi", client.said()[0], "slow 25 60", whole]
    at_rest = await visit(version, url, {"threadId": client.thread}, client.folder, *options)
    assert at_rest["ok"], at_rest
    assert at_rest["messages"] == report["messages"]


@ALL
async def test_an_agui_client_reads_the_runs_of_a_thread_with_our_fields_too(
    visitor: Any, version: str
) -> None:
    client = visitor("assistant", version)
    await client.say("tool")
    await client.say("text")
    url = f"{client.penstock.edge()}/api/v1/agent/runs/{client.thread}/events?until=idle"
    options = ("--method", "GET", "--bypass", "--expect", "finished")
    asked = {"threadId": client.thread}
    report = await visit(version, url, asked, client.folder, *options, strict=False)
    assert report["errors"] == []
    assert report["counts"]["RUN_FINISHED"] == 2
    client.messages, said = report["messages"], client.said()
    assert client.said() == said
