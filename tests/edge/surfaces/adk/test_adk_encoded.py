"""POST /run_sse and POST /run for agents of other protocols, and POST /run for ADK agents."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest
import uuid_utils

from penstock.bus import Bus
from penstock.bus.records.approvals import ApprovalRecord, DecideRequest
from penstock_edge.surfaces.adk.views import leg_form
from support.drive.clients import Client, MakeEdge, Stream, contents
from support.fakes.pretend import PretendApprovals, PretendConnector, PretendRun, command_of

JSON = {"Content-Type": "application/json"}
NOT_ENABLED = (
    "ADK canonical streaming not enabled. "
    "Set ENABLE_ADK_CANONICAL_STREAM=true to use this endpoint."
)
BOTH = pytest.mark.parametrize("path", ["/run_sse", "/run"])


def asked(**fields: Any) -> dict[str, Any]:
    """Return the body of a request for the configuration's Agno agent."""
    return {
        "appName": "assistant",
        "userId": "user_123",
        "sessionId": "s1",
        "newMessage": {"role": "user", "parts": [{"text": "hello"}]},
        "streaming": True,
        **fields,
    }


def post(edge: Client, body: dict[str, Any]) -> Stream:
    return Stream(edge, "POST", "/run_sse", content=orjson.dumps(body), headers=JSON)


async def say_hello(run: PretendRun) -> None:
    await run.started()
    await run.text("Hello", " world")
    await run.say("llm.message_completed", message_id="m1", content="Hello world", role="assistant")
    await run.completed("Hello world")


def texts(events: list[Any]) -> list[tuple[str, bool | None]]:
    """Return each event's text and its `partial`."""
    return [
        (event["content"]["parts"][0]["text"], event.get("partial"))
        for event in events
        if "content" in event
    ]


@pytest.mark.parametrize("name", ["assistant", "demo"])
async def test_another_protocols_agent_is_found_by_our_id_and_by_its_own_name(
    edge: Client, bus: Bus, name: str
) -> None:
    async with post(edge, asked(appName=name)) as stream:
        command = await command_of(bus, stream.run_id)
        await PretendRun(bus, stream.run_id).completed()
        await stream.rest()
    assert (command["agent"], command["message"]) == ("assistant", "hello")
    assert (command["user_id"], command["session_id"]) == ("user_123", "s1")
    # The command has no body: a body for an ADK server would be useless to a server of another
    # protocol.
    assert "body" not in command


async def test_a_run_is_told_in_adks_events_without_ids_names_and_comments(
    edge: Client, bus: Bus
) -> None:
    async with post(edge, asked()) as stream:
        await say_hello(PretendRun(bus, stream.run_id))
        events = contents(await stream.rest())
    assert texts(events) == [("Hello", True), (" world", True), ("Hello world", False)]
    for event in events:
        assert {"id", "author", "invocationId", "timestamp", "actions"} <= event.keys()
        assert event["invocationId"] == stream.run_id
        assert isinstance(event["timestamp"], float)
    lines = stream.body.split(b"\n")
    assert all(line.startswith(b"data: {") for line in lines[::2][:-1])
    assert set(lines[1::2]) == {b""}


async def test_without_streaming_there_are_no_partial_events(edge: Client, bus: Bus) -> None:
    async with post(edge, asked(streaming=False)) as stream:
        await say_hello(PretendRun(bus, stream.run_id))
        events = contents(await stream.rest())
    assert texts(events) == [("Hello world", None)]


async def test_silence_stays_silence(make_edge: MakeEdge, bus: Bus) -> None:
    async with post(await make_edge(keep_alive_s=0.09), asked()) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await asyncio.sleep(0.5)  # several keep-alive intervals
        await run.completed("done")
        await stream.rest()
    assert stream.body.startswith(b"data: ")
    assert b"\n:" not in stream.body


