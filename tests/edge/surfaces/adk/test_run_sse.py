"""POST /run_sse as adk-streaming.md describes it, seen by a client."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest
import uuid_utils
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from penstock.bus import Bus, RawWriter
from penstock.bus.records.approvals import DecideRequest
from penstock.bus.records.legs import PauseRecord
from penstock_edge.surfaces.adk.answers import decided
from support.drive.clients import Client, MakeEdge, Stream
from support.fakes.pretend import PretendApprovals, PretendRun, command_of

EXAMPLE: dict[str, Any] = {
    "appName": "vana",
    "userId": "user_123",
    "sessionId": "sess_abc_456",
    "newMessage": {
        "parts": [{"text": "Research the latest developments in quantum computing"}],
        "role": "user",
    },
    "streaming": True,
}
NOT_ENABLED = (
    "ADK canonical streaming not enabled. "
    "Set ENABLE_ADK_CANONICAL_STREAM=true to use this endpoint."
)
JSON = {"Content-Type": "application/json"}


def post(edge: Client, body: Any = None, **request: Any) -> Stream:
    content = body if isinstance(body, bytes) else orjson.dumps(body or EXAMPLE)
    headers = {**JSON, **request.pop("headers", {})}
    return Stream(edge, "POST", "/run_sse", content=content, headers=headers, **request)


def changed(**fields: Any) -> dict[str, Any]:
    body = {**EXAMPLE, **fields}
    return {name: value for name, value in body.items() if value != "missing"}


async def test_one_post_starts_and_streams(edge: Client, bus: Bus) -> None:
    async with post(edge) as stream:
        assert stream.response.status_code == 200
        await PretendRun(bus, stream.run_id).leg(b'data: {"a":1}\n\n')
        assert [frame.data for frame in await stream.rest()] == [b'{"a":1}']


async def test_the_head_is_exactly_the_documents_and_comes_before_the_first_frame(
    edge: Client,
) -> None:
    async with post(edge) as stream:
        headers = dict(stream.response.headers)
    del headers["date"], headers["transfer-encoding"], headers["penstock-run-id"]
    assert headers == {
        "content-type": "text/event-stream",
        "cache-control": "no-cache",
        "connection": "keep-alive",
        "x-accel-buffering": "no",
    }


async def test_all_documented_request_headers_are_accepted(edge: Client) -> None:
    headers = {
        "Authorization": "Bearer x",
        "X-CSRF-Token": "y",
        "Accept": "text/event-stream",
    }
    async with post(edge, headers=headers) as stream:
        assert stream.response.status_code == 200


async def test_the_request_is_passed_on_byte_for_byte(edge: Client, bus: Bus) -> None:
    body = (
        '{ "appName":"vana","userId":"ü","sessionId":"s 1?2", "newMessage":{"role":"user",'
        '"parts":[{"text":"\\u00e9\u2028 \\n"}]},\n"stateDelta":{"x":1.0},"unknown":null,'
        '"streaming":true }'
    ).encode()
    async with post(edge, body) as stream:
        command = await command_of(bus, stream.run_id)
    assert command["body"].encode() == body
    assert command["agent"] == "helper"
    assert command["session_id"] == "s 1?2"
    assert command["user_id"] == "ü"


BODIES = {
    "unicode": 'data: {"t":"a\u2028b\u2029c\u0085d 👩‍👩‍👧"}\n\n'.encode(),
    "crlf": b'data: {"a":1}\r\n\r\ndata: {"b":2}\r\n\r\n',
    "comments, blank lines and odd fields": b": hi\n\n\n\nid: 7\nretry: 5\nevent: x\ndata: 1\n\n",
    "malformed": b'data: {"error": "tool exploded: he said "no"\nreally"}\n\n',
    "no end": b'data: {"a":1}\n\ndata: {"b"',
    "binary": bytes(range(256)),
    "nothing": b"",
    "large": b'data: "' + b"x" * 1_400_000 + b'"\n\n',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_the_answer_is_the_upstreams_bytes_and_nothing_else(
    edge: Client, bus: Bus, body: bytes
) -> None:
    async with post(edge) as stream:
        await PretendRun(bus, stream.run_id).leg(*(body[i : i + 999_999] for i in (0, 999_999)))
        await stream.rest()
    assert stream.body == body


async def test_each_frame_is_delivered_when_it_comes(edge: Client, bus: Bus) -> None:
    async with post(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        for number in range(3):
            await run.raw("bytes", b"data: %d\n\n" % number)
            assert (await stream.frame()).data == b"%d" % number


async def test_a_silent_upstream_gets_no_comments_added(make_edge: MakeEdge, bus: Bus) -> None:
    async with post(await make_edge(keep_alive_s=0.09)) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        await asyncio.sleep(0.5)  # several keep-alive intervals
        await run.raw("bytes", b"data: 1\n\n")
        await run.raw("end", {"outcome": "eof"})
        await stream.rest()
    assert stream.body == b"data: 1\n\n"


async def lost(stream: Stream, bus: Bus, body: bytes, **lost: Any) -> dict[str, Any]:
    """Play a leg that is cut; return Penstock's error frame, which must follow the body alone."""
    run = PretendRun(bus, stream.run_id)
    await run.raw("open", {})
    if body:
        await run.raw("bytes", body)
    await run.raw("lost", lost)
    frames = await stream.rest()
    assert stream.body.startswith(body)
    error: dict[str, Any] = orjson.loads(frames[-1].data)
    assert stream.body.removeprefix(body).strip() == b"data: " + frames[-1].data
    assert abs(error.pop("timestamp") - time.time()) < 5
    return error


