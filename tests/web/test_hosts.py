"""Without authentication, a page whose foreign name resolves to this machine gets nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from penstock.settings import AuthSettings
from penstock.web.auth import Auth, AuthConfig
from penstock.web.server import Server
from support.fakes.issuer import SECRET, token
from support.fakes.routes import routes, websocket

OURS = [
    "127.0.0.1",
    "127.0.0.1:8000",
    "localhost",
    "LocalHost:9",
    "localhost.",
    "[::1]",
    "[::1]:80",
]
OURS += ["127.9.9.9", "[::ffff:127.0.0.1]:8000"]
FOREIGN = ["evil.example", "evil.example:8000", "EVIL.example.", "localhost.evil.example"]
FOREIGN += ["127.0.0.1.evil.example", "10.0.0.7", "[fd00::1]:8000", "0.0.0.0", "testserver"]
NO_HOST = ["", "a b", "localhost:8000:1", "user@localhost", "localhost/", "[::1", "."]


async def hello(request: Request) -> Response:
    return Response("hello")


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


@asynccontextmanager
async def served(addresses: bool = False, **auth: Any) -> AsyncIterator[int]:
    """Run a server with a route and a WebSocket; yield its port."""
    served = [*routes("/hello", hello), websocket("/talk", talk)]
    server = Server(served, "127.0.0.1", 0, auth=Auth(AuthConfig(**auth)), addresses=addresses)
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop()


async def ask(port: int, *hosts: str, path: str = "/hello", websocket: bool = False) -> str:
    """Send a request with these Host headers; return the raw answer."""
    lines = [f"GET {path} HTTP/1.1", *(f"Host: {host}" for host in hosts)]
    if websocket:
        lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    else:
        lines += ["Connection: close"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([*lines, "", ""]).encode())
    answer = await asyncio.wait_for(reader.read(65536), 30)
    writer.close()
    await writer.wait_closed()
    return answer.decode(errors="replace")


def status(answer: str) -> int:
    return int(answer.split()[1])


@pytest.mark.parametrize("host", OURS)
async def test_names_and_addresses_of_this_machine_are_answered(host: str) -> None:
    async with served() as port:
        assert status(await ask(port, host)) == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_another_name_is_421_and_says_which_setting_allows_it(host: str) -> None:
    async with served() as port:
        for path in ("/hello", "/nowhere"):
            answer = await ask(port, host, path=path)
            assert status(answer) == 421
            assert "PENSTOCK_AUTH_HOSTS" in answer
            assert "application/problem+json" in answer


@pytest.mark.parametrize("host", NO_HOST)
async def test_what_is_no_host_is_400(host: str) -> None:
    async with served() as port:
        assert status(await ask(port, host)) == 400


@pytest.mark.parametrize("hosts", [(), ("localhost", "evil.example"), ("localhost", "localhost")])
async def test_no_host_and_more_than_one_are_400(hosts: tuple[str, ...]) -> None:
    async with served() as port:
        assert status(await ask(port, *hosts)) == 400


async def test_a_websocket_is_refused_in_the_same_way() -> None:
    async with served() as port:
        for host, expected in (("localhost", 101), ("evil.example", 421), ("a b", 400)):
            answer = await ask(port, host, path="/talk", websocket=True)
            assert status(answer) == expected


async def test_names_that_the_setting_has_are_answered_too() -> None:
    async with served(hosts=("penstock.internal", "Other.Example.")) as port:
        for host in ("penstock.internal", "PENSTOCK.internal.:8000", "other.example", "localhost"):
            assert status(await ask(port, host)) == 200
        assert status(await ask(port, "evil.example")) == 421
    async with served(hosts=("*",)) as port:
        assert status(await ask(port, "evil.example")) == 200


async def test_an_address_is_answered_where_that_is_wanted_and_a_name_is_not() -> None:
    """The probes' port accepts addresses, because a kubelet calls it by the pod's address."""
    async with served(addresses=True) as port:
        for host in ("10.0.0.7:9000", "[fd00::1]:9000", "localhost"):
            assert status(await ask(port, host)) == 200
        assert status(await ask(port, "evil.example")) == 421


async def test_where_callers_are_asked_any_name_will_do() -> None:
    async with served(jwt_secret=SECRET) as port:
        assert status(await ask(port, "evil.example")) == 401


@pytest.mark.parametrize("hosts", ["http://a", "a:80", "a/b", "a, b c/"])
def test_a_setting_that_is_no_name_is_refused(hosts: str) -> None:
    with pytest.raises(ValidationError, match="without scheme, port and path"):
        AuthSettings(hosts=hosts)


@pytest.mark.parametrize(
    ("text", "scopes"),
    [
        ("", {"start", "read", "raw", "decide"}),
        ("read", {"read"}),
        ("start, read", {"start", "read"}),
        ("none", set()),
    ],
)
async def test_what_a_token_without_scopes_may_do_is_a_setting(text: str, scopes: set[str]) -> None:
    settings = AuthSettings(jwt_secret=SECRET, default_scopes=text)
    auth = Auth(AuthConfig(**settings.model_dump()))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/runs",
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "headers": [(b"authorization", f"Bearer {token()}".encode())],
    }
    assert (await auth.admit(scope)).scopes == scopes
    scope["headers"] = [(b"authorization", f"Bearer {token(scope='act-as')}".encode())]
    assert (await auth.admit(scope)).scopes == {"act-as"}


@pytest.mark.parametrize("text", ["write", "none read"])
def test_a_default_that_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="none"):
        AuthSettings(default_scopes=text)
