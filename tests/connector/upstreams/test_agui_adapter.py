"""The connector's requests to an AG-UI server, and the conversation that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus import Bus, BusSettings
from penstock.bus.records.approvals import ContinueCommand, Decided
from penstock.bus.records.legs import PauseRecord
from penstock.bus.records.runs import StartCommand
from penstock.settings import AguiAgent
from penstock.sse import Frame
from penstock_connector.upstreams.agui import AguiUpstream, client_tools
from penstock_connector.upstreams.base import Call, ReattachState
from penstock_connector.upstreams.conversations import MAX_MESSAGES, Threads, newest
from support.drive.bus import new_run_id
from support.real.nats import NatsServer

CLIENT = httpx.AsyncClient()  # no test here sends a request
USER = {"id": "run-1-user", "role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
ASKED = {"id": "c1-call", "role": "assistant", "toolCalls": [CALL]}
ASKING: list[dict[str, Any]] = [
    {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "search"},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": "{}"},
    {"type": "TOOL_CALL_END", "toolCallId": "c1"},
    {"type": "STATE_SNAPSHOT", "snapshot": {"n": 2}},
]
SCHEMA: dict[str, Any] = {"properties": {"approved": {}, "editedArgs": {}, "reason": {}}}


class InMemory(Threads):
    """The threads in memory, without a bus."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def _get(self, key: str) -> bytes | None:
        return self.kept.get(key)

    async def _put(self, key: str, value: bytes, run_id: str) -> None:
        self.kept[key] = value

    async def _add(
        self, session: str, run_id: str, messages: Sequence[dict[str, Any]], state: Any
    ) -> bool:
        thread = await self.thread(session)
        thread.add(messages, state)
        self.kept[f"thread.{session}"] = thread.model_dump_json().encode()
        return True


@pytest.fixture
def upstream() -> AguiUpstream:
    return AguiUpstream(CLIENT, InMemory())


def agent(**fields: Any) -> AguiAgent:
    given = {"id": "a", "protocol": "agui", "url": "http://127.0.0.1:1/agui", **fields}
    return AguiAgent.model_validate(given)


def start(run_id: str = "run-1", **fields: Any) -> StartCommand:
    given = {"run_id": run_id, "agent": "a", "session_id": "s", "created_at": "now", **fields}
    return StartCommand.model_validate(given)


async def started(
    upstream: AguiUpstream, command: StartCommand, **settings: Any
) -> tuple[Call, dict[str, Any]]:
    call = await upstream.start(agent(**settings), command)
    return call, orjson.loads(call.content)


async def resumed(
    upstream: AguiUpstream, items: dict[str, Any], *decided: Decided, **given: Any
) -> dict[str, Any]:
    """Return the request of leg 2, after a leg with a tool call and a pause for these items."""
    call, _ = await started(upstream, start(message="hi", input=given))
    await upstream.closed(agent(), call, hear(upstream, *ASKING))
    record = PauseRecord(
        run_id="run-1",
        approval_id="ap",
        leg=1,
        protocol="agui",
        fold={},
        resume={"thread_id": "s", "items": items},
    )
    command = ContinueCommand(
        run_id="run-1", agent="a", session_id="s", leg=2, approval_id="ap", items=list(decided)
    )
    again = await upstream.resume(agent(), command, record)
    body: dict[str, Any] = orjson.loads(again.content)
    return body


def hear(upstream: AguiUpstream, *events: dict[str, Any]) -> ReattachState:
    seen = ReattachState()
    for event in events:
        upstream.watch(Frame(orjson.dumps(event)), seen)
    return seen


def interrupt(kind: str, **fields: Any) -> dict[str, Any]:
    return {"i1": {"style": "resume", "kind": kind, "interrupt": {"id": "i1", **fields}}}


async def test_a_start_is_a_whole_run_input(upstream: AguiUpstream) -> None:
    call, body = await started(upstream, start(message="hi"))
    assert call.url == "http://127.0.0.1:1/agui"
    assert body == {
        "protocolVersion": "1.0",
        "threadId": "s",
        "runId": "run-1",
        "messages": [USER],
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }


