"""What all routes share: error shapes, headers, CORS, WebSockets, limits and the bind address."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from penstock.web.auth.origins import is_local, is_loopback
from penstock.web.server import BindRefused, Server, check_bind
from support.drive.waiting import eventually
from support.fakes.guarded_server import SURFACES, Guarded, bearer
from support.fakes.issuer import SECRET, token
from support.fakes.routes import routes

MakeGuarded = Callable[..., Any]
APP = "https://app.example"
COOKIE = "__Host-penstock_token"


# error shapes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SURFACES)
async def test_a_refusal_has_the_shape_of_its_surface(guarded: Guarded, path: str) -> None:
    response = await guarded.get(path)
    assert response.status_code == 401
    assert "www-authenticate" in response.headers
    body = response.json()
    detail = "say who you are: Authorization: Bearer"
    expected: dict[str, dict[str, Any]] = {
        "problem": {
            "type": "about:blank",
            "title": "Unauthorized",
            "status": 401,
            "detail": detail,
        },
        "executions": {"code": "UNAUTHORIZED", "message": detail, "data": None},
        "detail": {"detail": detail},
    }
    assert body == expected[SURFACES[path].name]


@pytest.mark.parametrize("path", SURFACES)
async def test_with_a_bearer_every_surface_is_open(guarded: Guarded, path: str) -> None:
    assert (await guarded.as_bearer(token(), path)).status_code == 200


async def test_what_is_not_there_is_not_told_to_strangers(guarded: Guarded) -> None:
    assert (await guarded.get("/v1/nothing")).status_code == 401
    assert (await guarded.as_bearer(token(), "/v1/nothing")).status_code == 404


# headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/runs", 200), ("/v1/nothing", 404), ("/v1/broken", 500)]
)
async def test_json_has_the_security_headers_whatever_the_outcome(
    guarded: Guarded, path: str, status: int
) -> None:
    response = await guarded.as_bearer(token(), path)
    assert response.status_code == status
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert response.headers["cache-control"] == "no-store"


async def test_the_header_date_is_renewed(guarded: Guarded) -> None:
    async def date() -> str:
        return (await guarded.as_bearer(token(), "/v1/runs")).headers["date"]

    before = await date()

    async def is_renewed() -> bool:
        return await date() != before

    await eventually(is_renewed)


async def test_a_refusal_has_them_too(guarded: Guarded) -> None:
    response = await guarded.get()
    assert (response.headers["x-content-type-options"], response.headers["cache-control"]) == (
        "nosniff",
        "no-store",
    )


async def test_an_event_stream_keeps_the_head_of_its_contract(guarded: Guarded) -> None:
    guarded.held.set()
    response = await guarded.as_bearer(token(), "/v1/runs/r1/events")
    assert not {"cache-control", "referrer-policy"} & set(response.headers)


# CORS ------------------------------------------------------------------------------------------


PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-csrf-token, last-event-id",
}


async def test_a_preflight_of_a_listed_page_is_answered_without_credentials(
    make_guarded: MakeGuarded,
) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, cors_origins=f"{APP},https://b.example")
    response = await guarded.http.options("/v1/runs", headers={"origin": APP, **PREFLIGHT})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == APP
    assert response.headers["access-control-allow-credentials"] == "true"


async def test_a_listed_page_may_read_answers_and_refusals(make_guarded: MakeGuarded) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, cors_origins=APP)
    for headers in ({"origin": APP}, {"origin": APP, **bearer(token())}):
        response = await guarded.http.get("/v1/runs", headers=headers)
        assert response.headers["access-control-allow-origin"] == APP
        assert "Origin" in response.headers["vary"]


@pytest.mark.parametrize("origins", ["", APP])
@pytest.mark.parametrize("origin", ["https://evil.example", f"{APP}.evil.example", "null"])
async def test_any_other_page_may_read_nothing(
    make_guarded: MakeGuarded, origins: str, origin: str
) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, cors_origins=origins)
    preflight = await guarded.http.options("/v1/runs", headers={"origin": origin, **PREFLIGHT})
    assert preflight.status_code in (400, 401)
    response = await guarded.http.get("/v1/runs", headers={"origin": origin, **bearer(token())})
    for answer in (preflight, response):
        assert "access-control-allow-origin" not in answer.headers


# WebSockets ------------------------------------------------------------------------------------


async def opened(guarded: Guarded, **headers: str) -> str:
    async with connect(
        guarded.ws_url, additional_headers=headers, open_timeout=5, proxy=None
    ) as socket:
        user_id: str = json.loads(await socket.recv())["user_id"]
        return user_id


async def refused(guarded: Guarded, **headers: str) -> Any:
    with pytest.raises(InvalidStatus) as answer:
        await opened(guarded, **headers)
    return answer.value.response


@pytest.fixture
def cookie() -> dict[str, str]:
    return {"cookie": f"{COOKIE}={token(sub='alice')}"}


async def test_a_websocket_is_opened_by_bearer_or_cookie(
    guarded: Guarded, cookie: dict[str, str]
) -> None:
    assert await opened(guarded, **bearer(token(sub="bob"))) == "bob"
    assert await opened(guarded, **cookie) == "alice"


async def test_a_websocket_without_credentials_is_401_in_words(guarded: Guarded) -> None:
    answer = await refused(guarded)
    assert answer.status_code == 401
    assert "say who you are" in json.loads(answer.body)["detail"]


async def test_a_websocket_of_another_page_is_403_though_the_cookie_holds(
    make_guarded: MakeGuarded, cookie: dict[str, str]
) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, cors_origins=APP)
    assert (await refused(guarded, origin="https://evil.example", **cookie)).status_code == 403
    assert await opened(guarded, origin=APP, **cookie) == "alice"
    own = f"http://localhost:{guarded.server.port}"
    assert await opened(guarded, origin=own, **cookie) == "alice"
    assert (await refused(guarded, origin="http://localhost:1", **cookie)).status_code == 403


async def test_behind_a_proxy_a_websocket_must_come_from_a_page_of_the_same_host(
    guarded: Guarded, cookie: dict[str, str]
) -> None:
    proxied = {"x-forwarded-for": "203.0.113.9", **cookie}
    own = f"https://127.0.0.1:{guarded.server.port}"  # the origin that Host names
    assert await opened(guarded, origin=own, **proxied) == "alice"
    answer = await refused(guarded, origin="http://localhost:3000", **proxied)
    assert answer.status_code == 403


async def test_a_stream_token_opens_no_websocket(guarded: Guarded) -> None:
    with pytest.raises(InvalidStatus) as answer:
        async with connect(f"{guarded.ws_url}?token=pst_{'A' * 43}", proxy=None):
            pass
    assert answer.value.response.status_code == 401


async def test_where_nobody_is_asked_another_page_opens_no_websocket_either(
    make_guarded: MakeGuarded,
) -> None:
    guarded = await make_guarded()
    assert await opened(guarded) == "anonymous"
    assert (await refused(guarded, origin="https://evil.example")).status_code == 403


# connections, and their end --------------------------------------------------------------------


async def test_a_user_holds_so_many_connections_and_no_more(make_guarded: MakeGuarded) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, max_connections_per_user=2)
    path, alice, bob = "/v1/runs/r1/events", token(sub="alice"), token(sub="bob")
    async with AsyncExitStack() as stack:
        for _ in range(2):
            stream = guarded.http.stream("GET", path, headers=bearer(alice))
            assert (await stack.enter_async_context(stream)).status_code == 200
        response = await guarded.as_bearer(alice, path)
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert (await guarded.as_bearer(bob)).status_code == 200

    async def free_again() -> bool:
        status: int = (await guarded.as_bearer(alice)).status_code
        return status == 200

    await eventually(free_again, what="a connection of Alice's")


async def test_a_request_that_fails_gives_its_connection_back(make_guarded: MakeGuarded) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, max_connections_per_user=1)
    for _ in range(3):
        assert (await guarded.as_bearer(token(), "/v1/broken")).status_code == 500


async def test_a_stream_ends_when_its_token_expires(make_guarded: MakeGuarded) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, leeway_s=0)
    expires_at = int(time.time()) + 2
    async with asyncio.timeout(30):
        response = await guarded.as_bearer(token(exp=expires_at), "/v1/runs/r1/events")
    assert response.text == "data: begun\n\ndata: over\n\n"
    assert time.time() >= expires_at


# no authentication -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"jwt_secret": SECRET, "allow_unauthenticated_sse": True}]
)
async def test_where_nobody_is_asked_every_caller_is_anonymous_and_may_act_for_others(
    make_guarded: MakeGuarded, settings: dict[str, Any]
) -> None:
    guarded = await make_guarded(**settings)
    for headers in ({}, bearer("nonsense"), {"cookie": f"{COOKIE}=x"}):
        response = await guarded.http.post("/v1/runs", headers=headers)
        assert response.json() == {
            "user_id": "anonymous",
            "scopes": [
                *("act-as", "automate", "decide", "erase", "raw", "read", "start"),
                "workflow",
            ],
            "kind": "anonymous",
        }


async def test_where_nobody_is_asked_no_token_is_given_that_would_outlive_it(
    make_guarded: MakeGuarded,
) -> None:
    guarded = await make_guarded()
    response = await guarded.http.post("/v1/tokens", json={"subjects": ["*.*"]})
    assert response.status_code == 409
    assert (await guarded.http.post("/v1/login", headers=bearer(token()))).status_code == 400


async def test_not_asking_is_loud(
    make_guarded: MakeGuarded, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await make_guarded(jwt_secret=SECRET, allow_unauthenticated_sse=True)
    assert "NOBODY IS ASKED WHO THEY ARE" in caplog.text


# the bind address ------------------------------------------------------------------------------


LOOPBACK = ["127.0.0.1", "127.8.9.1", "::1", "localhost"]
BEYOND = ["0.0.0.0", "::", "", "192.0.2.1", "example.com", "localhost.example.com", "127.0.0.1.x"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_may_always_be_bound(host: str) -> None:
    check_bind(host, asks=False)


@pytest.mark.parametrize("host", BEYOND)
def test_beyond_loopback_somebody_must_ask_or_it_must_be_forced(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BindRefused, match="PENSTOCK_AUTH_JWT_SECRET"):
        check_bind(host, asks=False)
    check_bind(host, asks=True)
    assert caplog.text == ""
    check_bind(host, asks=False, insecure=True)
    assert "callers are not authenticated" in caplog.text


def test_a_server_that_does_not_ask_is_not_made_for_the_world() -> None:
    for settings in ({}, {"jwt_secret": SECRET, "allow_unauthenticated_sse": True}):
        auth = Guarded(**settings).auth
        with pytest.raises(BindRefused):
            Server([], "0.0.0.0", 0, auth=auth)
        Server([], "0.0.0.0", 0, insecure=True, auth=auth)
    Server([], "0.0.0.0", 0, auth=Guarded(jwt_secret=SECRET).auth)
    with pytest.raises(BindRefused):
        Server([], "0.0.0.0", 0)


@pytest.mark.parametrize(
    ("client", "headers", "expected"),
    [
        (("127.0.0.1", 1), [], True),
        (("::1", 1), [], True),
        (("::ffff:127.0.0.1", 1), [], True),
        (("127.0.0.1", 1), [(b"host", b"evil.example")], True),
        (("127.0.0.1", 1), [(b"x-forwarded-for", b"127.0.0.1")], False),
        (("192.0.2.1", 1), [(b"host", b"localhost")], False),
        (("192.0.2.1", 1), [(b"x-forwarded-for", b"127.0.0.1")], False),
        (("", 0), [], False),
        (None, [], False),
    ],
)
def test_local_is_the_peer_and_not_what_it_says(client: Any, headers: Any, expected: bool) -> None:
    assert is_local({"client": client, "headers": headers}) is expected


def test_no_name_but_localhost_is_loopback() -> None:
    assert [is_loopback(name) for name in ("localhost", "LOCALHOST", "127.1", None, "")] == [
        True,
        False,
        False,
        False,
        False,
    ]


async def test_no_answer_waits_for_an_acknowledgement() -> None:
    """Nagle's algorithm would hold the body back until the client has acknowledged the head."""

    async def show(request: Request) -> Response:
        # uvicorn's RequestResponseCycle has the transport, and so the socket.
        connection = request.receive.__self__.transport.get_extra_info("socket")  # type: ignore[attr-defined]
        return Response(str(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))

    server = Server(routes("/", show), "127.0.0.1", 0)
    await server.start()
    try:
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"http://127.0.0.1:{server.port}/")
    finally:
        await server.stop()
    assert int(answer.text) != 0


async def test_a_child_process_does_not_listen_in_place_of_a_server_that_has_stopped() -> None:
    """uvloop closes no file of a child, so a socket that can be inherited would stay open."""
    server = Server([], "127.0.0.1", 0)
    await server.start()
    with subprocess.Popen(["sleep", "30"], close_fds=False) as child:
        try:
            await server.stop()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", server.port)
        finally:
            child.kill()