async def test_a_timeout_is_the_documents_frame(edge: Client, bus: Bus) -> None:
    async with post(edge) as stream:
        error = await lost(stream, bus, b"data: 1\n\n", code="timeout", error="300 s")
    assert error == {"error": "Request timeout after 300 seconds", "error_code": "TIMEOUT"}


@pytest.mark.parametrize(
    ("status", "detail"),
    [(500, "Internal Server Error"), (404, '{"detail":"Session not found: x"}'), (422, "no")],
)
async def test_an_upstream_status_is_the_documents_frame_in_a_200(
    edge: Client, bus: Bus, status: int, detail: str
) -> None:
    async with post(edge) as stream:
        assert stream.response.status_code == 200
        told = {"code": "upstream_http", "error": "x", "status_code": status, "detail": detail}
        error = await lost(stream, bus, b"", **told)
    assert error == {
        "error": f"ADK upstream error: {status}",
        "status_code": status,
        "detail": detail,
    }


@pytest.mark.parametrize("code", ["upstream_lost", "limit", "outcome_unknown", "internal"])
async def test_any_other_loss_is_a_stream_error(edge: Client, bus: Bus, code: str) -> None:
    async with post(edge) as stream:
        error = await lost(stream, bus, b"data: 1\n\n", code=code, error="connection refused")
    assert error == {"error": "connection refused", "error_code": "STREAM_ERROR"}


async def test_half_a_frame_is_ended_before_our_error_frame(edge: Client, bus: Bus) -> None:
    async with post(edge) as stream:
        await lost(stream, bus, b'data: 1\n\ndata: {"b', code="upstream_lost", error="cut")
    assert b'data: {"b\n\ndata: {"error":"cut"' in stream.body


