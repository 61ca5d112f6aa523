"""One table says which caller may use which route; it covers every route of every service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.bus import Bus, BusSettings
from penstock.service import Context
from penstock.web.auth import Auth, AuthConfig, ServiceTokens, StreamTokens
from penstock.web.credential_routes import auth_routes
from penstock.web.server import BindRefused
from penstock_cli.local.up import SERVICES
from penstock_cli.openapi import OPERATIONS
from penstock_edge.surfaces.a2a import METHODS, Method
from penstock_edge.views.dialects import DIALECTS
from support.drive.access import AGUI, FILES, HOW, PUBLISHED, ROWS, Row, name_of
from support.drive.clients import contents
from support.drive.secured import CONFIG, SLOW, Secured, bearer, secured
from support.fakes.guarded_server import REMOTE, MemoryStore, StoreAway
from support.fakes.issuer import token
from support.fakes.pretend import command_of
from support.real.nats import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCOPES = ("start", "read", "raw", "decide", "automate", "erase")
ASKED = [row for row in ROWS if not row.operation.public]
WS = "/v1/sessions/{session_id}/events/ws"


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("auth"), name="nats of auth")
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(nats: NatsServer) -> AsyncIterator[Secured]:
    async with secured(nats.url) as running:
        yield running


def check_shape(row: Row, answer: httpx.Response) -> None:
    """Check that the refusal has the error shape of the surface."""
    body = answer.json()
    match row.operation.errors.name:
        case "problem":
            assert answer.headers["content-type"] == "application/problem+json"
            assert body["status"] == answer.status_code
        case "executions":
            assert set(body) == {"code", "message", "data"}
            assert body["data"] is None
            assert body["code"] != "ERROR"
        case "detail":
            assert set(body) == {"detail"}


# the table


@pytest.mark.parametrize("row", ASKED, ids=str)
async def test_nobody_and_a_token_of_another_issuer_are_refused(
    penstock: Secured, row: Row
) -> None:
    forged = token(secret="another-secret-that-is-long-enough-too")
    nobody = await penstock.ask(row, {})
    other = await penstock.ask(row, {"authorization": f"Bearer {forged}"})
    assert nobody.headers["www-authenticate"].startswith("Bearer")
    for answer in (nobody, other):
        assert answer.status_code == 401, answer.text
        check_shape(row, answer)


@pytest.mark.parametrize(
    ("row", "scope"), [(row, scope) for row in ROWS for scope in row.needs], ids=str
)
async def test_a_caller_without_the_scope_is_refused(
    penstock: Secured, row: Row, scope: str
) -> None:
    others = " ".join(each for each in SCOPES if each != scope)
    answer = await penstock.ask(row, bearer(scope=others))
    assert answer.status_code == 403, answer.text
    assert scope in answer.text
    check_shape(row, answer)


@pytest.mark.parametrize("row", [row for row in ROWS if row.how.foreign], ids=str)
async def test_what_is_another_users_is_refused(penstock: Secured, row: Row) -> None:
    answer = await penstock.ask(row, bearer("bob", scope=" ".join(SCOPES)), user="bob")
    assert answer.status_code == row.how.foreign, answer.text
    check_shape(row, answer)


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if "{run_id}" in f"{row.route}{row.body}" and row.how.foreign == 404],
    ids=str,
)
async def test_another_users_run_is_as_one_that_does_not_exist(penstock: Secured, row: Row) -> None:
    names = await penstock.given(row)
    unknown = names["run_id"][:-4] + "0000"
    bob = bearer("bob", scope=" ".join(SCOPES))
    foreign = await penstock.ask(row, bob, user="bob")
    missing = await penstock.ask(row, bob, user="bob", run_id=unknown)
    assert foreign.status_code == missing.status_code == 404
    assert foreign.text.replace(names["run_id"], unknown) == missing.text


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_a_caller_with_the_scopes_is_served(penstock: Secured, row: Row) -> None:
    scopes = " ".join(row.needs) or "read"
    answer = await penstock.ask(row, bearer(scope=scopes))
    assert answer.status_code in (row.how.good, row.how.later), answer.text


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.how.foreign and not row.how.bob and row.how.good < 300],
    ids=str,
)
async def test_a_caller_that_may_act_for_others_is_served_too(penstock: Secured, row: Row) -> None:
    answer = await penstock.ask(row, bearer("service", scope=" ".join([*SCOPES, "act-as"])))
    # Only its maker and an administrator may use it; push notifications are for the task's user.
    own = ("{token_id}", "{rule_id}", "pushNotificationConfigs")
    wanted = 404 if any(name in row.route for name in own) else row.how.good
    assert answer.status_code == wanted, answer.text


@pytest.mark.parametrize("row", FILES, ids=str)
async def test_static_files_are_public_and_may_load_nothing_from_elsewhere(
    penstock: Secured, row: Row
) -> None:
    path = row.route.format(name="text.js", screen="runs")
    answer = await penstock.http.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert "unsafe" not in " ".join(policy)
    again = {"if-none-match": answer.headers["etag"]}
    assert (await penstock.http.get(path, headers=again)).status_code == 304
    assert (await penstock.http.post(path)).status_code == 401


async def test_every_service_mounts_the_operations_that_it_declares(nats: NatsServer) -> None:
    bus = await Bus.connect(BusSettings(url=nats.url))
    store = MemoryStore()
    auth = Auth(AuthConfig(), StreamTokens(store, StoreAway), ServiceTokens(store, StoreAway))
    mounted = [route.operation for route in auth_routes(auth)]
    for service_type in SERVICES:
        context = Context(CONFIG, service_type.settings_type(), bus, "test")
        own = [route.operation for route in service_type(context).routes]
        assert sorted(own, key=str) == sorted(service_type.operations, key=str)
        mounted += own
    await bus.close()
    assert sorted(mounted, key=str) == sorted(OPERATIONS, key=str)


async def test_the_tests_know_how_to_ask_for_every_operation_and_only_for_those() -> None:
    assert set(HOW) == {name_of(each) for each in PUBLISHED if not each.websocket}


async def test_the_scopes_that_a_request_needs_are_those_that_its_operation_declares() -> None:
    for row in ROWS:
        declared = {*row.operation.sometimes, *row.operation.any_scope}
        assert set(row.how.also) <= declared, row


# ownership


async def test_a_list_shows_ones_own_runs_only(penstock: Secured) -> None:
    alices, bobs = await penstock.run(), await penstock.run(user="bob")
    answer = await penstock.http.get("/v1/runs?limit=1000", headers=bearer("bob"))
    shown = answer.json()["runs"]
    assert bobs.run_id in {run["run_id"] for run in shown}
    assert {run["user_id"] for run in shown} == {"bob"}
    everything = bearer("admin", scope="read administer")
    answer = await penstock.http.get("/v1/runs?limit=1000", headers=everything)
    shown = {run["run_id"] for run in answer.json()["runs"]}
    assert {alices.run_id, bobs.run_id} <= shown


async def test_a_list_of_one_users_runs_is_for_those_who_may_see_them(penstock: Secured) -> None:
    await penstock.run()
    bobs = (await penstock.run(user="bob")).run_id

    async def shown(user: str, **claims: str) -> set[str]:
        path = "/v1/runs?user_id=bob&limit=1000"
        runs = (await penstock.http.get(path, headers=bearer(user, **claims))).json()["runs"]
        assert {run["user_id"] for run in runs} <= {"bob"}
        return {run["run_id"] for run in runs}

    assert bobs in await shown("bob")
    assert bobs in await shown("admin", scope="read administer")
    assert await shown("alice") == set()


async def test_a_list_shows_ones_own_approvals_only(penstock: Secured) -> None:
    mine = await penstock.approval(await penstock.run(user="bob"), "bob")
    await penstock.approval(await penstock.run())
    answer = await penstock.http.get("/v1/approvals?limit=1000", headers=bearer("bob"))
    shown = answer.json()["approvals"]
    assert mine in {approval["approval_id"] for approval in shown}
    assert {approval["user_id"] for approval in shown} == {"bob"}


@pytest.mark.parametrize("method", [each for each in METHODS if each.scope], ids=lambda m: m.name)
async def test_a_method_of_json_rpc_needs_the_scope_that_it_needs_over_rest(
    penstock: Secured, method: Method
) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": method.name, "params": {"id": "x"}}
    others = " ".join(each for each in SCOPES if each != method.scope)
    headers = {**bearer(scope=others), "a2a-version": "1.0"}
    answer = await penstock.http.post("/a2a/assistant", json=asked, headers=headers)
    assert answer.status_code == 403, answer.text
    assert str(method.scope) in answer.text


async def test_nobody_is_notified_of_a_task_of_another_not_even_who_may_see_it(
    penstock: Secured,
) -> None:
    run = await penstock.live()
    path = f"/a2a/assistant/tasks/{run.run_id}"
    config = {"url": "https://127.0.0.1:9/", "token": "t-1"}
    root = {**bearer("root", scope="read administer automate"), "a2a-version": "1.0"}
    assert (await penstock.http.get(path, headers=root)).status_code == 200
    asked = await penstock.http.post(f"{path}/pushNotificationConfigs", json=config, headers=root)
    assert asked.status_code == 404, asked.text
    own = {**bearer(scope="read automate"), "a2a-version": "1.0"}
    made = await penstock.http.post(f"{path}/pushNotificationConfigs", json=config, headers=own)
    assert made.status_code == 200, made.text
    assert "t-1" not in made.text
    listed = await penstock.http.get(f"{path}/pushNotificationConfigs", headers=own)
    assert [each["url"] for each in listed.json()["configs"]] == [config["url"]]
    assert "t-1" not in listed.text


async def test_a_session_of_the_same_name_is_anothers(penstock: Secured) -> None:
    alices, bobs = await penstock.run(), await penstock.run(user="bob")
    assert alices.session_id == bobs.session_id
    path = f"/v1/sessions/{bobs.session_id}/events"
    accept = {"accept": "application/json"}
    answer = await penstock.http.get(path, headers=bearer("bob") | accept)
    assert {event["run_id"] for event in answer.json()["events"]} == {bobs.run_id}


async def test_a_session_of_anothers_is_as_one_that_does_not_exist(penstock: Secured) -> None:
    run = await penstock.finished()
    for below in ("", "/runs", "/run-previews", f"/runs/{run.run_id}"):
        answers = [
            await penstock.http.get(f"/sessions/{id}{below}", headers=bearer("bob"))
            for id in (run.session_id, "no-such-session")
        ]
        assert [each.status_code for each in answers] == [404, 404]
        assert answers[0].text.replace(run.session_id, "no-such-session") == answers[1].text
    listed = await penstock.http.get("/sessions?limit=1000", headers=bearer("bob"))
    shown = listed.json()["data"]
    assert run.session_id not in {each["session_id"] for each in shown}
    assert {each["user_id"] for each in shown} <= {"bob"}
    mine = await penstock.http.get("/sessions?limit=1000", headers=bearer())
    assert run.session_id in {each["session_id"] for each in mine.json()["data"]}


async def test_events_of_many_runs_are_those_of_ones_own(penstock: Secured) -> None:
    await penstock.run()
    bobs = await penstock.run(user="bob")
    since = {"since": "2020-01-01T00:00:00Z", "subjects": "lifecycle.completed"}
    accept = {"accept": "application/json"}
    answer = await penstock.http.get("/v1/events", params=since, headers=bearer("bob") | accept)
    assert {event["run_id"] for event in answer.json()["events"]} == {bobs.run_id}


async def test_a_run_is_its_callers(penstock: Secured) -> None:
    body = {"agent": "assistant", "message": "Hello"}
    answer = await penstock.http.post("/v1/runs", json=body, headers=bearer("carol"))
    assert answer.json()["user_id"] == "carol"
    command = await command_of(penstock.bus, answer.json()["run_id"])
    assert command["user_id"] == "carol"


async def test_a_caller_that_acts_for_a_user_starts_runs_of_that_user(penstock: Secured) -> None:
    body = {"agent": "assistant", "message": "Hello", "user_id": "carol"}
    service = bearer("service", scope="start act-as")
    answer = await penstock.http.post("/v1/runs", json=body, headers=service)
    assert answer.status_code == 202, answer.text
    path = f"/v1/runs/{answer.json()['run_id']}"
    assert (await penstock.http.get(path, headers=bearer("carol"))).status_code == 200
    assert (await penstock.http.get(path, headers=bearer("service"))).status_code == 404


async def test_idempotency_keys_are_each_users_own(penstock: Secured) -> None:
    async def started(user: str) -> httpx.Response:
        body = {"agent": "assistant", "message": "Hello", "idempotency_key": "the-same"}
        return await penstock.http.post("/v1/runs", json=body, headers=bearer(user))

    alices, bobs, again = await started("alice"), await started("bob"), await started("alice")
    assert (alices.status_code, bobs.status_code, again.status_code) == (202, 202, 200)
    assert alices.json()["run_id"] == again.json()["run_id"] != bobs.json()["run_id"]


async def test_the_caller_is_recorded_as_the_decider(penstock: Secured) -> None:
    async def decided(by: str | None, headers: dict[str, str]) -> httpx.Response:
        approval_id = await penstock.approval(await penstock.run())
        items = [{"item_id": "c1", "decision": "approve"}]
        body: dict[str, Any] = {"items": items, "digest": "d"}
        body |= {} if by is None else {"by": by}
        path = f"/v1/approvals/{approval_id}/decision"
        return await penstock.http.post(path, json=body, headers=headers)

    mine = await decided(None, bearer())
    assert mine.json()["decision"]["by"] == "alice"
    assert (await decided("bob", bearer())).status_code == 403
    acting = (await decided("bob", bearer("service", scope="decide act-as"))).json()["decision"]
    assert acting["by"] == acting["decider"]["name"] == "service"
    assert acting["decider"]["on_behalf_of"] == "bob"


@dataclass(frozen=True)
class Pause:
    """A pause of Alice's, and the user who answers it."""

    run_id: str
    session_id: str
    approval_id: str
    user: str


