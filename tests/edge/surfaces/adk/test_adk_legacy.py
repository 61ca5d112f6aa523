"""The legacy pair of adk-streaming.md: POST starts a run of a session, GET streams it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.sse import Frame
from support.drive.clients import Client, MakeEdge, Stream, contents
from support.fakes.pretend import PretendRun, command_of

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def path() -> str:
    """Return the path of a session of the Agno agent that only this test uses."""
    return f"/apps/assistant/users/ann/sessions/{uuid.uuid4()}/run"


def stream(edge: Client, path: str, after: str | None = None) -> Stream:
    return Stream(edge, "GET", path, headers={"last-event-id": after} if after else None)


async def start(edge: Client, bus: Bus, path: str, query: str = "a topic") -> PretendRun:
    answer = await edge.post(path, json={"query": query})
    assert answer.status_code == 200, answer.text
    session_id = path.split("/")[-2]
    run = PretendRun(bus, answer.headers["penstock-run-id"], session_id)
    await run.started()
    return run


async def finish(run: PretendRun) -> None:
    await run.say("llm.tool_call", tool="search", tool_call_id="t1", args={})
    await run.say("llm.tool_result", tool="search", tool_call_id="t1", result=1, outcome="ok")
    await run.text("An ans", "wer")
    await run.say("llm.message_completed", message_id="m1", content="An answer")
    await run.completed("An answer")


def told(frames: list[Frame]) -> list[tuple[str | None, str]]:
    """Return each event's type and content."""
    events = zip(frames, contents(frames), strict=True)
    return [(frame.event, body["content"]) for frame, body in events]


WHOLE = [
    ("agent_status", "started"),
    ("agent_status", "calling search"),
    ("agent_status", "search: ok"),
    ("research_update", "An answer"),
    ("research_complete", "An answer"),
]


async def test_the_post_answers_as_documented_and_starts_a_run(
    edge: Client, bus: Bus, path: str
) -> None:
    answer = await edge.post(path, json={"query": "research topic"})
    session_id = path.split("/")[-2]
    assert answer.status_code == 200
    assert answer.json() == {"success": True, "sessionId": session_id}
    command = await command_of(bus, answer.headers["penstock-run-id"])
    assert (command["agent"], command["message"]) == ("assistant", "research topic")
    assert (command["user_id"], command["session_id"]) == ("ann", session_id)


async def test_an_adk_agent_is_started_with_a_body_of_ours(edge: Client, bus: Bus) -> None:
    path = f"/apps/vana/users/ann/sessions/{uuid.uuid4()}/run"
    answer = await edge.post(path, json={"query": "x"})
    command = await command_of(bus, answer.headers["penstock-run-id"])
    assert (command["agent"], command.get("body")) == ("helper", None)


async def test_the_get_streams_the_three_types_each_with_its_id(
    edge: Client, bus: Bus, path: str
) -> None:
    run = await start(edge, bus, path)
    async with stream(edge, path) as seen:
        assert seen.response.status_code == 200
        assert seen.response.headers["content-type"] == "text/event-stream"
        assert seen.run_id == run.run_id
        await finish(run)
        frames = await seen.rest()
    assert told(frames) == WHOLE
    assert len({frame.id for frame in frames}) == len(frames)
    for frame, body in zip(frames, contents(frames), strict=True):
        assert body.keys() == {"type", "sessionId", "runId", "author", "content", "timestamp"}
        assert body["type"] == frame.event
        assert (body["sessionId"], body["runId"]) == (run.session_id, run.run_id)


async def test_a_run_that_is_over_is_replayed_from_its_start(
    edge: Client, bus: Bus, path: str
) -> None:
    await finish(await start(edge, bus, path))
    async with stream(edge, path) as seen:
        assert told(await seen.rest()) == WHOLE


async def test_the_latest_run_is_the_one_that_was_just_started(
    edge: Client, bus: Bus, path: str
) -> None:
    await finish(await start(edge, bus, path))
    latest = await edge.post(path, json={"query": "again"})
    async with stream(edge, path) as seen:
        assert seen.run_id == latest.headers["penstock-run-id"]


async def test_a_get_before_the_post_waits_and_is_kept_alive(
    make_edge: MakeEdge, bus: Bus, path: str
) -> None:
    edge = await make_edge(keep_alive_s=0.15)
    async with stream(edge, path) as seen:
        assert seen.response.status_code == 200
        await seen.until(b": keep-alive\n\n: keep-alive\n\n")
        await finish(await start(edge, bus, path))
        assert told(await seen.rest()) == WHOLE


async def test_a_client_that_leaves_while_waiting_is_released(edge: Client, path: str) -> None:
    async with stream(edge, path) as seen:
        assert seen.response.status_code == 200
    assert (await edge.get("/v1/runs?limit=1")).status_code == 200


async def test_all_who_look_see_the_same(edge: Client, bus: Bus, path: str) -> None:
    async with stream(edge, path) as early:
        run = await start(edge, bus, path)
        async with stream(edge, path) as second:
            await finish(run)
            async with stream(edge, path) as late:
                bodies = []
                for each in (early, second, late):
                    assert told(await each.rest()) == WHOLE
                    bodies.append(each.body)
    assert len(set(bodies)) == 1


async def test_the_flag_does_not_concern_it(make_edge: MakeEdge, bus: Bus, path: str) -> None:
    edge = await make_edge(enable_adk_canonical_stream=False)
    await finish(await start(edge, bus, path))
    async with stream(edge, path) as seen:
        assert told(await seen.rest()) == WHOLE