@pytest.mark.parametrize(
    ("failed", "last"),
    [
        (
            {"error": "300 s", "code": "timeout"},
            {"error": "Request timeout after 300 seconds", "error_code": "TIMEOUT"},
        ),
        (
            {"error": "x", "code": "upstream_http", "status_code": 503, "detail": "busy"},
            {"error": "ADK upstream error: 503", "status_code": 503, "detail": "busy"},
        ),
        (
            {"error": "cut", "code": "upstream_lost"},
            {"error": "cut", "error_code": "STREAM_ERROR"},
        ),
    ],
)
async def test_a_failure_ends_in_the_documents_frame(
    edge: Client, bus: Bus, failed: dict[str, Any], last: dict[str, Any]
) -> None:
    async with post(edge, asked()) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.text("Hel")
        await run.say("lifecycle.failed", **failed)
        events = contents(await stream.rest())
    assert texts(events) == [("Hel", True), ("Hel", False)]
    assert abs(events[-1].pop("timestamp") - time.time()) < 5
    assert events[-1] == last


async def test_a_cancelled_run_ends_as_adk_aborts(edge: Client, bus: Bus) -> None:
    async with post(edge, asked()) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.say("lifecycle.cancelled", reason="user_stop")
        assert (await stream.event())["errorCode"] == "INVOCATION_ABORTED"
        assert await stream.rest() == []


def test_a_stream_that_is_cut_by_us_says_so() -> None:
    [frame] = leg_form(60, streaming=False).of_leg(1).interruption()
    assert orjson.loads(frame.removeprefix(b"data: "))["error_code"] == "STREAM_ERROR"


# pauses


@pytest.fixture
async def approvals(bus: Bus) -> PretendApprovals:
    approvals = PretendApprovals(bus)
    await approvals.start()
    return approvals


async def pause(
    run: PretendRun, kind: str = "confirmation", approval_id: str = "a", **item: Any
) -> None:
    """Play the first leg: a call that waits, the request for its approval, and the pause."""
    call = {"tool": "delete_file", "tool_call_id": "F", "args": {"path": "/x"}}
    await run.started()
    await run.say("llm.tool_call", **call, pending=True)
    asked = {"item_id": "C", "kind": kind, "tool_call_id": "F", "tool": "delete_file", **item}
    await run.say("approval.requested", approval_id=approval_id, items=[asked])
    await run.say("lifecycle.paused", reason="approval_required", approval_id=approval_id)


async def go_on(run: PretendRun) -> None:
    """Play the second leg, to the run's end."""
    run.leg_number = 2
    await run.say("lifecycle.resumed", approval_id="a")
    await run.say("llm.tool_result", tool="delete_file", tool_call_id="F", result={"ok": True})
    await run.completed("gone")


@pytest.fixture
async def paused(bus: Bus) -> PretendRun:
    """Return a run of the Agno agent that waits for a confirmation, in a session of its own."""
    run = PretendRun(bus)
    await run.record(session_id=run.run_id)
    await pause(run)
    return run


def answer(session_id: str, id: str, response: Any, **given: str) -> dict[str, Any]:
    said = {"id": id, "name": "adk_request_confirmation", "response": response, **given}
    message = {"role": "user", "parts": [{"functionResponse": said}]}
    return asked(sessionId=session_id, newMessage=message)


async def test_a_pause_is_an_adk_request_and_the_streams_end(edge: Client, bus: Bus) -> None:
    async with post(edge, asked()) as stream:
        await pause(PretendRun(bus, stream.run_id))
        called, requested = contents(await stream.rest())
    assert called["content"]["parts"][0]["functionCall"]["name"] == "delete_file"
    call = requested["content"]["parts"][0]["functionCall"]
    assert (call["name"], call["id"]) == ("adk_request_confirmation", "a/C")
    assert call["args"]["originalFunctionCall"]["id"] == "F"
    assert requested["longRunningToolIds"] == ["a/C"]


