"""Real AG-UI clients talk to real AG-UI servers (pydantic-ai, Agno) with Penstock between them."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.dialects.agui.ids import unscoped
from penstock.settings import Config
from penstock_edge.service import EdgeService
from support.drive.pipeline import PIPELINE, Pipeline, pipeline
from support.drive.short import in_short
from support.real.agui_client import VERSIONS, visit
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SCENARIOS = ("text", "tool", "approval", "frontend", "error")
PICK_COLOR = {
    "name": "pick_color",
    "description": "pick",
    "parameters": {"type": "object", "properties": {}},
}
# `make test` tries one version of the client here, and both in test_agui_surface.
ALL = pytest.mark.parametrize("version", in_short(VERSIONS, ("1.0.0",)))
BOTH = pytest.mark.parametrize("server", ["pydantic-ai", "agno"])

Report = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    nats_server: NatsServer,
    pydantic_ai_server: Upstream,
    agno_agui_server: Upstream,
    langgraph_server: Upstream,
) -> AsyncIterator[Pipeline]:
    """Run Penstock with an agent per server and scenario (`agno-text`, …) and LangGraph's graph."""
    urls = {f"pydantic-ai-{name}": f"{pydantic_ai_server.url}/{name}" for name in SCENARIOS}
    urls |= {f"agno-{name}": f"{agno_agui_server.url}/{name}/agui" for name in SCENARIOS}
    urls["graph"] = f"{langgraph_server.url}/delete_std"
    agents = [{"id": id, "protocol": "agui", "url": url} for id, url in urls.items()]
    config = Config.model_validate({"agents": agents})
    async with pipeline(nats_server.url, config, (*PIPELINE, EdgeService)) as running:
        yield running


@pytest.fixture
def ask(penstock: Pipeline, tmp_path: Path) -> Any:
    """Return a function that calls runAgent:

    `ask(version, agent, expect, thread, messages, **input)`.
    """

    async def ask(
        version: str,
        agent: str,
        expect: str,
        thread: str,
        messages: list[dict[str, Any]],
        **asked: Any,
    ) -> Report:
        given = {"threadId": thread, "runId": uuid.uuid4().hex, "messages": messages, **asked}
        url = f"{penstock.http.base_url}/agui/{agent}"
        report = await visit(version, url, given, tmp_path, "--expect", expect)
        assert report["ok"], {name: report[name] for name in ("errors", "warnings", "terminal")}
        return report

    return ask


def user(text: str) -> dict[str, Any]:
    return {"id": uuid.uuid4().hex, "role": "user", "content": text}


@pytest.fixture
def thread() -> str:
    return uuid.uuid4().hex


@ALL
@BOTH
@pytest.mark.parametrize("scenario", ["text", "tool"])
async def test_a_run(ask: Any, thread: str, version: str, server: str, scenario: str) -> None:
    report = await ask(version, f"{server}-{scenario}", "finished", thread, [user("hi")])
    assert report["messages"][-1]["role"] == "assistant"
    assert report["messages"][-1]["content"]
    results = [each for each in report["messages"] if each["role"] == "tool"]
    assert bool(results) is (scenario == "tool")


@ALL
@BOTH
async def test_an_error(ask: Any, thread: str, version: str, server: str) -> None:
    report = await ask(version, f"{server}-error", "error", thread, [user("hi")])
    assert report["runError"]["code"] == "upstream_error"


