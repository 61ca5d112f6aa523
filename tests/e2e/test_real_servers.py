"""Runs of real agent servers reach a client over JetStream, through an approval.

Two processes of each service run, and start, stream and decision go to different edges.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock.events import TERMINAL, parse, typed_data
from support.drive.waiting import eventually
from support.real.deployment import Deployment, Event, frames
from support.real.upstreams import Upstream

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="session"),
]


def check(events: list[Event]) -> None:
    """Check that the events are valid, in order without a gap, and end once, at the last event."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert len({event.id for event in events}) == len(events)
    assert [event.type in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    for event in events:
        parsed = parse(event.body)
        assert event.type == parsed.type
        typed_data(parsed.type, parsed.data)


def types(events: list[Event]) -> list[str | None]:
    return [event.type for event in events if event.type != "custom.event"]


def text(events: list[Event]) -> str:
    return "".join(event.data["content"] for event in events if event.type == "llm.stream")


def only(events: list[Event], type_: str) -> dict[str, Any]:
    (found,) = [event for event in events if event.type == type_]
    return found.data


async def test_text_from_agno(penstock: Deployment) -> None:
    run_id = await penstock.run("assistant", "text please")
    events = await penstock.all(run_id, edge=1)
    check(events)
    assert text(events) == only(events, "llm.message_completed")["content"]
    assert only(events, "lifecycle.completed")["summary"] == text(events)
    assert only(events, "lifecycle.completed")["usage"]["total_tokens"] > 0
    assert await penstock.status(run_id) == "completed"


async def test_text_from_adk(penstock: Deployment) -> None:
    run_id = await penstock.run("adk", "plain hi")
    events = await penstock.all(run_id, edge=1)
    check(events)
    assert text(events) == "Hello from demo_agent."


@pytest.mark.parametrize(("agent", "message"), [("assistant", "tool"), ("adk", "weather")])
async def test_a_tool_is_called_once_and_its_result_is_a_value(
    penstock: Deployment, agent: str, message: str
) -> None:
    events = await penstock.all(await penstock.run(agent, message))
    check(events)
    called, result = only(events, "llm.tool_call"), only(events, "llm.tool_result")
    assert called["tool_call_id"] == result["tool_call_id"]
    assert isinstance(result["result"], dict)
    assert result["outcome"] == "ok"


@pytest.mark.parametrize(("agent", "message"), [("assistant", "failmid"), ("adk", "midstream")])
async def test_an_error_in_mid_stream_ends_the_run_with_the_upstreams_words(
    penstock: Deployment, agent: str, message: str
) -> None:
    events = await penstock.all(await penstock.run(agent, message))
    check(events)
    assert text(events)
    assert types(events)[-2:] == ["llm.message_completed", "lifecycle.failed"]
    failed = only(events, "lifecycle.failed")
    assert failed["code"] == "upstream_error"
    assert "model backend" in failed["error"]


async def paused(penstock: Deployment, agent: str, message: str, **body: Any) -> tuple[str, str]:
    run_id = await penstock.run(agent, message, **body)
    seen = await penstock.until(run_id, "lifecycle.paused", edge=1)
    assert types(seen)[-2:] == ["approval.requested", "lifecycle.paused"]
    return run_id, seen[-1].data["approval_id"]


def runs_of(server: Upstream, mark: str) -> int:
    """Return how often a tool ran whose arguments or session contain this mark."""
    return sum(mark in json.dumps(run) for run in server.tool_runs())


def title() -> str:
    return f"Doc {uuid.uuid4().hex[:8]}"


async def test_an_approved_tool_of_agno_runs_exactly_once(
    penstock: Deployment, agno_server: Upstream
) -> None:
    name = title()
    run_id, approval_id = await paused(penstock, "assistant", f"confirm {name}")
    assert await penstock.status(run_id) == "paused"
    answers = await asyncio.gather(*(penstock.decide(approval_id, "approve") for _ in range(3)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
    events = await penstock.all(run_id)
    check(events)
    said = types(events)
    assert said.count("llm.tool_call") == 1
    assert said.index("approval.decided") < said.index("lifecycle.resumed")
    assert only(events, "llm.tool_call")["pending"] is True
    assert only(events, "llm.tool_result")["outcome"] == "ok"
    assert runs_of(agno_server, name) == 1
    late = await penstock.decide(approval_id, "reject")
    assert late.status_code == 409


async def test_a_rejected_tool_of_agno_never_runs(
    penstock: Deployment, agno_server: Upstream
) -> None:
    name = title()
    run_id, approval_id = await paused(penstock, "assistant", f"confirm {name}")
    answer = await penstock.decide(approval_id, "reject", note="not today")
    assert answer.status_code == 200
    events = await penstock.all(run_id)
    check(events)
    result = only(events, "llm.tool_result")
    assert (result["outcome"], result["error"]) == ("rejected", "not today")
    assert runs_of(agno_server, name) == 0


@pytest.mark.parametrize(("decision", "outcome"), [("approve", "ok"), ("reject", "rejected")])
async def test_a_decision_about_a_tool_of_adk(
    penstock: Deployment, adk_server: Upstream, decision: str, outcome: str
) -> None:
    session = f"s-{uuid.uuid4().hex[:8]}"
    run_id, approval_id = await paused(penstock, "adk", "confirm", session_id=session)
    assert (await penstock.decide(approval_id, decision)).status_code == 200
    events = await penstock.all(run_id)
    check(events)
    assert only(events, "llm.tool_result")["outcome"] == outcome
    runs = runs_of(adk_server, session)
    assert runs == (1 if decision == "approve" else 0)


@pytest.mark.parametrize(("agent", "message"), [("assistant", "slow"), ("adk", "slow 50 100")])
async def test_a_cancel_in_mid_run_ends_it(penstock: Deployment, agent: str, message: str) -> None:
    run_id = await penstock.run(agent, message)
    seen = await penstock.until(run_id, "llm.stream")
    answer = await penstock.http.post(f"{penstock.edge(1)}/v1/runs/{run_id}/cancel")
    assert answer.status_code == 200, answer.text
    events = await penstock.all(run_id)
    check(events)
    assert events[: len(seen)] == seen
    assert types(events)[-2:] == ["llm.message_completed", "lifecycle.cancelled"]
    assert only(events, "lifecycle.cancelled")["confirmed"] is True
    again = await penstock.http.post(f"{penstock.edge()}/v1/runs/{run_id}/cancel")
    assert again.status_code == 409


async def test_a_cancel_of_a_paused_run_withdraws_its_approval(
    penstock: Deployment, agno_server: Upstream
) -> None:
    name = title()
    run_id, approval_id = await paused(penstock, "assistant", f"confirm {name}")
    answer = await penstock.http.post(f"{penstock.edge()}/v1/runs/{run_id}/cancel")
    assert answer.status_code == 200, answer.text

    async def withdrawn() -> bool:
        shown = await penstock.http.get(f"{penstock.approvals}/v1/approvals/{approval_id}")
        return bool(shown.json()["status"] == "withdrawn")

    await eventually(withdrawn)
    assert (await penstock.decide(approval_id, "approve")).status_code == 409
    check(await penstock.all(run_id))
    assert runs_of(agno_server, name) == 0


@pytest.mark.parametrize(("agent", "message"), [("assistant", "long"), ("adk", "slow 15 50")])
async def test_a_client_that_leaves_and_reconnects_gets_exactly_the_rest(
    penstock: Deployment, agent: str, message: str
) -> None:
    run_id = await penstock.run(agent, message)
    parts: list[Event] = []
    visit = 0
    while not parts or parts[-1].type not in TERMINAL:
        visit += 1
        got = 0
        stream = penstock.events(run_id, edge=visit, after=parts[-1].id if parts else None)
        async for event in stream:
            parts.append(event)
            got += 1
            if got == 4:
                break
        await _close(stream)
        assert got
    check(parts)
    assert parts == await penstock.all(run_id)
    assert visit > 2


async def _close(stream: AsyncIterator[Event]) -> None:
    await stream.aclose()  # type: ignore[attr-defined]


async def test_runs_of_one_session_wait_for_each_other(penstock: Deployment) -> None:
    session = f"s-{uuid.uuid4().hex[:8]}"
    first = await penstock.run("adk", "slow 4 100", session_id=session)
    await penstock.until(first, "llm.stream")
    second = await penstock.run("adk", "plain hi", session_id=session, edge=1)
    one, two = await asyncio.gather(penstock.all(first), penstock.all(second))
    check(one)
    check(two)
    first_word = next(event for event in two if event.type == "llm.stream")
    assert first_word.body["timestamp"] >= one[-1].body["timestamp"]


async def test_a_team_tells_who_worked_for_whom(penstock: Deployment) -> None:
    events = await penstock.all(await penstock.run("team", "delegate"))
    check(events)
    worker = only(events, "dispatch.worker")
    assert worker["worker_name"] == "Researcher"
    assert only(events, "dispatch.finished")["subrun_id"] == worker["subrun_id"]
    inner = [event for event in events if event.body.get("subrun")]
    assert {event.body["source"]["team_name"] for event in inner if event.body["source"]} == {
        "Demo Team"
    }


async def test_a_workflow_tells_its_steps(penstock: Deployment) -> None:
    events = await penstock.all(await penstock.run("flow", "text"))
    check(events)
    said = types(events)
    assert said.count("workflow.step_started") == said.count("workflow.step_completed") == 2
    assert said[-2:] == ["workflow.completed", "lifecycle.completed"]


async def test_the_executions_contract_from_a_real_agent(penstock: Deployment) -> None:
    url = f"{penstock.edge()}/api/service/v1/executions/trigger"
    body = {"topologyId": 123, "userMessage": "tool"}
    async with penstock.http.stream("POST", url, json=body) as answer:
        assert answer.status_code == 200
        got = [frame async for frame in frames(answer)]
    bodies = [json.loads(frame.data) for frame in got]
    assert got[0].event == "lifecycle.started"
    assert got[-1].event == "lifecycle.completed"
    assert bodies[0]["data"] == {}
    assert set(bodies[-1]["data"]) == {"summary"}
    for parsed in bodies:
        assert set(parsed) == {"run_id", "timestamp", "sequence", "source", "event", "data"}
    (called,) = [b["data"] for b in bodies if b["event"]["action"] == "tool_call"]
    assert called == {"tool": "list_documents", "args": {}}


def adk_body(session: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "appName": "demo",
        "userId": "u1",
        "sessionId": session,
        "newMessage": {"parts": list(parts), "role": "user"},
        "streaming": True,
    }


async def run_sse(penstock: Deployment, body: dict[str, Any], edge: int = 0) -> httpx.Response:
    return await penstock.http.post(f"{penstock.edge(edge)}/run_sse", json=body)


def adk_events(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]


async def test_run_sse_creates_the_session_and_passes_every_byte(
    penstock: Deployment, adk_server: Upstream
) -> None:
    session = f"s-{uuid.uuid4().hex[:8]}"
    answer = await run_sse(penstock, adk_body(session, {"text": "tricky"}))
    assert answer.status_code == 200
    # The server keeps in the session what the client received.
    kept = await penstock.http.get(f"{adk_server.url}/apps/demo/users/u1/sessions/{session}")
    (said,) = [e for e in kept.json()["events"] if e["author"] == "demo_agent"]
    assert adk_events(answer)[-1]["content"]["parts"] == said["content"]["parts"]
    # The canonical stream has the same text.
    run_id = answer.headers["penstock-run-id"]
    events = await penstock.all(run_id, edge=1)
    check(events)
    assert text(events) == said["content"]["parts"][0]["text"]


async def test_a_function_response_to_run_sse_is_a_decision_and_only_one(
    penstock: Deployment, adk_server: Upstream
) -> None:
    session = f"s-{uuid.uuid4().hex[:8]}"
    asked = await run_sse(penstock, adk_body(session, {"text": "confirm"}))
    calls = [
        part["functionCall"]
        for event in adk_events(asked)
        for part in event.get("content", {}).get("parts", [])
        if "functionCall" in part and not event.get("partial")
    ]
    (request,) = [call for call in calls if call["name"] == "adk_request_confirmation"]
    response = {"id": request["id"], "name": request["name"], "response": {"confirmed": True}}
    body = adk_body(session, {"functionResponse": response})
    answer = await run_sse(penstock, body, edge=1)
    assert answer.status_code == 200, answer.text
    assert "Done with delete_file" in answer.text
    assert answer.headers["penstock-run-id"] == asked.headers["penstock-run-id"]
    again = await run_sse(penstock, body)
    assert again.status_code == 409
    assert "detail" in again.json()
    assert runs_of(adk_server, session) == 1
    check(await penstock.all(asked.headers["penstock-run-id"]))


async def test_an_agent_server_that_is_not_there_is_a_clear_end(penstock: Deployment) -> None:
    events = await penstock.all(await penstock.run("nobody", "hi"))
    check(events)
    failed = only(events, "lifecycle.failed")
    assert failed["code"] == "not_sent"
    assert "cannot reach the agent server at [address]" in failed["error"]
