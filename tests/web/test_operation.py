"""An operation's declaration decides who may call it, how errors look and what is not served."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from penstock import telemetry
from penstock.settings import AuthSettings
from penstock.web.auth import Auth, AuthConfig, StreamTokens
from penstock.web.auth.identity import Identity
from penstock.web.operation import (
    SSE,
    TEXT,
    Answer,
    Operation,
    Route,
    in_path,
    operations_of,
    routes_of,
    serves,
)
from penstock.web.problems import DETAIL, Problem
from penstock.web.router import Router, Table
from penstock.web.server import Server
from support.fakes.guarded_server import MemoryStore, StoreAway
from support.fakes.issuer import SECRET, token

OK = {200: Answer("Fine")}
operation = partial(Operation, method="GET", tag="t", summary="s", answers=OK)
ID = in_path("id", "The id")


class Careless:
    """Handlers that check nothing themselves, so that only the declarations protect them."""

    ran: list[str]

    def __init__(self) -> None:
        self.ran = []

    @serves(operation(path="/readers", scopes=("read",)))
    async def read(self, request: Request) -> Response:
        return self._ran(request)

    @serves(operation(path="/both/{id}", scopes=("read", "raw"), parameters=(ID,), errors=DETAIL))
    async def both(self, request: Request) -> Response:
        return self._ran(request)

    @serves(operation(path="/either", method="POST", scopes=(), any_scope=("start", "decide")))
    async def either(self, request: Request) -> Response:
        return self._ran(request)

    @serves(operation(path="/known", scopes=()))
    async def known(self, request: Request) -> Response:
        return self._ran(request)

    @serves(operation(path="/open", scopes=(), public=True))
    async def open(self, request: Request) -> Response:
        return self._ran(request)

    @serves(operation(path="/stream", scopes=("read",), answers={200: Answer("", {SSE: TEXT})}))
    async def stream(self, request: Request) -> Response:
        return self._ran(request)

    @serves(
        operation(
            path="/refused", scopes=(), public=True, errors=DETAIL, constants={"kind": "cats"}
        ),
    )
    async def refused(self, request: Request) -> Response:
        raise Problem(418, request.path_params["kind"])

    @serves(operation(path="/ws", scopes=("read",), websocket=True))
    async def socket(self, websocket: WebSocket) -> Response:
        raise AssertionError("nobody is let in")

    def _ran(self, request: Request) -> Response:
        self.ran.append(request.url.path)
        return JSONResponse(request.path_params)


@asynccontextmanager
async def served(surface: object) -> AsyncIterator[tuple[httpx.AsyncClient, Auth]]:
    config = AuthConfig(**AuthSettings(jwt_secret=SECRET).model_dump())
    auth = Auth(config, StreamTokens(MemoryStore(), StoreAway))
    server = Server(routes_of(surface), "127.0.0.1", 0, auth=auth)
    await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
        try:
            yield http, auth
        finally:
            await server.stop()


def bearer(*scopes: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token(scope=' '.join(scopes))}"}


Ask = Callable[..., Any]


@pytest.mark.parametrize(
    ("method", "path", "enough", "short"),
    [
        ("GET", "/readers", ["read"], [[], ["start", "raw", "decide", "administer"]]),
        ("GET", "/both/7", ["read", "raw"], [["read"], ["raw"], ["start"]]),
        ("POST", "/either", ["start"], [[], ["read", "raw"]]),
        ("POST", "/either", ["decide"], [["act-as"]]),
        ("GET", "/known", [], []),
    ],
)
async def test_scopes_are_checked_before_a_handler_that_checks_nothing(
    method: str, path: str, enough: list[str], short: list[list[str]]
) -> None:
    surface = Careless()
    async with served(surface) as (http, _):
        for scopes in short:
            refused = await http.request(method, path, headers=bearer(*scopes))
            assert refused.status_code == 403, refused.text
            assert enough[0] in refused.text or "raw" in refused.text
        assert (await http.request(method, path)).status_code == 401
        assert surface.ran == []
        answer = await http.request(method, path, headers=bearer(*enough))
    assert (answer.status_code, surface.ran) == (200, [path])


async def test_a_public_operation_asks_nobody_and_looks_at_no_credential() -> None:
    async with served(Careless()) as (http, _):
        headers = {"authorization": "Bearer nonsense"}
        assert (await http.get("/open", headers=headers)).status_code == 200
        assert (await http.post("/open", headers=headers)).status_code == 401
        assert (await http.get("/opens", headers=headers)).status_code == 401


async def test_a_stream_token_opens_what_is_declared_as_a_stream_and_nothing_else() -> None:
    surface = Careless()
    async with served(surface) as (http, auth):
        assert auth.tokens is not None
        alice = Identity("alice", frozenset({"read"}), "bearer", None)
        secret, _ = await auth.tokens.issue(alice, "", 60, subjects=["*.*"])
        query = {"token": secret}
        assert (await http.get("/stream", params=query)).status_code == 200
        for path in ("/readers", "/both/7", "/known"):
            assert (await http.get(path, params=query)).status_code == 401
        assert (await http.head("/stream", params=query)).status_code == 401
        assert (await http.post("/stream", params=query)).status_code == 401
    assert surface.ran == ["/stream"]


async def test_refusals_have_the_declared_shape() -> None:
    async with served(Careless()) as (http, _):
        unknown = await http.get("/both/7")
        missing = await http.get("/both/7", headers=bearer("read"))
        method = await http.put("/both/7", headers=bearer())
        raised = await http.get("/refused")
        other = await http.get("/readers")
    for answer in (unknown, missing, method, raised):
        assert list(answer.json()) == ["detail"]
    assert (method.status_code, method.headers["allow"]) == (405, "GET, HEAD")
    assert raised.json() == {"detail": "cats"}
    assert other.headers["content-type"] == "application/problem+json"


async def test_two_thousand_users_with_paths_of_their_own_make_a_handful_of_series() -> None:
    """The requests go to the router without a socket, which would take most of the time."""
    config = AuthConfig(**AuthSettings(jwt_secret=SECRET).model_dump())
    surface = Careless()
    router = Router(routes_of(surface), Auth(config, StreamTokens(MemoryStore(), StoreAway)))
    statuses: Counter[int] = Counter()

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses[message["status"]] += 1

    def series() -> int:
        return sum(len(family.samples) for family in REGISTRY.collect())

    async def ask(user: int) -> None:
        bearer = token(sub=f"user-{user}", scope="read raw")
        scope = {
            **{"type": "http", "method": "GET", "query_string": b"", "root_path": ""},
            "path": f"/both/run-{user}" if user % 2 else f"/nowhere/agent-{user}",
            "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {bearer}".encode())],
        }
        await router(scope, receive, send)

    await ask(0)
    await ask(1)
    before = series()
    for user in range(2_000):
        await ask(user)
    assert statuses == {200: 1_001, 404: 1_001}
    assert series() < before + 10


async def test_requests_are_counted_by_what_is_declared_and_not_by_what_clients_choose() -> None:
    def counted() -> Counter[tuple[str, ...]]:
        [family] = telemetry.HTTP_REQUESTS.collect()
        found = [each for each in family.samples if each.name.endswith("_total")]
        names = ("method", "route", "code")
        values = {tuple(each.labels[name] for name in names): each.value for each in found}
        return Counter({key: int(value) for key, value in values.items()})

    before = counted()
    async with served(Careless()) as (http, _):
        for number in range(20):
            await http.get(f"/both/{number}", headers=bearer("read", "raw"))
            await http.get(f"/both/{number}")
            await http.request("PURGE", f"/nowhere/{number}", headers=bearer())
            await http.request("PURGE", f"/both/{number}", headers=bearer())
        await http.get("/known/", headers=bearer())
        await http.get("/refused")
    assert counted() - before == {
        ("GET", "/both/{id}", "200"): 20,
        ("GET", "/both/{id}", "401"): 20,
        ("other", "none", "404"): 20,
        ("other", "none", "405"): 20,
        ("other", "none", "307"): 1,
        ("GET", "/refused", "418"): 1,
    }


async def test_what_is_not_declared_is_not_served() -> None:
    async with served(Careless()) as (http, _):
        assert (await http.get("/none", headers=bearer())).status_code == 404
        assert (await http.get("/both//", headers=bearer())).status_code == 404
        assert (await http.get("/ws", headers=bearer("read"))).status_code == 404
        slash = await http.get("/readers/", headers=bearer("read"))
        assert slash.status_code == 307
        assert slash.headers["location"].endswith("/readers")
        assert (await http.get("/readers/")).status_code == 401


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/ws", {}, 401),
        ("/ws", bearer("start"), 403),
        ("/readers", bearer("read"), 405),
        ("/none", bearer("read"), 404),
    ],
)
async def test_a_websocket_is_refused_as_a_request_would_be(
    path: str, headers: dict[str, str], status: int
) -> None:
    async with served(Careless()) as (http, _):
        url = str(http.base_url).replace("http", "ws").rstrip("/") + path
        with pytest.raises(InvalidStatus) as refused:
            async with asyncio.timeout(30), connect(url, additional_headers=headers):
                pass
    assert refused.value.response.status_code == status


async def test_a_head_is_answered_as_its_get_without_the_body_but_opens_no_stream() -> None:
    async with served(Careless()) as (http, _):
        head = await http.head("/readers", headers=bearer("read"))
        stream = await http.head("/stream", headers=bearer("read"))
    assert (head.status_code, head.content) == (200, b"")
    assert (stream.status_code, stream.headers["allow"]) == (405, "GET")


async def test_a_slash_within_an_id_belongs_to_the_id() -> None:
    async with served(Careless()) as (http, _):
        answer = await http.get("/both/a%2Fb%1Ac", headers=bearer("read", "raw"))
    assert answer.json() == {"id": "a/b\x1ac"}


def test_the_last_parameter_may_be_the_rest_of_the_path_whatever_it_holds() -> None:
    async def handler(request: Request) -> Response:
        return Response()

    one = operation(path="/a/{id}", scopes=(), parameters=(ID,))
    rest = operation(path="/a/{id:path}", scopes=(), parameters=(ID,))
    table = Table([Route(rest, handler), Route(one, handler)])
    for path, values, chosen in (
        ("/a/b", {"id": "b"}, one),
        ("/a/b\n", {"id": "b\n"}, one),
        ("/a/b/c\nd/", {"id": "b/c\nd/"}, rest),
    ):
        found = table.find(path)
        assert found is not None
        assert found[1] == values
        assert found[0].routes["GET"].operation is chosen
    assert rest.template == one.template


def test_operations_are_listed_in_the_order_of_their_text() -> None:
    paths = [each.path for each in operations_of(Careless)]
    assert paths[:3] == ["/readers", "/both/{id}", "/either"]
    assert [route.operation for route in routes_of(Careless())] == [*operations_of(Careless)]


def test_two_routes_for_the_same_request_are_refused() -> None:
    async def handler(request: Request) -> Response:
        return Response()

    one = Route(operation(path="/a/{id}", scopes=(), parameters=(ID,)), handler)
    other = operation(path="/a/{name}", scopes=(), parameters=(in_path("name", "It"),))
    with pytest.raises(ValueError, match="two routes serve GET /a"):
        Table([one, Route(other, handler)])


@pytest.mark.parametrize(
    ("path", "parameters"), [("/a/{id}", ()), ("/a", (ID,)), ("/{id}/{other}", (ID,))]
)
def test_a_path_whose_parameters_are_not_described_is_refused(
    path: str, parameters: tuple[Any, ...]
) -> None:
    with pytest.raises(ValueError, match="describe exactly the parameters"):
        operation(path=path, scopes=(), parameters=parameters)


def test_an_operation_must_say_which_scopes_it_needs() -> None:
    with pytest.raises(TypeError, match="scopes"):
        operation(path="/a")  # type: ignore[call-arg]
