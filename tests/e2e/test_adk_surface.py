"""ADK's surface serves runs of the real ADK server and of the real Agno server.

With two edges, a test starts a run at one edge, and answers its pause and reads its session at the
other.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import httpx
import pytest

from penstock.sse import Frame
from support.real.deployment import Deployment, frames
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

# For each kind of agent: the appName and the message. The kinds are the ADK server's app, an Agno
# agent and an Agno workflow.
APPS = {"adk": ("demo", "plain hi"), "agno": ("assistant", "text"), "workflow": ("flow", "text")}
CONFIRMED = {"adk": ("demo", "confirm"), "agno": ("assistant", "confirm {title}")}


def asked(app: str, session_id: str, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "parts": list(parts)}
    fixed = {"appName": app, "userId": "u1", "sessionId": session_id, "newMessage": message}
    return fixed | {"streaming": True} | fields


def fresh() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


async def run_sse(penstock: Deployment, body: dict[str, Any], edge: int = 0) -> list[Frame]:
    async with (
        asyncio.timeout(40),
        penstock.http.stream("POST", f"{penstock.edge(edge)}/run_sse", json=body) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        return [frame async for frame in frames(answer)]


async def run(penstock: Deployment, body: dict[str, Any], edge: int = 0) -> httpx.Response:
    return await penstock.http.post(f"{penstock.edge(edge)}/run", json=body)


def parts_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of all events that are not partial."""
    return [
        part
        for event in events
        if not event.get("partial")
        for part in event.get("content", {}).get("parts", [])
    ]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(part.get("text", "") for part in parts_of(events))


@pytest.mark.parametrize("kind", APPS)
async def test_run_and_run_sse_tell_the_same(penstock: Deployment, kind: str) -> None:
    app, said = APPS[kind]
    streamed = await run_sse(penstock, asked(app, fresh(), {"text": said}))
    events = [json.loads(frame.data) for frame in streamed]
    assert all(frame.id is None and frame.event is None for frame in streamed)
    partial = [event for event in events if event.get("partial")]
    assert "".join(event["content"]["parts"][0]["text"] for event in partial) in text_of(events)
    answer = await run(penstock, asked(app, fresh(), {"text": said}, streaming=False), edge=1)
    assert answer.status_code == 200
    assert text_of(answer.json()) == text_of(events) != ""
    assert not any(event.get("partial") for event in answer.json())


async def test_a_session_id_that_an_adk_server_has_no_path_for_is_refused_at_the_start(
    penstock: Deployment, adk_server: Upstream
) -> None:
    """The real ADK server decodes `%2F` before it looks up the route, so it always answers 404."""
    session = "/apps/demo/users/u1/sessions/team%2Fb"
    async with httpx.AsyncClient(timeout=30) as direct:
        for method in ("POST", "GET"):
            assert (await direct.request(method, f"{adk_server.url}{session}")).status_code == 404
    base, http = penstock.edge(0), penstock.http
    text = {"text": "plain hi"}
    refused = [
        await http.post(f"{base}/run_sse", json=asked("demo", "team/b", text)),
        await http.post(f"{base}/run", json=asked("demo", "team/b", text)),
        await http.post(
            f"{base}/v1/runs", json={"agent": "adk", "session_id": "team/b", "message": "plain hi"}
        ),
        await http.post(f"{base}{session}"),
        await http.post(f"{base}{session.rpartition('/')[0]}", json={"sessionId": "team/b"}),
    ]
    assert [each.status_code for each in refused] == [422] * 5, [each.text for each in refused]
    assert all("has a slash" in each.json()["detail"] for each in refused)
    runs = (await http.get(f"{base}/v1/runs")).json()["runs"]
    assert "team/b" not in [each["session_id"] for each in runs]
    # The Agno server takes the session id in the body, so an id with a slash is accepted for its
    # agents.
    assert text_of(
        [
            json.loads(f.data)
            for f in await run_sse(
                penstock, asked("assistant", f"team/{fresh()}", {"text": "text"})
            )
        ]
    )


