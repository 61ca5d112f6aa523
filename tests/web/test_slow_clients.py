"""Clients send half a request, send slowly or leave; the tests use real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from penstock.web.bodies import ignore_body, read_body
from penstock.web.problems import Problem
from penstock.web.server import Server
from support.fakes.guarded_server import Guarded, bearer
from support.fakes.issuer import SECRET, token
from support.fakes.routes import routes, websocket

HEAD_S, BODY_S, PATIENCE_S = 0.3, 0.4, 30.0
HALF_A_HEAD = b"POST /read HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-"
HEAD = b"POST /read HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n"
GET = b"GET /read HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"

Wires = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Slow:
    """A server with short deadlines, and connections to it."""

    def __init__(self, body_s: float) -> None:
        self.ready = asyncio.Event()  # once this is set, /later reads its body
        self.read: list[int] = []
        served = [
            *routes("/read", self._read, ["GET", "POST"]),
            *routes("/later", self._later, ["POST"]),
            *routes("/stream", self._stream, ["GET", "POST"]),
            *routes("/refuse", self._refuse, ["POST"]),
            *routes("/ignore", self._ignore, ["POST"]),
            websocket("/refused", self._refused),
        ]
        self.server = Server(served, "127.0.0.1", 0, head_s=HEAD_S, body_s=body_s)

    async def _read(self, request: Request) -> Response:
        self.read.append(len(await read_body(request)))
        return JSONResponse(self.read[-1])

    async def _later(self, request: Request) -> Response:
        await self.ready.wait()
        return await self._read(request)

    async def _stream(self, request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            yield b"begun\n"
            await self.ready.wait()
            yield b"over\n"

        return StreamingResponse(body())

    async def _refuse(self, request: Request) -> Response:
        raise Problem(403, "not you")

    async def _ignore(self, request: Request) -> Response:
        await ignore_body(request)
        return JSONResponse("ignored")

    async def _refused(self, websocket: WebSocket) -> None:
        await websocket.close(1008)

    @asynccontextmanager
    async def connected(self, begin: bytes = b"") -> AsyncIterator[Wires]:
        """Open a connection and send these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            writer.write(begin)
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def serving(body_s: float) -> AsyncIterator[Slow]:
    made = Slow(body_s)
    await made.server.start()
    try:
        yield made
    finally:
        made.ready.set()
        await made.server.stop()


