"""The streams of agent-runs-sse.md, seen by a client: frames, keep-alives and hidden fields.

`test_threads.py` tests the order of a thread's runs and the reconnection to a thread.
"""

from __future__ import annotations

import uuid
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from support.drive.clients import Client, MakeEdge, Stream
from support.fakes.pretend import PretendRun

COUNTERS = {"inputTokens", "outputTokens", "cost", "latencyMs", "model"}


@pytest.fixture
def thread() -> str:
    return str(uuid.uuid4())


def path(thread: str, what: str = "events?until=idle") -> str:
    return f"/api/v1/agent/runs/{thread}/{what}"


async def play(run: PretendRun) -> None:
    """Play a run with a tool call, an answer, usage and metrics."""
    call = {"tool": "search", "tool_call_id": "c1"}
    await run.join()
    await run.started()
    custom = {"protocol": "agno", "name": "agno.RunStarted", "value": {"model": "m"}}
    await run.say("custom.event", **custom)
    await run.say("llm.tool_call", **call, args={"q": "x"})
    await run.say("llm.tool_result", **call, result={"count": 2}, outcome="ok")
    await run.text("Two", " found")
    counted = {"input_tokens": 1, "output_tokens": 2}
    metrics = {"cost": 0.1, "latencyMs": 5, "model": "m"}
    await run.say("lifecycle.completed", summary="Two found", usage=counted, metrics=metrics)


def keys(value: Any) -> set[str]:
    """Return the names of all keys at any depth."""
    if isinstance(value, dict):
        return set(value).union(*(keys(each) for each in value.values()))
    if isinstance(value, list):
        return set[str]().union(*(keys(each) for each in value))
    return set()


async def test_a_frame_is_id_event_and_data_and_its_event_is_the_type(
    edge: Client, bus: Bus, thread: str
) -> None:
    await play(PretendRun(bus, session_id=thread))
    async with Stream(edge, "GET", path(thread)) as stream:
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        await stream.rest()
    frames = stream.body.decode().removesuffix("\n\n").split("\n\n")
    named = []
    for frame in frames:
        lines = frame.split("\n")
        assert [line.partition(": ")[0] for line in lines] == ["id", "event", "data"]
        body = orjson.loads(lines[2].removeprefix("data: "))
        assert lines[1] == f"event: {body['type']}"
        assert body["threadId"] == thread
        named.append(body["type"])
    assert named == [
        "RUN_STARTED",
        "STEP_STARTED",
        *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"),
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]


async def test_a_silent_thread_gets_the_documents_keep_alive(
    make_edge: MakeEdge, bus: Bus, thread: str
) -> None:
    edge = await make_edge(keep_alive_s=0.15)
    run = PretendRun(bus, session_id=thread)
    await run.join(waits=True)
    await run.started()
    async with Stream(edge, "GET", path(thread)) as stream:
        await stream.until(b"\n\n: keep-alive\n\n: keep-alive\n\n")


async def test_no_counter_is_in_the_stream_nor_in_the_history(
    edge: Client, bus: Bus, thread: str
) -> None:
    await play(PretendRun(bus, session_id=thread))
    async with Stream(edge, "GET", path(thread)) as stream:
        events = [orjson.loads(frame.data) for frame in await stream.rest()]
    history = (await edge.get(path(thread, "history"))).json()
    assert history["events"] == events
    assert not keys(history) & COUNTERS
    assert not keys(history) & {"input_tokens", "output_tokens"}


async def test_a_run_is_started_on_a_thread_by_its_session_id(
    edge: Client, bus: Bus, thread: str
) -> None:
    body = {"agent": "assistant", "message": "hi", "session_id": thread}
    started = await edge.post("/v1/runs", json=body)
    assert started.status_code == 202
    run = PretendRun(bus, started.json()["run_id"], thread)
    await run.join()
    await run.started()
    await run.completed()
    async with Stream(edge, "GET", path(thread)) as stream:
        told = [orjson.loads(frame.data) for frame in await stream.rest()]
    assert {each["runId"] for each in told} == {run.run_id}