@BOTH
@pytest.mark.parametrize(("confirmed", "decision"), [(True, "approve"), (False, "reject")])
@pytest.mark.parametrize("kind", ["confirmation", "review"])
async def test_its_answer_is_a_decision_and_streams_the_next_leg_alone(
    *,
    edge: Client,
    approvals: PretendApprovals,
    paused: PretendRun,
    path: str,
    confirmed: bool,
    decision: str,
    kind: str,
) -> None:
    asked = {"C": kind}
    approval_id = await approvals.request(paused.run_id, "assistant", paused.run_id, asked)

    async def next_leg(_: DecideRequest) -> None:
        await go_on(paused)

    approvals.on_decision = next_leg
    body = answer(paused.run_id, f"{approval_id}/C", {"confirmed": confirmed})
    if path == "/run":
        answered = await edge.post(path, json=body)
        events, run_id = answered.json(), answered.headers["penstock-run-id"]
    else:
        async with post(edge, body) as stream:
            events, run_id = contents(await stream.rest()), stream.run_id
    assert run_id == paused.run_id
    [decided] = approvals.decisions
    assert decided.decider.on_behalf_of == "user_123"
    assert [(item.item_id, item.decision) for item in decided.items] == [("C", decision)]
    parts = [part for event in events for part in event["content"]["parts"]]
    assert parts[0]["functionResponse"]["id"] == "F"
    assert parts[1:] == [{"text": "gone"}]


async def test_an_answer_decides_only_what_the_client_was_shown(
    edge: Client, bus: Bus, approvals: PretendApprovals, paused: PretendRun
) -> None:
    items = {"C": "confirmation"}
    approval_id = await approvals.request(paused.run_id, "assistant", paused.run_id, items)
    entry = await bus.bucket("approvals").get(approval_id)
    assert entry is not None
    edited = ApprovalRecord.model_validate_json(entry.value)
    edited.requested_digest, edited.digest = "shown", "edited since"
    await bus.bucket("approvals").put(approval_id, edited.dump())
    async with post(edge, answer(paused.run_id, f"{approval_id}/C", {"confirmed": True})):
        assert [decision.digest for decision in approvals.decisions] == ["shown"]


@pytest.mark.parametrize(
    ("kind", "response", "value"),
    [
        ("external", {"result": "22 °C"}, "22 °C"),
        ("external", {"celsius": 22}, {"celsius": 22}),
        ("external", {"result": 1, "unit": "m"}, {"result": 1, "unit": "m"}),
        ("selection", {"result": ["a"]}, ["a"]),
        ("input", {"to": "ann"}, {"to": "ann"}),
    ],
)
async def test_what_must_be_an_object_for_adk_alone_is_unwrapped(
    edge: Client,
    approvals: PretendApprovals,
    paused: PretendRun,
    kind: str,
    response: Any,
    value: Any,
) -> None:
    asked = {"C": kind}
    approval_id = await approvals.request(paused.run_id, "assistant", paused.run_id, asked)
    body = answer(paused.run_id, f"{approval_id}/C", response, name="delete_file")
    async with post(edge, body):
        [item] = approvals.decisions[0].items
    assert (item.decision, item.value) == ("approve", value)


async def test_an_answer_to_one_pause_does_not_answer_another_of_the_same_ids(
    edge: Client, bus: Bus, approvals: PretendApprovals
) -> None:
    """A model may call the same tool under the same id again, and a client may repeat a request."""
    session_id = str(uuid_utils.uuid7())
    asked_ids = []
    for _ in range(2):
        async with post(edge, asked(sessionId=session_id)) as stream:
            run = PretendRun(bus, stream.run_id)
            items = {"F": "confirmation"}
            approval_id = await approvals.request(run.run_id, "assistant", session_id, items)
            await pause(run, approval_id=approval_id, item_id="F")
            called, requested = contents(await stream.rest())
        ids = [each["content"]["parts"][0]["functionCall"]["id"] for each in (called, requested)]
        assert ids == ["F", f"{approval_id}/F"]
        asked_ids.append(ids[1])
    assert len(set(asked_ids)) == 2
    async with post(edge, answer(session_id, asked_ids[0], {"confirmed": True})):
        assert approvals.decided == [asked_ids[0].partition("/")[0]]
    # The ids of the item and of the call name no pause.
    refused = await edge.post("/run_sse", json=answer(session_id, "F", {"confirmed": True}))
    assert refused.status_code == 404