def _to_approvals(pause: Pause) -> tuple[str, dict[str, Any]]:
    items = [{"item_id": "c1", "decision": "approve"}]
    return f"/v1/approvals/{pause.approval_id}/decision", {"items": items, "digest": "d"}


def _to_adk(pause: Pause) -> tuple[str, dict[str, Any]]:
    name, response = "adk_request_confirmation", {"confirmed": True}
    part = {
        "functionResponse": {"id": f"{pause.approval_id}/c1", "name": name, "response": response}
    }
    return "/run_sse", {
        "appName": "assistant",
        "userId": pause.user,
        "sessionId": pause.session_id,
        "newMessage": {"role": "user", "parts": [part]},
    }


def _to_agno(pause: Pause) -> tuple[str, dict[str, Any]]:
    path = f"/agents/assistant/runs/{pause.run_id}/continue"
    return path, {"tools": [{"tool_call_id": "c1", "confirmed": True}]}


def _to_agui(pause: Pause) -> tuple[str, dict[str, Any]]:
    answer = {"interruptId": f"{pause.approval_id}/c1", "status": "resolved", "payload": True}
    return "/agui/assistant", AGUI | {"threadId": pause.session_id, "resume": [answer]}


ANSWERS = [_to_approvals, _to_adk, _to_agno, _to_agui]
Answer = Callable[[Pause], tuple[str, dict[str, Any]]]


