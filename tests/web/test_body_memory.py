"""The bodies of callers who are not authenticated take bounded memory, in every service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.settings import AuthSettings
from penstock.web.auth import Auth, AuthConfig
from penstock.web.bodies import read_body
from penstock.web.body_memory import BodyMemory
from penstock.web.problems import Problem
from penstock.web.server import Server
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET, token
from support.fakes.routes import routes

BODY = b"x" * 3000
HEAD = b"POST /read HTTP/1.1\r\nhost: 127.0.0.1\r\n"


async def _read(request: Request) -> Response:
    return JSONResponse(len(await read_body(request)))


@asynccontextmanager
async def served(memory: BodyMemory, secret: str | None = None) -> AsyncIterator[Server]:
    auth = Auth(AuthConfig(**AuthSettings(jwt_secret=secret).model_dump()))
    server = Server(routes("/read", _read, ["POST"]), "127.0.0.1", 0, auth=auth, body_memory=memory)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def _unfinished(server: Server) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(HEAD + b"content-length: 4000\r\n\r\n" + BODY)
    try:
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


async def test_the_oldest_unfinished_body_is_refused_and_a_complete_one_is_served() -> None:
    memory = BodyMemory(10_000, 7_000)

    async def is_read() -> bool:
        return memory.size_bytes == len(BODY)

    async with served(memory) as server, AsyncExitStack() as stack:
        oldest = await stack.enter_async_context(_unfinished(server))
        await eventually(is_read, what="the first body")
        for _ in range(2):
            await stack.enter_async_context(_unfinished(server))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
            for _ in range(20):
                answer = await http.post("/read", content=BODY)
                assert (answer.status_code, answer.json()) == (200, 3000)
        async with asyncio.timeout(30):
            assert b" 503 " in await oldest.readline()
            assert b"retry-after" in await oldest.readuntil(b"\r\n\r\n")
        assert memory.size_bytes <= 7_000


async def test_the_bodies_of_authenticated_callers_do_not_count() -> None:
    memory = BodyMemory(2_000, 2_000)
    async with served(memory, SECRET) as server, httpx.AsyncClient() as http:
        url = f"http://127.0.0.1:{server.port}/read"
        headers = {"authorization": f"Bearer {token()}"}
        answer = await http.post(url, content=BODY, headers=headers)
        assert (answer.status_code, answer.json()) == (200, 3000)


async def test_a_body_stays_in_the_socket_until_its_caller_is_authenticated() -> None:
    """A check of credentials may take seconds, if the issuer's keys must be read first."""
    sent, asked, may_go_on = 0, asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Response:
        asked.set()
        await may_go_on.wait()
        return await _read(request)

    server = Server(routes("/read", slow, ["POST"]), "127.0.0.1", 0)
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEAD + b"content-length: 4000\r\n\r\n")
        await asked.wait()
        writer.write(BODY + b"x" * 1000)
        await writer.drain()
        for _ in range(20):
            await asyncio.sleep(0.01)
            [connection] = server._server.server_state.connections
            sent = max(sent, len(connection.cycle.body))  # type: ignore[union-attr]
        assert sent == 0
        may_go_on.set()
        assert b" 200 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("addresses", "refused"),
    [
        ("aa", "a"),  # beyond the limit of the address
        ("ab", ""),
        ("baa", "a"),
        ("bcda", "b"),  # beyond the limit of the process
        ("cbbd", "b"),
    ],
)
async def test_an_address_takes_no_place_from_one_with_fewer_bytes(
    addresses: str, refused: str
) -> None:
    memory = BodyMemory(10_000, 5_900 if refused == "a" else 10_000)
    found: list[str] = []

    async def read(address: str) -> None:
        try:
            async with memory.reading(address) as body:
                body.add(BODY)
                await asyncio.sleep(0.1)
        except Problem:
            found.append(address)

    await asyncio.gather(*map(read, addresses))
    assert "".join(found) == refused
    assert memory.size_bytes == 0