async def test_half_a_frame_of_a_cut_connection_is_parted_from_what_follows(
    edge: Client, bus: Bus
) -> None:
    async with post(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        await run.raw("bytes", b'data: 1\n\ndata: {"b')
        again = await RawWriter.resume(bus, run.run_id, "upstream", "c2")
        await again.write("claim", b'{"calls":true}', leg=1)
        await again.write("bytes", b"data: 2\n\n", leg=1)
        await again.write("end", b'{"outcome":"eof"}', leg=1)
        await stream.rest()
    assert stream.body == b'data: 1\n\ndata: {"b\n\ndata: 2\n\n'


@pytest.mark.parametrize(
    "said",
    [
        b'data: {"error": "Value: no", "error_details": {}}\n\n',
        b'data: {"error": "tool exploded: he said "no"\nreally"}\n\n',
    ],
)
async def test_an_error_that_the_upstream_has_told_is_not_told_again(
    edge: Client, bus: Bus, said: bytes
) -> None:
    async with post(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        await run.raw("bytes", said)
        await run.raw("lost", {"code": "upstream_lost", "error": "cut"})
        await stream.rest()
    assert stream.body == said


async def test_a_clean_end_after_an_error_frame_adds_nothing(edge: Client, bus: Bus) -> None:
    body = b'data: {"errorCode":"X"}\n\ndata: {"error": "X: no"}\n\n'
    async with post(edge) as stream:
        await PretendRun(bus, stream.run_id).leg(body)
        await stream.rest()
    assert stream.body == body


async def test_a_cancelled_run_says_why_its_stream_ends(edge: Client, bus: Bus) -> None:
    async with post(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        await run.raw("end", {"outcome": "cancelled"})
        error = await stream.event()
    assert error["error_code"] == "STREAM_ERROR"
    assert "cancelled" in error["error"]


async def test_a_run_that_ends_without_its_connector_ends_the_stream(
    edge: Client, bus: Bus
) -> None:
    async with post(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.say("lifecycle.failed", error="the connector died", code="internal")
        error = await stream.event()
        assert await stream.rest() == []
    assert error["error"] == "the connector died"


async def test_a_client_that_leaves_leaves_the_run_as_it_is(edge: Client, bus: Bus) -> None:
    async with post(edge) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.raw("open", {})
        await run.raw("bytes", b"data: 1\n\n")
        await stream.frame()
    await run.raw("bytes", b"data: 2\n\n")
    await run.raw("end", {"outcome": "eof"})
    await run.completed()
    again = Stream(edge, "GET", f"/v1/runs/{run.run_id}/events?dialect=raw")
    async with again:
        assert [frame.data for frame in await again.rest()] == [b"1", b"2"]


async def test_switched_off_it_is_501_before_the_body_is_looked_at(make_edge: MakeEdge) -> None:
    edge = await make_edge(enable_adk_canonical_stream=False)
    for body in (orjson.dumps(EXAMPLE), b"garbage"):
        answer = await edge.post("/run_sse", content=body, headers=JSON)
        assert answer.status_code == 501
        assert answer.json() == {"detail": NOT_ENABLED}


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *[(name, wrong) for name in ("appName", "userId", "sessionId") for wrong in ("missing", 5)],
        ("newMessage", "missing"),
        ("newMessage", "hi"),
        ("newMessage", {"role": "user"}),
        ("newMessage", {"role": "user", "parts": []}),
        ("newMessage", {"role": "user", "parts": {}}),
        ("newMessage", {"role": "user", "parts": ["hi"]}),
        ("newMessage", {"role": "model", "parts": [{"text": "x"}]}),
        ("newMessage", {"parts": [{"text": "x"}]}),
        ("newMessage", {"role": "user", "parts": [{"text": " \n"}, {"text": ""}]}),
        ("newMessage", {"role": "user", "parts": [{"functionResponse": "x"}]}),
        ("streaming", "yes"),
        ("stateDelta", []),
        ("invocationId", 5),
    ],
)
async def test_a_wrong_field_is_422_and_named(edge: Client, field: str, wrong: Any) -> None:
    answer = await edge.post("/run_sse", json=changed(**{field: wrong}))
    assert answer.status_code == 422
    assert field in answer.json()["detail"][0]["loc"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
async def test_a_body_that_is_no_json_object_is_422(edge: Client, body: bytes) -> None:
    answer = await edge.post("/run_sse", content=body, headers=JSON)
    assert answer.status_code == 422
    assert "detail" in answer.json()


async def test_another_media_type_is_415_and_too_much_413(make_edge: MakeEdge) -> None:
    edge = await make_edge(max_body_bytes=1000)
    plain = await edge.post("/run_sse", content=b"{}", headers={"Content-Type": "text/plain"})
    large = await edge.post("/run_sse", content=b"x" * 2000, headers=JSON)
    assert (plain.status_code, set(plain.json())) == (415, {"detail"})
    assert (large.status_code, set(large.json())) == (413, {"detail"})


async def test_snake_case_is_accepted(edge: Client, bus: Bus) -> None:
    body = {
        "app_name": "vana",
        "user_id": "u",
        "session_id": "s",
        "new_message": EXAMPLE["newMessage"],
        "state_delta": {"a": 1},
        "streaming": True,
    }
    async with post(edge, body) as stream:
        assert (await command_of(bus, stream.run_id))["session_id"] == "s"


async def test_one_field_by_both_its_names_is_422(edge: Client) -> None:
    answer = await edge.post("/run_sse", json={**EXAMPLE, "app_name": "other"})
    assert answer.status_code == 422


async def test_only_the_required_fields_are_needed(edge: Client) -> None:
    async with post(edge, changed(streaming="missing")) as stream:
        assert stream.response.status_code == 200


async def test_parts_that_are_no_text_are_not_judged_as_text(edge: Client) -> None:
    parts = [{"text": ""}, {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}]
    async with post(edge, changed(newMessage={"role": "user", "parts": parts})) as stream:
        assert stream.response.status_code == 200


async def test_an_unknown_app_is_404(edge: Client) -> None:
    # `helper` is Penstock's id of the ADK agent, which is known only by its upstream's name
    for name in ("nobody", "helper"):
        answer = await edge.post("/run_sse", json=changed(appName=name))
        assert answer.status_code == 404
        assert name in answer.json()["detail"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_wrong_method_is_405_with_allow(edge: Client, method: str) -> None:
    answer = await edge.request(method, "/run_sse")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


async def test_a_websocket_is_405_too(edge: Client) -> None:
    url = f"ws://{edge.base_url.host}:{edge.base_url.port}/run_sse"
    with pytest.raises(InvalidStatus) as refused:
        await connect(url)
    assert refused.value.response.status_code == 405
    assert refused.value.response.headers["allow"] == "POST"


# An answer to a pause is a decision, whatever its form.


@pytest.fixture
async def approvals(bus: Bus) -> PretendApprovals:
    approvals = PretendApprovals(bus)
    await approvals.start()
    return approvals


@pytest.fixture
async def paused(bus: Bus) -> PretendRun:
    """Return a run of the ADK agent whose first leg has ended in a pause."""
    run = PretendRun(bus)
    await run.record(agent="helper", session_id=run.run_id)
    await run.started()
    await run.leg(b"data: asked\n\n")
    await run.say("lifecycle.paused", reason="approval_required", approval_id="a")
    return run


def answer(
    run: PretendRun,
    response: Any,
    *,
    id: str = "C",
    name: str = "adk_request_confirmation",
    key: str = "functionResponse",
) -> dict[str, Any]:
    part = {key: {"id": id, "name": name, "response": response}}
    return changed(sessionId=run.run_id, newMessage={"role": "user", "parts": [part]})


async def confirmation(approvals: PretendApprovals, run: PretendRun) -> str:
    return await approvals.request(run.run_id, "helper", run.run_id, {"C": "confirmation"})


@pytest.mark.parametrize("key", ["functionResponse", "function_response"])
@pytest.mark.parametrize("name", ["adk_request_confirmation", "delete_file", ""])
async def test_an_answer_is_a_decision_by_its_id_and_streams_the_next_leg(
    edge: Client, approvals: PretendApprovals, paused: PretendRun, name: str, key: str
) -> None:
    await confirmation(approvals, paused)

    async def next_leg(_: DecideRequest) -> None:
        await paused.leg(b"data: done\n\n", leg=2)

    approvals.on_decision = next_leg
    async with post(edge, answer(paused, {"confirmed": True}, name=name, key=key)) as stream:
        assert stream.run_id == paused.run_id
        await stream.rest()
    assert stream.body == b"data: done\n\n"
    [decision] = approvals.decisions
    assert decision.decider.on_behalf_of == "user_123"
    assert [(item.item_id, item.decision) for item in decision.items] == [("C", "approve")]


@pytest.mark.parametrize(
    ("response", "decision", "value"),
    [
        ({"confirmed": True}, "approve", None),
        ({"confirmed": False}, "reject", None),
        ({"confirmed": True, "payload": {"amount": 5}}, "approve", {"amount": 5}),
        ({"response": '{"confirmed": false, "hint": "no"}'}, "reject", None),
    ],
)
async def test_what_was_confirmed_is_what_is_decided(
    edge: Client,
    approvals: PretendApprovals,
    paused: PretendRun,
    response: Any,
    decision: str,
    value: Any,
) -> None:
    await confirmation(approvals, paused)
    async with post(edge, answer(paused, response)):
        [item] = approvals.decisions[0].items
    assert (item.decision, item.value) == (decision, value)


@pytest.mark.parametrize(
    "response",
    [{}, None, True, "yes", {"confirmed": "true"}, {"ok": 1}, {"confirmed": True, "comment": "x"}],
)
async def test_nothing_but_confirmed_is_taken_for_a_yes(
    edge: Client, approvals: PretendApprovals, paused: PretendRun, response: Any
) -> None:
    await confirmation(approvals, paused)
    body = answer(paused, response, name="adk_request_input")
    assert (await edge.post("/run_sse", json=body)).status_code == 422
    assert approvals.decisions == []


async def test_an_input_is_answered_with_the_whole_response(
    edge: Client, approvals: PretendApprovals, paused: PretendRun
) -> None:
    await approvals.request(paused.run_id, "helper", paused.run_id, {"C": "input"})
    async with post(edge, answer(paused, {"result": "blue"}, name="adk_request_input")):
        [item] = approvals.decisions[0].items
    assert (item.decision, item.value) == ("approve", {"result": "blue"})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "enum": ["red", "blue"]}, "red"),
        ({"type": ["string", "null"]}, "red"),
        ({"type": "object"}, {"result": "red"}),
        ({"type": "object", "properties": {"result": {"type": "string"}}}, {"result": "red"}),
        (None, {"result": "red"}),
    ],
)
def test_an_input_is_what_its_schema_asks_for_though_a_response_is_an_object(
    schema: dict[str, Any] | None, value: Any
) -> None:
    asked = {"kind": "input", "input_schema": schema}
    assert decided({"result": "red"}, "C", asked, for_adk_server=True).value == value