async def _answered(penstock: Secured, answer: Answer, user: str, scope: str) -> httpx.Response:
    """Have the user answer a pause of Alice's; return the response."""
    run = await penstock.live()
    approval_id = await penstock.approval(run)
    await run.say("lifecycle.paused", reason="approval_required", approval_id=approval_id)
    path, body = answer(Pause(run.run_id, run.session_id, approval_id, user))
    answered = await penstock.http.post(path, json=body, headers=bearer(user, scope=scope))
    await penstock.stands(approval_id)
    return answered


@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_to_a_pause_needs_the_right_to_decide(
    penstock: Secured, answer: Answer
) -> None:
    answered = await _answered(penstock, answer, "alice", "start read raw")
    assert answered.status_code == 403
    assert "decide" in answered.json()["detail"]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_another_users_pause_cannot_be_answered(penstock: Secured, answer: Answer) -> None:
    answered = await _answered(penstock, answer, "bob", "start read raw decide")
    assert answered.status_code == 404, answered.text


@pytest.mark.parametrize(
    ("answer", "channel", "names_a_user"),
    [
        (_to_approvals, "api", False),
        (_to_adk, "adk", True),
        (_to_agno, "agno", False),
        (_to_agui, "agui", False),
    ],
)
async def test_the_record_says_who_decided_by_which_way_and_for_whom(
    penstock: Secured, answer: Answer, channel: str, names_a_user: bool
) -> None:
    run = await penstock.live()
    approval_id = await penstock.approval(run)
    await run.say("lifecycle.paused", reason="approval_required", approval_id=approval_id)
    path, body = answer(Pause(run.run_id, run.session_id, approval_id, "alice"))
    headers = bearer("service", scope="read raw decide act-as", roles=["ops", "finance"])
    sending = asyncio.create_task(penstock.http.post(path, json=body, headers=headers))
    decision = await penstock.decision(approval_id)
    await run.completed("done")
    assert (await sending).status_code == 200
    assert decision["by"] == "service"
    assert decision["decider"] == {
        "name": "service",
        "roles": ["finance", "ops"],
        "scopes": ["act-as", "decide", "raw", "read"],
        "channel": channel,
    } | ({"on_behalf_of": "alice"} if names_a_user else {})


