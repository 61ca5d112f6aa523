"""Runs of real AG-UI servers (pydantic-ai's adapter, Agno's interface) give canonical events."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import uuid_utils

from penstock.bus.records.runs import ForkedFrom, RunRecord, TakenOver
from penstock.events import TERMINAL, parse, typed_data
from penstock.settings import AguiAgent, Config
from penstock_edge.runs.forking import FirstRun, fork_of
from support.drive.pipeline import Event, Pipeline, pipeline, types
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PYDANTIC_AI = ["text", "tool", "parallel", "reasoning", "state", "approval", "frontend"]
PYDANTIC_AI += ["error", "slow", "recall"]
AGNO = ["text", "tool", "parallel", "state", "approval", "frontend", "error", "slow"]
PICK_COLOR = {
    "name": "pick_color",
    "description": "pick",
    "parameters": {"type": "object", "properties": {}},
}
BOTH = pytest.mark.parametrize("server", ["pydantic-ai", "agno"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    nats_server: NatsServer, pydantic_ai_server: Upstream, agno_agui_server: Upstream
) -> AsyncIterator[Pipeline]:
    """Run Penstock with an agent for each scenario of each server: `agno-text`, …."""
    urls = {f"pydantic-ai-{name}": f"{pydantic_ai_server.url}/{name}" for name in PYDANTIC_AI}
    urls |= {f"agno-{name}": f"{agno_agui_server.url}/{name}/agui" for name in AGNO}
    agents: list[dict[str, Any]] = [
        {"id": id, "protocol": "agui", "url": url} for id, url in urls.items()
    ]
    for agent in agents:
        if agent["id"] == "agno-frontend":
            agent["tools"] = [PICK_COLOR]
        if agent["id"] == "agno-tool":
            agent["raw"] = "keep"
    forgetful = {"url": urls["pydantic-ai-approval"], "starts_while_paused": "send"}
    agents.append({"id": "pydantic-ai-forgetful", "protocol": "agui", **forgetful})
    async with pipeline(nats_server.url, Config.model_validate({"agents": agents})) as running:
        yield running


def check(events: list[Event]) -> None:
    """Check that the run's events are valid and in order and end once.

    There is no gap, the terminal event comes last, and no call or result comes twice.
    """
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.type in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    for event in events:
        parsed = parse(event.body)
        typed_data(parsed.type, parsed.data)
    for type_ in ("llm.tool_call", "llm.tool_result"):
        ids = [event.data["tool_call_id"] for event in events if event.type == type_]
        assert len(set(ids)) == len(ids)


def all_of(events: list[Event], type_: str) -> list[dict[str, Any]]:
    return [event.data for event in events if event.type == type_]


def only(events: list[Event], type_: str) -> dict[str, Any]:
    (found,) = all_of(events, type_)
    return found


async def run(penstock: Pipeline, agent: str, message: str = "hi", **fields: Any) -> list[Event]:
    events = await penstock.ended(await penstock.start_run(agent, message, **fields))
    check(events)
    return events


async def paused(
    penstock: Pipeline, agent: str, message: str, **fields: Any
) -> tuple[str, dict[str, Any]]:
    """Start a run that pauses; return its id and the data of its approval.requested."""
    run_id = await penstock.start_run(agent, message, **fields)
    seen = await penstock.events_until(run_id, "lifecycle.paused")
    return run_id, only(seen, "approval.requested")


async def decided(
    penstock: Pipeline, run_id: str, asked: dict[str, Any], decision: str, **how: Any
) -> list[Event]:
    reply = await penstock.decide(asked["approval_id"], decision, **how)
    assert reply.status == 200, reply.detail
    events = await penstock.ended(run_id)
    check(events)
    return events


def path() -> str:
    return f"/tmp/{uuid.uuid4().hex[:8]}"


def runs_of(server: str, path: str, upstreams: dict[str, Upstream]) -> int:
    return [run["args"]["path"] for run in upstreams[server].tool_runs()].count(path)


def first_run(events: list[Event], at: int) -> FirstRun:
    """Fold a run's events as the edge does for a fork after the event `at`."""
    now = {"created_at": events[0].body["timestamp"], "updated_at": events[0].body["timestamp"]}
    record = RunRecord(
        run_id=events[0].body["run_id"],
        agent="pydantic-ai-tool",
        session_id=events[0].body["session_id"],
        user_id="u1",
        status="completed",
        **now,
    )
    first = FirstRun(record, at)
    for event in events:
        first.take(event.type, event.body)
    return first