async def test_an_old_server_is_told_no_version(upstream: AguiUpstream) -> None:
    _, body = await started(upstream, start(message="hi"), protocol_version="")
    assert "protocolVersion" not in body


def test_the_url_is_used_as_it_is_written() -> None:
    assert agent(url="http://127.0.0.1:1/agui/").url == "http://127.0.0.1:1/agui/"


async def test_tools_of_the_request_win_over_the_configurations(upstream: AguiUpstream) -> None:
    configured = [{"name": "a", "description": "old"}, {"name": "b", "description": "b"}]
    given = [{"name": "a", "description": "new"}]
    command = start(message="hi", input={"tools": given})
    _, body = await started(upstream, command, tools=configured)
    assert body["tools"] == [configured[1], given[0]]
    assert client_tools(agent(tools=configured), command) == ["a", "b"]
    assert upstream.facts_of_open(agent(tools=configured), command) == {"client_tools": ["a", "b"]}


def test_starts_wait_for_a_decision_unless_the_configuration_says_otherwise(
    upstream: AguiUpstream,
) -> None:
    assert upstream.refuses_starts_while_paused(agent())
    assert not upstream.refuses_starts_while_paused(agent(starts_while_paused="send"))


@pytest.mark.parametrize("body", ["no json", "[]", '{"tools": 3}', '{"tools": [{"name": 1}]}'])
def test_tools_of_an_odd_body_are_none(body: str) -> None:
    assert client_tools(agent(), start(body=body)) == []


async def test_the_message_is_not_said_twice(upstream: AguiUpstream) -> None:
    messages = [{"id": "u", "role": "user", "content": "hi"}]
    _, body = await started(upstream, start(message="hi", input={"messages": messages}))
    assert body["messages"] == messages


@pytest.mark.parametrize(
    ("decision", "fields", "payload"),
    [
        ({"decision": "approve"}, {"responseSchema": SCHEMA}, {"approved": True}),
        (
            {"decision": "approve", "args": {"q": 2}},
            {"responseSchema": SCHEMA},
            {"approved": True, "editedArgs": {"q": 2}},
        ),
        (
            {"decision": "reject", "note": "no"},
            {"responseSchema": SCHEMA},
            {"approved": False, "reason": "no"},
        ),
        ({"decision": "reject", "note": "no"}, {}, {"approved": False, "reason": "no"}),
        (
            {"decision": "reject", "note": "no"},
            {"responseSchema": {"properties": {"approved": {}}}},
            {"approved": False},
        ),
    ],
)
async def test_a_confirmation_goes_back_as_the_schema_has_room(
    upstream: AguiUpstream,
    decision: dict[str, Any],
    fields: dict[str, Any],
    payload: dict[str, Any],
) -> None:
    item = Decided(item_id="i1", **decision)
    body = await resumed(upstream, interrupt("confirmation", **fields), item)
    assert body["resume"] == [{"interruptId": "i1", "status": "resolved", "payload": payload}]


async def test_an_input_goes_back_as_it_is_and_a_rejected_one_as_cancelled(
    upstream: AguiUpstream,
) -> None:
    answered = Decided(item_id="i1", decision="approve", value={"city": "Bonn"})
    body = await resumed(upstream, interrupt("input"), answered)
    assert body["resume"][0]["payload"] == {"city": "Bonn"}
    body = await resumed(upstream, interrupt("input"), Decided(item_id="i1", decision="reject"))
    assert body["resume"] == [{"interruptId": "i1", "status": "cancelled"}]


async def test_a_graph_takes_its_answer_in_the_forwarded_props(upstream: AguiUpstream) -> None:
    item = Decided(item_id="interrupt", decision="approve", value="Bonn")
    how = {"interrupt": {"style": "command"}}
    body = await resumed(upstream, how, item, forwardedProps={"k": 1})
    assert body["forwardedProps"] == {"k": 1, "command": {"resume": "Bonn"}}