@pytest.mark.parametrize("kind", CONFIRMED)
@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_confirmation_is_answered_as_adks_clients_do(
    penstock: Deployment,
    adk_server: Upstream,
    agno_server: Upstream,
    kind: str,
    confirmed: bool,
) -> None:
    app, said = CONFIRMED[kind]
    session_id = fresh()
    text = {"text": said.format(title=session_id)}
    streamed = await run_sse(penstock, asked(app, session_id, text))
    events = [json.loads(frame.data) for frame in streamed]
    calls = [part["functionCall"] for part in parts_of(events) if "functionCall" in part]
    assert calls[-1]["name"] == "adk_request_confirmation"
    original = calls[-1]["args"]["originalFunctionCall"]
    assert original["id"] in [call["id"] for call in calls[:-1]]
    assert len({call["id"] for call in calls}) == len(calls)
    response = {
        "functionResponse": {
            "id": calls[-1]["id"],
            "name": "adk_request_confirmation",
            "response": {"confirmed": confirmed},
        }
    }
    body = asked(app, session_id, response, invocationId=events[-1]["invocationId"])
    continued = [json.loads(frame.data) for frame in await run_sse(penstock, body, edge=1)]
    responses = [
        part["functionResponse"] for part in parts_of(continued) if "functionResponse" in part
    ]
    assert [each["id"] for each in responses] == [original["id"]]
    assert ("error" in responses[0]["response"]) is not confirmed
    server = adk_server if kind == "adk" else agno_server
    ran = sum(session_id in json.dumps(each) for each in server.tool_runs())
    assert ran == int(confirmed)
    again = await run(penstock, body)
    assert again.status_code == 409
    assert set(again.json()) == {"detail"}


ANSWERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "external": ("run_shell", {"result": "42 files"}, "42 files"),
    "userinput": ("adk_request_input", {"to_address": "ann@example.com"}, "ann@example.com"),
    "feedback": ("adk_request_input", {"Which city?": ["Rome"]}, "Rome"),
}


@pytest.mark.parametrize("said", ANSWERS)
async def test_what_another_agent_asks_for_is_answered_by_a_function_response(
    penstock: Deployment, said: str
) -> None:
    name, response, seen = ANSWERS[said]
    session_id = fresh()
    first = await run(penstock, asked("assistant", session_id, {"text": said}))
    calls = [part["functionCall"] for part in parts_of(first.json())]
    original, call = calls[0], calls[-1]
    assert call["name"] == name
    assert first.json()[-1]["longRunningToolIds"] == [call["id"]]
    answer = {"functionResponse": {"id": call["id"], "name": name, "response": response}}
    second = await run(penstock, asked("assistant", session_id, answer), edge=1)
    assert second.status_code == 200, second.text
    result, *_ = [
        part["functionResponse"] for part in parts_of(second.json()) if "functionResponse" in part
    ]
    assert result["id"] == original["id"]
    assert seen in json.dumps(result["response"])


@pytest.mark.parametrize(
    ("app", "said"), [("demo", "midstream"), ("assistant", "failmid"), ("gone", "anything")]
)
async def test_a_failure_is_the_last_frame_and_runs_status(
    penstock: Deployment, app: str, said: str
) -> None:
    streamed = await run_sse(penstock, asked(app, fresh(), {"text": said}))
    last = json.loads(streamed[-1].data)
    assert "error" in last
    assert "author" not in last
    answer = await run(penstock, asked(app, fresh(), {"text": said}))
    assert answer.status_code == 500
    assert set(answer.json()) == {"detail"}


async def test_an_agents_timeout_is_the_documents_frame_and_the_pairs_status(
    penstock: Deployment,
) -> None:
    streamed = await run_sse(penstock, asked("hasty", fresh(), {"text": "slow"}))
    last = json.loads(streamed[-1].data)
    assert (last["error"], last["error_code"]) == ("Request timeout after 2 seconds", "TIMEOUT")
    url = f"{penstock.edge()}/apps/hasty/users/u1/sessions/{fresh()}/run"
    await penstock.http.post(url, json={"query": "slow"})
    told = await legacy(penstock, url)
    assert told[-1].event == "agent_status"
    assert "Request timeout after 2 seconds" in json.loads(told[-1].data)["content"]


def sessions(penstock: Deployment, app: str, edge: int = 0) -> str:
    return f"{penstock.edge(edge)}/apps/{app}/users/u1/sessions"