async def test_a_fork_knows_the_conversation_up_to_its_point_and_calls_no_tool_before_it_again(
    penstock: Pipeline,
) -> None:
    events = await run(penstock, "pydantic-ai-tool")
    result = next(event for event in events if event.type == "llm.tool_result")
    agent = AguiAgent(id="pydantic-ai-tool", protocol="agui", url="http://127.0.0.1")

    async def fork(at: int, message: str | None = None) -> list[Event]:
        made = fork_of(first_run(events, at), agent, message)
        point = ForkedFrom(run_id=events[0].body["run_id"], sequence=at)
        taken = {"forked_from": point, "taken_over": made.taken_over}
        return await run(penstock, "pydantic-ai-tool", made.message, **taken)

    # After the result, the agent answers by it. Before it, the agent calls the tool again.
    answer = events[-1].data["summary"]
    after = await fork(result.sequence)
    assert all_of(after, "llm.tool_call") == []
    assert after[-1].data["summary"] == answer
    assert after[0].data["forked_from"]["sequence"] == result.sequence
    again = await fork(result.sequence - 1)
    assert [call["tool"] for call in all_of(again, "llm.tool_call")] == ["get_weather"]
    # At the end, it is said something else.
    assert fork_of(first_run(events, events[-1].sequence), agent, None).needs_message
    more = await fork(events[-1].sequence, "and now?")
    assert more[-1].type == "lifecycle.completed"


async def test_a_fork_of_a_conversation_that_is_gone_says_so_and_sends_nothing(
    penstock: Pipeline,
) -> None:
    gone = ForkedFrom(run_id=str(uuid_utils.uuid7()), sequence=3)
    run_id = await penstock.start_run(
        "pydantic-ai-tool", "hi", forked_from=gone, taken_over=TakenOver()
    )
    end = (await penstock.ended(run_id))[-1]
    assert (end.type, end.data["code"]) == ("lifecycle.failed", "not_accepted")
    assert "no longer kept" in end.data["error"]


@pytest.fixture
def upstreams(pydantic_ai_server: Upstream, agno_agui_server: Upstream) -> dict[str, Upstream]:
    return {"pydantic-ai": pydantic_ai_server, "agno": agno_agui_server}


@BOTH
async def test_text(penstock: Pipeline, server: str) -> None:
    events = await run(penstock, f"{server}-text")
    text = "".join(data["content"] for data in all_of(events, "llm.stream"))
    assert text == only(events, "llm.message_completed")["content"]
    assert text == only(events, "lifecycle.completed")["summary"]
    assert text.startswith("Hello from a")


@BOTH
async def test_a_tool_is_called_once_and_answers_once(penstock: Pipeline, server: str) -> None:
    events = await run(penstock, f"{server}-tool")
    called, result = only(events, "llm.tool_call"), only(events, "llm.tool_result")
    assert (called["tool"], called["args"]) == ("get_weather", {"city": "Berlin"})
    assert (result["outcome"], result["tool_call_id"]) == ("ok", called["tool_call_id"])
    assert "Berlin" in result["result"]
    delta = "".join(data["delta"] for data in all_of(events, "llm.tool_args"))
    assert '"Berlin"' in delta


@BOTH
async def test_parallel_tools_keep_their_own_results(penstock: Pipeline, server: str) -> None:
    events = await run(penstock, f"{server}-parallel")
    cities = {
        data["tool_call_id"]: data["args"]["city"] for data in all_of(events, "llm.tool_call")
    }
    results = {data["tool_call_id"]: data["result"] for data in all_of(events, "llm.tool_result")}
    assert sorted(cities.values()) == ["Berlin", "Paris"]
    assert cities.keys() == results.keys()
    assert all(cities[id].lower() in results[id].lower() for id in cities)


async def test_thoughts_come_before_the_answer(penstock: Pipeline) -> None:
    events = await run(penstock, "pydantic-ai-reasoning")
    thoughts = all_of(events, "llm.reasoning")
    assert "".join(data["thought"] for data in thoughts) == "First, think."
    assert [data.get("final", False) for data in thoughts] == [False, False, True]
    assert only(events, "lifecycle.completed")["summary"] == "The answer is 42."


