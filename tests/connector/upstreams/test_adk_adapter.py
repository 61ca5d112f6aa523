"""Requests to ADK: the session is read first, and the client's body is sent verbatim.

Answers are in the form of the recorded ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus.records.approvals import ContinueCommand, Decided
from penstock.bus.records.legs import PauseRecord
from penstock.bus.records.runs import StartCommand
from penstock.dialects.adk.decode import AdkDecoder
from penstock.dialects.base import AgentFacts, Pause
from penstock.settings import AdkAgent
from penstock.sse import Frame, Parser
from penstock_connector.upstreams.adk import AdkUpstream
from penstock_connector.upstreams.base import Call, ReattachState, UpstreamRefused

GOLDEN = Path(__file__).parents[2] / "golden" / "adk"
SESSION = "/apps/demo/users/u1/sessions/s-1"


class Server:
    """A server that answers by method and path, and records the requests."""

    def __init__(self, answers: dict[str, httpx.Response]) -> None:
        self.answers = answers
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answers[f"{request.method} {request.url.raw_path.decode()}"]

    @property
    def asked(self) -> list[str]:
        return [f"{request.method} {request.url.raw_path.decode()}" for request in self.requests]

    @property
    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self))


def agent(**fields: Any) -> AdkAgent:
    given = {"id": "a", "protocol": "adk", "url": "http://adk:8080", "agent": "demo"}
    return AdkAgent.model_validate(given | fields)


def start_command(**fields: Any) -> StartCommand:
    given = {
        "run_id": "run-1",
        "agent": "a",
        "session_id": "s-1",
        "user_id": "u1",
        "message": "hello",
        "created_at": "2026-11-20T10:00:00.000Z",
    }
    return StartCommand.model_validate(given | fields)


def exists() -> Server:
    return Server({f"GET {SESSION}": httpx.Response(200, json={})})


async def test_a_session_that_exists_is_only_read() -> None:
    server = exists()
    await AdkUpstream(server.client).start(agent(), start_command())
    assert server.asked == [f"GET {SESSION}"]


@pytest.mark.parametrize("status", [200, 409, 400], ids=["made", "by another", "by another, 1.16"])
async def test_a_session_is_created_when_it_is_missing(status: int) -> None:
    server = Server(
        {
            f"GET {SESSION}": httpx.Response(404, json={"detail": "Session not found"}),
            f"POST {SESSION}": httpx.Response(status, json={}),
        }
    )
    await AdkUpstream(server.client).start(agent(), start_command())
    assert server.asked == [f"GET {SESSION}", f"POST {SESSION}"]
    # This call's body is the session's state, which is empty.
    assert orjson.loads(server.requests[1].content) == {}


@pytest.mark.parametrize("refused", ["GET", "POST"])
async def test_a_server_that_refuses_the_session_is_quoted(refused: str) -> None:
    server = Server(
        {
            f"GET {SESSION}": httpx.Response(500 if refused == "GET" else 404, text="broken"),
            f"POST {SESSION}": httpx.Response(503, text="broken"),
        }
    )
    with pytest.raises(UpstreamRefused, match="broken"):
        await AdkUpstream(server.client).start(agent(), start_command())


async def test_a_message_becomes_a_streaming_request() -> None:
    given = {"stateDelta": {"k": 1}, "userId": "mallory", "streaming": False}
    call = await AdkUpstream(exists().client).start(agent(), start_command(input=given))
    assert call.url == "http://adk:8080/run_sse"
    assert orjson.loads(call.content) == {
        "appName": "demo",
        "userId": "u1",
        "sessionId": "s-1",
        "newMessage": {"role": "user", "parts": [{"text": "hello"}]},
        "streaming": True,
        "stateDelta": {"k": 1},
        "customMetadata": {"idempotency_key": "run-1-1"},
    }


async def test_a_body_is_passed_on_byte_for_byte() -> None:
    body = (
        '{ "appName":"demo",\n "userId": "u1", "session_id": "s-1", "new_message": {"ü": "\u2028"},'
        '"x":1.50 }'
    )
    call = await AdkUpstream(exists().client).start(agent(), start_command(body=body))
    assert call.content == body.encode()


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        (None, {}),
        ("{}", {"streaming": False}),
        ('{"streaming": true}', {"streaming": True}),
    ],
)
def test_the_open_says_whether_the_client_wants_tokens(
    body: str | None, facts: dict[str, bool]
) -> None:
    upstream = AdkUpstream(exists().client)
    assert upstream.facts_of_open(agent(), start_command(body=body)) == facts


async def test_a_body_that_names_another_session_is_sent_in_the_commands_session() -> None:
    body = '{ "app_name":"other",\n "new_message": {"ü": "\u2028"},"x":1.50 , "userId": "mallory"}'
    call = await AdkUpstream(exists().client).start(agent(), start_command(body=body))
    ours = {"appName": "demo", "userId": "u1", "sessionId": "s-1"}
    assert orjson.loads(call.content) == {"new_message": {"ü": "\u2028"}, "x": 1.5, **ours}


async def test_neither_origin_nor_a_clients_host_goes_along() -> None:
    call = await AdkUpstream(exists().client).start(agent(), start_command())
    request = httpx.AsyncClient().build_request("POST", call.url, headers=call.headers)
    assert request.headers["host"] == "adk:8080"
    assert "origin" not in request.headers


async def test_foreign_ids_stay_in_their_place_in_the_path() -> None:
    path = "/apps/demo/users/%2E%2E/sessions/a%2Fb%3Fc%20%C3%BC"
    server = Server({f"GET {path}": httpx.Response(200, json={})})
    command = start_command(user_id="..", session_id="a/b?c ü")
    await AdkUpstream(server.client).start(agent(), command)
    assert server.asked == [f"GET {path}"]


# Answers to a pause


def recorded_pause(name: str) -> Pause:
    decoder = AdkDecoder(AgentFacts(id="a"))
    decoder.open(1)
    body = (GOLDEN / "2.13.0" / f"{name}_1_request.sse").read_bytes()
    drafts = [draft for frame in Parser().feed(body) for draft in decoder.feed(frame)]
    (pause,) = [draft for draft in [*drafts, *decoder.end()] if isinstance(draft, Pause)]
    return pause


async def answered(
    server: Server,
    resume: dict[str, Any],
    items: list[Decided],
    facts: dict[str, Any] | None = None,
    invocation_id: str | None = None,
    **fields: Any,
) -> tuple[Call, dict[str, Any]]:
    command = ContinueCommand(
        run_id="r",
        agent="a",
        session_id="s-1",
        user_id="u1",
        leg=2,
        approval_id="p",
        items=items,
        invocation_id=invocation_id,
    )
    fold = {"facts": facts or {}}
    pause = PauseRecord(
        run_id="r", approval_id="p", leg=1, protocol="adk", fold=fold, resume=resume
    )
    call = await AdkUpstream(server.client).resume(agent(**fields), command, pause)
    return call, orjson.loads(call.content)


def versioned(status: int = 200) -> Server:
    return Server({"GET /version": httpx.Response(status, json={"version": "2.13.0"})})


async def test_confirmations_are_answered_together_by_their_own_ids() -> None:
    pause = recorded_pause("bigconfirm")
    yes, no = (item.item_id for item in pause.items)
    items = [
        Decided(item_id=yes, decision="approve", note="kept here: ADK refuses further keys"),
        Decided(item_id=no, decision="reject"),
    ]
    call, body = await answered(versioned(), pause.resume, items)
    assert call.url == "http://adk:8080/run_sse"
    assert [part["functionResponse"] for part in body["newMessage"]["parts"]] == [
        {"id": yes, "name": "adk_request_confirmation", "response": {"confirmed": True}},
        {"id": no, "name": "adk_request_confirmation", "response": {"confirmed": False}},
    ]
    assert (body["appName"], body["userId"], body["sessionId"]) == ("demo", "u1", "s-1")


async def test_a_confirmation_may_carry_a_payload() -> None:
    pause = recorded_pause("dynconfirm_stream")
    (item,) = pause.items
    value = {"approved_amount": 1000}
    decided = [Decided(item_id=item.item_id, decision="approve", value=value)]
    _, body = await answered(versioned(), pause.resume, decided)
    (part,) = body["newMessage"]["parts"]
    assert part["functionResponse"]["response"] == {"confirmed": True, "payload": value}


@pytest.mark.parametrize(
    ("name", "value", "response"),
    [("ask", "blue", {"result": "blue"}), ("wfhitl", {"approved": True}, {"approved": True})],
)
async def test_input_is_answered_with_its_value(
    name: str, value: Any, response: dict[str, Any]
) -> None:
    pause = recorded_pause(name)
    (item,) = pause.items
    decided = [Decided(item_id=item.item_id, decision="approve", value=value)]
    _, body = await answered(versioned(), pause.resume, decided)
    (part,) = body["newMessage"]["parts"]
    assert part["functionResponse"] == {
        "id": item.item_id,
        "name": "adk_request_input",
        "response": response,
    }


RESUME = {
    "invocation_id": "e-1",
    "requests": [{"id": "c", "name": "adk_request_confirmation"}],
}
APPROVED = [Decided(item_id="c", decision="approve")]


@pytest.mark.parametrize(("facts", "streaming"), [({}, True), ({"streaming": False}, False)])
async def test_an_answer_streams_as_the_run_did(facts: dict[str, Any], streaming: bool) -> None:
    _, body = await answered(versioned(), RESUME, APPROVED, facts)
    assert body["streaming"] is streaming


async def test_the_invocation_is_named_to_a_server_that_tells_its_version() -> None:
    _, body = await answered(versioned(), RESUME, APPROVED)
    assert body["invocationId"] == "e-1"


async def test_the_invocation_is_not_named_to_1_16_unless_its_app_is_resumable() -> None:
    _, body = await answered(versioned(404), RESUME, APPROVED)
    assert "invocationId" not in body
    _, body = await answered(Server({}), RESUME, APPROVED, resumable=True)
    assert body["invocationId"] == "e-1"


async def test_1_16_is_given_the_pauses_own_invocation_when_the_answer_names_it() -> None:
    _, body = await answered(versioned(404), RESUME, APPROVED, invocation_id="e-1")
    assert body["invocationId"] == "e-1"
    _, body = await answered(versioned(404), RESUME, APPROVED, invocation_id="e-2")
    assert "invocationId" not in body
    _, body = await answered(versioned(), RESUME, APPROVED, invocation_id="e-2")
    assert body["invocationId"] == "e-1"


async def test_a_server_that_fails_on_its_version_is_not_taken_for_1_16() -> None:
    with pytest.raises(UpstreamRefused, match="503"):
        await answered(versioned(503), RESUME, APPROVED)


ABORT = {"invocationId": "e-1", "errorCode": "INVOCATION_ABORTED"}


async def come_back(
    events: list[dict[str, Any]], version: str = "2.13.0", **fields: Any
) -> Call | None:
    """Return the call that continues a first leg of the invocation e-1; None if there is none."""
    server = Server(
        {
            f"GET {SESSION}": httpx.Response(200, json={"events": events}),
            "GET /version": httpx.Response(200, json={"version": version}),
        }
    )
    upstream, seen = AdkUpstream(server.client), ReattachState()
    call = await upstream.start(agent(), start_command())
    upstream.watch(Frame(b'{"id":"x","invocationId":"e-1","author":"demo"}'), seen)
    return await upstream.reattach(agent(**fields), call, seen)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_connector.upstreams.adk.SEAL_S", 0)


async def test_a_part_that_the_server_aborted_continues_as_another_attempt() -> None:
    again = await come_back([{"invocationId": "e-1", "author": "user"}, ABORT], resumable=True)
    assert again is not None
    assert again.produces_again
    assert orjson.loads(again.content) == {
        "appName": "demo",
        "userId": "u1",
        "sessionId": "s-1",
        "invocationId": "e-1",
        "streaming": True,
    }


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "events",
    [
        pytest.param([{"invocationId": "e-1", "author": "demo"}], id="it may still run"),
        pytest.param([ABORT, {"invocationId": "e-1", "author": "demo"}], id="gone on with"),
        pytest.param([{**ABORT, "invocationId": "e-0"}], id="another run's abort"),
        pytest.param([], id="a server that has forgotten all"),
    ],
)
async def test_without_its_servers_word_that_it_was_aborted_nothing_is_run_again(
    events: list[dict[str, Any]],
) -> None:
    assert await come_back(events, resumable=True) is None


@pytest.mark.parametrize(
    ("version", "resumable"), [("1.39.1", True), ("none of ours", True), ("2.13.0", False)]
)
async def test_only_a_resumable_app_of_2_x_is_gone_on_with(version: str, resumable: bool) -> None:
    assert await come_back([ABORT], version, resumable=resumable) is None


async def test_a_leg_that_carries_a_decision_is_not_gone_on_with() -> None:
    call, _ = await answered(versioned(), {}, [])
    seen = ReattachState(run_id="e-1")
    again = await AdkUpstream(versioned().client).reattach(agent(resumable=True), call, seen)
    assert again is None
