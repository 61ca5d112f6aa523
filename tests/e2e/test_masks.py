"""With `where: egress`, callers without the scope `pii` get no byte of a match on any face, callers
with it get the whole content, and who decides sees what he decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from penstock import sse
from penstock.bus import subjects
from penstock.bus.read.direct import replay
from penstock.bus.streams import events_for
from penstock.settings import Config
from penstock.settings.auth import AuthSettings
from penstock_edge.service import EdgeService
from penstock_edge.views.dialects import DIALECTS, RAW_DIALECT
from penstock_workflows.service import WorkflowsService
from support.drive.pipeline import PIPELINE, Pipeline, Services, pipeline
from support.drive.redactions import put_in_force
from support.drive.secured import bearer
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.drive.workflows import define, definition
from support.fakes.issuer import SECRET
from support.fakes.misbehaving import Misbehaving, misbehaving, plays
from support.fakes.raw import agno_approved, agno_pause, agno_text
from support.real.nats import NatsServer

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

# Signs that occur nowhere else.
MATCH = "☂☀☁☁☂"
PIECES = ["Fine: ", "☂", "☀☁", "☁", "☂ and more", " text"]
WHOLE, MASKED = "".join(PIECES), "Fine: [PATTERN_1] and more text"
RULE = {
    **{"id": "signs", "match": {"agent": ["guarded", "matched"]}, "kinds": ["re:☂[☂☀☁]{4}"]},
    "where": "egress",
}
# Masks in runs of a workflow, but not what RULE masks in the runs of its steps.
UNLIKE = {"id": "unlike", "match": {"agent": "unlike"}, "kinds": ["re:☀{9}"], "where": "egress"}
OF_ADA = {**RULE, "id": "of-ada", "match": {"agent": "of_ada", "user": "ada"}}
READ = [dialect for dialect in DIALECTS if dialect != RAW_DIALECT]
# One that is stored as it is, one with texts alone, one with state, and one of a framework.
SHORT = ["canonical", "executions", "agui", "vercel"]
SCOPES = "start read raw decide"
ADA, ADA_PII = bearer("ada", scope=SCOPES), bearer("ada", scope=f"{SCOPES} pii")
ROOT = bearer("root", scope="read administer")
SSE, JSON = {"accept": "text/event-stream"}, {"accept": "application/json"}
Headers = Mapping[str, str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def upstream() -> AsyncIterator[Misbehaving]:
    async with misbehaving() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(nats_server: NatsServer, upstream: Misbehaving) -> AsyncIterator[Pipeline]:
    agent = {"id": "guarded", "protocol": "agno", "agent": "demo", "topology_id": 123}
    agent["url"] = upstream.url
    config = Config.model_validate({"agents": [agent]})
    auth = AuthSettings(jwt_secret=SECRET, leeway_s=0)
    services: Services = (*PIPELINE, EdgeService, WorkflowsService)
    async with pipeline(nats_server.url, config, services, auth=auth) as running:
        await put_in_force(running.bus, running.services, RULE, UNLIKE, OF_ADA)
        yield running


def check_masked(wire: str) -> None:
    for sign in set(MATCH):
        assert sign not in wire, wire
        assert f"\\u{ord(sign):04x}" not in wire.lower(), wire


def check(wire: str, *, whole: bool) -> None:
    if whole:
        assert any(sign in wire or f"\\u{ord(sign):04x}" in wire.lower() for sign in MATCH), wire
    else:
        check_masked(wire)
        assert "[PATTERN_1]" in wire, wire


async def run_of(penstock: Pipeline, **start: Any) -> str:
    body = {"agent": "guarded", "message": f"I am {MATCH}", **start}
    answer = await penstock.http.post("/v1/runs", json=body, headers=ADA)
    assert answer.status_code == 202, answer.text
    check_masked(answer.text)
    return str(answer.json()["run_id"])


AUDIENCES: list[tuple[Headers, bool]] = [(ADA, False), (ADA_PII, True)]


async def test_every_stream_page_and_object_of_a_run_is_masked_or_whole(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text(*PIECES)))
    http, session = penstock.http, "s-all"
    run_id = await run_of(penstock, session_id=session)
    await penstock.ended(run_id)
    events = f"/v1/runs/{run_id}/events"
    streams = [f"{events}?dialect={dialect}" for dialect in READ]
    streams += [f"/v1/sessions/{session}/events?until=idle"]
    streams += [f"/v1/sessions/{session}/events?until=idle&dialect=unified"]
    pages = [f"{path}&limit=100" for path in streams[: len(READ)]]
    pages += [f"/v1/runs/{run_id}/state", "/v1/events?since=1970-01-01T00:00:00Z"]
    pages += [f"/sessions/{session}/runs?type=agent", f"/a2a/guarded/tasks/{run_id}"]
    pages += [f"/openai/v1/responses/resp_{run_id}"]
    socket = str(http.base_url).replace("http://", "ws://").rstrip("/")
    for who, whole in AUDIENCES:
        asked = [(path, SSE) for path in streams] + [(path, JSON) for path in pages]
        for path, accepts in asked:
            version = {"a2a-version": "1.0"} if path.startswith("/a2a") else {}
            answer = await http.get(path, headers={**who, **accepts, **version})
            assert answer.status_code == 200, f"{path}: {answer.text}"
            check(answer.text, whole=whole)
        address = f"{socket}/v1/sessions/{session}/events/ws?until=idle"
        async with connect(address, proxy=None, additional_headers=who) as told:
            check("".join([str(message) async for message in told]), whole=whole)
    # The first words in lists and records are masked for everybody.
    for who, _ in AUDIENCES:
        for path in ("/v1/runs", f"/v1/runs/{run_id}"):
            answer = await http.get(path, headers=who)
            check(answer.text, whole=False)


FACES: dict[str, tuple[str, dict[str, Any]]] = {
    "executions": (
        "/api/service/v1/executions/trigger",
        {"topologyId": 123, "userMessage": f"I am {MATCH}"},
    ),
    "AG-UI": (
        "/agui/guarded",
        {
            **{"threadId": "t", "runId": "r", "tools": [], "context": [], "state": {}},
            **{"messages": [{"id": "m", "role": "user", "content": "hi"}], "forwardedProps": {}},
        },
    ),
    "Vercel": (
        "/vercel/guarded",
        {
            "id": "c",
            "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
        },
    ),
    "OpenAI's responses": ("/openai/v1/responses", {"model": "guarded", "input": "hi"}),
    "OpenAI's chat": (
        "/openai/v1/chat/completions",
        {"model": "guarded", "stream": True, "messages": [{"role": "user", "content": "hi"}]},
    ),
    "A2A": (
        "/a2a/guarded",
        {
            **{"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"},
            "params": {
                "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
            },
        },
    ),
}


@pytest.mark.parametrize("face", in_short(FACES, ["AG-UI", "OpenAI's responses"]))
async def test_who_starts_a_run_on_a_face_reads_it_masked_or_whole(
    penstock: Pipeline, upstream: Misbehaving, face: str
) -> None:
    upstream.script(plays(agno_text(*PIECES)))
    path, body = FACES[face]
    for number, (who, whole) in enumerate(AUDIENCES):
        text = json.dumps(body).replace('"t"', f'"t{number}"').replace('"c"', f'"c{number}"')
        text = text.replace('"m"', f'"m{number}"').replace('"r"', f'"r{number}"')
        headers = {**who, "a2a-version": "1.0", "content-type": "application/json"}
        answer = await penstock.http.post(path, content=text, headers=headers)
        assert answer.status_code == 200, answer.text
        check(answer.text, whole=whole)


@pytest.mark.parametrize("dialect", in_short({each: each for each in READ}, SHORT))
async def test_a_stream_goes_on_at_each_cursor_for_the_other_audience(
    penstock: Pipeline, upstream: Misbehaving, dialect: str
) -> None:
    upstream.script(plays(agno_text(*PIECES)))
    run_id = await run_of(penstock)
    await penstock.ended(run_id)
    path = f"/v1/runs/{run_id}/events?dialect={dialect}"

    async def frames(who: Headers, after: str = "") -> dict[str, bytes]:
        headers = {**who, **({"last-event-id": after} if after else {})}
        answer = await penstock.http.get(path, headers=headers)
        found = sse.Parser().feed(answer.content)
        return {each.id: each.data for each in found if each.id}

    masked, whole = await frames(ADA), await frames(ADA_PII)
    assert len(masked) > 1
    assert list(masked) == list(whole), "both have the same cursors"
    for number, cursor in enumerate(masked):
        for who, all_ in ((ADA, masked), (ADA_PII, whole)):
            rest = await frames(who, cursor)
            assert rest == dict(list(all_.items())[number + 1 :])


async def test_live_streams_of_both_audiences_do_not_mix(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text(*PIECES)))
    run_id = await run_of(penstock)
    path = f"/v1/runs/{run_id}/events?dialect=agui"
    wires = await asyncio.gather(*(penstock.http.get(path, headers=who) for who, _ in AUDIENCES))
    for wire, (_, whole) in zip(wires, AUDIENCES, strict=True):
        check(wire.text, whole=whole)


async def test_only_who_sees_all_gets_what_the_agent_server_itself_has_sent(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text(*PIECES)))
    run_id = await run_of(penstock)
    await penstock.ended(run_id)
    path, body = "/agents/guarded/runs", {"message": "hi", "stream": "true"}
    for who, whole in AUDIENCES:
        raw = await penstock.http.get(f"/v1/runs/{run_id}/events?dialect=raw", headers=who)
        begun = await penstock.http.post(path, data=body, headers=who)
        for answer in (raw, begun):
            assert answer.status_code == (200 if whole else 409), answer.text
            if whole:
                check(answer.text, whole=True)
            else:
                check_masked(answer.text)
                assert "redactions apply here" in answer.text


async def test_on_the_bus_the_content_is_stored_whole_and_read_masked(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text(*PIECES)))
    run_id = await run_of(penstock)
    events = await penstock.ended(run_id)
    check_masked(json.dumps([event.body for event in events], ensure_ascii=False))
    pattern = subjects.events_of_run(run_id)
    found = [each async for each in replay(penstock.bus, events_for(run_id), pattern)]
    both = [each for each in found if each.unmasked is not None]
    assert {subject.subject.rpartition(".")[0] for subject in both} >= {"lifecycle.started"}
    assert any(MATCH in (each.unmasked or b"").decode() for each in both)


async def asked(penstock: Pipeline, upstream: Misbehaving) -> dict[str, Any]:
    """Start a run that asks for a call with a match in its arguments; return its approval."""
    upstream.script(plays(agno_pause(path=MATCH)))
    run_id = await run_of(penstock)
    *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
    path = f"/v1/approvals/{paused.data['approval_id']}"

    async def found() -> dict[str, Any] | None:
        answer = await penstock.http.get(path, headers=ADA)
        return answer.json() if answer.status_code == 200 else None

    record = await eventually(found, what="the approval")
    assert record is not None
    return record


async def test_who_decides_sees_the_request_and_others_do_not(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    record = await asked(penstock, upstream)
    http, path = penstock.http, f"/v1/approvals/{record['approval_id']}"
    assert record["items"][0]["args"] == {"path": MATCH}, "the requester decides by default"
    for who, whole in ((ADA, True), (ROOT, False)):
        for url in (path, f"/v1/approvals?run_id={record['run_id']}"):
            answer = await http.get(url, headers=who)
            assert answer.status_code == 200, answer.text
            check(answer.text, whole=whole)
            assert "masked_items" not in answer.text
    changes = await http.get("/v1/approvals/events?after=0", headers={**ROOT, **JSON})
    check(changes.text, whole=False)
    lines = await http.get(f"{path}/lines", headers=ADA)
    check(lines.text, whole=False)
    link = await http.post(f"{path}/links", json={"user": "ada"}, headers=ROOT)
    page = await http.get(link.json()["url"])
    check(page.text, whole=True)
    upstream.script(plays(agno_approved()))
    decision = {
        "items": [{"item_id": record["items"][0]["item_id"], "decision": "approve"}],
        "note": f"said {MATCH}",
        "digest": record["digest"],
    }
    answer = await http.post(f"{path}/decision", json=decision, headers=ADA)
    assert answer.status_code == 200, answer.text
    await penstock.ended(record["run_id"])
    events = await http.get(f"/v1/runs/{record['run_id']}/events", headers=ADA)
    check(events.text, whole=False)
    for who, whole in ((ADA, True), (ROOT, False)):
        check((await http.get(path, headers=who)).text, whole=whole)


async def test_a_client_that_has_seen_masked_arguments_cannot_send_them_to_the_agent_server(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    record = await asked(penstock, upstream)
    run_id, item = record["run_id"], record["items"][0]
    tool = {"tool_call_id": item["tool_call_id"], "tool_name": item["tool"], "confirmed": True}
    path = f"/agents/guarded/runs/{run_id}/continue"

    async def answer(args: dict[str, Any]) -> Any:
        tools = json.dumps([{**tool, "tool_args": args}])
        fields = {"tools": tools, "session_id": record["session_id"], "stream": "false"}
        return await penstock.http.post(path, data=fields, headers=ADA)

    refused = await answer({"path": "[PATTERN_2]"})
    assert refused.status_code == 422, "these are not the arguments that it was shown"
    upstream.script(plays(agno_approved()))
    taken = await answer({"path": "[PATTERN_1]"})
    assert taken.status_code == 200, taken.text
    check_masked(taken.text)
    assert b"PATTERN" not in upstream.calls[-1].body, "the agent server goes on with its own"


@pytest.mark.parametrize("name", ["matched", "other", "unlike"])
async def test_a_workflow_has_whole_values_if_its_own_run_is_masked_and_shows_them_to_nobody_else(
    penstock: Pipeline, upstream: Misbehaving, name: str
) -> None:
    upstream.script(plays(agno_text(*PIECES)))
    first = {"run": {"agent": "guarded", "message": '"hi"'}}
    then = {"needs": ["first"], "run": {"agent": "guarded", "message": "first.output.text"}}
    flow = {"name": name, "steps": {"first": first, "then": then}}
    await define(penstock.bus, definition(json.dumps(flow)))
    path = f"/v1/workflows/{name}/runs"
    answer = await penstock.http.post(path, json={}, headers=ADA)
    assert answer.status_code == 202, answer.text
    run_id = answer.json()["run_id"]
    await penstock.ended(run_id)
    said = upstream.calls[-1].form["message"]
    assert said == (WHOLE if name == "matched" else MASKED), "what the second step's agent gets"
    for who, whole in AUDIENCES:
        for dialect in ("canonical", "executions"):
            events = f"/v1/runs/{run_id}/events?dialect={dialect}"
            wire = await penstock.http.get(events, headers=who)
            check(wire.text, whole=whole and (name == "matched" or dialect == "executions"))


async def test_a_fork_of_a_workflow_for_a_user_without_its_masks_shows_nothing(
    penstock: Pipeline, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text(*PIECES)))
    run = {"agent": "guarded", "message": '"hi"'}
    second = {"needs": ["first"], "run": {**run, "agent": "nobody"}}
    steps: dict[str, Any] = {"first": {"run": run}, "second": second}
    await define(penstock.bus, definition(json.dumps({"name": "of_ada", "steps": steps})))
    answer = await penstock.http.post("/v1/workflows/of_ada/runs", json={}, headers=ADA)
    first = answer.json()["run_id"]
    await penstock.ended(first)
    eve = bearer("eve", scope=f"{SCOPES} act-as")
    for who, is_taken in ((ADA, True), (eve, False)):
        answer = await penstock.http.post(f"/v1/runs/{first}/fork", json={}, headers=who)
        assert answer.status_code == 202, answer.text
        run_id = answer.json()["run_id"]
        *_, last = await penstock.ended(run_id)
        assert last.type == "lifecycle.failed", "there is no agent nobody"
        assert ("would not in its fork" in last.data["error"]) is not is_taken
        events = await penstock.http.get(f"/v1/runs/{run_id}/events", headers=who)
        check_masked(events.text)