@ALL
@BOTH
@pytest.mark.parametrize("approved", [True, False])
async def test_a_tool_that_needs_approval_runs_once_or_never(
    ask: Any,
    thread: str,
    version: str,
    server: str,
    approved: bool,
    pydantic_ai_server: Upstream,
    agno_agui_server: Upstream,
) -> None:
    path = f"/tmp/{uuid.uuid4().hex[:8]}"
    agent, upstream = (
        f"{server}-approval",
        {"pydantic-ai": pydantic_ai_server, "agno": agno_agui_server}[server],
    )

    def runs() -> int:
        return sum(run["args"].get("path") == path for run in upstream.tool_runs())

    asked = await ask(version, agent, "interrupt", thread, [user(f"delete {path}")])
    (pending,) = asked["pendingInterrupts"]
    assert runs() == 0
    entry = {
        "interruptId": pending["id"],
        "status": "resolved",
        "payload": {"approved": approved},
    }
    again = {"resume": [entry], "pendingInterrupts": [pending]}
    report = await ask(version, agent, "finished", thread, asked["messages"], **again)
    assert runs() == (1 if approved else 0)
    assert len({each["id"] for each in report["messages"]}) == len(report["messages"])


@ALL
async def test_a_tool_of_the_clients_own(ask: Any, thread: str, version: str) -> None:
    agent, tools = "pydantic-ai-frontend", [PICK_COLOR]
    asked = await ask(version, agent, "finished", thread, [user("which?")], tools=tools)
    (call,) = [call for each in asked["messages"] for call in each.get("toolCalls", ())]
    result = {"id": uuid.uuid4().hex, "role": "tool", "toolCallId": call["id"], "content": "red"}
    messages = [*asked["messages"], result]
    report = await ask(version, agent, "finished", thread, messages, tools=tools)
    assert report["messages"][-1]["content"].startswith("Thanks")


@ALL
async def test_two_runs_of_a_thread_in_which_a_server_repeats_its_ids_share_no_id(
    ask: Any, penstock: Pipeline, thread: str, version: str
) -> None:
    """The scripted model of Agno's server gives its call the same id in each run."""
    first = await ask(version, "agno-tool", "finished", thread, [user("hi")])
    asked = [*first["messages"], user("and now?")]
    second = await ask(version, "agno-tool", "finished", thread, asked)
    messages = second["messages"]
    assert len({each["id"] for each in messages}) == len(messages)
    calls = [call["id"] for each in messages for call in each.get("toolCalls", ())]
    results = [each["toolCallId"] for each in messages if each["role"] == "tool"]
    assert calls == results
    assert len(set(calls)) == len(calls) == 2
    assert {unscoped(id) for id in calls} == {unscoped(calls[0])}
    roles = [each["role"] for each in messages]
    assert roles == [*(turn := roles[: len(roles) // 2]), *turn]
    # The thread's stream gives the same ids to a client that connects later.
    path = f"/agui/agno-tool/threads/{thread}/events?until=idle"
    events = [
        json.loads(line.removeprefix("data: "))
        for line in (await penstock.http.get(path)).text.splitlines()
        if line.startswith("data: ")
    ]
    later = [each["toolCallId"] for each in events if each["type"] == "TOOL_CALL_START"]
    assert later == calls


@ALL
@pytest.mark.parametrize("qualified", [False, True], ids=["as told", "qualified"])
async def test_a_server_that_keeps_the_thread_knows_what_the_client_sends_again(
    ask: Any, thread: str, version: str, qualified: bool
) -> None:
    """LangGraph adds each message whose id is new to it, and sends the whole conversation.

    This graph sends its answers only in snapshots. If a server also streams them, the client gets
    qualified ids, which the `qualified` case sends back.
    """
    messages: list[dict[str, Any]] = []
    for words in ("one", "two", "three"):
        known = [each["id"] for each in messages]
        sent = [
            {**each, "id": f"{'a' * 12}.{each['id']}"}
            if qualified and each["role"] == "assistant"
            else each
            for each in messages
        ]
        report = await ask(version, "graph", "finished", thread, [*sent, user(words)])
        messages = report["messages"]
        assert [each["id"] for each in messages[: len(known)]] == known
    said = [each["content"] for each in messages]
    assert said[1] == "I know: one"
    assert said[3] == f"I know: one | {said[1]} | two"
    assert said[5] == f"I know: one | {said[1]} | two | {said[3]} | three"
    assert len({each["id"] for each in messages}) == len(messages) == 6
