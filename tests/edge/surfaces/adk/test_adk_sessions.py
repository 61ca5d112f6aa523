"""ADK's session endpoints, for ADK servers and for agents of other protocols."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.settings import AdkAgent, Config
from penstock_edge.sources import read_run
from penstock_edge.surfaces.adk import servers as adk_server
from support.drive.clients import Client, MakeEdge
from support.fakes.adk_server import AdkSessionsServer
from support.fakes.pretend import PretendRun
from support.fakes.serving import close_after

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def user() -> str:
    """Return a user that no other test uses, because sessions stay in the bucket."""
    return f"user {uuid.uuid4()}"


def sessions(user: str, app: str = "assistant") -> str:
    return f"/apps/{app}/users/{user}/sessions"


# agents of other protocols


async def test_a_new_session_is_as_adk_shows_it(edge: Client, user: str) -> None:
    created = await edge.post(sessions(user), json={"sessionId": "s1", "state": {}})
    assert created.status_code == 200
    session = created.json()
    assert abs(session.pop("lastUpdateTime") - time.time()) < 5
    assert session == {
        "id": "s1",
        "appName": "assistant",
        "userId": user,
        "state": {},
        "events": [],
    }
    assert (await edge.get(f"{sessions(user)}/s1")).json()["id"] == "s1"


@pytest.mark.parametrize("request_body", [{}, {"json": {}}, {"json": None}])
async def test_a_session_without_an_id_is_given_one(
    edge: Client, user: str, request_body: dict[str, Any]
) -> None:
    created = await edge.post(sessions(user), **request_body)
    assert created.status_code == 200
    assert uuid.UUID(created.json()["id"])


async def test_a_session_that_exists_is_not_created_again(edge: Client, user: str) -> None:
    assert (await edge.post(f"{sessions(user)}/s1")).status_code == 200
    for again in (
        await edge.post(sessions(user), json={"sessionId": "s1"}),
        await edge.post(f"{sessions(user)}/s1"),
    ):
        assert again.status_code == 409
        assert again.json() == {"detail": "Session already exists: s1"}


async def run_in(bus: Bus, user: str, session_id: str = "s1") -> PretendRun:
    """Return a run of the session that a connector has taken and that has no events yet."""
    run = PretendRun(bus, session_id=session_id)
    await run.join(user_id=user)
    return run


async def test_a_session_has_the_events_of_its_runs_and_what_the_user_said(
    edge: Client, bus: Bus, user: str
) -> None:
    for said in ("one", "two"):
        run = await run_in(bus, user)
        await run.say("lifecycle.started", agent="assistant", user_id=user, message=said)
        await run.text(said)
        await run.say("llm.message_completed", message_id="m1", content=said.upper())
        await run.say("lifecycle.failed", error="no", code="upstream_lost")
    session = (await edge.get(f"{sessions(user)}/s1")).json()
    told = [(event["author"], event["content"]["parts"]) for event in session["events"]]
    assert told == [
        ("user", [{"text": "one"}]),
        ("assistant", [{"text": "ONE"}]),
        ("user", [{"text": "two"}]),
        ("assistant", [{"text": "TWO"}]),
    ]
    assert all({"id", "invocationId", "timestamp"} <= event.keys() for event in session["events"])
    assert session["lastUpdateTime"] > 0


async def test_the_list_has_the_users_own_sessions_of_the_app_without_events(
    edge: Client, bus: Bus, user: str
) -> None:
    assert (await edge.get(sessions(user))).json() == []
    run = await run_in(bus, user, "b")
    await run.started()
    await edge.post(f"{sessions(user)}/a")
    await edge.post(f"{sessions(user + '2')}/c")
    listed = (await edge.get(sessions(user))).json()
    assert {each["id"] for each in listed} == {"a", "b"}
    assert all(each["events"] == [] and each["userId"] == user for each in listed)


async def test_a_deleted_session_is_gone(edge: Client, bus: Bus, user: str) -> None:
    run = await run_in(bus, user)
    await run.started()
    await run.completed()
    await run.record(user_id=user, status="completed")
    deleted = await edge.delete(f"{sessions(user)}/s1")
    assert (deleted.status_code, deleted.json()) == (200, None)
    gone = await edge.get(f"{sessions(user)}/s1")
    assert (gone.status_code, gone.json()) == (404, {"detail": "Session not found"})
    # As with ADK, it is no error to delete a session that does not exist.
    assert (await edge.delete(f"{sessions(user)}/s1")).status_code == 200


async def test_a_session_with_a_run_under_way_is_not_deleted(
    edge: Client, bus: Bus, user: str
) -> None:
    run = await run_in(bus, user)
    await run.started()
    paused = await run_in(bus, user, "s2")
    await paused.started()
    await paused.say("lifecycle.paused", reason="approval_required", approval_id="a")
    for id in ("s1", "s2"):
        refused = await edge.delete(f"{sessions(user)}/{id}")
        assert (refused.status_code, set(refused.json())) == (409, {"detail"})
        assert (await edge.get(f"{sessions(user)}/{id}")).status_code == 200


@pytest.mark.parametrize("field", ["state", "events"])
async def test_what_no_other_agent_can_be_given_is_refused(
    edge: Client, user: str, field: str
) -> None:
    value: Any = {"a": 1} if field == "state" else [{"author": "user"}]
    refused = await edge.post(sessions(user), json={"sessionId": "s1", field: value})
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"] == ["body", field]
    assert (await edge.get(f"{sessions(user)}/s1")).status_code == 404


# sessions of ADK servers


@pytest.fixture(params=[False, True], ids=["2.13", "1.16"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[AdkSessionsServer]:
    server = AdkSessionsServer(old=request.param)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def adk(make_edge: MakeEdge, server: AdkSessionsServer) -> Client:
    """Run an edge with an agent `helper`, which is the app `vana` of that ADK server."""
    helper = AdkAgent(
        id="helper", protocol="adk", url=server.url, agent="vana", accepts=["events", "options"]
    )
    return await make_edge(config=Config(agents=[helper]))


@pytest.mark.parametrize("id", ["s1", "a?b #1", "ü%2F", ".."])
async def test_an_adk_servers_sessions_are_its_own(
    adk: Client, server: AdkSessionsServer, user: str, id: str
) -> None:
    path = sessions(user, "vana")
    created = await adk.post(path, json={"sessionId": id, "state": {"colour": "blue"}})
    assert created.status_code == 200
    known = server.sessions["vana", user, id]
    assert created.json() == known
    assert known["state"] == {"colour": "blue"}
    assert (await adk.get(path)).json() == [known]
    await adk.post(f"{path}/s2", json={"size": 3})
    assert (await adk.get(f"{path}/s2")).json()["state"] == {"size": 3}
    assert (await adk.delete(f"{path}/s2")).json() is None
    gone = await adk.get(f"{path}/s2")
    assert (gone.status_code, gone.json()) == (404, {"detail": "Session not found"})


@pytest.mark.parametrize(
    "body",
    [
        {"sessionId": "s1"},
        {"session_id": "s1", "state": {"a": 2}},
        {"sessionId": "s1", "events": [{"author": "user"}]},
        {"sessionId": "s1", "options": {}},
    ],
)
async def test_a_session_of_an_adk_server_is_never_replaced(
    adk: Client, server: AdkSessionsServer, user: str, body: dict[str, Any]
) -> None:
    path = sessions(user, "vana")
    await adk.post(path, json={"sessionId": "s1", "state": {"a": 1}})
    for again in (await adk.post(path, json=body), await adk.post(f"{path}/s1", json={"a": 2})):
        assert again.status_code == 409
        assert again.json() == {"detail": "Session already exists: s1"}
    assert server.sessions["vana", user, "s1"]["state"] == {"a": 1}


async def test_all_that_a_create_may_say_reaches_the_adk_server(
    adk: Client, server: AdkSessionsServer, user: str
) -> None:
    events = [{"author": "user", "content": {"parts": [{"text": "hi"}]}}]
    body = {"sessionId": "s1", "state": {"a": 1}, "events": events}
    assert (await adk.post(sessions(user, "vana"), json=body)).status_code == 200
    assert server.sessions["vana", user, "s1"]["events"] == events


async def test_a_session_of_an_adk_server_with_a_run_under_way_is_not_deleted(
    adk: Client, server: AdkSessionsServer, bus: Bus, user: str
) -> None:
    path = sessions(user, "vana")
    await adk.post(f"{path}/s1")
    run = PretendRun(bus)
    await run.join(user_id=user, agent="helper")
    await run.started()
    assert (await adk.delete(f"{path}/s1")).status_code == 409
    await run.completed()
    assert (await adk.delete(f"{path}/s1")).status_code == 200
    assert server.sessions == {}


async def test_an_adk_servers_trouble_is_told_as_detail(
    adk: Client, server: AdkSessionsServer, user: str
) -> None:
    server.broken = True
    answer = await adk.get(sessions(user, "vana"))
    assert (answer.status_code, answer.json()) == (500, {"detail": "Internal Server Error"})


async def test_an_adk_server_that_is_not_there_is_502(edge: Client, user: str) -> None:
    path = sessions(user, "vana")
    for answer in (
        await edge.get(path),
        await edge.post(path, json={"sessionId": "s1"}),
        await edge.get(f"{path}/s1"),
        await edge.delete(f"{path}/s1"),
    ):
        assert (answer.status_code, set(answer.json())) == (502, {"detail"})


@pytest.mark.parametrize("path", ["s1", "s1/artifacts/video.mp4"])
async def test_an_answer_larger_than_the_limit_is_refused_before_it_is_read(
    make_edge: MakeEdge, user: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    limit, size, piece = 1024 * 1024, 64 * 1024 * 1024, b"a" * 64 * 1024
    monkeypatch.setattr(adk_server, "MAX_ANSWER_BYTES", limit)
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"')
        try:
            while sent < size:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
            writer.write(b'"')
        except ConnectionError:
            pass  # the edge has closed the connection
        writer.close()

    async with await asyncio.start_server(close_after(serve), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        agent = AdkAgent(id="helper", protocol="adk", agent="vana", url=f"http://127.0.0.1:{port}")
        edge = await make_edge(config=Config(agents=[agent]))
        answer = await edge.get(f"{sessions(user, 'vana')}/{path}")
    assert answer.status_code == 502
    assert "the ADK server's answer is larger than 1 MiB" in answer.json()["detail"]
    assert sent < size / 2


# bad input, for any agent


@pytest.mark.parametrize("app", ["assistant", "vana"])
@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"sessionId": 5}, ["body", "sessionId"]),
        ({"sessionId": ""}, ["body", "sessionId"]),
        ({"sessionId": "x" * 513}, ["body", "sessionId"]),
        ({"state": []}, ["body", "state"]),
        ({"events": {}}, ["body", "events"]),
        ({"events": ["x"]}, ["body", "events", 0]),
    ],
)
async def test_a_wrong_field_is_422_and_named(
    edge: Client, user: str, app: str, body: dict[str, Any], loc: list[Any]
) -> None:
    refused = await edge.post(sessions(user, app), json=body)
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"] == loc


@pytest.mark.parametrize("path", ["", "/s1"])
@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"\xff"])
async def test_a_body_that_is_no_json_object_is_422(
    edge: Client, user: str, path: str, body: bytes
) -> None:
    refused = await edge.post(sessions(user) + path, content=body, headers=JSON)
    assert (refused.status_code, set(refused.json())) == (422, {"detail"})


async def test_an_unknown_app_is_404_for_every_method(edge: Client, user: str) -> None:
    path = sessions(user, "nobody")
    for method, url in [
        ("GET", path),
        ("POST", path),
        ("GET", f"{path}/s1"),
        ("POST", f"{path}/s1"),
        ("PATCH", f"{path}/s1"),
        ("DELETE", f"{path}/s1"),
        ("GET", f"{path}/s1/artifacts"),
        ("GET", f"{path}/s1/artifacts/report.txt"),
    ]:
        refused = await edge.request(method, url)
        assert refused.status_code == 404
        assert "nobody" in refused.json()["detail"]


async def test_other_methods_media_types_and_sizes_are_refused(
    make_edge: MakeEdge, user: str
) -> None:
    edge = await make_edge(max_body_bytes=1000)
    path = sessions(user)
    put, put_one = await edge.put(path), await edge.put(f"{path}/s1")
    plain = await edge.post(path, content=b"{}", headers={"Content-Type": "text/plain"})
    large = await edge.post(path, content=orjson.dumps({"x": "y" * 2000}), headers=JSON)
    answers = (put, put_one, plain, large)
    assert [each.status_code for each in answers] == [405, 405, 415, 413]
    assert put.headers["allow"] == "GET, HEAD, POST"
    assert put_one.headers["allow"] == "GET, HEAD, POST, PATCH, DELETE"
    assert all(set(each.json()) == {"detail"} for each in answers)


async def test_of_a_session_that_is_too_long_the_last_runs_are_shown(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_run, "EVENTS_READ", 12)
    session_id = f"long-{uuid.uuid4()}"
    runs = []
    for number in range(4):
        run = PretendRun(bus, session_id=session_id)
        await run.join(user_id="anonymous", agent="assistant")
        await run.started()
        await run.text(f"run {number}")
        await run.completed(f"run {number}")
        runs.append(run)
    shown = await edge.get(f"/apps/assistant/users/anonymous/sessions/{session_id}")
    assert shown.status_code == 200
    told = list(dict.fromkeys(each["invocationId"] for each in shown.json()["events"]))
    assert told == [run.run_id for run in runs[-3:]]