@pytest.fixture
async def slow() -> AsyncIterator[Slow]:
    async with serving(BODY_S) as made:
        yield made


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes that come until the connection is closed."""
    async with asyncio.timeout(PATIENCE_S):
        begun = await reader.readline()
        try:
            return begun + await reader.read()
        except ConnectionResetError:  # the client sent a byte after the server had closed
            return begun


async def drip(writer: asyncio.StreamWriter, forever: bytes = b"x") -> None:
    """Send a byte every 50 ms until the connection is closed."""
    with suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(forever)
            await writer.drain()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def dripping(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    task = asyncio.create_task(drip(writer))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# heads


@pytest.mark.parametrize("begin", [b"", b"G", HALF_A_HEAD], ids=["nothing", "a byte", "half"])
async def test_a_head_that_does_not_come_whole_is_not_waited_for(slow: Slow, begin: bytes) -> None:
    async with slow.connected(begin) as (reader, _):
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")


async def test_a_head_that_drips_is_not_waited_for_either(slow: Slow) -> None:
    async with slow.connected(HALF_A_HEAD) as (reader, writer), dripping(writer):
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")


async def test_the_next_head_on_a_connection_has_the_same_deadline(slow: Slow) -> None:
    async with slow.connected(GET) as (reader, writer):
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")
            await reader.readexactly(1)
        writer.write(HALF_A_HEAD)
        async with dripping(writer):
            assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")


async def test_an_idle_connection_may_wait_longer_for_its_next_request(slow: Slow) -> None:
    async with slow.connected(GET) as (reader, writer):
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(1)
            await asyncio.sleep(2 * HEAD_S)
            writer.write(GET)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_half_open_connections_without_number_are_all_closed(slow: Slow) -> None:
    async with AsyncExitStack() as stack:
        wires = [
            await stack.enter_async_context(slow.connected(HALF_A_HEAD if n % 2 else b""))
            for n in range(300)
        ]
        answers = await asyncio.gather(*(rest(reader) for reader, _ in wires))
    assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)


# bodies


async def test_a_body_that_stops_is_not_waited_for(slow: Slow) -> None:
    async with slow.connected(HEAD + b"begun") as (reader, _):
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")
    assert slow.read == []


async def test_a_body_that_drips_is_not_waited_for_either(slow: Slow) -> None:
    head = HEAD.replace(b": 100", b": 100000")
    async with slow.connected(head) as (reader, writer), dripping(writer):
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_comes_steadily_has_all_the_time_it_needs(slow: Slow) -> None:
    pieces, size = 12, 4096
    head = HEAD.replace(b": 100", b": %d" % (pieces * size))
    async with slow.connected(head) as (reader, writer):
        for _ in range(pieces):
            writer.write(b"x" * size)
            await asyncio.sleep(0.1)
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_what_the_application_has_not_read_yet_is_not_the_clients_fault(slow: Slow) -> None:
    size = 4 * 1024 * 1024
    head = b"POST /later HTTP/1.1\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n" % size
    async with slow.connected(head) as (reader, writer):
        writer.write(b"x" * size)
        await asyncio.sleep(3 * BODY_S)
        slow.ready.set()
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert slow.read == [size]


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /stream HTTP/1.1\r\nhost: [::1]\r\n\r\n" + HALF_A_HEAD,
        b"POST /stream HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 9\r\n\r\nhalf",
        b"GET /stream HTTP/1.1\r\nhost: [::1]\r\n\r\n" + HEAD + b"half",
    ],
    ids=["half a head", "half a body", "half of the next body"],
)
async def test_a_stream_is_not_cut_for_half_a_request_behind_it(slow: Slow, begin: bytes) -> None:
    async with slow.connected(begin) as (reader, _), asyncio.timeout(PATIENCE_S):
        await reader.readuntil(b"begun\n")
        await asyncio.sleep(HEAD_S + BODY_S)
        slow.ready.set()
        assert b"408" not in await reader.readuntil(b"over\n")


@pytest.mark.parametrize("closes", [False, True], ids=["kept", "closed"])
async def test_a_client_reads_why_its_large_body_is_refused(slow: Slow, closes: bool) -> None:
    size = 8 * 1024 * 1024
    for path, status in (("/refuse", 403), ("/ignore", 413)):
        head = f"POST {path} HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {size}\r\n"
        head += "connection: close\r\n\r\n" if closes else "\r\n"
        async with slow.connected(head.encode()) as (reader, writer), asyncio.timeout(PATIENCE_S):
            for _ in range(size // 65536):
                writer.write(b"x" * 65536)
                await writer.drain()
            assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_request_that_expects_100_continue_is_refused_at_once(slow: Slow) -> None:
    head = (
        b"POST /refuse HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n"
    )
    async with slow.connected(head) as (reader, _), asyncio.timeout(PATIENCE_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 403 ")


CHUNKED = b"POST /%b HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", [b"read", b"refuse"])
@pytest.mark.parametrize(
    "endless",
    [b"0\r\n" + b"x: " + b"y" * 1000, b"0\r\n" + b"x: y\r\n" * 200, b"1;" + b"x" * 1000],
    ids=["one trailer", "trailers", "an extension"],
)
async def test_what_is_around_a_body_is_limited(slow: Slow, path: bytes, endless: bytes) -> None:
    more = endless.removeprefix(b"0\r\n")
    async with slow.connected(CHUNKED % path + endless) as (reader, writer):
        with suppress(ConnectionError):
            for _ in range(100_000):
                writer.write(more)
                await writer.drain()
            pytest.fail("it takes everything")
        with suppress(ConnectionError):
            await rest(reader)


async def test_a_body_in_the_smallest_chunks_is_none_of_that() -> None:
    size = 30_000
    async with (
        serving(body_s=PATIENCE_S) as slow,
        slow.connected(CHUNKED % b"read" + b"1\r\nx\r\n" * size) as (reader, writer),
        asyncio.timeout(PATIENCE_S),
    ):
        writer.write(b"0\r\ntrailer: kept by nobody\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert slow.read == [size]


# no traceback for mistakes of clients


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.exc_info or each.levelname == "ERROR"]


async def test_a_client_that_leaves_in_its_body_logs_no_error(
    slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with slow.connected(HEAD + b"half") as (_, writer):
        await asyncio.sleep(0.1)
        writer.transport.abort()
    async with asyncio.timeout(PATIENCE_S):
        while "the client left" not in caplog.text:
            await asyncio.sleep(0.02)
    assert errors(caplog) == []


async def test_a_refused_websocket_logs_no_error(
    slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidStatus):
        async with connect(f"ws://127.0.0.1:{slow.server.port}/refused", proxy=None):
            pass
    for leave in (True, False):
        head = (
            b"GET /refused HTTP/1.1\r\nhost: [::1]\r\n"
            b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
        )
        async with slow.connected(head) as (reader, writer):
            if leave:
                writer.transport.abort()
            else:
                assert b"403" in await rest(reader)
    await slow.server.stop()
    assert errors(caplog) == []


async def test_a_websocket_without_credentials_logs_no_error(
    make_guarded: Callable[..., Awaitable[Guarded]], caplog: pytest.LogCaptureFixture
) -> None:
    guarded = await make_guarded(jwt_secret=SECRET)
    for headers in ({}, bearer("nonsense"), bearer(token(scope="none"))):
        with suppress(InvalidStatus):
            async with connect(guarded.ws_url, additional_headers=headers, proxy=None):
                pass
    await guarded.stop()
    assert errors(caplog) == []


async def test_an_error_is_still_logged_with_its_traceback(
    make_guarded: Callable[..., Awaitable[Guarded]], caplog: pytest.LogCaptureFixture
) -> None:
    guarded = await make_guarded(jwt_secret=SECRET)
    answer: httpx.Response = await guarded.as_bearer(token(), "/v1/broken")
    assert json.loads(answer.text)["status"] == 500
    assert errors(caplog)