async def test_cut_at_any_frame_the_rest_is_exactly_the_rest(
    edge: Client, bus: Bus, path: str
) -> None:
    await finish(await start(edge, bus, path))
    async with stream(edge, path) as seen:
        frames = await seen.rest()
    for count, frame in enumerate(frames[:-1], 1):
        async with stream(edge, path, after=frame.id) as again:
            assert await again.rest() == frames[count:]


async def test_a_client_that_reconnects_at_the_end_gets_204(
    edge: Client, bus: Bus, path: str
) -> None:
    await finish(await start(edge, bus, path))
    async with stream(edge, path) as seen:
        frames = await seen.rest()
    assert (await edge.get(path, headers={"last-event-id": str(frames[-1].id)})).status_code == 204


async def test_a_reconnecting_client_gets_the_rest_of_its_run_and_then_the_next_run(
    edge: Client, bus: Bus, path: str
) -> None:
    first = await start(edge, bus, path)
    async with stream(edge, path) as seen:
        cursor = (await seen.frame()).id
    await finish(first)
    second = await start(edge, bus, path)
    await finish(second)
    async with stream(edge, path, after=cursor) as again:
        assert again.run_id == first.run_id
        rest = await again.rest()
    assert told(rest) == WHOLE[1:]
    async with stream(edge, path, after=rest[-1].id) as again:
        assert again.run_id == second.run_id
        assert told(await again.rest()) == WHOLE


async def test_it_stays_open_over_a_pause(edge: Client, bus: Bus, path: str) -> None:
    run = await start(edge, bus, path)
    async with stream(edge, path) as seen:
        await run.say("lifecycle.paused", reason="approval_required", approval_id="a7")
        await run.say("lifecycle.resumed", approval_id="a7")
        await finish(run)
        frames = told(await seen.rest())
    assert frames[1:3] == [
        ("agent_status", "waiting for a decision: a7"),
        ("agent_status", "resumed"),
    ]
    assert frames[-1] == WHOLE[-1]


@pytest.mark.parametrize(
    ("end", "content"),
    [
        (
            ("failed", {"error": "Request timeout after 300 seconds", "code": "timeout"}),
            "failed: Request timeout after 300 seconds",
        ),
        (("failed", {"error": "no", "code": "upstream_lost"}), "failed: no"),
        (("cancelled", {"reason": "user_stop"}), "cancelled"),
    ],
)
async def test_a_run_without_a_report_ends_in_a_status(
    edge: Client, bus: Bus, path: str, end: tuple[str, dict[str, Any]], content: str
) -> None:
    run = await start(edge, bus, path)
    async with stream(edge, path) as seen:
        await run.say(f"lifecycle.{end[0]}", **end[1])
        assert told(await seen.rest())[-1] == ("agent_status", content)


# bad input


@pytest.mark.parametrize("query", ["", " \n", None, 5, ["x"], "missing"])
async def test_a_query_that_says_nothing_is_422_and_named(
    edge: Client, path: str, query: Any
) -> None:
    body = {} if query == "missing" else {"query": query}
    refused = await edge.post(path, json=body)
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"] == ["body", "query"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
async def test_a_body_that_is_no_json_object_is_422(edge: Client, path: str, body: bytes) -> None:
    refused = await edge.post(path, content=body, headers=JSON)
    assert (refused.status_code, set(refused.json())) == (422, {"detail"})


async def test_an_unknown_app_is_404(edge: Client) -> None:
    for method in ("GET", "POST"):
        url = "/apps/nobody/users/u/sessions/s/run"
        refused = await edge.request(method, url, json={"query": "x"})
        assert (refused.status_code, set(refused.json())) == (404, {"detail"})


@pytest.mark.parametrize(
    ("cursor", "status"),
    [("garbage", 400), ("1", 400), ("1-1-1", 400), ("99999999999-0", 410), ("1-0", 400)],
)
async def test_a_cursor_that_is_not_of_the_session_is_refused(
    edge: Client, bus: Bus, path: str, cursor: str, status: int
) -> None:
    other = PretendRun(bus)
    await other.started()  # so that the stream is not empty
    for _ in range(2):  # first a session without runs, then one with a run
        refused = await edge.get(path, headers={"last-event-id": cursor})
        assert (refused.status_code, set(refused.json())) == (status, {"detail"})
        await start(edge, bus, path)
    foreign = f"{other.places[0]}-0"
    assert (await edge.get(path, headers={"last-event-id": foreign})).status_code == 400


async def test_other_methods_media_types_and_sizes_are_refused(
    make_edge: MakeEdge, path: str
) -> None:
    edge = await make_edge(max_body_bytes=1000)
    deleted = await edge.delete(path)
    plain = await edge.post(path, content=b"{}", headers={"Content-Type": "text/plain"})
    large = await edge.post(path, content=orjson.dumps({"query": "y" * 2000}), headers=JSON)
    answers = (deleted, plain, large)
    assert [each.status_code for each in answers] == [405, 415, 413]
    assert deleted.headers["allow"] == "GET, POST"
    assert all(set(each.json()) == {"detail"} for each in answers)


async def test_a_waiting_stream_is_ended_by_its_run_alone(
    edge: Client, bus: Bus, path: str
) -> None:
    other = path.replace("/ann/", "/bob/")
    async with stream(edge, path) as seen:
        await finish(await start(edge, bus, other))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await seen.rest()