@pytest.mark.parametrize("name", ["adk_request_confirmation", "delete_file"])
async def test_an_answer_to_nothing_is_404_and_starts_no_run(edge: Client, name: str) -> None:
    before = (await edge.get("/v1/runs?limit=1")).json()
    body = answer(str(uuid_utils.uuid7()), "C", {"confirmed": True}, name=name)
    refused = await edge.post("/run_sse", json=body)
    assert (refused.status_code, set(refused.json())) == (404, {"detail"})
    assert (await edge.get("/v1/runs?limit=1")).json() == before


async def test_a_leg_that_a_policy_continues_from_is_followed(edge: Client, bus: Bus) -> None:
    async with post(edge, asked()) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.say("llm.tool_call", tool="read", tool_call_id="R", args={}, pending=True)
        items = [{"item_id": "R", "kind": "confirmation", "tool_call_id": "R", "tool": "read"}]
        await run.say("approval.requested", approval_id="a", items=items)
        await run.say("approval.decided", approval_id="a", outcome="approved", automatic=True)
        run.leg_number = 2
        await run.say("llm.tool_result", tool="read", tool_call_id="R", result="x")
        await run.completed("read")
        parts = [event["content"]["parts"][0] for event in contents(await stream.rest())]
    assert [next(iter(part)) for part in parts] == ["functionCall", "functionResponse", "text"]


# bad input, for agents of both kinds


@BOTH
@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *[(name, wrong) for name in ("appName", "userId", "sessionId") for wrong in (None, 5, "")],
        ("newMessage", None),
        ("newMessage", {"role": "user", "parts": []}),
        ("newMessage", {"role": "user", "parts": [{"text": " \n"}]}),
        ("newMessage", {"role": "user", "parts": [{"inlineData": {"data": ""}}]}),
        ("newMessage", {"role": "user", "parts": [{"text": "x"}, {"functionCall": {"id": "1"}}]}),
        ("streaming", "yes"),
        ("stateDelta", []),
        ("stateDelta", {"colour": "blue"}),
    ],
)
async def test_a_wrong_field_is_422_and_named(
    edge: Client, path: str, field: str, wrong: Any
) -> None:
    answered = await edge.post(path, json=asked(**{field: wrong}))
    assert answered.status_code == 422
    assert field in answered.json()["detail"][0]["loc"]


@BOTH
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
async def test_a_body_that_is_no_json_object_is_422(edge: Client, path: str, body: bytes) -> None:
    answered = await edge.post(path, content=body, headers=JSON)
    assert (answered.status_code, set(answered.json())) == (422, {"detail"})


async def test_run_is_501_while_the_flag_is_off(make_edge: MakeEdge) -> None:
    edge = await make_edge(enable_adk_canonical_stream=False)
    for body in (orjson.dumps(asked()), b"garbage"):
        answered = await edge.post("/run", content=body, headers=JSON)
        assert (answered.status_code, answered.json()) == (501, {"detail": NOT_ENABLED})


async def test_run_takes_posts_of_json_that_is_not_too_large(make_edge: MakeEdge) -> None:
    edge = await make_edge(max_body_bytes=1000)
    got = await edge.get("/run")
    plain = await edge.post("/run", content=b"{}", headers={"Content-Type": "text/plain"})
    large = await edge.post("/run", content=b"x" * 2000, headers=JSON)
    unknown = await edge.post("/run", json=asked(appName="nobody"))
    answers = (got, plain, large, unknown)
    assert [each.status_code for each in answers] == [405, 415, 413, 404]
    assert got.headers["allow"] == "POST"
    assert all(set(each.json()) == {"detail"} for each in answers)


# POST /run


async def connector(bus: Bus, script: Any) -> None:
    await PretendConnector(bus, script).start()


