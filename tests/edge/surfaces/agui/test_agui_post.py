"""POST /agui/{agent} starts a run and streams its first leg as AG-UI."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.settings import AgnoAgent, AguiAgent, Config
from penstock.sse import Parser
from penstock_edge.edge import Edge
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.locate import start_of_new_run
from penstock_edge.views.agui import Audience
from support.drive.agui_requests import post, run_input, user
from support.drive.clients import Client, MakeEdge, Stream, contents
from support.fakes.pretend import PretendRun, command_of

CONFIG = Config(
    agents=[
        AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9"),
        AguiAgent(id="frontend", protocol="agui", url="http://127.0.0.1:9"),
    ]
)


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


@pytest.fixture
def thread() -> str:
    return f"thread {uuid.uuid4()}"


async def play(bus: Bus, stream: Stream, thread: str) -> PretendRun:
    """Play a run with two pieces of text."""
    run = PretendRun(bus, stream.run_id, thread)
    await run.started()
    await run.text("Hello", " world")
    await run.completed("Hello world")
    return run


def types(frames: list[Any]) -> list[str]:
    return [each["type"] for each in contents(frames)]


async def test_a_run_is_told_from_its_start_to_its_end(edge: Client, bus: Bus, thread: str) -> None:
    asked = run_input(thread, user("hi"))
    async with post(edge, "assistant", asked) as stream:
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"] == "text/event-stream"
        await play(bus, stream, thread)
        frames = await stream.rest()
    assert types(frames) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    told = contents(frames)
    for each in (told[0], told[-1]):
        assert (each["threadId"], each["runId"]) == (thread, asked["runId"])
    assert told[0]["protocolVersion"] == "1.0"
    assert "".join(each.get("delta", "") for each in told) == "Hello world"


async def test_frames_have_line_feeds_ids_and_no_names(edge: Client, bus: Bus, thread: str) -> None:
    async with post(edge, "assistant", run_input(thread)) as stream:
        await play(bus, stream, thread)
        await stream.rest()
    assert b"\r" not in stream.body
    lines = {line.partition(b":")[0] for line in stream.body.split(b"\n")}
    assert lines == {b"id", b"data", b""}


async def test_the_last_words_of_the_user_go_to_the_agent(
    edge: Client, bus: Bus, thread: str
) -> None:
    parts = [{"type": "text", "text": "and "}, {"type": "text", "text": "now"}]
    said = [user("first"), {"id": "a1", "role": "assistant", "content": "ok"}, user(parts, "u2")]
    async with post(edge, "assistant", run_input(thread, *said)) as stream:
        command = await command_of(bus, stream.run_id)
    assert (command["message"], command["session_id"]) == ("and now", thread)
    assert "body" not in command


async def test_an_agui_upstream_is_given_the_body_as_it_came(
    edge: Client, bus: Bus, thread: str
) -> None:
    asked = run_input(thread, tools=[{"name": "pick", "description": "p", "later": 1}])
    body = b" " + orjson.dumps(asked)
    async with post(edge, "frontend", body) as stream:
        command = await command_of(bus, stream.run_id)
    assert command["body"].encode() == body
    assert command["message"] == "hello"


@pytest.mark.parametrize("agent", ["frontend", "assistant"])
async def test_ids_that_an_upstream_repeats_are_unique_in_the_thread(
    edge: Client, bus: Bus, thread: str, agent: str
) -> None:
    ids, runs = [], []
    for _ in range(2):
        async with post(edge, agent, run_input(thread)) as stream:
            await play(bus, stream, thread)
            told = contents(await stream.rest())
        ids.append({each["messageId"] for each in told if "messageId" in each})
        runs.append(stream.run_id)
    assert ids == [{f"{run_id[-12:]}.m1"} for run_id in runs]


@pytest.mark.parametrize(("declared", "outcome"), [("1.0", True), ("missing", False)])
async def test_a_client_is_told_only_what_its_version_knows(
    edge: Client, bus: Bus, thread: str, declared: str, outcome: bool
) -> None:
    async with post(edge, "assistant", run_input(thread, protocolVersion=declared)) as stream:
        run = PretendRun(bus, stream.run_id, thread)
        await run.started()
        await run.say("lifecycle.cancelled", reason="user_stop", by="ann", confirmed=True)
        told = contents(await stream.rest())
    assert ("protocolVersion" in told[0]) is outcome
    if outcome:
        assert told[-1]["outcome"] == {"type": "cancelled"}
    else:
        assert (told[-1]["type"], told[-1]["code"]) == ("RUN_ERROR", "cancelled")


async def test_the_same_request_again_is_the_same_run(edge: Client, bus: Bus, thread: str) -> None:
    asked = run_input(thread)
    async with post(edge, "assistant", asked) as first:
        await play(bus, first, thread)
        told = await first.rest()
    async with post(edge, "assistant", asked) as again:
        assert again.run_id == first.run_id
        assert await again.rest() == told
    async with post(edge, "assistant", {**asked, "messages": [user("else")]}) as other:
        assert other.run_id != first.run_id


async def test_a_client_that_leaves_leaves_the_run_as_it_is(
    edge: Client, bus: Bus, thread: str
) -> None:
    asked = run_input(thread)
    async with post(edge, "assistant", asked) as stream:
        run = PretendRun(bus, stream.run_id, thread)
        await run.started()
        await stream.frame()
    await run.text("on")
    await run.completed()
    async with post(edge, "assistant", asked) as again:
        assert types(await again.rest())[-1] == "RUN_FINISHED"
    cancels = await bus.tail("COMMANDS", f"command.connector.cancel.{run.run_id}")
    assert cancels is None


async def test_a_cancelled_run_ends_as_cancelled(edge: Client, bus: Bus, thread: str) -> None:
    async with post(edge, "assistant", run_input(thread)) as stream:
        run = PretendRun(bus, stream.run_id, thread)
        await run.started()
        await run.text("Hel")
        cancel = asyncio.create_task(edge.post(f"/v1/runs/{stream.run_id}/cancel"))
        await command_of(bus, stream.run_id, "cancel")
        await run.say("lifecycle.cancelled", reason="user_stop", by="anonymous", confirmed=True)
        told = contents(await stream.rest())
        assert (await cancel).status_code == 200
    assert [each["type"] for each in told[-2:]] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
    assert told[-1]["outcome"] == {"type": "cancelled"}


async def test_a_silent_run_gets_keep_alives(make_edge: MakeEdge, thread: str) -> None:
    edge = await make_edge(config=CONFIG, keep_alive_s=0.3)
    async with post(edge, "assistant", run_input(thread)) as stream:
        await stream.until(b": keep-alive\n\n")


async def test_a_stream_that_is_cut_is_no_silent_success(bus: Bus, thread: str) -> None:
    edge = Edge.of(bus, CONFIG, EdgeSettings())
    run = PretendRun(bus, session_id=thread)
    await run.record()
    view = edge.agui.of_leg(run.run_id, 1, Audience(protocol_version="1.0"))
    client = await edge.hubs.join(view, await start_of_new_run(bus, 0))
    await run.started()
    await run.text("Hel")
    body = b""
    while b"Hel" not in body:
        body += await client.take() or b""
    await edge.hubs.close()
    told = contents(Parser().feed(await client.take() or b""))
    assert [each["type"] for each in told] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
    assert told[-1]["code"] == "stream_interrupted"
    assert await client.take() is None
