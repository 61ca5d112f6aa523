"""What redactions name reaches no client on any face, and the agent server is stopped for it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY
from websockets.asyncio.client import connect

from penstock.off_loop import OFF_LOOP
from penstock.settings import Config
from penstock_edge.service import EdgeService
from penstock_edge.views.dialects import DIALECTS, RAW_DIALECT
from support.drive.pipeline import PIPELINE, Pipeline, Services, pipeline, types
from support.drive.redactions import put_in_force
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, Misbehaving, misbehaving, plays
from support.fakes.raw import agno, agno_text
from support.real.nats import NatsServer

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

# Signs that occur nowhere else: not one byte of the match may be on a wire.
SIGNS = "☂☀☁"
PIECES = ["Fine: ", "☂", "☀☁", "☁", "☂ and more", " text"]
BLOCKING = {"id": "signs", "match": {"agent": "guarded*"}, "kinds": ["re:☂[☂☀☁]{4}"]}
ASKING = {"id": "asks", "match": {"agent": "guarded"}, "kinds": ["card"], "action": "review"}
MASKING = {"id": "mail", "match": {"agent": "guarded*"}, "kinds": ["email"]}
READ = [dialect for dialect in DIALECTS if dialect != RAW_DIALECT]
ADK_MESSAGE = {"role": "user", "parts": [{"text": "hello"}]}
AGUI = {
    **{"threadId": "t-1", "runId": "r-1", "tools": [], "context": [], "state": {}},
    **{"messages": [{"id": "m1", "role": "user", "content": "hello"}], "forwardedProps": {}},
}
VERCEL = {
    "id": "c-1",
    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}],
}
A2A = {
    **{"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"},
    "params": {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}},
}
SSE = {"accept": "text/event-stream"}
MODEL = {"model": "guarded", "stream": True}


def adk(app: str) -> dict[str, Any]:
    names = {"appName": app, "userId": "anonymous", "sessionId": f"s-{app}"}
    return {**names, "newMessage": ADK_MESSAGE, "streaming": True}


# The requests that start a run and read its stream, on every face.
FACES: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/runs": ("/v1/runs", {"json": {"agent": "guarded", "message": "hi"}, "headers": SSE}),
    "executions": (
        "/api/service/v1/executions/trigger",
        {"json": {"topologyId": 123, "userMessage": "hi"}},
    ),
    "ADK": ("/run_sse", {"json": adk("guarded")}),
    "ADK as a list": ("/run", {"json": adk("guarded")}),
    "Agno as JSON": ("/agents/guarded/runs", {"data": {"message": "hi", "stream": "false"}}),
    "AG-UI": ("/agui/guarded", {"json": AGUI}),
    "Vercel": ("/vercel/guarded", {"json": VERCEL}),
    "OpenAI's responses": ("/openai/v1/responses", {"json": {**MODEL, "input": "hi"}}),
    "OpenAI's chat": (
        "/openai/v1/chat/completions",
        {"json": {**MODEL, "messages": [{"role": "user", "content": "hi"}]}},
    ),
    "A2A": ("/a2a/guarded", {"json": A2A, "headers": {"a2a-version": "1.0"}}),
}
# All faces read the same events. `make test` asks one of each form: a stream, a list, an object and
# the texts alone.
SHORT = ["/v1/runs", "ADK as a list", "Agno as JSON", "OpenAI's chat"]
# The requests that would get the agent server's own bytes.
RELAYED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ADK's bytes": ("POST", "/run_sse", {"json": adk("app")}),
    "ADK's list": ("POST", "/run", {"json": adk("app")}),
    "an ADK session": ("GET", "/apps/app/users/anonymous/sessions/s", {}),
    "Agno's bytes": ("POST", "/agents/guarded/runs", {"data": {"message": "hi", "stream": "true"}}),
    "raw frames of a new run": (
        "POST",
        "/v1/runs?dialect=raw",
        {"json": {"agent": "guarded", "message": "hi"}, "headers": SSE},
    ),
}


@dataclass(slots=True)
class Talker:
    """The script of an agent server that says `PIECES` when it may, and then waits for its end."""

    may_speak: asyncio.Event = field(default_factory=asyncio.Event)
    ends: int = 0

    async def __call__(self, answer: Answer) -> None:
        await answer.head()
        await answer.send(agno("RunStarted"))
        await self.may_speak.wait()
        for piece in PIECES:
            await answer.send(agno("RunContent", content=piece))
        await answer.left()
        self.ends += 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def upstream() -> AsyncIterator[Misbehaving]:
    async with misbehaving() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(nats_server: NatsServer, upstream: Misbehaving) -> AsyncIterator[Pipeline]:
    agents: list[dict[str, Any]] = [
        {"id": "guarded", "protocol": "agno", "agent": "demo", "topology_id": 123},
        {"id": "guarded-adk", "protocol": "adk", "agent": "app"},
        {"id": "free", "protocol": "agno", "agent": "demo"},
    ]
    config = Config.model_validate({"agents": [{**each, "url": upstream.url} for each in agents]})
    services: Services = (*PIPELINE, EdgeService)
    settings = {"cancel_grace_s": 0.1, "enable_adk_canonical_stream": True}
    async with pipeline(nats_server.url, config, services, **settings) as running:
        rules = ({**BLOCKING, "action": "block"}, MASKING, ASKING)
        await put_in_force(running.bus, running.services, *rules)
        yield running


def counted(kind: str) -> float:
    return REGISTRY.get_sample_value("penstock_redactions_total", {"kind": kind}) or 0.0


def check_clean(wire: str) -> None:
    for sign in SIGNS:
        assert sign not in wire, wire
        assert f"\\u{ord(sign):04x}" not in wire.lower(), wire


@pytest.mark.parametrize("face", in_short(FACES, SHORT))
async def test_no_byte_of_a_match_that_blocks_is_on_the_wire_of_a_face(
    penstock: Pipeline, upstream: Misbehaving, face: str
) -> None:
    talker = Talker()
    talker.may_speak.set()
    upstream.script(talker)
    path, asked = FACES[face]
    answer = await penstock.http.post(path, **asked)
    check_clean(answer.text)
    assert "Fine: " in answer.text, answer.text
    run_id = answer.headers["penstock-run-id"]
    ended = await penstock.ended(run_id)
    assert types(ended)[-1] == "lifecycle.cancelled"
    frames = b"".join(frame.payload for frame in await penstock.raw(run_id))
    assert SIGNS[0].encode() in frames or b"\\u2602" in frames, "the agent server has said it"

    async def is_stopped() -> bool:
        return talker.ends == 1

    await eventually(is_stopped, what="the end of the connection to the agent server")


async def test_no_byte_of_a_match_that_blocks_is_in_any_stream_page_record_or_list_of_the_run(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    talker, http = Talker(), penstock.http
    upstream.script(talker)
    start = {"agent": "guarded", "message": "hi", "session_id": "s-faces"}
    run_id = (await http.post("/v1/runs", json=start)).json()["run_id"]
    events, session = f"/v1/runs/{run_id}/events", "/v1/sessions/s-faces/events"
    paths = [f"{events}?dialect={dialect}" for dialect in READ]
    paths += [f"{session}?until=idle", f"{session}?until=idle&dialect=unified"]
    socket = str(http.base_url).replace("http://", "ws://").rstrip("/")
    async with AsyncExitStack() as streams:
        live = [await streams.enter_async_context(http.stream("GET", path)) for path in paths]
        told = await streams.enter_async_context(
            connect(f"{socket}{session}/ws?until=idle", proxy=None)
        )
        talker.may_speak.set()
        wires = [(await stream.aread()).decode() for stream in live]
        wires.append("".join([str(message) async for message in told]))
    await penstock.ended(run_id)
    pages = [f"{path}&limit=100" for path in paths[: len(READ)]]
    later = ["/v1/runs", f"/v1/runs/{run_id}", f"/v1/runs/{run_id}/state"]
    later += ["/v1/events?since=1970-01-01T00:00:00Z", "/sessions/s-faces/runs?type=agent"]
    for path in (*pages, *later):
        answer = await http.get(path, headers={"accept": "application/json"})
        assert answer.status_code == 200, f"{path}: {answer.text}"
        check_clean(answer.text)
    for path in paths[: len(READ)]:
        wires.append((await http.get(path)).text)
    for wire in wires:
        check_clean(wire)
        assert "Fine: " in wire, wire
    assert (await http.get(f"{events}?dialect=raw")).status_code == 409


@pytest.mark.parametrize("request_", RELAYED)
async def test_the_agent_servers_own_bytes_are_refused_where_redactions_apply(
    penstock: Pipeline, upstream: Misbehaving, request_: str
) -> None:
    upstream.script(plays(agno_text(*PIECES)))
    calls = len(upstream.calls)
    method, path, asked = RELAYED[request_]
    answer = await penstock.http.request(method, path, **asked)
    assert answer.status_code == 409, answer.text
    assert "redactions apply here" in answer.text
    check_clean(answer.text)
    assert len(upstream.calls) == calls, "nothing has run"


async def test_a_start_that_has_a_match_that_blocks_is_refused_and_calls_nobody(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    calls = len(upstream.calls)
    body = {"agent": "guarded", "message": "see ☂☀☁☁☂"}
    answer = await penstock.http.post("/v1/runs", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "blocked")
    assert len(upstream.calls) == calls


async def test_a_start_that_interrupts_does_not_repeat_a_message_without_its_matches(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    upstream.script(talker := Talker())
    start = {"agent": "guarded", "message": "I am ada@example.com", "session_id": "s-busy"}
    run_id = (await penstock.http.post("/v1/runs", json=start)).json()["run_id"]
    await penstock.events_until(run_id, "custom.event")
    later = {**start, "message": "quick", "when_busy": "interrupt"}
    answer = await penstock.http.post("/v1/runs", json=later)
    assert answer.status_code == 409, answer.text
    assert "has a match that was redacted" in answer.text
    talker.may_speak.set()
    await penstock.ended(run_id)


async def test_others_are_served_while_a_long_message_is_searched(penstock: Pipeline) -> None:
    waits = [0.0]

    async def waits_of_others() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0)
            waits.append(time.perf_counter() - began)

    async def is_searched() -> bool:
        return OFF_LOOP._is_busy

    others = asyncio.create_task(waits_of_others())
    began = time.perf_counter()
    body = {"agent": "guarded", "message": "a@b.cd " * 6_000 + "☂☀☁☁☂"}
    long = asyncio.create_task(penstock.http.post("/v1/runs", json=body))
    await eventually(is_searched, 20, "the search")
    short = await penstock.http.post("/v1/runs", json={"agent": "guarded", "message": "☂☀☁☁☂"})
    assert not long.done(), "a second start waits for the whole search"
    answer = await long
    took = time.perf_counter() - began
    others.cancel()
    assert (short.status_code, answer.status_code) == (422, 422)
    assert max(waits) < took / 3, "a second user waits for the whole search"


async def test_a_masked_run_is_masked_in_its_events_and_lists_and_another_agents_run_is_not(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("To joe@exam", "ple.com")))
    http, before = penstock.http, counted("email")
    for agent, said, is_masked in (("guarded", "To [EMAIL_2]", True), ("free", "To joe@", False)):
        start = {"agent": agent, "message": "I am ada@example.com", "session_id": f"s-{agent}"}
        run_id = (await http.post("/v1/runs", json=start)).json()["run_id"]
        await penstock.ended(run_id)
        record = (await http.get(f"/v1/runs/{run_id}")).json()
        shown = (await http.get(f"/v1/runs/{run_id}/events")).text + str(record)
        assert said in shown
        assert ("example.com" in shown) is not is_masked
        assert ("redactions" in record) is is_masked
        raw = await http.get(f"/v1/runs/{run_id}/events?dialect=raw")
        assert raw.status_code == (409 if is_masked else 200)
    assert counted("email") >= before + 3, "in the start, the text and the whole message"


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_people_decide_whether_a_run_goes_on_and_no_client_sees_the_match(
    penstock: Pipeline, upstream: Misbehaving, decision: str
) -> None:
    card, http, calls = "4111 1111 1111 1111", penstock.http, len(upstream.calls)
    upstream.script(plays(agno_text("Pay with ", card, " today")))
    started = await http.post("/v1/runs", json={"agent": "guarded", "message": "hi"})
    run_id = started.json()["run_id"]
    *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
    page = f"/v1/runs/{run_id}/events?limit=100"
    before = await http.get(page, headers={"accept": "application/json"})
    assert "Pay with" in before.text
    assert "today" not in before.text
    approval_id = paused.data["approval_id"]
    asked = (await http.get(f"/v1/approvals/{approval_id}")).json()
    assert asked["items"][0]["args"]["kinds"] == ["card"]
    reply = await penstock.decide(approval_id, decision)
    assert reply.status == 200, reply.detail
    events = await penstock.ended(run_id)
    wire = before.text + str(asked)
    for dialect in READ:
        wire += (await http.get(f"/v1/runs/{run_id}/events?dialect={dialect}")).text
    assert card not in wire
    assert "1111 1111" not in wire
    assert "4111 " not in wire
    if decision == "approve":
        assert types(events)[-1] == "lifecycle.completed"
        assert events[-1].data["summary"] == "Pay with [CARD_1] today"
    else:
        assert (types(events)[-1], events[-1].data["reason"]) == ("lifecycle.cancelled", "blocked")
        assert "today" not in wire
    assert len(upstream.calls) == calls + 1, "the agent server is not asked again"


async def test_a_client_on_any_face_gets_nothing_from_what_people_decide_about_on(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("Pay with ", "4111 1111 1111 1111", " today")))
    # The other two stay open at a pause; the test before reads what they read.
    faces = {name: each for name, each in FACES.items() if name not in ("/v1/runs", "executions")}
    # With ids of their own, so that they are no repetitions of the requests of an earlier test.
    text = re.sub('"([rctm]-?1|s-[a-z-]+)"', r'"\1-asks"', json.dumps(faces))
    answers = await asyncio.gather(
        *(penstock.http.post(path, **asked) for path, asked in json.loads(text).values())
    )
    for face, answer in zip(faces, answers, strict=True):
        shows_question = "penstock.redactions" in answer.text  # Agno's JSON has it in place of text
        assert "Pay with" in answer.text or shows_question, f"{face}: {answer.text}"
        assert "1111 1111" not in answer.text, face
        assert "today" not in answer.text, face


async def test_a_changed_rule_applies_to_new_runs_only(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    may_go_on = asyncio.Event()

    async def answers(answer: Answer) -> None:
        await answer.head()
        await answer.send(agno("RunStarted") + agno("RunContent", content="a@b.cd, "))
        await may_go_on.wait()
        rest = agno("RunContent", content="c@d.ef") + agno("RunContentCompleted")
        await answer.send(rest + agno("RunCompleted", content="a@b.cd, c@d.ef"))
        await answer.end()

    upstream.script(answers)
    start = {"agent": "guarded", "message": "hi"}
    first = (await penstock.http.post("/v1/runs", json=start)).json()["run_id"]
    await penstock.events_until(first, "llm.stream")
    await put_in_force(penstock.bus, penstock.services)
    may_go_on.set()
    *_, ended = await penstock.ended(first)
    assert ended.data["summary"] == "[EMAIL_1], [EMAIL_2]"
    second = (await penstock.http.post("/v1/runs", json=start)).json()["run_id"]
    *_, ended = await penstock.ended(second)
    assert ended.data["summary"] == "a@b.cd, c@d.ef"
