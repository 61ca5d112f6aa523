"""OpenAI's clients over all upstreams, and while an edge and a connector are killed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.fakes.cutter import cutter
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.real.openai_client import LANGUAGES, OpenAIClient, running
from support.real.upstreams import Upstream

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.real,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    tmp_path_factory: pytest.TempPathFactory,
    agno_server: Upstream,
    adk_server: Upstream,
    pydantic_ai_server: Upstream,
) -> AsyncIterator[Deployment]:
    agno = {"protocol": "agno", "url": agno_server.url}
    agui = {"protocol": "agui", "url": f"{pydantic_ai_server.url}/approval"}
    agents: list[dict[str, Any]] = [
        {"id": "agno", "agent": "demo-agent", **agno},
        {"id": "flow", "agent": "simple-wf", "kind": "workflow", **agno},
        {"id": "adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
        {"id": "agui", **agui},
        {"id": "agui-text", "protocol": "agui", "url": f"{pydantic_ai_server.url}/text"},
    ]
    folder: Path = tmp_path_factory.mktemp("openai-kills")
    nats = NatsServer(folder / "nats")
    nats.start()
    try:
        counts = {"normalizer": 1, "approvals": 1, "connector": 2, "edge": 2}
        async with deployment(nats.url, folder, agents, counts) as running_:
            yield running_
    finally:
        nats.remove()


TEXTS = {"agno": "text", "adk": "plain hi", "flow": "text", "agui-text": "hi"}
ASKS = {"agno": "confirm openai", "adk": "confirm", "agui": "hello"}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("agent", TEXTS)
async def test_each_upstream_answers(penstock: Deployment, language: str, agent: str) -> None:
    with running(language, penstock.edge()) as openai:
        events = await openai.call("stream", body={"model": agent, "input": TEXTS[agent]})
        final = events[-1]["response"]
        assert final["status"] == "completed"
        assert [item["type"] for item in final["output"]][-1] == "message"
        whole = await openai.call("retrieve", id=final["id"])
        assert whole["output"] == final["output"]


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("agent", ASKS)
async def test_each_upstream_asks_and_continues(
    penstock: Deployment, language: str, agent: str, approve: bool
) -> None:
    with running(language, penstock.edge()) as openai:
        asked = await openai.call("create", body={"model": agent, "input": ASKS[agent]})
        requests = [each for each in asked["output"] if each["type"] == "mcp_approval_request"]
        assert requests, asked
        answer = {"type": "mcp_approval_response", "approve": approve}
        given = [{**answer, "approval_request_id": each["id"]} for each in requests]
        body = {"model": agent, "input": given, "previous_response_id": asked["id"]}
        told = await openai.call("stream", body=body)
        assert told[-1]["type"] == "response.completed"
        calls = [each for each in told[-1]["response"]["output"] if each["type"] == "mcp_call"]
        assert [each["status"] for each in calls][:1] == ["completed" if approve else "failed"]


async def _rest(openai: OpenAIClient, url: str, read: list[dict[str, Any]]) -> list[dict[str, Any]]:
    response_id, after = read[0]["response"]["id"], read[-1]["sequence_number"]
    rest: list[dict[str, Any]] = await openai.call("resume", id=response_id, after=after, url=url)
    return rest


@pytest.mark.parametrize("language", LANGUAGES)
async def test_an_edge_that_is_killed_costs_no_frame(penstock: Deployment, language: str) -> None:
    with running(language, penstock.edge()) as openai:
        body = {"model": "agno", "input": "slow", "background": True}
        read = await openai.call("stream", body=body, cut=4, url=penstock.edge(0))
        await penstock.kill(penstock.of("edge")[0])
        read += await _rest(openai, penstock.edge(0), read)
        await penstock.start("edge")
        whole = await openai.call("resume", id=read[0]["response"]["id"], url=penstock.edge(1))
        assert read == whole
        assert whole[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_connector_that_is_killed_ends_no_response_twice(
    penstock: Deployment, language: str
) -> None:
    with running(language, penstock.edge()) as openai:
        body = {"model": "agno", "input": "slow", "background": True}
        read = await openai.call("stream", body=body, cut=4)
        await penstock.kill(penstock.of("connector")[0])
        await penstock.start("connector")
        read += await _rest(openai, penstock.edge(), read)
        assert [each["sequence_number"] for each in read] == [*range(len(read))]
        assert read == await openai.call("resume", id=read[0]["response"]["id"])
        assert read[-1]["response"]["status"] in ("completed", "failed")


# When the edge is killed, after the client has begun its request.
MOMENTS_S = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.15, 0.5)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_request_whose_edge_is_killed_is_repeated_at_another_and_starts_one_run(
    penstock: Deployment, language: str
) -> None:
    with running(language, penstock.edge()) as openai:
        for moment_s in MOMENTS_S:
            session = uuid.uuid4().hex
            body = {"model": "agno", "input": f"slow {session}", "conversation": session}
            async with cutter(penstock.edge(0), []) as proxy:
                asking = asyncio.create_task(openai.call("create", body=body, url=proxy.url))
                await asyncio.sleep(moment_s)
                proxy.aim(penstock.edge(1))
                await penstock.kill(penstock.of("edge")[0])
                whole = await asking
            assert whole["status"] == "completed"
            listed = await penstock.http.get(
                f"{penstock.edge()}/v1/runs", params={"session_id": session}
            )
            runs = [each["run_id"] for each in listed.json()["runs"]]
            assert runs == [whole["metadata"]["run_id"]], moment_s
            await penstock.start("edge")