@pytest.mark.parametrize(
    ("kind", "decision", "content"),
    [
        ("external", {"decision": "approve", "value": {"n": 1}}, '{"n":1}'),
        ("external", {"decision": "approve", "value": "red"}, "red"),
        ("external", {"decision": "reject", "note": "no"}, "no"),
        ("confirmation", {"decision": "approve"}, '{"accepted":true}'),
        ("confirmation", {"decision": "approve", "value": {"values": {}}}, '{"values":{}}'),
        ("confirmation", {"decision": "reject"}, '{"accepted":false}'),
    ],
)
async def test_an_unanswered_call_is_answered_by_the_last_message(
    upstream: AguiUpstream, kind: str, decision: dict[str, Any], content: str
) -> None:
    how = {"c1": {"style": "tool", "tool_call_id": "c1", "kind": kind}}
    body = await resumed(upstream, how, Decided(item_id="c1", **decision))
    assert body["messages"] == [
        USER,
        ASKED,
        {"id": "c1-result", "role": "tool", "toolCallId": "c1", "content": content},
    ]
    assert "resume" not in body


async def test_a_continue_has_what_the_run_began_with_and_the_state_by_now(
    upstream: AguiUpstream,
) -> None:
    tools = [{"name": "search"}]
    old = [{"interruptId": "old"}]
    item = Decided(item_id="i1", decision="approve")
    body = await resumed(upstream, interrupt("confirmation"), item, tools=tools, resume=old)
    assert (body["threadId"], body["runId"]) == ("s", "run-1-2")
    assert (body["state"], body["tools"]) == ({"n": 2}, tools)
    assert [entry["interruptId"] for entry in body["resume"]] == ["i1"]