@pytest.mark.parametrize(
    ("agent", "channel"), [("penstock-cli/1.2", "cli"), ("curl/8", "api"), ("", "api")]
)
async def test_the_command_line_is_a_way_of_its_own(
    penstock: Secured, agent: str, channel: str
) -> None:
    run = await penstock.live()
    path, body = _to_approvals(Pause(run.run_id, "", await penstock.approval(run), "alice"))
    headers = bearer() | {"user-agent": agent}
    answer = await penstock.http.post(path, json=body, headers=headers)
    assert answer.json()["decision"]["decider"]["channel"] == channel


# streams


async def test_a_stream_ends_when_its_token_expires(penstock: Secured) -> None:
    run = await penstock.live()
    path = f"/v1/runs/{run.run_id}/events"
    async with penstock.stream(path, bearer(exp=time.time() + 4)) as stream:
        assert (await stream.frame()).event == "lifecycle.started"
        [told] = await stream.rest()
        assert b"token_expired" in told.data
        assert told.id is None
    await run.text("unheard")
    async with penstock.stream(path, bearer()) as again:
        seen = [(await again.frame()).event for _ in range(2)]
    assert seen == ["lifecycle.started", "llm.stream"]


async def test_a_stream_that_could_be_taken_for_the_whole_says_that_it_is_not(
    penstock: Secured,
) -> None:
    body = {
        "appName": "vana",
        "userId": "alice",
        "sessionId": "slow",
        "newMessage": {"role": "user", "parts": [{"text": SLOW}]},
    }
    headers = bearer(exp=time.time() + 4)
    answer = await penstock.http.post("/run_sse", json=body, headers=headers)
    assert answer.status_code == 200
    assert b"STREAM_ERROR" in answer.content


