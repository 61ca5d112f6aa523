"""AG-UI's endpoints refuse bad input with a status and `{detail}`, never 500, and start no run."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.settings import AgnoAgent, AguiAgent, Config
from support.drive.agui_requests import post, run_input, tool, user
from support.drive.clients import Client, MakeEdge

CONFIG = Config(
    agents=[
        AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9"),
        AguiAgent(id="frontend", protocol="agui", url="http://127.0.0.1:9"),
    ]
)
JSON = {"content-type": "application/json"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "threadId missing": ({"threadId": "missing"}, "threadId"),
    "threadId empty": ({"threadId": ""}, "threadId"),
    "threadId a number": ({"threadId": 1}, "threadId"),
    "threadId too long": ({"threadId": "x" * 513}, "threadId"),
    "runId missing": ({"runId": "missing"}, "runId"),
    "runId null": ({"runId": None}, "runId"),
    "messages missing": ({"messages": "missing"}, "messages"),
    "messages no list": ({"messages": "hello"}, "messages"),
    "message no object": ({"messages": ["hello"]}, "messages"),
    "role missing": ({"messages": [{"id": "1", "content": "x"}]}, "role"),
    "role unknown": ({"messages": [{"id": "1", "role": "robot", "content": "x"}]}, "role"),
    "id missing": ({"messages": [{"role": "user", "content": "x"}]}, "id"),
    "content a number": ({"messages": [user(1)]}, "content"),
    "part without type": ({"messages": [user([{"text": "x"}])]}, "type"),
    "toolCallId missing": (
        {"messages": [{"id": "1", "role": "tool", "content": "x"}]},
        "toolCallId",
    ),
    "arguments no text": (
        {
            "messages": [
                {
                    "id": "1",
                    "role": "assistant",
                    "toolCalls": [
                        {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
                    ],
                }
            ]
        },
        "arguments",
    ),
    "protocolVersion a number": ({"protocolVersion": 1.0}, "protocolVersion"),
    "tools no list": ({"tools": {}}, "tools"),
    "tool without name": ({"tools": [{"description": "x"}]}, "name"),
    "context without value": ({"context": [{"description": "x"}]}, "value"),
    "resume no list": ({"resume": {}}, "resume"),
    "resume without id": ({"resume": [{"status": "resolved"}]}, "interruptId"),
    "resume in the old way": (
        {"forwardedProps": {"command": {"resume": True}}},
        "forwardedProps",
    ),
}
NOT_PORTABLE: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "blank": [user(" \n")],
    "an image": [user([{"type": "image", "source": {"type": "url", "value": "x"}}])],
    "not the user's": [user("hi"), {"id": "a", "role": "assistant", "content": "ok"}],
}


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


async def refused(edge: Client, content: bytes, agent: str = "assistant") -> tuple[int, str]:
    given = await edge.post(f"/agui/{agent}", content=content, headers=JSON)
    assert given.headers["content-type"] == "application/json"
    assert set(given.json()) == {"detail"}
    return given.status_code, str(given.json()["detail"])


@pytest.mark.parametrize("agent", ["assistant", "frontend"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_field_is_422_and_named(edge: Client, wrong: str, agent: str) -> None:
    fields, named = WRONG[wrong]
    body = orjson.dumps(run_input("s1", **fields))
    status, detail = await refused(edge, body, agent)
    assert status == 422
    assert named in detail


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"1"])
async def test_what_is_no_json_object_is_422(edge: Client, body: bytes) -> None:
    assert (await refused(edge, body))[0] == 422


@pytest.mark.parametrize("said", NOT_PORTABLE)
async def test_an_agent_that_is_no_agui_agent_needs_the_users_words(
    edge: Client, said: str
) -> None:
    body = orjson.dumps(run_input("s1") | {"messages": NOT_PORTABLE[said]})
    status, detail = await refused(edge, body)
    assert status == 422
    assert "messages" in detail
    async with post(edge, "frontend", body) as stream:
        assert stream.response.status_code == 200


async def test_null_is_absent_and_what_is_new_is_let_through(edge: Client) -> None:
    body = run_input(
        "s1", parentRunId=None, tools=None, context=None, resume=None, forwardedProps=None, later=1
    )
    async with post(edge, "assistant", body) as stream:
        assert stream.response.status_code == 200


async def test_an_unknown_agent_is_404(edge: Client) -> None:
    assert (await refused(edge, orjson.dumps(run_input()), "nobody"))[0] == 404


async def test_another_media_type_is_415_and_another_method_405(edge: Client) -> None:
    plain = await edge.post(
        "/agui/assistant", content=b"{}", headers={"content-type": "text/plain"}
    )
    assert (plain.status_code, set(plain.json())) == (415, {"detail"})
    got = await edge.get("/agui/assistant")
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    posted = await edge.post("/agui/assistant/threads/t/events")
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET")


async def test_a_body_that_is_too_large_is_413(make_edge: MakeEdge) -> None:
    edge = await make_edge(config=CONFIG, max_body_bytes=1000)
    body = orjson.dumps(run_input("s1", user("x" * 2000)))
    assert (await refused(edge, body))[0] == 413


async def test_a_refused_request_starts_nothing(edge: Client, bus: Bus) -> None:
    before = {entry.key for entry in await bus.bucket("runs").entries()}
    await refused(edge, orjson.dumps(run_input("s1", tool("c9", "x"))))
    await refused(edge, orjson.dumps(run_input("s1", runId=1)))
    assert {entry.key for entry in await bus.bucket("runs").entries()} == before