async def test_the_invocation_that_an_answer_names_goes_with_the_decision_if_it_is_the_pauses_own(
    edge: Client, approvals: PretendApprovals, paused: PretendRun, bus: Bus
) -> None:
    approval_id = await confirmation(approvals, paused)
    pause = PauseRecord(
        run_id=paused.run_id,
        approval_id=approval_id,
        leg=1,
        protocol="adk",
        fold={},
        resume={"invocation_id": "e-1", "requests": []},
    )
    await bus.bucket("pauses").put(paused.run_id, pause.dump())
    body = answer(paused, {"confirmed": True})
    refused = await edge.post("/run_sse", json={**body, "invocationId": "e-2"})
    assert refused.status_code == 422
    assert "invocationId" in refused.json()["detail"]
    assert approvals.decisions == []
    async with post(edge, {**body, "invocation_id": "e-1"}):
        [decision] = approvals.decisions
    assert decision.invocation_id == "e-1"


async def test_the_second_answer_is_409(
    edge: Client, approvals: PretendApprovals, paused: PretendRun
) -> None:
    await confirmation(approvals, paused)
    async with post(edge, answer(paused, {"confirmed": True})):
        pass
    again = await edge.post("/run_sse", json=answer(paused, {"confirmed": True}))
    assert again.status_code == 409
    assert again.json() == {"detail": "this approval is already decided"}