async def test_a_websocket_is_closed_when_its_token_expires(penstock: Secured) -> None:
    run = await penstock.live()
    url = penstock.url.replace("http", "ws") + WS.format(session_id=run.session_id)
    async with connect(url, additional_headers=bearer(exp=time.time() + 4)) as socket:
        assert "lifecycle" in str(await socket.recv())
        assert "token_expired" in str(await socket.recv())
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


@pytest.mark.parametrize(
    ("headers", "status"), [({}, 401), (bearer(scope="start"), 403), (bearer("bob"), 403)]
)
async def test_a_websocket_is_refused_before_it_is_accepted(
    penstock: Secured, headers: dict[str, str], status: int
) -> None:
    url = penstock.url.replace("http", "ws") + WS.format(session_id="s") + "?user_id=alice"
    with pytest.raises(InvalidStatus) as refused:
        async with connect(url, additional_headers=headers):
            pass
    assert refused.value.response.status_code == status


async def test_a_client_that_waits_for_a_run_is_closed_when_its_token_expires(
    penstock: Secured,
) -> None:
    path = "/apps/assistant/users/alice/sessions/nothing-yet/run"
    async with penstock.stream(path, bearer(exp=time.time() + 4)) as stream:
        assert stream.response.status_code == 200
        assert await stream.rest() == []


# stream tokens


async def test_a_stream_token_opens_streams_and_nothing_else(penstock: Secured) -> None:
    made = await penstock.token(subjects=["*.*"])
    run = await penstock.live()
    async with penstock.stream("/v1/events", token=made["token"]) as stream:
        assert stream.response.status_code == 200
        await run.text("heard")
        assert (await stream.event())["run_id"] == run.run_id
    for row in ROWS:
        if row.operation.public or row.route == "/v1/events":
            continue
        path = row.route.format(**await penstock.given(row))
        # Without `until`, a thread's stream would stay open.
        query = {"token": made["token"], "until": "idle"}
        answer = await penstock.http.request(
            row.method, path, params=query, headers=row.how.headers
        )
        # All other routes with streams accept the token; the rest accepts no token in the URL.
        streams = row.operation.accepts_stream_token
        assert answer.status_code == (row.how.good if streams else 401), row


