"""Starts, streams and runs as one object, as agno-events.md describes them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus import Bus, RawWriter
from penstock.settings import AgentConfig, Config
from penstock.sse import Parser
from penstock_edge.surfaces.agno.views import EdgeFrames, UpstreamLeg, stream_form
from support.drive.agno_surface import CONFIG, named
from support.drive.clients import Client, MakeEdge, Stream
from support.fakes.pretend import PretendConnector, PretendRun, command_of
from support.fakes.raw import agno, agno_pause, agno_text

PATHS = {
    "/agents/assistant": "assistant",
    "/agents/demo": "assistant",
    "/agents/helper": "helper",
    "/agents/vana": "helper",
    "/teams/crew": "crew",
    "/teams/demo-team": "crew",
    "/workflows/flow": "flow",
    "/workflows/demo-wf": "flow",
}


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


def start(edge: Client, path: str = "/agents/assistant", **fields: Any) -> Stream:
    """Start a run with an urlencoded form, as the document does."""
    form = {"message": "hello", "stream": "true", **fields}
    return Stream(edge, "POST", f"{path}/runs", data=form)


async def refused(edge: Client, **request: Any) -> httpx.Response:
    """Send a start that must be refused; return the answer, which names no run."""
    answer = await edge.post("/agents/assistant/runs", **request)
    assert "penstock-run-id" not in answer.headers
    assert set(answer.json()) == {"detail"}
    return answer


async def say_hello(run: PretendRun) -> None:
    await run.started()
    await run.text("Hello", " wor", "ld")
    await run.say("llm.message_completed", message_id="m1", content="Hello world", role="assistant")
    await run.completed("Hello world")


@pytest.fixture
async def hello(bus: Bus) -> Any:
    """Run a fake connector that says hello in every run."""
    connector = PretendConnector(bus, lambda run, _: say_hello(run))
    await connector.start()
    yield
    await connector.stop()


# the agent and the message


@pytest.mark.parametrize("path", PATHS)
async def test_each_kind_has_its_paths_by_our_id_and_by_the_upstreams(
    edge: Client, bus: Bus, path: str
) -> None:
    async with start(edge, path) as stream:
        assert stream.response.status_code == 200
        assert (await command_of(bus, stream.run_id))["agent"] == PATHS[path]


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/agents/nobody", "Agent not found"),
        ("/agents/crew", "Agent not found"),
        ("/teams/assistant", "Team not found"),
        ("/workflows/crew", "Workflow not found"),
    ],
)
@pytest.mark.parametrize("rest", ["/runs", "/runs/x/continue", "/runs/x/cancel"])
async def test_an_unknown_agent_or_one_of_another_kind_is_404(
    edge: Client, path: str, detail: str, rest: str
) -> None:
    answer = await edge.post(path + rest, data={"message": "hi"})
    assert (answer.status_code, answer.json()) == (404, {"detail": detail})


async def test_session_and_user_are_passed_on_as_given(edge: Client, bus: Bus) -> None:
    async with start(edge, session_id="session_9o3-3shY0Iw", user_id="user 1/ü") as stream:
        command = await command_of(bus, stream.run_id)
    assert (command["session_id"], command["user_id"]) == ("session_9o3-3shY0Iw", "user 1/ü")


@pytest.mark.parametrize("fields", [{}, {"session_id": "", "user_id": ""}])
async def test_no_session_is_a_new_one_and_no_user_is_the_caller(
    edge: Client, bus: Bus, fields: dict[str, str]
) -> None:
    async with start(edge, **fields) as stream:
        command = await command_of(bus, stream.run_id)
    assert uuid.UUID(command["session_id"])
    assert command["user_id"] == "anonymous"


MESSAGES = {
    "10k characters": "0123456789" * 1000,
    "unicode": "中文 عربي 👩‍👩‍👧 \u2028 é",
    "markup": "<script>alert(1)</script>'; DROP TABLE runs;-- {{7*7}}",
    "newlines": "one\ntwo\r\nthree\n\n",
    "form characters": "a=b&c=%20+%zz;d",
}
BODIES = {
    "urlencoded": lambda fields: {"data": fields},
    "multipart": lambda fields: {"files": {name: (None, text) for name, text in fields.items()}},
    "JSON": lambda fields: {"json": fields},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
async def test_a_message_is_data_whatever_it_holds_and_however_it_comes(
    edge: Client, bus: Bus, message: str, body: Any
) -> None:
    request = body({"message": message, "stream": "true"})
    async with Stream(edge, "POST", "/agents/assistant/runs", **request) as stream:
        assert stream.response.status_code == 200
        assert (await command_of(bus, stream.run_id))["message"] == message


async def test_only_fields_that_the_configuration_names_are_passed_on(
    edge: Client, bus: Bus
) -> None:
    fields = {
        "dependencies": '{"document_id": null}',
        "session_state": '{"a": 1}',
        "version": "2",
        "images": "[]",
        "background": "false",
        "run_id": "theirs",
        "stream_events": "false",
    }
    async with start(edge, **fields) as stream:
        command = await command_of(bus, stream.run_id)
    for gone in ("background", "run_id", "stream_events", "images"):
        del fields[gone]
    assert command["input"] == fields
    assert command["run_id"] == stream.run_id


@pytest.mark.parametrize("dependencies", ["xx", "{", "[1]", "5"])
async def test_invalid_dependencies_are_ignored(edge: Client, bus: Bus, dependencies: str) -> None:
    async with start(edge, dependencies=dependencies) as stream:
        assert stream.response.status_code == 200
        assert "input" not in await command_of(bus, stream.run_id)


async def test_another_protocols_agent_is_given_the_message_alone(edge: Client, bus: Bus) -> None:
    async with start(edge, "/agents/helper", dependencies='{"a": 1}', stateDelta="{}") as stream:
        assert "input" not in await command_of(bus, stream.run_id)


async def test_another_protocols_agent_takes_no_media(edge: Client) -> None:
    form = {"message": "hi", "images": '[{"url": "x"}]'}
    answer = await edge.post("/agents/helper/runs", data=form)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "images"]


# refused starts


async def test_a_missing_or_empty_message_is_the_422_of_fastapi(edge: Client) -> None:
    missing = {"type": "missing", "loc": ["body", "message"], "msg": "Field required"}
    requests: list[dict[str, Any]] = [
        {"data": {"stream": "true"}},
        {"data": {"message": "", "stream": "true"}},
        {"files": {"stream": (None, "true")}},
        {"json": {}},
        {"json": {"message": ""}},
    ]
    for request in requests:
        answer = await refused(edge, **request)
        assert answer.status_code == 422
        assert answer.json() == {"detail": [{**missing, "input": None}]}


@pytest.mark.parametrize("message", [" ", "\n\t", "\u3000"])
async def test_a_message_of_white_space_is_422_and_goes_nowhere(edge: Client, message: str) -> None:
    answer = await refused(edge, data={"message": message, "stream": "true"})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "message"]
    assert answer.json()["detail"][0]["input"] == message


async def test_a_file_is_422_and_named(edge: Client) -> None:
    answer = await refused(
        edge, data={"message": "hi"}, files={"files": ("a.txt", b"text", "text/plain")}
    )
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "files"]
    assert "no files" in answer.json()["detail"][0]["msg"]


async def test_a_form_with_an_empty_file_field_has_no_file(edge: Client, bus: Bus) -> None:
    part = b'--b\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    body = part % (b"message", b"", b"hi") + part % (b"stream", b"", b"true")
    body += part % (b"files", b'; filename=""', b"") + b"--b--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=b"}
    path = "/agents/assistant/runs"
    async with Stream(edge, "POST", path, content=body, headers=headers) as stream:
        assert (await command_of(bus, stream.run_id))["message"] == "hi"


FORM = "application/x-www-form-urlencoded"
BROKEN: dict[str, tuple[str, bytes, int]] = {
    "no type": ("", b"message=hi", 415),
    "text": ("text/plain", b"message=hi", 415),
    "json: garbage": ("application/json", b"{", 422),
    "json: a list": ("application/json", b"[]", 422),
    "json: null": ("application/json", b"null", 422),
    "json: message is a number": ("application/json", b'{"message": 5}', 422),
    "json: message is null": ("application/json", b'{"message": null}', 422),
    "json: message is a list": ("application/json", b'{"message": ["hi"]}', 422),
    "json: session is a number": ("application/json", b'{"message":"x","session_id":5}', 422),
    "json: a lone surrogate": ("application/json", b'{"message": "\\ud800"}', 422),
    "json: not UTF-8": ("application/json", b'{"message": "\xff"}', 422),
    "json: nested beyond measure": (
        "application/json",
        b'{"message": "x", "session_state": ' + b"[" * 500 + b"]" * 500 + b"}",
        422,
    ),
    "form: not UTF-8": (FORM, b"message=%ff", 422),
    "form: given twice": (FORM, b"message=a&message=b", 422),
    "form: stream is no boolean": (FORM, b"message=a&stream=perhaps", 422),
    "form: a session as long as a page": (FORM, b"message=a&session_id=" + b"x" * 2000, 422),
    "form: more fields than anybody has": (FORM, b"message=a" + b"&a=1" * 5000, 422),
    "multipart: no boundary": ("multipart/form-data", b"x", 400),
    "multipart: garbage": ("multipart/form-data; boundary=b", b"garbage", 400),
    "multipart: cut": ("multipart/form-data; boundary=b", b'--b\r\ncontent-dispo: x"', 422),
    "multipart: a part without a name": (
        "multipart/form-data; boundary=b",
        b"--b\r\ncontent-type: text/plain\r\n\r\nx\r\n--b--\r\n",
        400,
    ),
}


@pytest.mark.parametrize(("media_type", "body", "status"), BROKEN.values(), ids=BROKEN)
async def test_a_body_that_cannot_be_read_is_refused(
    edge: Client, media_type: str, body: bytes, status: int
) -> None:
    answer = await refused(edge, content=body, headers={"content-type": media_type})
    assert answer.status_code == status


async def test_too_much_is_413(make_edge: MakeEdge) -> None:
    edge = await make_edge(config=CONFIG, max_body_bytes=1000)
    for request in ({"data": {"message": "x" * 2000}}, {"json": {"message": "x" * 2000}}):
        assert (await refused(edge, **request)).status_code == 413


@pytest.mark.parametrize("path", ["", "/x/continue", "/x/cancel"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_wrong_method_is_405_with_allow(edge: Client, method: str, path: str) -> None:
    answer = await edge.request(method, f"/agents/assistant/runs{path}")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert "detail" in answer.json()


async def test_an_empty_run_id_is_no_path(edge: Client) -> None:
    answer = await edge.post("/agents/assistant/runs//continue", data={"tools": "[]"})
    assert answer.status_code == 404
    assert "detail" in answer.json()


# an Agno upstream's stream


async def test_an_agno_upstreams_frames_pass_byte_for_byte(edge: Client, bus: Bus) -> None:
    async with start(edge) as stream:
        body = agno_text("a\u2028b", "", "👩‍👩‍👧") + b": keepalive\n\n"
        await PretendRun(bus, stream.run_id).leg(body[:70], body[70:71], body[71:])
        frames = await stream.rest()
    assert stream.body == body
    assert named(frames)[0] == "RunStarted"
    assert stream.response.headers["content-type"] == "text/event-stream"


async def test_each_frame_comes_when_it_is_whole(edge: Client, bus: Bus) -> None:
    async with start(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        for chunk in ("Hello", " you"):
            body = agno("RunContent", content=chunk)
            await run.raw("bytes", body[:20])
            await run.raw("bytes", body[20:])
            assert (await stream.event())["content"] == chunk


async def test_a_pause_ends_the_stream(edge: Client, bus: Bus) -> None:
    async with start(edge) as stream:
        await PretendRun(bus, stream.run_id).leg(agno_pause())
        frames = await stream.rest()
    assert named(frames) == ["RunStarted", "RunPaused"]


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/agents/assistant", "RunCancelled"),
        ("/teams/crew", "TeamRunCancelled"),
        ("/workflows/flow", "WorkflowCancelled"),
    ],
)
async def test_an_end_that_the_upstream_has_told_is_not_told_again(
    edge: Client, bus: Bus, path: str, last: str
) -> None:
    async with start(edge, path) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        await run.raw("bytes", agno(last, reason="stop"))
        await run.raw("end", {"outcome": "cancelled"})
        await stream.rest()
    assert stream.body == agno(last, reason="stop")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/agents/assistant", "RunError"),
        ("/teams/crew", "TeamRunError"),
        ("/workflows/flow", "WorkflowError"),
    ],
)
async def test_what_cut_an_upstream_is_told_as_its_error(
    edge: Client, bus: Bus, path: str, name: str
) -> None:
    async with start(edge, path) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.raw("open", {})
        await run.raw("bytes", agno("RunContent", content="Hel") + b'event: RunContent\ndata: {"c')
        await run.raw("lost", {"code": "upstream_lost", "error": "cut"})
        await run.say("lifecycle.failed", error="cut", code="upstream_lost")
        frames = await stream.rest()
    told = orjson.loads(frames[-1].data)
    assert named(frames) == ["RunContent", name]
    assert (told["content"], told["run_id"], told["error_type"]) == (
        "cut",
        run.run_id,
        "upstream_lost",
    )


async def test_an_upstream_that_ends_without_a_word_did_not_succeed(edge: Client, bus: Bus) -> None:
    async with start(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.leg(agno("RunContent", content="Hel"))
        await run.started()
        await run.say("lifecycle.failed", error="it ended too early", code="upstream_lost")
        assert named(await stream.rest()) == ["RunContent", "RunError"]


async def test_a_run_whose_end_was_told_ends_without_a_second_one(edge: Client, bus: Bus) -> None:
    async with start(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        await run.raw("bytes", agno_text("hi"))
        await run.started()
        await run.completed("hi")  # the connector's process has ended before it wrote the leg's end
        await stream.rest()
    assert stream.body == agno_text("hi")


async def test_another_legs_frames_are_not_this_legs(edge: Client, bus: Bus) -> None:
    async with start(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        await run.raw("bytes", agno("RunContent", content="one"))
        await run.leg(agno("RunContent", content="two"), leg=2)
        await run.leg(agno("RunPaused"))
        frames = await stream.rest()
    assert named(frames) == ["RunContent", "RunPaused"]


async def test_a_members_end_is_not_the_teams(edge: Client, bus: Bus) -> None:
    async with start(edge, "/teams/crew") as stream:
        run = PretendRun(bus, stream.run_id)
        inner = agno("TeamRunCompleted", parent_run_id="p", nested_depth=1)
        await run.leg(agno("RunError", content="no") + inner)
        await run.started()
        await run.say("lifecycle.failed", error="the team is gone", code="upstream_lost")
        assert named(await stream.rest()) == ["RunError", "TeamRunCompleted", "TeamRunError"]


async def test_half_a_frame_of_a_cut_connection_is_left_out(edge: Client, bus: Bus) -> None:
    frames = [agno("RunStarted"), agno("RunContent", content="a"), agno("RunCompleted")]
    async with start(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        await run.raw("bytes", frames[0] + frames[1][:30])
        again = await RawWriter.resume(bus, run.run_id, "upstream", "c2")
        await again.write("bytes", frames[1] + frames[2], leg=1)
        await again.write("end", b'{"outcome":"eof"}', leg=1)
        await stream.rest()
    assert stream.body == b"".join(frames)


@pytest.mark.parametrize(
    "encoding",
    [lambda edge: UpstreamLeg(1, edge), lambda edge: stream_form(edge).of_leg(1)],
    ids=["own bytes", "encoded"],
)
@pytest.mark.parametrize("agent", CONFIG.agents[:3], ids=["agent", "team", "workflow"])
def test_the_stream_of_an_edge_that_stops_does_not_look_like_success(
    agent: AgentConfig, encoding: Any
) -> None:
    [frame] = Parser().feed(b"".join(encoding(EdgeFrames(agent, "r-1")).interruption()))
    told = orjson.loads(frame.data)
    assert (frame.event or "").endswith("Error")
    assert (told["run_id"], told["content"]) == (
        "r-1",
        "The stream was interrupted; the run goes on",
    )


# streams of upstreams of other protocols


async def test_another_protocols_run_is_told_in_agnos_frames(edge: Client, bus: Bus) -> None:
    async with start(edge, "/agents/helper", session_id="s-7") as stream:
        run = PretendRun(bus, stream.run_id)
        run.session_id = "s-7"
        await say_hello(run)
        frames = await stream.rest()
    bodies = [orjson.loads(frame.data) for frame in frames]
    assert named(frames) == [
        "RunStarted",
        "RunContent",
        "RunContent",
        "RunContent",
        "RunContent",
        "RunContentCompleted",
        "RunCompleted",
    ]
    assert [body["event"] for body in bodies] == named(frames)
    assert {body["run_id"] for body in bodies} == {stream.run_id}
    assert {body["session_id"] for body in bodies} == {"s-7"}
    assert [body["content"] for body in bodies[1:5]] == ["Hello", " wor", "ld", ""]
    assert b"\nid:" not in stream.body
    assert b"\n:" not in stream.body


async def test_a_silent_run_of_another_protocol_is_kept_alive_and_an_agno_upstreams_bytes_are_not(
    make_edge: MakeEdge, bus: Bus
) -> None:
    edge = await make_edge(config=CONFIG, keep_alive_s=0.09)
    async with start(edge, "/agents/helper") as other, start(edge) as agno_stream:
        await PretendRun(bus, other.run_id).started()
        await other.until(b": keep-alive\n\n: keep-alive\n\n")
        await PretendRun(bus, agno_stream.run_id).leg(agno_text("hi"))
        await agno_stream.rest()
    assert agno_stream.body == agno_text("hi")


# the run as one object


@pytest.mark.usefixtures("hello")
@pytest.mark.parametrize("fields", [{"stream": "false"}, {}, {"stream": ""}])
@pytest.mark.parametrize("path", ["/agents/assistant", "/agents/helper"])
async def test_without_a_stream_the_run_is_one_object(
    edge: Client, path: str, fields: dict[str, str]
) -> None:
    answer = await edge.post(f"{path}/runs", data={"message": "hi", **fields})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["run_id"] == answer.headers["penstock-run-id"]
    assert (body["status"], body["content"], body["content_type"]) == (
        "COMPLETED",
        "Hello world",
        "str",
    )


async def test_one_object_is_not_kept_alive_by_comments(make_edge: MakeEdge, bus: Bus) -> None:
    edge = await make_edge(config=CONFIG, keep_alive_s=0.09)

    async def slow(run: PretendRun, _: Any) -> None:
        await run.started()
        await asyncio.sleep(0.5)  # several keep-alive intervals
        await run.completed("done")

    connector = PretendConnector(bus, slow)
    await connector.start()
    answer = await edge.post("/agents/helper/runs", data={"message": "hi"})
    await connector.stop()
    assert answer.json()["status"] == "COMPLETED"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/agents/assistant", "agent"), ("/teams/crew", "team"), ("/workflows/flow", "workflow")],
)
async def test_a_run_that_fails_is_an_object_with_its_words_and_200(
    edge: Client, bus: Bus, path: str, kind: str
) -> None:
    async def fail(run: PretendRun, _: Any) -> None:
        await run.started()
        await run.say("lifecycle.failed", error="model backend exploded", code="upstream_error")

    connector = PretendConnector(bus, fail)
    await connector.start()
    answer = await edge.post(f"{path}/runs", json={"message": "hi", "stream": False})
    await connector.stop()
    assert answer.status_code == 200
    body = answer.json()
    assert (body["status"], body["content"]) == ("ERROR", "model backend exploded")
    assert f"{kind}_id" in body


# what an Agno client looks up


async def test_agents_teams_and_workflows_are_listed_by_kind(edge: Client) -> None:
    listed = {
        path: [each["id"] for each in (await edge.get(path)).json()]
        for path in ("/agents", "/teams", "/workflows")
    }
    assert listed == {
        "/agents": ["assistant", "helper"],
        "/teams": ["crew"],
        "/workflows": ["flow"],
    }


async def test_an_agent_can_be_looked_up(edge: Client) -> None:
    assert (await edge.get("/agents/demo")).json() == {"id": "assistant", "name": "Demo"}
    assert (await edge.get("/teams/crew")).json() == {"id": "crew", "name": "crew"}
    answer = await edge.get("/agents/crew")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Agent not found"})