async def test_who_may_not_read_the_next_leg_decides_nothing(
    edge: Client, approvals: PretendApprovals, paused: PretendRun
) -> None:
    await confirmation(approvals, paused)
    await paused.record(agent="helper", session_id=paused.run_id, redactions=3)
    refused = await edge.post("/run_sse", json=answer(paused, {"confirmed": True}))
    assert (refused.status_code, "redactions apply" in refused.text) == (409, True)
    assert approvals.decisions == []


async def test_an_answer_to_an_unknown_request_of_adks_is_404_and_never_forwarded(
    edge: Client, paused: PretendRun, bus: Bus
) -> None:
    before = (await edge.get("/v1/runs?limit=1")).json()
    refused = await edge.post("/run_sse", json=answer(paused, {"confirmed": True}, id="other"))
    assert refused.status_code == 404
    assert (await edge.get("/v1/runs?limit=1")).json() == before


async def test_the_answer_of_another_session_is_404(
    edge: Client, approvals: PretendApprovals, paused: PretendRun
) -> None:
    await confirmation(approvals, paused)
    body = answer(paused, {"confirmed": True}) | {"sessionId": str(uuid_utils.uuid7())}
    assert (await edge.post("/run_sse", json=body)).status_code == 404


async def test_an_answer_that_is_faster_than_the_record_of_its_request_is_waited_with(
    edge: Client, approvals: PretendApprovals, paused: PretendRun
) -> None:
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(
            edge.post("/run_sse", json=answer(paused, {"confirmed": "not a boolean"}))
        )
        await asyncio.sleep(0.2)  # the pause is recorded after the answer has come
        await confirmation(approvals, paused)
    assert asked.result().status_code == 422


async def test_an_answer_comes_with_nothing_else(
    edge: Client, approvals: PretendApprovals, paused: PretendRun
) -> None:
    await confirmation(approvals, paused)
    body = answer(paused, {"confirmed": True})
    body["newMessage"]["parts"].append({"text": "and this"})
    assert (await edge.post("/run_sse", json=body)).status_code == 422
    assert approvals.decisions == []


async def test_the_result_of_a_tool_that_nobody_waits_for_is_404_and_goes_nowhere(
    edge: Client, paused: PretendRun
) -> None:
    """The ADK server may wait for this result although Penstock has not recorded the pause yet.

    If the edge passed the result to the server, a start would answer a pause.
    """
    body = answer(paused, {"ticket": 1}, name="create_ticket", id="L")
    refused = await edge.post("/run_sse", json=body)
    assert refused.status_code == 404
    assert "'L'" in refused.json()["detail"]


async def test_a_run_that_ends_instead_of_continuing_ends_the_stream(
    edge: Client, approvals: PretendApprovals, paused: PretendRun
) -> None:
    await confirmation(approvals, paused)
    async with post(edge, answer(paused, {"confirmed": True})) as stream:
        await paused.say("lifecycle.failed", error="nobody knows", code="outcome_unknown")
        assert (await stream.event())["error"] == "nobody knows"