async def test_a_stream_token_of_a_run_opens_that_run(penstock: Secured) -> None:
    run = await penstock.run()
    made = await penstock.token(runs=[run.run_id])
    async with penstock.stream(f"/v1/runs/{run.run_id}/events", token=made["token"]) as stream:
        assert contents(await stream.rest())[-1]["event"]["action"] == "completed"
    other = await penstock.live()
    query = {"token": made["token"]}
    for path, status in {
        f"/v1/runs/{other.run_id}/events": 404,
        f"/v1/sessions/{run.session_id}/events": 404,
        "/v1/events": 403,
    }.items():
        answer = await penstock.http.get(path, params=query)
        assert answer.status_code == status, answer.text
    raw = {**query, "dialect": "raw"}
    answer = await penstock.http.get(f"/v1/runs/{run.run_id}/events", params=raw)
    assert answer.status_code == 403


async def test_a_stream_token_of_a_session_opens_that_session(penstock: Secured) -> None:
    run = await penstock.run()
    query = {"token": (await penstock.token(sessions=[run.session_id]))["token"]}
    session = f"/apps/assistant/users/alice/sessions/{run.session_id}/run"
    assert (await penstock.http.get(session, params=query)).status_code == 200
    other = session.replace(run.session_id, "other")
    assert (await penstock.http.get(other, params=query)).status_code == 404


async def _service_token(penstock: Secured, **asked: Any) -> str:
    """Return a stream token of a caller who may act for others."""
    headers = bearer("service", scope="read act-as")
    made = await penstock.http.post(
        "/v1/tokens", json={"subjects": ["*.*"], **asked}, headers=headers
    )
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


@pytest.mark.parametrize(
    ("users", "reached"),
    [
        (None, set()),
        (["bob"], {"bob"}),
        (["alice", "bob"], {"alice", "bob"}),
        ("*", {"alice", "bob", "carol"}),
    ],
)
async def test_a_stream_token_reaches_whom_it_names(
    penstock: Secured, users: Any, reached: set[str]
) -> None:
    runs = {user: await penstock.run(user=user) for user in ("alice", "bob", "carol")}
    asked = {} if users is None else {"users": users}
    query = {"token": await _service_token(penstock, **asked)}
    since = {"since": "2020-01-01T00:00:00Z", "subjects": "lifecycle.completed"}
    accept = {"accept": "application/json"}
    page = await penstock.http.get("/v1/events", params=query | since, headers=accept)
    seen = {event["run_id"] for event in page.json()["events"]}
    for user, run in runs.items():
        assert (run.run_id in seen) == (user in reached)
        of_run = await penstock.http.get(f"/v1/runs/{run.run_id}/events", params=query)
        assert of_run.status_code == (200 if user in reached else 404)
        of_session = await penstock.http.get(
            f"/v1/sessions/{run.session_id}/events",
            params=query | {"user_id": user},
            headers=accept,
        )
        assert of_session.status_code == (200 if user in reached else 403)


async def test_views_of_different_reach_are_not_shared(penstock: Secured) -> None:
    """Clients of one view share its events, so views of different users must never be shared."""
    bobs, alices = await penstock.live("bob"), await penstock.live()
    tokens = [await _service_token(penstock, users=users) for users in (["bob"], "*", ["*b"])]
    wide = penstock.stream("/v1/events", token=tokens[1])
    narrow = penstock.stream("/v1/events", token=tokens[0])
    none = penstock.stream("/v1/events", token=tokens[2])
    async with wide as everybody, narrow as only_bob, none as nobody:
        await alices.text("for Alice")
        await bobs.text("for Bob")
        assert (await everybody.event())["run_id"] == alices.run_id
        assert (await everybody.event())["run_id"] == bobs.run_id
        assert (await only_bob.event())["run_id"] == bobs.run_id
        assert b"for" not in nobody.body


@pytest.mark.parametrize("dialect", [each for each in DIALECTS if each != "raw"])
async def test_a_stream_says_that_its_token_expires_soon(penstock: Secured, dialect: str) -> None:
    run = await penstock.live()
    token = await _service_token(penstock, users=["alice"], lifetime_s=600)
    path = f"/v1/runs/{run.run_id}/events"
    async with penstock.stream(path, token=token, dialect=dialect) as stream:
        await stream.read_until(b"the stream token expires")
        await run.completed("done")
        await stream.rest()
    [told] = [each for each in stream.body.split(b"\n\n") if b"the stream token expires" in each]
    assert b"extend it" in told
    assert not any(line.startswith(b"id:") for line in told.split(b"\n"))


