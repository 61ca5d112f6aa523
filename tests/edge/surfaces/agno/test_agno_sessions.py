"""Agno's session endpoints: whose the sessions are, what is listed, and what each run shows."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest

from penstock.bus import Bus
from penstock.bus.read.direct import read
from penstock.bus.subjects import events_of_run
from penstock_edge.sources import read_run
from penstock_edge.surfaces.agno import sessions as agno_sessions
from support.drive.agno_surface import CONFIG
from support.drive.clients import Client, MakeEdge
from support.fakes.pretend import PretendRun


@pytest.fixture
async def edge(make_edge: MakeEdge) -> Client:
    return await make_edge(config=CONFIG)


@pytest.fixture
def user() -> str:
    """Return a user that no other test uses, because sessions stay in the bucket."""
    return f"user {uuid.uuid4()}"


async def finished(
    bus: Bus,
    user: str,
    session_id: str,
    said: str = "hi",
    agent: str = "assistant",
    lost: int = 0,
) -> PretendRun:
    """Return a run that has ended and in which a tool was called; so many events are `lost`."""
    run = PretendRun(bus, session_id=session_id)
    ended: dict[str, Any] = {"status": "completed", "summary": "HI", "sequence": 5 + lost}
    await run.join(user_id=user, agent=agent, message=said, **ended)
    await run.say("lifecycle.started", agent=agent, user_id=user, message=said)
    await run.say("llm.tool_call", tool_call_id="t1", tool="weather", args={"city": "Rome"})
    await run.say("llm.tool_result", tool_call_id="t1", tool="weather", outcome="ok", result="21")
    await run.say("llm.message_completed", message_id="m1", content=said.upper())
    await run.completed(said.upper())
    return run


async def listed(edge: Client, user: str, **query: Any) -> list[str]:
    answer = await edge.get("/sessions", params={"user_id": user, **query})
    assert answer.status_code == 200, answer.text
    return [each["session_id"] for each in answer.json()["data"]]


async def test_the_list_has_the_users_own_sessions_the_newest_first(
    edge: Client, bus: Bus, user: str
) -> None:
    assert await listed(edge, user) == []
    for id, agent in (("a", "assistant"), ("b", "crew"), ("c", "flow")):
        await finished(bus, user, id, f"about {id}", agent)
    await finished(bus, f"{user}2", "d")
    assert await listed(edge, user) == ["c", "b", "a"]
    assert await listed(edge, user, sort_order="asc") == ["a", "b", "c"]
    assert await listed(edge, user, type="team") == ["b"]
    assert await listed(edge, user, component_id="flow") == ["c"]
    assert await listed(edge, user, session_name="ABOUT A") == ["a"]
    assert await listed(edge, user, limit=2, page=2) == ["a"]
    answer = (await edge.get("/sessions", params={"user_id": user, "limit": 2})).json()
    meta = {"page": 1, "limit": 2, "total_pages": 2, "total_count": 3, "search_time_ms": 0}
    assert answer["meta"] == meta
    team = answer["data"][1]
    assert (team["session_type"], team["team_id"], team["session_name"]) == (
        *("team", "crew", "about b"),
    )


async def test_a_record_that_cannot_be_read_is_left_out_of_the_lists(
    edge: Client, bus: Bus, user: str
) -> None:
    await finished(bus, user, "a")
    bucket = bus.bucket("sessions")
    await bucket.put("unreadable", b"{")
    try:
        assert await listed(edge, user) == ["a"]
        apps = await edge.get(f"/apps/assistant/users/{user}/sessions")
        assert [each["id"] for each in apps.json()] == ["a"]
    finally:
        await bucket.delete("unreadable")


async def test_a_session_has_its_conversation_and_its_runs(
    edge: Client, bus: Bus, user: str
) -> None:
    runs = [await finished(bus, user, "s1", said) for said in ("one", "two")]
    query = {"user_id": user}
    shown = (await edge.get("/sessions/s1", params=query)).json()
    assert shown["agent_session_id"] == shown["session_id"] == "s1"
    told = [each["content"] for each in shown["chat_history"] if each["content"]]
    assert told == ["one", "ONE", "two", "TWO"]
    found = (await edge.get("/sessions/s1/runs", params=query)).json()
    assert [each["run_id"] for each in found] == [run.run_id for run in runs]
    first = found[0]
    assert (first["run_input"], first["content"], first["status"]) == ("one", "ONE", "COMPLETED")
    assert [tool["result"] for tool in first["tools"]] == ["21"]
    assert [message["role"] for message in first["messages"]] == [
        *("user", "assistant", "tool", "assistant"),
    ]
    one = await edge.get(f"/sessions/s1/runs/{runs[0].run_id}", params=query)
    assert one.json() == first
    short = (await edge.get("/sessions/s1/run-previews", params=query)).json()
    assert [each["run_id"] for each in short] == [run.run_id for run in runs]
    assert (short[0]["run_input"], short[0]["content_preview"]) == ("one", "HI")


async def test_runs_are_chosen_by_status_and_time(edge: Client, bus: Bus, user: str) -> None:
    await finished(bus, user, "s1")
    waiting = PretendRun(bus, session_id="s1")
    await waiting.join(user_id=user, status="paused")

    async def chosen(**query: Any) -> list[str]:
        answer = await edge.get("/sessions/s1/runs", params={"user_id": user, **query})
        return [each["status"] for each in answer.json()]

    assert await chosen() == ["COMPLETED", "PAUSED"]
    assert await chosen(status="paused") == ["PAUSED"]
    assert await chosen(status=["PAUSED", "completed"]) == ["COMPLETED", "PAUSED"]
    assert await chosen(created_after=4_000_000_000) == []
    assert await chosen(created_before=4_000_000_000) == ["COMPLETED", "PAUSED"]


async def test_a_run_that_nobody_has_taken_yet_is_pending(
    edge: Client, bus: Bus, user: str
) -> None:
    run = PretendRun(bus, session_id="s1")
    await run.record(user_id=user, message="hello")
    answer = await edge.get(f"/sessions/s1/runs/{run.run_id}", params={"user_id": user})
    assert answer.status_code == 200
    told = answer.json()
    assert (told["status"], told["run_input"], told["content"]) == ("PENDING", "hello", "")


async def test_a_session_that_is_too_long_shows_its_first_runs_by_their_records(
    edge: Client, bus: Bus, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agno_sessions, "RUNS_READ", 1)
    for said in ("one", "two"):
        await finished(bus, user, "s1", said)
    found = (await edge.get("/sessions/s1/runs", params={"user_id": user})).json()
    assert [("tools" in each, each["run_input"], each["content"]) for each in found] == [
        (False, "one", "HI"),
        (True, "two", "TWO"),
    ]


async def test_runs_whose_last_event_is_lost_are_shown_after_one_wait_for_all_of_them(
    edge: Client, bus: Bus, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_run, "LATE_S", 0.1)
    reads: Counter[str] = Counter()

    async def counted(bus: Bus, stream: str, pattern: str, *limits: Any) -> Any:
        reads[pattern] += 1
        return await read(bus, stream, pattern, *limits)

    monkeypatch.setattr(read_run, "read", counted)
    *others, newest = [await finished(bus, user, "s1", lost=1) for _ in range(3)]
    found = (await edge.get("/sessions/s1/runs", params={"user_id": user})).json()
    assert [each["content"] for each in found] == ["HI", "HI", "HI"]
    assert reads.pop(events_of_run(newest.run_id)) > 1
    assert reads == {events_of_run(run.run_id): 1 for run in others}


async def test_what_is_another_users_is_as_what_does_not_exist(
    edge: Client, bus: Bus, user: str
) -> None:
    run = await finished(bus, user, "s1")
    for below in ("", "/runs", "/run-previews", f"/runs/{run.run_id}"):
        foreign = await edge.get(f"/sessions/s1{below}", params={"user_id": f"{user}2"})
        assert foreign.status_code == 404, below
    other = await finished(bus, user, "s2")
    elsewhere = await edge.get(f"/sessions/s1/runs/{other.run_id}", params={"user_id": user})
    assert elsewhere.status_code == 404


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("", {"limit": "0"}, 422),
        ("", {"page": "-1"}, 422),
        ("", {"sort_by": "mood"}, 422),
        ("", {"sort_order": "up"}, 422),
        ("", {"type": "robot"}, 422),
        ("", {"db_id": "main"}, 404),
        ("/s1/runs", {"status": "LAZY"}, 400),
        ("/s1/runs", {"created_after": "today"}, 422),
    ],
)
async def test_a_wrong_query_is_refused_and_named(
    edge: Client, path: str, query: dict[str, str], status: int
) -> None:
    refused = await edge.get(f"/sessions{path}", params=query)
    assert refused.status_code == status
    assert next(iter(query)) in refused.json()["detail"]


async def test_a_write_is_refused_in_words(edge: Client, bus: Bus, user: str) -> None:
    await finished(bus, user, "s1")
    for method, path in (
        ("PATCH", "/sessions/s1"),
        ("DELETE", "/sessions/s1"),
        ("POST", "/sessions/s1/rename"),
    ):
        refused = await edge.request(method, path, json={"session_name": "mine"})
        assert refused.status_code == 405
        assert "read only" in refused.json()["detail"]
    assert await listed(edge, user) == ["s1"]


async def test_a_session_is_created_before_its_first_run(edge: Client, user: str) -> None:
    asked = {"agent_id": "assistant", "user_id": user, "session_id": "s1", "session_name": None}
    created = await edge.post("/sessions", params={"type": "agent"}, json=asked)
    assert created.status_code == 201, created.text
    shown = created.json()
    assert (shown["session_id"], shown["agent_id"], shown["chat_history"]) == (
        "s1",
        "assistant",
        [],
    )
    assert await listed(edge, user) == ["s1"]
    runs = await edge.get("/sessions/s1/runs", params={"user_id": user})
    assert (runs.status_code, runs.json()) == (200, [])
    again = await edge.post("/sessions", json=asked)
    assert again.status_code == 409
    assert "already exists" in again.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"agent_id": "nobody"}, 404, "Agent not found"),
        ({"agent_id": "assistant", "session_name": "mine"}, 422, "keeps no names"),
        ({"agent_id": "assistant", "session_state": {"a": 1}}, 422, "session_state"),
        ({"colour": "red"}, 422, "colour"),
        ([], 422, ""),
    ],
)
async def test_a_session_that_cannot_be_created_is_refused(
    edge: Client, user: str, body: Any, status: int, text: str
) -> None:
    if isinstance(body, dict):
        body["user_id"] = user
    refused = await edge.post("/sessions", json=body)
    assert refused.status_code == status, refused.text
    assert text in refused.text
    assert await listed(edge, user) == []