async def test_run_lists_the_events_of_the_leg(edge: Client, bus: Bus) -> None:
    async def script(run: PretendRun, command: Any) -> None:
        if command.message == "list me":
            await say_hello(run)

    await connector(bus, script)
    body = asked(newMessage={"role": "user", "parts": [{"text": "list me"}]})
    answered = await edge.post("/run", json=body)
    assert answered.status_code == 200
    assert answered.headers["content-type"] == "application/json"
    assert texts(answered.json()) == [("Hello world", None)]
    assert answered.json()[0]["invocationId"] == answered.headers["penstock-run-id"]


def of_adk(mark: str) -> dict[str, Any]:
    message = {"role": "user", "parts": [{"text": mark}]}
    return asked(appName="vana", newMessage=message)


async def run_adk(edge: Client, bus: Bus, mark: str, *written: tuple[str, Any]) -> Any:
    """Send POST /run for the ADK agent, whose upstream writes these frames; return the answer."""

    async def script(run: PretendRun, command: Any) -> None:
        if command.message != mark:
            return
        assert orjson.loads(command.body) == of_adk(mark)
        await run.raw("open", {})
        for kind, payload in written:
            await run.raw(kind, payload)

    await connector(bus, script)
    return await edge.post("/run", json=of_adk(mark))


async def test_run_lists_an_adk_upstreams_own_events_but_the_partial_ones(
    edge: Client, bus: Bus
) -> None:
    body = (
        b'data: {"author":"a","partial":true,"n":1}\n\n'
        b'data: {"author":"a","partial":false,"t":"x\xe2\x80\xa8y","f":1.0}\n\n'
        b'data: {"author":"b","id":"2"}\r\n\r\n'
    )
    answered = await run_adk(edge, bus, "own", ("bytes", body), ("end", {"outcome": "eof"}))
    assert answered.status_code == 200
    assert answered.content == (
        b'[{"author":"a","partial":false,"t":"x\xe2\x80\xa8y","f":1.0},{"author":"b","id":"2"}]'
    )


async def test_run_of_a_leg_without_events_is_an_empty_list(edge: Client, bus: Bus) -> None:
    answered = await run_adk(edge, bus, "empty", ("end", {"outcome": "eof"}))
    assert (answered.status_code, answered.json()) == (200, [])


SAID = ("bytes", b'data: {"author":"a"}\n\n')


@pytest.mark.parametrize(
    ("written", "status", "detail"),
    [
        ([("bytes", b'data: {"error": "ValueError: no"}\n\n')], 500, "ValueError: no"),
        ([("bytes", b'data: {"error": "he said "no"\nreally"}\n\n')], 500, "he said"),
        ([("lost", {"code": "timeout", "error": "x"})], 504, "Request timeout after 300 seconds"),
        (
            [("lost", {"code": "upstream_http", "error": "x", "status_code": 404, "detail": "d"})],
            502,
            "ADK upstream error: 404: d",
        ),
        ([("lost", {"code": "upstream_lost", "error": "cut"})], 500, "cut"),
        ([("end", {"outcome": "cancelled"})], 500, "cancelled"),
    ],
)
async def test_run_says_a_failure_by_its_status_and_detail(
    edge: Client, bus: Bus, written: list[tuple[str, Any]], status: int, detail: str
) -> None:
    written = [SAID, *written]
    if written[-1][0] == "bytes":
        written.append(("end", {"outcome": "eof"}))
    answered = await run_adk(edge, bus, f"fails {detail}", *written)
    assert answered.status_code == status
    assert detail in answered.json()["detail"]


async def test_a_client_that_leaves_does_not_change_the_run(edge: Client, bus: Bus) -> None:
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def script(run: PretendRun, command: Any) -> None:
        if command.message == "leave":
            seen.set_result(run.run_id)

    await connector(bus, script)
    body = asked(newMessage={"role": "user", "parts": [{"text": "leave"}]})
    asking = asyncio.create_task(edge.post("/run", json=body))
    run = PretendRun(bus, await asyncio.wait_for(seen, 30))
    asking.cancel()
    await say_hello(run)
    events = await edge.get(f"/v1/runs/{run.run_id}/events", headers={"accept": "application/json"})
    assert events.json()["events"][-1]["event"]["action"] == "completed"