async def test_the_next_run_is_told_what_was_said_without_calls_that_have_no_result(
    upstream: AguiUpstream,
) -> None:
    call, _ = await started(upstream, start(message="hi"))
    seen = hear(
        upstream,
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m1", "delta": "Let me "},
        {"type": "TEXT_MESSAGE_CHUNK", "delta": "see."},
        {
            "type": "TOOL_CALL_START",
            "toolCallId": "c1",
            "toolCallName": "x",
            "parentMessageId": "m1",
        },
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": "{"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": "}"},
        {"type": "TOOL_CALL_END", "toolCallId": "c1"},
        {"type": "TOOL_CALL_RESULT", "messageId": "t1", "toolCallId": "c1", "content": "done"},
        {"type": "TOOL_CALL_START", "toolCallId": "c2", "toolCallName": "y"},
        {"type": "STATE_SNAPSHOT", "snapshot": {"n": 1}},
        {"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/n", "value": 2}]},
    )
    await upstream.closed(agent(), call, seen)
    _, body = await started(upstream, start("run-2", message="and now?"))
    first, *said, last = body["messages"]
    assert (first, last["content"], body["state"]) == (USER, "and now?", {"n": 2})
    function = {"name": "x", "arguments": "{}"}
    assert said == [
        {
            "id": "m1",
            "role": "assistant",
            "content": "Let me see.",
            "toolCalls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"id": "t1", "role": "tool", "toolCallId": "c1", "content": "done"},
    ]


async def test_a_server_that_repeats_its_ids_is_told_all_that_was_said(
    upstream: AguiUpstream,
) -> None:
    for number in (1, 2):
        call, _ = await started(upstream, start(f"run-{number}", message=f"words {number}"))
        answer = {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m1", "delta": f"answer {number}"}
        found = {"type": "TOOL_CALL_RESULT", "messageId": "c1", "toolCallId": "c1"}
        heard = hear(upstream, *ASKING, {**found, "content": f"found {number}"}, answer)
        await upstream.closed(agent(), call, heard)
    _, body = await started(upstream, start("run-3", message="words 3"))
    told = [each.get("content") for each in body["messages"]]
    assert told == [
        *("words 1", None, "found 1", "answer 1"),
        *("words 2", None, "found 2", "answer 2"),
        "words 3",
    ]
    assert {each["id"] for each in body["messages"] if each["role"] != "user"} == {
        "c1-call",
        "c1",
        "m1",
    }


async def test_a_server_that_tells_the_whole_conversation_is_not_told_it_twice(
    upstream: AguiUpstream,
) -> None:
    call, _ = await started(upstream, start(message="hi"))
    first = {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m1", "delta": "one"}
    said = {"id": "m1", "role": "assistant", "content": "one"}
    snapshot = {"type": "MESSAGES_SNAPSHOT", "messages": [USER, said]}
    await upstream.closed(agent(), call, hear(upstream, first, snapshot))
    call, body = await started(upstream, start("run-2", message="and?"))
    assert body["messages"][:-1] == [USER, said]
    second = {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m2", "delta": "two"}
    whole = [*body["messages"], {"id": "m2", "role": "assistant", "content": "two"}]
    snapshot = {"type": "MESSAGES_SNAPSHOT", "messages": whole}
    await upstream.closed(agent(), call, hear(upstream, second, snapshot))
    _, body = await started(upstream, start("run-3", message="on"))
    assert body["messages"][:-1] == whole


@pytest.mark.parametrize("way", ["body", "input"])
async def test_a_server_gets_its_own_ids_back_and_the_clients_as_they_are(
    upstream: AguiUpstream, way: str
) -> None:
    call = {**CALL, "id": "aaaaaaaaaaaa.c1"}
    messages = [
        USER,
        {"id": "aaaaaaaaaaaa.m1", "role": "assistant", "toolCalls": [call]},
        {"id": "aaaaaaaaaaaa.t1", "role": "tool", "toolCallId": call["id"], "content": "x"},
        {"id": "u2", "role": "user", "content": "on"},
    ]
    given = {"threadId": "s", "runId": "r", "messages": messages}
    command = (
        start(message="on", body=orjson.dumps(given).decode())
        if way == "body"
        else start(message="on", input={"messages": messages})
    )
    _, body = await started(upstream, command)
    assert body["messages"] == [
        USER,
        {"id": "m1", "role": "assistant", "toolCalls": [CALL]},
        {"id": "t1", "role": "tool", "toolCallId": "c1", "content": "x"},
        {"id": "u2", "role": "user", "content": "on"},
    ]


async def test_a_body_without_our_ids_is_passed_on_byte_for_byte(upstream: AguiUpstream) -> None:
    content = orjson.dumps({"threadId": "s", "runId": "r", "messages": [USER]}) + b" \n"
    call, _ = await started(upstream, start(body=content.decode()))
    assert call.content == content


async def test_a_server_that_said_nothing_leaves_the_conversation_as_it_was(
    upstream: AguiUpstream,
) -> None:
    call, _ = await started(upstream, start(message="hi"))
    await upstream.closed(agent(), call, ReattachState())
    _, body = await started(upstream, start("run-2", message="again"))
    assert [message["content"] for message in body["messages"]] == ["again"]


@pytest.mark.parametrize(
    "data",
    [
        b"[DONE]",
        b"null",
        b'{"type": []}',
        b'{"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": [1]}',
        b'{"type": "MESSAGES_SNAPSHOT", "messages": [1, {"id": [], "toolCalls": [{}]}]}',
        b'{"type": "TOOL_CALL_ARGS", "toolCallId": {}, "delta": "x"}',
        b"[" * 2000,
    ],
)
def test_nothing_that_a_server_says_breaks_the_connector(
    upstream: AguiUpstream, data: bytes
) -> None:
    upstream.watch(Frame(data), ReattachState())


def test_a_long_conversation_loses_its_oldest_turns() -> None:
    turns = [{"id": str(n), "role": ("user", "assistant")[n % 2]} for n in range(601)]
    kept = newest(turns)
    assert kept[0]["role"] == "user"
    assert kept[-1] == turns[-1]
    assert MAX_MESSAGES - 1 <= len(kept) <= MAX_MESSAGES


async def test_a_conversation_too_large_for_a_message_is_kept_too(nats_server: NatsServer) -> None:
    bus = await Bus.connect(BusSettings(url=nats_server.url, name="threads"))
    try:
        threads = Threads(bus)
        for content in ("a" * 600_000, "b" * 600_000):
            message = {"id": content[0], "content": content}
            await threads.add("large", new_run_id(), [message], {"n": 1})
        kept = await threads.thread("large")
    finally:
        await bus.close()
    assert [len(message["content"]) for message in kept.messages] == [600_000, 600_000]
    assert kept.state == {"n": 1}
