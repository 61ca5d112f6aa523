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

from e2e.every_agent import AGENTS, decided_elsewhere, events_of_run, penstock
from penstock.dialects.approvals import CONFIRMATIONS
from support.drive.pipeline import Pipeline
from support.drive.waiting import eventually
from support.real.deployment import deployment
from support.real.nats import NatsServer
from support.real.upstreams import Upstream
from support.real.vercel_client import VERSIONS, Chat, State, answer_of, chat, parts, text
from support.recorded import vercel_rules

pytestmark = [
    pytest.mark.real,
    pytest.mark.chaos,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

__all__ = ["penstock"]  # the fixture, with all agents
DECISIONS: Final = {"approved": "approve", "rejected": "reject", "elsewhere": "approve"}
CASES = [(upstream, scenario) for upstream, rows in AGENTS.items() for scenario in rows]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=VERSIONS)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Chat]:
    async with chat(request.param) as running:
        yield running


async def begin(client: Chat, penstock: Pipeline, agent: str) -> str:
    """Open a new chat; return its id."""
    chat_id = f"chat-{uuid.uuid4().hex}"
    url = str(penstock.http.base_url).rstrip("/")
    await client("open", chat=chat_id, api=f"{url}/vercel/{agent}?sdk={client.version}")
    return chat_id


async def answered(client: Chat, state: State, decision: str, value: Any = None) -> State:
    """Answer all that the chat asks, by the client's own functions; return the state after it."""
    for part in parts(state, "dynamic-tool"):
        if part["state"] == "approval-requested":
            approved = decision == "approve"
            state = await client("answer", id=part["approval"]["id"], approved=approved)
        elif part["state"] == "input-available" and (asked := vercel_rules.asked_by(part)):
            is_yes_or_no = asked["kind"] in CONFIRMATIONS
            output = decision == "approve" if is_yes_or_no else value
            state = await client("output", toolCallId=part["toolCallId"], output=output)
    return state


@pytest.mark.parametrize(("upstream", "scenario"), CASES)
async def test_each_version_shows_what_each_kind_of_agent_did(
    client: Chat, penstock: Pipeline, upstream: str, scenario: str
) -> None:
    agent, words = AGENTS[upstream][scenario]
    chat_id = await begin(client, penstock, agent)
    words = f"{words} {uuid.uuid4().hex[:8]}"
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
        state = await client("send", text=words)
        if scenario == "elsewhere":
            await decided_elsewhere(penstock, answer_of(state)["id"])
            state = await client("resume")
        elif scenario in DECISIONS:
            state = await answered(client, state, DECISIONS[scenario])
    run_id = answer_of(state)["id"]
    await penstock.ended(run_id)
    events = await events_of_run(penstock, run_id)
    failed = events[-1].type == "lifecycle.failed"
    assert state["status"] == ("error" if failed else "ready"), state["errors"]
    metadata = answer_of(state)["metadata"]
    assert metadata["status"] == events[-1].type.removeprefix("lifecycle.")
    assert metadata.get("usage") == events[-1].data.get("usage")
    said = "".join(each.data["content"] for each in events if each.type == "llm.stream")
    assert text(state).startswith(said) if upstream == "workflow" else text(state) == said
    thoughts = "".join(each.data["thought"] for each in events if each.type == "llm.reasoning")
    assert "".join(each["text"] for each in parts(state, "reasoning")) == thoughts
    calls = {each.data["tool_call_id"] for each in events if each.type == "llm.tool_call"}
    shown = [each for each in parts(state, "dynamic-tool") if each["toolCallId"] in calls]
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
            api = f"{edge.url}/vercel/assistant?sdk={client.version}"
            await client("open", chat=f"chat-{uuid.uuid4().hex}", api=api)
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