async def test_a_token_that_holds_for_long_is_not_spoken_of(penstock: Secured) -> None:
    run = await penstock.run()
    made = await penstock.token(runs=[run.run_id])
    async with penstock.stream(f"/v1/runs/{run.run_id}/events", token=made["token"]) as stream:
        await stream.rest()
    assert b"the stream token expires" not in stream.body


async def test_an_extended_token_keeps_its_stream_open(nats: NatsServer) -> None:
    async with secured(nats.url, token_warning_s=4) as penstock:
        run = await penstock.live()
        made = await penstock.token(runs=[run.run_id], lifetime_s=5)
        path = f"/v1/runs/{run.run_id}/events"
        async with penstock.stream(path, token=made["token"]) as stream:
            await stream.read_until(b"the stream token expires")
            changed = await penstock.http.patch(
                f"/v1/tokens/{made['id']}", json={"lifetime_s": 600}, headers=bearer()
            )
            assert changed.status_code == 200
            await asyncio.sleep(5)  # the token's first lifetime
            await run.text("still heard")
            await stream.read_until(b"still heard")
    listed = changed.json()
    assert listed["last_used_at"] is not None


async def test_a_revoked_stream_token_opens_nothing(penstock: Secured) -> None:
    made = await penstock.token(subjects=["*.*"])
    gone = await penstock.http.delete(f"/v1/tokens/{made['id']}", headers=bearer())
    assert gone.status_code == 204
    answer = await penstock.http.get("/v1/events", params={"token": made["token"]})
    assert answer.status_code == 401


# cookies


async def test_a_cookie_starts_runs_with_a_csrf_token(penstock: Secured) -> None:
    login = await penstock.http.post("/v1/login", headers=bearer())
    held = "; ".join(f"{name}={value}" for name, value in login.cookies.items())
    body = {"agent": "assistant", "message": "Hello"}
    remote = {**REMOTE, "cookie": held}
    refused = await penstock.http.post("/v1/runs", json=body, headers=remote)
    assert refused.status_code == 403
    csrf = await penstock.http.get("/v1/csrf", headers=remote)
    held += "".join(f"; {name}={value}" for name, value in csrf.cookies.items())
    proven = {**REMOTE, "cookie": held, "x-csrf-token": csrf.json()["csrf_token"]}
    penstock.http.cookies.clear()
    started = await penstock.http.post("/v1/runs", json=body, headers=proven)
    assert started.status_code == 202, started.text
    assert started.json()["user_id"] == "alice"


# what may be bound


async def test_where_callers_are_asked_every_address_may_be_bound(nats: NatsServer) -> None:
    async with secured(nats.url, host="0.0.0.0") as penstock:
        assert (await penstock.http.get("/v1/runs")).status_code == 401
        assert (await penstock.http.get("/v1/runs", headers=bearer())).status_code == 200


@pytest.mark.parametrize("auth", [{"jwt_secret": None}, {"allow_unauthenticated_sse": True}])
async def test_where_nobody_is_asked_only_loopback_is_bound(
    nats: NatsServer, auth: dict[str, Any]
) -> None:
    with pytest.raises(BindRefused, match="callers are not authenticated"):
        async with secured(nats.url, host="0.0.0.0", **auth):
            pass


# no authentication


async def test_without_authentication_everybody_is_anonymous(nats: NatsServer) -> None:
    async with secured(nats.url, jwt_secret=None) as penstock:
        body = {"agent": "assistant", "message": "Hello"}
        started = await penstock.http.post("/v1/runs", json=body)
        assert started.json()["user_id"] == "anonymous"


async def test_a_flag_for_development_lets_everybody_in(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with secured(nats.url, allow_unauthenticated_sse=True) as penstock:
        run = await penstock.run()
        answer = await penstock.http.get(f"/v1/runs/{run.run_id}")
        assert answer.json()["user_id"] == "alice"
        started = await penstock.http.post(
            "/v1/runs", json={"agent": "assistant", "message": "Hello", "user_id": "carol"}
        )
        assert started.json()["user_id"] == "carol"
    assert "ALLOW_UNAUTHENTICATED_SSE" in caplog.text