async def test_state_by_patches(penstock: Pipeline) -> None:
    events = await run(penstock, "pydantic-ai-state")
    assert only(events, "state.snapshot") == {"snapshot": {"count": 0, "items": []}}
    assert only(events, "state.delta")["delta"][0] == {
        "op": "replace",
        "path": "/count",
        "value": 2,
    }
    custom = [data for data in all_of(events, "custom.event") if data["name"] == "progress"]
    assert custom == [{"protocol": "agui", "name": "progress", "value": {"pct": 50}}]


async def test_the_state_of_a_session_continues_in_its_next_run(penstock: Pipeline) -> None:
    session = uuid.uuid4().hex
    first = await run(penstock, "agno-state", session_id=session, input={"state": {"count": 1}})
    assert [d["snapshot"] for d in all_of(first, "state.snapshot")] == [{"count": 1}, {"count": 3}]
    second = await run(penstock, "agno-state", session_id=session)
    assert all_of(second, "state.snapshot")[0] == {"snapshot": {"count": 3}}


@BOTH
async def test_an_approved_tool_runs_exactly_once(
    penstock: Pipeline, server: str, upstreams: dict[str, Upstream]
) -> None:
    file = path()
    run_id, asked = await paused(penstock, f"{server}-approval", f"delete {file}")
    (item,) = asked["items"]
    assert (item["kind"], item["tool"], item["args"]) == (
        "confirmation",
        "delete_file",
        {"path": file},
    )
    assert runs_of(server, file, upstreams) == 0
    events = await decided(penstock, run_id, asked, "approve")
    assert runs_of(server, file, upstreams) == 1
    result = only(events, "llm.tool_result")
    assert (result["result"], result["outcome"]) == (f"deleted {file}", "ok")
    said = types(events)
    assert said.index("lifecycle.resumed") < said.index("llm.tool_result")
    again = await penstock.decide(asked["approval_id"], "approve")
    assert again.status == 409
    assert runs_of(server, file, upstreams) == 1


@BOTH
async def test_a_rejected_tool_never_runs(
    penstock: Pipeline, server: str, upstreams: dict[str, Upstream]
) -> None:
    file = path()
    run_id, asked = await paused(penstock, f"{server}-approval", f"delete {file}")
    events = await decided(penstock, run_id, asked, "reject", note="not today")
    assert events[-1].type == "lifecycle.completed"
    assert only(events, "llm.tool_result")["outcome"] == "rejected"
    assert runs_of(server, file, upstreams) == 0


async def test_a_long_conversation_waits_and_continues_too(penstock: Pipeline) -> None:
    words = "long " * 120_000
    run_id, asked = await paused(penstock, "pydantic-ai-approval", f"{words}{path()}")
    events = await decided(penstock, run_id, asked, "reject")
    assert only(events, "llm.tool_result")["outcome"] == "rejected"


async def test_a_tool_runs_with_the_arguments_that_the_decision_gives(
    penstock: Pipeline, upstreams: dict[str, Upstream]
) -> None:
    asked_file, given_file = path(), path()
    run_id, asked = await paused(penstock, "pydantic-ai-approval", f"delete {asked_file}")
    (item,) = asked["items"]
    assert item["editable"]
    values = {item["item_id"]: {"path": given_file}}
    events = await decided(penstock, run_id, asked, "approve", values=values)
    assert only(events, "llm.tool_result")["result"] == f"deleted {given_file}"
    assert runs_of("pydantic-ai", asked_file, upstreams) == 0


@pytest.mark.parametrize(
    ("agent", "fields"),
    [("pydantic-ai-frontend", {"input": {"tools": [PICK_COLOR]}}), ("agno-frontend", {})],
)
async def test_a_tool_of_the_frontend_is_answered_by_the_decision(
    penstock: Pipeline, agent: str, fields: dict[str, Any]
) -> None:
    run_id, asked = await paused(penstock, agent, "which color?", **fields)
    (item,) = asked["items"]
    assert (item["kind"], item["tool"]) == ("external", "pick_color")
    values = {item["item_id"]: "red"}
    events = await decided(penstock, run_id, asked, "approve", values=values)
    assert only(events, "llm.tool_call")["execution"] == "client"
    assert only(events, "llm.tool_result")["result"] == "red"
    assert only(events, "lifecycle.completed")["summary"].startswith(("Thanks", "Hello"))


@BOTH
async def test_an_error_ends_the_run_with_the_upstreams_words(
    penstock: Pipeline, server: str
) -> None:
    failed = only(await run(penstock, f"{server}-error"), "lifecycle.failed")
    assert failed["code"] == "upstream_error"
    assert failed["error"] in ("model backend exploded", "boom from upstream")


