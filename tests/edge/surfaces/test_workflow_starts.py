"""Each surface starts a workflow with its input; a start that it cannot take starts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from penstock.bus import Bus, messages, streams, subjects
from penstock.bus.records.runs import StartCommand
from penstock.bus.records.workflows import LatestWorkflow, WorkflowRecord
from penstock.bus.write.objects import unwrap
from penstock.settings import Config, WorkflowAgent
from support.drive.clients import Client, Stream

AGENTS = [
    WorkflowAgent(id="review", protocol="workflow", agent="code_review", topology_id=200),
    WorkflowAgent(id="old", protocol="workflow", agent="code_review", version="9", topology_id=201),
]
SCHEMA = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "strict": {"type": "boolean"}},
    "additionalProperties": False,
}
SSE = {"accept": "text/event-stream"}


@pytest.fixture(scope="module")
def config() -> Config:
    return Config(agents=AGENTS)


@pytest.fixture
async def defined(bus: Bus) -> AsyncIterator[None]:
    record = WorkflowRecord(
        name="code_review",
        version="1",
        digest="d",
        definition={},
        input_schema=SCHEMA,
        created_at=messages.now(),
        created_by="ada",
    )
    bucket = bus.bucket("workflows")
    await bucket.put("v.code_review.1", record.dump())
    await bucket.put("latest.code_review", LatestWorkflow(version="1").dump())
    yield
    for key in ("v.code_review.1", "latest.code_review"):
        await bucket.delete(key)


def v1(agent: str, input: Any) -> tuple[str, dict[str, Any]]:
    body = {"agent": agent, "message": "Hi", "input": input}
    return "/v1/runs", {"json": body, "headers": SSE}


def agno(agent: str, input: Any) -> tuple[str, dict[str, Any]]:
    form = {"message": "Hi", "stream": "true", "input": orjson.dumps(input).decode()}
    return f"/workflows/{agent}/runs", {"data": form}


def agui(agent: str, input: Any) -> tuple[str, dict[str, Any]]:
    body = {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "m", "role": "user", "content": "Hi"}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {"input": input},
    }
    return f"/agui/{agent}", {"json": body}


def adk(agent: str, input: Any) -> tuple[str, dict[str, Any]]:
    body = {
        "appName": agent,
        "userId": "anonymous",
        "sessionId": "s",
        "newMessage": {"role": "user", "parts": [{"text": "Hi"}]},
        "stateDelta": input,
    }
    return "/run_sse", {"json": body}


def executions(agent: str, input: Any) -> tuple[str, dict[str, Any]]:
    """The executions contract has only a message."""
    topology = {"review": 200, "old": 201}[agent]
    return "/api/service/v1/executions/trigger", {
        "json": {"topologyId": topology, "userMessage": "Hi"}
    }


WITH_INPUT = [v1, agno, agui, adk]
SURFACES = pytest.mark.parametrize("surface", [*WITH_INPUT, executions])


@SURFACES
async def test_a_workflow_gets_its_input_and_the_message(
    edge: Client, bus: Bus, defined: None, surface: Any
) -> None:
    path, request = surface("review", {"strict": True})
    async with Stream(edge, "POST", path, **request) as stream:
        run_id = stream.run_id
    stored = await bus.tail(streams.COMMANDS, subjects.command("workflows", "start", run_id))
    assert stored is not None
    sent = StartCommand.model_validate_json(await unwrap(bus, stored.payload))
    assert (sent.agent, sent.workflow, sent.version) == ("review", "code_review", "1")
    expected = {"message": "Hi"} | ({} if surface is executions else {"strict": True})
    assert sent.input == expected
    shown = (await edge.get(f"/v1/runs/{run_id}")).json()
    assert (shown["status"], shown["target"]) == ("queued", "workflows")


REFUSED: list[tuple[str, Any, int, str]] = [
    ("review", {"strict": 3}, 422, "must be boolean, not 3"),
    ("review", {"stict": True}, 422, "there is no such field"),
    ("review", [1], 422, ""),
    ("old", {}, 404, "no version 9"),
]


@pytest.mark.parametrize(
    ("surface", "agent", "input", "status", "text"),
    [(surface, *each) for surface in WITH_INPUT for each in REFUSED]
    + [(executions, "old", {}, 404, "no version 9")],
)
async def test_a_start_that_the_workflow_cannot_take_starts_nothing(
    edge: Client,
    bus: Bus,
    defined: None,
    surface: Any,
    agent: str,
    input: Any,
    status: int,
    text: str,
) -> None:
    before = (await bus.api("STREAM.INFO.KV_runs"))["state"]["last_seq"]
    path, request = surface(agent, input)
    answer = await edge.post(path, **request)
    assert answer.status_code == status, answer.text
    assert text in answer.text
    assert (await bus.api("STREAM.INFO.KV_runs"))["state"]["last_seq"] == before


@SURFACES
async def test_a_workflow_that_nobody_has_defined_starts_nothing(
    edge: Client, bus: Bus, surface: Any
) -> None:
    path, request = surface("review", {})
    answer = await edge.post(path, **request)
    assert answer.status_code == 404
    assert "there is no workflow 'code_review'" in answer.text.replace('\\"', "'")


async def test_a_cancel_of_a_workflow_goes_to_workflows(
    edge: Client, bus: Bus, defined: None
) -> None:
    run = (await edge.post("/v1/runs", json={"agent": "review", "message": "Hi"})).json()
    listed = (await edge.get("/v1/agents")).json()["agents"]
    assert {each["id"]: each["answers"] for each in listed} == {"review": True, "old": False}
    cancelling = asyncio.create_task(edge.post(f"/v1/runs/{run['run_id']}/cancel"))
    subject = subjects.command("workflows", "cancel", run["run_id"])
    try:
        async with asyncio.timeout(30):
            while await bus.tail(streams.COMMANDS, subject) is None:
                await asyncio.sleep(0.02)
    finally:
        cancelling.cancel()
        await asyncio.gather(cancelling, return_exceptions=True)
    connectors = subjects.command("connector", "cancel", run["run_id"])
    assert await bus.tail(streams.COMMANDS, connectors) is None
