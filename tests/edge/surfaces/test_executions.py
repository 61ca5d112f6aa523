"""The executions surface as executions-sse.md describes it, seen by a client."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.settings import AgnoAgent, Config
from support.drive.clients import Client, MakeEdge, Stream, contents
from support.fakes.pretend import PretendRun, command_of

TRIGGER = "/api/service/v1/executions/trigger"
CANCEL = "/api/service/v1/executions/cancel"
EXAMPLE = {"topologyId": 123, "userMessage": "Analyze system state and health status."}
TOP = {"run_id", "timestamp", "sequence", "source", "event", "data"}
SOURCE = {"agent_id", "agent_type", "agent_name", "team_name"}
DOCUMENTED = {
    "lifecycle.started": set(),
    "llm.stream": {"content"},
    "llm.reasoning": {"thought"},
    "llm.tool_call": {"tool", "args"},
    "llm.tool_result": {"tool", "result"},
    "dispatch.team": {"team_name", "task"},
    "dispatch.worker": {"worker_name", "task"},
    "system.warning": {"message"},
    "system.error": {"message", "code"},
    "lifecycle.completed": {"summary"},
}


def trigger(edge: Client, headers: dict[str, str] | None = None, **body: Any) -> Stream:
    return Stream(edge, "POST", TRIGGER, json={**EXAMPLE, **body}, headers=headers)


async def play(run: PretendRun) -> None:
    """Play a run with one event of each documented kind, except the bad ends."""
    await run.started()
    await run.text("Analyzing ", "topology")
    await run.say("llm.reasoning", thought="the database first", reasoning_id="r")
    await run.say("llm.tool_call", tool="check", args={"host": "db"}, tool_call_id="c")
    await run.say("llm.tool_result", tool="check", result={"ok": 1}, tool_call_id="c", outcome="ok")
    await run.say("dispatch.team", team_name="Payment Gateway", task="check")
    await run.say("dispatch.worker", worker_name="Monitor", task="check", subrun_id="s")
    await run.say("system.warning", message="85%", code="pool")
    await run.say("system.error", message="replica", code="DB_CONNECTION_FAILED", detail=1)
    await run.completed("Diagnosis completed")


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*", "application/json"])
async def test_the_documents_own_request_streams_whatever_it_accepts(
    edge: Client, bus: Bus, accept: str
) -> None:
    async with trigger(edge, {"Accept": accept}) as stream:
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        command = await command_of(bus, stream.run_id)
        assert command["agent"] == "assistant"
        assert command["message"] == EXAMPLE["userMessage"]


async def test_every_frame_is_an_event_line_one_data_line_and_a_blank_one(
    edge: Client, bus: Bus
) -> None:
    async with trigger(edge) as stream:
        await play(PretendRun(bus, stream.run_id))
        await stream.rest()
    for frame in stream.body.decode().removesuffix("\n\n").split("\n\n"):
        lines = frame.split("\n")
        assert [line.partition(":")[0] for line in lines] == ["event", "data", "id"]
        event = orjson.loads(lines[1].removeprefix("data: "))["event"]
        assert lines[0] == f"event: {event['category']}.{event['action']}"
        assert set(event) == {"category", "action"}


async def test_every_envelope_has_the_six_keys_and_documented_data_alone(
    edge: Client, bus: Bus
) -> None:
    async with trigger(edge) as stream:
        await play(PretendRun(bus, stream.run_id))
        frames = await stream.rest()
    seen = {}
    for frame, event in zip(frames, contents(frames), strict=True):
        assert set(event) == TOP
        assert event["source"] is None or set(event["source"]) == SOURCE
        seen[frame.event] = set(event["data"])
    assert seen == DOCUMENTED


async def test_run_id_timestamp_and_sequence_are_as_documented(edge: Client, bus: Bus) -> None:
    async with trigger(edge) as stream:
        await play(PretendRun(bus, stream.run_id))
        events = contents(await stream.rest())
    assert {event["run_id"] for event in events} == {stream.run_id}
    assert uuid.UUID(stream.run_id).version == 7
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", t) for t in times)


async def test_the_first_frame_is_the_documents_example(edge: Client, bus: Bus) -> None:
    async with trigger(edge) as stream:
        await PretendRun(bus, stream.run_id).started()
        event = await stream.event()
    assert event == {
        "run_id": stream.run_id,
        "timestamp": event["timestamp"],
        "sequence": 1,
        "source": None,
        "event": {"category": "lifecycle", "action": "started"},
        "data": {},
    }


async def test_the_pieces_of_text_join_to_the_answer(edge: Client, bus: Bus) -> None:
    async with trigger(edge) as stream:
        await play(PretendRun(bus, stream.run_id))
        events = contents(await stream.rest())
    pieces = [e["data"]["content"] for e in events if e["event"]["action"] == "stream"]
    assert "".join(pieces) == "Analyzing topology"


@pytest.mark.parametrize(
    ("end", "data", "shown"),
    [
        ("completed", {"summary": "fine", "content": "fine"}, {"summary": "fine"}),
        ("failed", {"error": "no database", "code": "upstream_error"}, {"error": "no database"}),
        ("cancelled", {"reason": "user_stop", "confirmed": True}, {}),
    ],
)
async def test_the_one_terminal_frame_is_the_last_and_the_connection_closes(
    edge: Client, bus: Bus, end: str, data: dict[str, Any], shown: dict[str, Any]
) -> None:
    async with trigger(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.say(f"lifecycle.{end}", **data)
        await run.say("automation.triggered", automation="a")
        frames = await stream.rest()
    assert [frame.event for frame in frames] == ["lifecycle.started", f"lifecycle.{end}"]
    assert contents(frames)[-1]["data"] == shown


async def test_an_error_within_the_run_does_not_end_the_stream(edge: Client, bus: Bus) -> None:
    async with trigger(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.say("system.error", message="tool", code="x")
        assert (await stream.frame()).event == "system.error"
        await run.text("on")
        assert (await stream.frame()).event == "llm.stream"


async def test_a_pause_is_seen_and_the_stream_stays_open_to_the_end(edge: Client, bus: Bus) -> None:
    async with trigger(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.say("approval.requested", approval_id="a1", items=[], digest="d")
        await run.say("lifecycle.paused", reason="approval_required", approval_id="a1")
        names = [(await stream.frame()).event for _ in range(3)]
        assert names[1:] == ["approval.requested", "lifecycle.paused"]
        await run.say("approval.decided", approval_id="a1", outcome="approved")
        await run.say("lifecycle.resumed", approval_id="a1")
        await run.completed()
        assert (await stream.rest())[-1].event == "lifecycle.completed"


async def test_a_client_that_leaves_mid_stream_leaves_the_run_as_it_is(
    edge: Client, bus: Bus
) -> None:
    async with trigger(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await stream.frame()
    assert (await edge.get(f"/v1/runs/{run.run_id}")).json()["status"] == "queued"
    await run.completed()
    again = Stream(edge, "GET", f"/v1/runs/{run.run_id}/events?dialect=executions")
    async with again:
        assert len(await again.rest()) == 2


async def test_an_idle_execution_gets_keep_alive_comments(make_edge: MakeEdge, bus: Bus) -> None:
    async with trigger(await make_edge(keep_alive_s=0.3)) as stream:
        await stream.until(b": keep-alive\n\n")


async def refused(edge: Client, path: str, **request: Any) -> tuple[int, str, str]:
    answer = await edge.post(path, **request)
    body = answer.json()
    assert set(body) == {"code", "message", "data"}
    assert body["data"] is None
    return answer.status_code, body["code"], body["message"]


@pytest.mark.parametrize("wrong", ["123", None, 1.5, 123.0, True, [123], "missing"])
async def test_a_topology_id_that_is_no_integer_is_422_and_named(edge: Client, wrong: Any) -> None:
    body = {k: v for k, v in {**EXAMPLE, "topologyId": wrong}.items() if v != "missing"}
    status, code, message = await refused(edge, TRIGGER, json=body)
    assert (status, code) == (422, "INVALID_REQUEST")
    assert "topologyId" in message


async def test_a_topology_may_be_a_workflow(make_edge: MakeEdge, bus: Bus) -> None:
    flow = AgnoAgent(
        id="flow", protocol="agno", url="http://127.0.0.1:9", kind="workflow", topology_id=7
    )
    async with trigger(await make_edge(config=Config(agents=[flow])), topologyId=7) as stream:
        assert (await command_of(bus, stream.run_id))["agent"] == "flow"


async def test_an_unknown_topology_is_404(edge: Client) -> None:
    status, code, message = await refused(edge, TRIGGER, json={**EXAMPLE, "topologyId": 999999})
    assert (status, code) == (404, "NOT_FOUND")
    assert message.startswith("topologyId: there is no topology 999999 (topologies: 123 (")


@pytest.mark.parametrize("wrong", ["", "  ", "\n\t\u2003", 5, None, "missing"])
async def test_a_user_message_that_is_empty_or_no_text_is_422_and_named(
    edge: Client, wrong: Any
) -> None:
    body = {k: v for k, v in {**EXAMPLE, "userMessage": wrong}.items() if v != "missing"}
    status, _, message = await refused(edge, TRIGGER, json=body)
    assert status == 422
    assert "userMessage" in message


@pytest.mark.parametrize("text", ["x" * 10_000, "中文 👩‍👩‍👧", "a\nb\x01\x7f <b>"])
async def test_any_other_text_passes_unchanged(edge: Client, bus: Bus, text: str) -> None:
    async with trigger(edge, userMessage=text) as stream:
        assert (await command_of(bus, stream.run_id))["message"] == text


async def test_another_media_type_is_415_and_broken_json_422_in_the_contracts_shape(
    edge: Client,
) -> None:
    plain, json = {"Content-Type": "text/plain"}, {"Content-Type": "application/json"}
    assert (await refused(edge, TRIGGER, content=b"{}", headers=plain))[0] == 415
    assert (await refused(edge, TRIGGER, content=b"{", headers=json))[0] == 422


async def test_a_body_over_the_limit_is_413_in_the_contracts_shape(make_edge: MakeEdge) -> None:
    edge = await make_edge(max_body_bytes=1000)
    body = {**EXAMPLE, "userMessage": "x" * 2000}
    assert await refused(edge, TRIGGER, json=body) == (
        413,
        "PAYLOAD_TOO_LARGE",
        "the body is larger than 1000 bytes",
    )


@pytest.mark.parametrize("path", [TRIGGER, CANCEL])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_wrong_method_is_405_with_allow(edge: Client, path: str, method: str) -> None:
    answer = await edge.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json() == {
        "code": "METHOD_NOT_ALLOWED",
        "message": f"{method} is not served here",
        "data": None,
    }


async def test_a_cancel_answers_success_once_the_run_is_cancelled(
    edge: Client, run: PretendRun, bus: Bus
) -> None:
    await run.started()
    asked = asyncio.create_task(edge.post(CANCEL, json={"runId": run.run_id}))
    await command_of(bus, run.run_id, "cancel")
    assert not asked.done()
    await run.say("lifecycle.cancelled", reason="user_stop", confirmed=True)
    answer = await asked
    body = answer.json()
    assert answer.status_code == 200
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", body["data"].pop("timestamp"))
    assert body == {
        "code": "SUCCESS",
        "message": "Execution cancelled",
        "data": {
            "type": "cancelled",
            "runId": run.run_id,
            "content": "Execution was cancelled by user",
        },
    }


async def test_the_cancel_of_a_finished_run_is_the_documents_failure(
    edge: Client, finished: PretendRun
) -> None:
    assert await refused(edge, CANCEL, json={"runId": finished.run_id}) == (
        409,
        "CANCEL_FAILED",
        "Execution already completed",
    )


@pytest.mark.parametrize("run_id", [str(uuid.UUID(int=7)), "nope", " ", "a.b.*"])
async def test_the_cancel_of_an_unknown_run_is_404(edge: Client, run_id: str) -> None:
    assert await refused(edge, CANCEL, json={"runId": run_id}) == (
        404,
        "CANCEL_FAILED",
        "Execution not found",
    )


@pytest.mark.parametrize("body", [{}, {"runId": 5}, {"runId": ""}, {"run_id": "x"}, []])
async def test_a_cancel_with_a_bad_body_is_422(edge: Client, body: Any) -> None:
    status, code, message = await refused(edge, CANCEL, json=body)
    assert (status, code) == (422, "INVALID_REQUEST")
    assert "runId" in message or "body" in message


@pytest.mark.parametrize("path", [TRIGGER, CANCEL, "/v1/runs"])
async def test_a_body_that_does_not_say_it_is_json_is_415(edge: Client, path: str) -> None:
    """A foreign web page can send such a request without a CORS preflight."""
    answer = await edge.post(path, content=b'{"topologyId": 123, "userMessage": "hi"}')
    assert answer.status_code == 415


async def test_a_run_is_found_by_its_id_in_capitals(edge: Client, run: PretendRun) -> None:
    await run.started()
    await run.completed()
    capitals = run.run_id.upper()
    assert await refused(edge, CANCEL, json={"runId": capitals}) == (
        409,
        "CANCEL_FAILED",
        "Execution already completed",
    )
    shown = await edge.get(f"/v1/runs/{capitals}")
    assert shown.json()["run_id"] == run.run_id
    answer = await edge.get(f"/v1/runs/{capitals}/events")
    assert answer.text.count("event: lifecycle.completed\n") == 1


async def test_of_two_cancels_at_once_one_succeeds(edge: Client, run: PretendRun, bus: Bus) -> None:
    await run.started()
    both = asyncio.gather(*(edge.post(CANCEL, json={"runId": run.run_id}) for _ in range(2)))
    await command_of(bus, run.run_id, "cancel")
    await run.say("lifecycle.cancelled", reason="user_stop", confirmed=True)
    codes = sorted(answer.json()["code"] for answer in await both)
    assert codes == ["CANCEL_FAILED", "SUCCESS"]
    again = await refused(edge, CANCEL, json={"runId": run.run_id})
    assert again == (409, "CANCEL_FAILED", "Execution already cancelled")


async def test_a_paused_run_can_be_cancelled(edge: Client, run: PretendRun, bus: Bus) -> None:
    await run.started()
    await run.say("lifecycle.paused", reason="approval_required", approval_id="a")
    asked = asyncio.create_task(edge.post(CANCEL, json={"runId": run.run_id}))
    await command_of(bus, run.run_id, "cancel")
    await run.say("lifecycle.cancelled", reason="user_stop", confirmed=False)
    assert (await asked).json()["code"] == "SUCCESS"