@pytest.mark.parametrize("kind", ["adk", "agno"])
async def test_a_session_is_created_once_filled_listed_and_deleted(
    penstock: Deployment, kind: str
) -> None:
    app, said = APPS[kind]
    session_id = fresh()
    here, there = sessions(penstock, app), sessions(penstock, app, edge=1)
    http = penstock.http
    created = await http.post(here, json={"sessionId": session_id})
    assert created.status_code == 200
    assert created.json()["events"] == []
    for again in (
        await http.post(there, json={"sessionId": session_id}),
        await http.post(f"{there}/{session_id}"),
    ):
        assert again.status_code == 409
        assert set(again.json()) == {"detail"}
    answer = await run(penstock, asked(app, session_id, {"text": said}))
    shown = (await http.get(f"{there}/{session_id}")).json()
    assert (shown["id"], shown["appName"], shown["userId"]) == (session_id, app, "u1")
    assert shown["events"][0]["author"] == "user"
    assert text_of(shown["events"]) == said + text_of(answer.json())
    assert session_id in [each["id"] for each in (await http.get(there)).json()]
    await settled(penstock, f"{here}/{session_id}")
    assert (await http.get(f"{there}/{session_id}")).status_code == 404
    assert session_id not in [each["id"] for each in (await http.get(there)).json()]


async def settled(penstock: Deployment, url: str) -> None:
    """Delete the session, and repeat the request while the edge answers 409."""
    async with asyncio.timeout(20):
        while (answer := await penstock.http.delete(url)).status_code == 409:
            await asyncio.sleep(0.05)
    assert (answer.status_code, answer.json()) == (200, None)


async def test_the_state_of_an_adk_session_survives_a_second_create(penstock: Deployment) -> None:
    url = f"{sessions(penstock, 'demo')}/{fresh()}"
    assert (await penstock.http.post(url, json={"colour": "blue"})).status_code == 200
    assert (await penstock.http.post(url, json={"colour": "red"})).status_code == 409
    await run(penstock, asked("demo", url.rpartition("/")[2], {"text": "plain hi"}))
    assert (await penstock.http.get(url)).json()["state"]["colour"] == "blue"


@pytest.mark.parametrize(("app", "said"), [("demo", "slow 200 50"), ("assistant", "slow")])
async def test_a_session_with_a_run_under_way_is_not_deleted(
    penstock: Deployment, app: str, said: str
) -> None:
    session_id = fresh()
    url = f"{sessions(penstock, app)}/{session_id}"
    started = await penstock.http.post(f"{url}/run", json={"query": said})
    run_id = started.headers["penstock-run-id"]
    await penstock.until(run_id, "llm.stream")
    assert (await penstock.http.delete(url)).status_code == 409
    assert (await penstock.http.get(url)).status_code == 200
    cancelled = await penstock.http.post(f"{penstock.edge()}/v1/runs/{run_id}/cancel")
    assert cancelled.status_code == 200
    await settled(penstock, url)


async def legacy(penstock: Deployment, url: str, after: str | None = None) -> list[Frame]:
    headers = {"last-event-id": after} if after else {}
    async with (
        asyncio.timeout(40),
        penstock.http.stream("GET", url, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        return [frame async for frame in frames(answer)]


@pytest.mark.parametrize(
    ("app", "query"), [("demo", "weather"), ("assistant", "tool"), ("team", "delegate")]
)
async def test_the_legacy_pair_tells_the_same_to_all(
    penstock: Deployment, app: str, query: str
) -> None:
    path = f"/apps/{app}/users/u1/sessions/{fresh()}/run"
    early = asyncio.create_task(legacy(penstock, penstock.edge(1) + path))
    posted = await penstock.http.post(penstock.edge() + path, json={"query": query})
    assert posted.json() == {"success": True, "sessionId": path.split("/")[-2]}
    told = await legacy(penstock, penstock.edge() + path)
    assert await early == told
    assert {frame.event for frame in told} == {
        "agent_status",
        "research_update",
        "research_complete",
    }
    assert told[-1].event == "research_complete"
    for cut in (1, len(told) // 2):
        rest = await legacy(penstock, penstock.edge(1) + path, after=told[cut - 1].id)
        assert rest == told[cut:]