@BOTH
async def test_a_cancel_ends_what_is_being_said(penstock: Pipeline, server: str) -> None:
    run_id = await penstock.start_run(f"{server}-slow", "hi")
    await penstock.events_until(run_id, "llm.stream")
    await penstock.cancel(run_id)
    events = await penstock.ended(run_id)
    check(events)
    assert types(events)[-2:] == ["llm.message_completed", "lifecycle.cancelled"]
    assert only(events, "lifecycle.cancelled")["confirmed"] is True


async def test_a_server_that_keeps_nothing_is_told_the_conversation(penstock: Pipeline) -> None:
    session = uuid.uuid4().hex
    await run(penstock, "pydantic-ai-recall", "I am Ann.", session_id=session)
    second = await run(penstock, "pydantic-ai-recall", "Who am I?", session_id=session)
    assert only(second, "lifecycle.completed")["summary"] == "I am Ann. | Who am I?"
    other = await run(penstock, "pydantic-ai-recall", "Who am I?", session_id=uuid.uuid4().hex)
    assert only(other, "lifecycle.completed")["summary"] == "Who am I?"


async def test_a_client_that_gives_messages_has_the_conversation_itself(
    penstock: Pipeline,
) -> None:
    session = uuid.uuid4().hex
    await run(penstock, "pydantic-ai-recall", "I am Ann.", session_id=session)
    messages = [{"id": "u1", "role": "user", "content": "I am Bob."}]
    events = await run(
        penstock, "pydantic-ai-recall", "", session_id=session, input={"messages": messages}
    )
    assert only(events, "lifecycle.completed")["summary"] == "I am Bob."


async def test_a_body_is_passed_on_verbatim(penstock: Pipeline) -> None:
    body = (
        '{ "threadId": "t-1", "runId": "r-1", "state": {}, "tools": [], "context": [],'
        ' "forwardedProps": {}, "messages": [{"id":"u","role":"user","content":"as it is"}] }'
    )
    events = await run(penstock, "pydantic-ai-recall", "shown", body=body)
    assert only(events, "lifecycle.completed")["summary"] == "as it is"
    (started,) = [d for d in all_of(events, "custom.event") if d["name"] == "RUN_STARTED"]
    assert started["value"]["upstream_run_id"] == "r-1"


async def test_a_new_message_while_a_run_waits_is_not_sent(penstock: Pipeline) -> None:
    session, agent = uuid.uuid4().hex, "pydantic-ai-approval"
    run_id, _ = await paused(penstock, agent, f"delete {path()}", session_id=session)
    second_id = await penstock.start_run(agent, f"delete {path()}", session_id=session)
    events = await penstock.events_until(second_id, "lifecycle.failed")
    assert only(events, "lifecycle.failed")["code"] == "not_accepted"
    assert run_id in only(events, "lifecycle.failed")["error"]


async def test_a_new_message_while_a_run_waits_is_a_run_of_its_own_where_the_server_may_take_it(
    penstock: Pipeline, upstreams: dict[str, Upstream]
) -> None:
    session, file, other = uuid.uuid4().hex, path(), path()
    agent = "pydantic-ai-forgetful"
    run_id, asked = await paused(penstock, agent, f"delete {file}", session_id=session)
    second_id, second = await paused(penstock, agent, f"delete {other}", session_id=session)
    await decided(penstock, run_id, asked, "approve")
    await decided(penstock, second_id, second, "reject")
    assert runs_of("pydantic-ai", file, upstreams) == 1
    assert runs_of("pydantic-ai", other, upstreams) == 0


async def test_the_servers_own_events_are_kept_where_the_configuration_says_so(
    penstock: Pipeline,
) -> None:
    kept = all_of(await run(penstock, "agno-tool"), "custom.event")
    assert {data["value"]["source"] for data in kept if data["name"] == "RAW"} == {"agno"}
    dropped = all_of(await run(penstock, "agno-text"), "custom.event")
    assert [data["name"] for data in dropped] == ["RUN_STARTED"]


async def test_the_body_of_a_leg_is_in_raw_byte_for_byte(penstock: Pipeline) -> None:
    run_id = await penstock.start_run("agno-text", "hi")
    await penstock.ended(run_id)
    body = await penstock.body(run_id)
    assert body.startswith(b'data: {"type":"RUN_STARTED"')
    assert body.endswith(b"}\n\n")
    assert b'"RAW"' in body
