"""Each version of the AI SDK's client reads each kind of agent, also while services are killed."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from penstock.settings import Config
from penstock_edge.service import EdgeService
from support.drive.pipeline import PIPELINE, Pipeline, pipeline
from support.drive.waiting import eventually
from support.real.deployment import deployment
from support.real.nats import NatsServer
from support.real.upstreams import Upstream
from support.real.vercel_client import VERSIONS, Chat, State, answer_of, chat, parts, text

pytestmark = [
    pytest.mark.real,
    pytest.mark.chaos,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

PYDANTIC_AI = ("text", "parallel", "reasoning", "approval", "error", "slow")
# For each upstream and scenario: the agent and the message.
WORDS: Final = {
    "agno": {
        "text": ("assistant", "text"),
        "tools": ("assistant", "tools"),
        "reasoning": ("assistant", "reason"),
        "approval": ("assistant", "confirm"),
        "error": ("assistant", "failmid"),
        "cancel": ("assistant", "slow"),
    },
    "team": {"text": ("team", "delegate2"), "approval": ("team", "delegateconfirm")},
    "flow": {"text": ("flow", "text"), "tools": ("flow", "tool"), "approval": ("gated", "text")},
    "adk": {
        "text": ("adk", "plain hi"),
        "tools": ("adk", "parallel"),
        "reasoning": ("adk", "think"),
        "approval": ("adk", "confirm"),
        "error": ("adk", "midstream"),
        "cancel": ("adk", "slow 100 50"),
    },
    "pydantic-ai": {
        "text": ("pydantic-ai-text", "hi"),
        "tools": ("pydantic-ai-parallel", "hi"),
        "reasoning": ("pydantic-ai-reasoning", "hi"),
        "approval": ("pydantic-ai-approval", "delete it"),
        "error": ("pydantic-ai-error", "hi"),
        "cancel": ("pydantic-ai-slow", "hi"),
    },
}
DECISIONS = ("approve", "reject", "elsewhere")
CASES = [
    (name, scenario, decision)
    for name, words in WORDS.items()
    for scenario in words
    for decision in (DECISIONS if scenario == "approval" else DECISIONS[:1])
]
STATUSES = {"error": "failed", "cancel": "cancelled"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    nats_server: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
    pydantic_ai_server: Upstream,
) -> AsyncIterator[Pipeline]:
    agno = {"protocol": "agno", "url": agno_server.url}
    agents: list[dict[str, Any]] = [
        {"id": "assistant", "agent": "demo-agent", **agno},
        {"id": "team", "agent": "demo-team", "kind": "team", **agno},
        {"id": "flow", "agent": "simple-wf", "kind": "workflow", **agno},
        {"id": "gated", "agent": "hitl-wf", "kind": "workflow", **agno},
        {"id": "adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
        *(
            {
                "id": f"pydantic-ai-{name}",
                "protocol": "agui",
                "url": f"{pydantic_ai_server.url}/{name}",
            }
            for name in PYDANTIC_AI
        ),
    ]
    config = Config.model_validate({"agents": agents})
    async with pipeline(nats_server.url, config, (*PIPELINE, EdgeService)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=VERSIONS)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Chat]:
    async with chat(request.param) as running:
        yield running


async def begin(client: Chat, url: str, agent: str) -> str:
    """Open a new chat; return its id."""
    chat_id = f"chat-{uuid.uuid4().hex}"
    await client("open", chat=chat_id, api=f"{url}/vercel/{agent}?sdk={client.version}")
    return chat_id


async def lived(client: Chat, penstock: Pipeline, agent: str, words: str, decision: str) -> State:
    """Send the message, decide as the client can, and return the state after the run's end."""
    state = await client("send", text=f"{words} {uuid.uuid4().hex[:8]}")
    if not decision:
        return state
    asked = [each for each in parts(state, "dynamic-tool") if "approval" in each]
    if asked and decision != "elsewhere":
        for each in asked:
            approved = decision == "approve"
            state = await client("answer", id=each["approval"]["id"], approved=approved)
        return state
    kept = [each["data"]["approval_id"] for each in parts(state, "data-penstock-approval")]
    ids = [each["approval"]["id"].partition("/")[0] for each in asked] + kept
    reply = await penstock.decide(ids[0], "reject" if decision == "reject" else "approve")
    assert reply.status == 200, reply.detail
    return await client("resume")


@pytest.mark.parametrize(("upstream", "scenario", "decision"), CASES)
async def test_each_version_shows_what_each_kind_of_agent_did(
    client: Chat, penstock: Pipeline, upstream: str, scenario: str, decision: str
) -> None:
    agent, words = WORDS[upstream][scenario]
    chat_id = await begin(client, str(penstock.http.base_url).rstrip("/"), agent)
    if scenario == "cancel":
        await client("begin", text=words)

        async def speaks() -> bool:
            state = await client("state")
            return state["status"] == "streaming" and bool(text(state))

        await eventually(speaks, what="the first text")
        stopped = await penstock.http.post(f"/vercel/{agent}/{chat_id}/stop", timeout=30)
        assert stopped.status_code == 200, stopped.text
        state = await client("settle")
    else:
        state = await lived(
            client, penstock, agent, words, decision if scenario == "approval" else ""
        )
    run_id = answer_of(state)["id"]
    events = await penstock.ended(run_id)
    assert state["status"] == ("error" if scenario == "error" else "ready"), state["errors"]
    assert answer_of(state)["metadata"]["status"] == STATUSES.get(scenario, "completed")
    said = "".join(each.data["content"] for each in events if each.type == "llm.stream")
    assert text(state) == said
    thoughts = "".join(each.data["thought"] for each in events if each.type == "llm.reasoning")
    assert "".join(each["text"] for each in parts(state, "reasoning")) == thoughts
    calls = {each.data["tool_call_id"] for each in events if each.type == "llm.tool_call"}
    shown = parts(state, "dynamic-tool")
    assert {each["toolCallId"] for each in shown} == calls
    outcomes = [each.data["outcome"] for each in events if each.type == "llm.tool_result"]
    ended = [each for each in shown if each["state"].startswith("output-")]
    assert len(ended) == len(outcomes)
    denied = "output-error" if client.version == "5" else "output-denied"
    assert (denied in {each["state"] for each in ended}) == ("rejected" in outcomes)


@pytest.mark.parametrize("service", ["edge", "connector"])
async def test_the_client_has_the_whole_message_after_a_service_was_killed(
    client: Chat, agno_server: Upstream, nats_server: NatsServer, tmp_path: Path, service: str
) -> None:
    """A connector that ends is followed by another, which continues an Agno 3 run."""
    agents = [
        {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    ]
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    try:
        async with deployment(nats.url, tmp_path, agents, 1) as penstock:
            if service == "connector":
                await penstock.start("connector")
            (edge,) = penstock.of("edge")
            await begin(client, edge.url, "assistant")
            await client("begin", text="long")

            async def speaks() -> bool:
                state = await client("state")
                return state["messages"][-1]["role"] == "assistant" and bool(text(state))

            await eventually(speaks, what="the first text")
            if service == "edge":
                await penstock.kill(edge)
                await client("settle")
                await penstock.start("edge", port=edge.port)
                state = await client("resume")
            else:
                await penstock.kill(penstock.of("connector")[0])
                state = await client("settle")
            run_id = answer_of(state)["id"]
            events = await penstock.all(run_id)
            said = "".join(each.data["content"] for each in events if each.type == "llm.stream")
            assert (state["status"], text(state)) == ("ready", said), json.dumps(state)[:2000]
    finally:
        await asyncio.to_thread(nats.remove)
