"""One connection for each request: the answers of servers, their failures, and the close.

Each test runs on asyncio's loop and on uvloop, which the services use.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from httpx._utils import get_environment_proxies

from penstock.http import dialing
from penstock.http.exchange import MAX_OVERHEAD_BYTES
from penstock.http.reading import reading_of
from penstock.http.transport import DirectTransport, environment_proxies, new_client
from support.fakes.serving import close_after
from support.real.authority import Authority

Answers = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Run = Callable[[Coroutine[Any, Any, None]], None]
DEADLINE_S = 10.0


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    loop: Run = request.param
    return loop


class Server:
    """A server that answers each connection by a script, and counts its connections."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.opened = self.closed = 0
        self.heads: list[bytes] = []
        self.url = ""

    async def on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.opened += 1
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            await self._answers(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.closed += 1
            writer.close()

    async def all_closed(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.closed < self.opened:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    answers: Answers, context: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[Server]:
    made = Server(answers)
    server = await asyncio.start_server(
        close_after(made.on_connection), "127.0.0.1", 0, ssl=context, **settings
    )
    port = server.sockets[0].getsockname()[1]
    made.url = f"{'https' if context else 'http'}://127.0.0.1:{port}/a?b=c"
    try:
        yield made
    finally:
        server.close()


def says(*pieces: bytes, then_waits: bool = False) -> Answers:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        if then_waits:
            await reader.read()

    return answers


async def asked(url: str) -> httpx.Response:
    async with asyncio.timeout(DEADLINE_S), new_client(5.0) as client:
        return await client.post(url, content=b"question")


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LONG = b"x" * 300_000

WHOLE: dict[str, tuple[Answers, bytes]] = {
    "a length": (says(OK + b"Content-Length: 5\r\n\r\nhello", then_waits=True), b"hello"),
    "chunks": (says(CHUNKED, b"2\r\nhe\r\n", b"3\r\nllo\r\n0\r\n\r\n", then_waits=True), b"hello"),
    "a chunk in pieces": (says(CHUNKED, b"5", b"\r\nhe", b"llo\r", b"\n0\r\n\r\n"), b"hello"),
    "chunks with extensions and trailers": (
        says(CHUNKED, b'5;a="b"\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n', then_waits=True),
        b"hello",
    ),
    "HTTP/1.0, to its end": (says(b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo"), b"hello"),
    "Connection: close, to its end": (says(OK + b"Connection: close\r\n\r\nhello"), b"hello"),
    "no reason phrase": (says(b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi"), b"hi"),
    "lines that end in LF": (says(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi"), b"hi"),
    "100 and 103 before it": (
        says(
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 103 Hints\r\nLink: a\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nhi",
        ),
        b"hi",
    ),
    "bytes after its end": (
        says(OK + b"Content-Length: 2\r\n\r\nhi and more", b"HTTP/1.1 500 Oh\r\n\r\n"),
        b"hi",
    ),
    "gzip, which nobody asked for": (
        says(OK + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n" + gzip.compress(b"hi")),
        b"hi",
    ),
    "a long body": (says(OK + b"Content-Length: 300000\r\n\r\n", LONG), LONG),
}


@pytest.mark.parametrize(("answers", "body"), WHOLE.values(), ids=WHOLE.keys())
def test_a_response_is_read_to_its_end_and_its_connection_is_closed(
    run: Run, answers: Answers, body: bytes
) -> None:
    async def main() -> None:
        async with serving(answers) as server:
            response = await asked(server.url)
            assert (response.status_code, response.content) == (200, body)
            await server.all_closed()
            [head] = server.heads
            assert head.startswith(b"POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")
            assert b"\r\nConnection: close\r\n" in head

    run(main())


@pytest.mark.parametrize("status", [204, 304, 302, 404, 500])
def test_the_status_is_the_servers_and_redirects_are_not_followed(run: Run, status: int) -> None:
    length = b"" if status in (204, 304) else b"Content-Length: 0\r\n"
    head = b"HTTP/1.1 %d Whatever\r\nLocation: http://127.0.0.1:1/\r\n%b\r\n" % (status, length)

    async def main() -> None:
        async with serving(says(head, then_waits=True)) as server:
            response = await asked(server.url)
            assert (response.status_code, response.reason_phrase) == (status, "Whatever")
            assert server.opened == 1
            await server.all_closed()

    run(main())


BROKEN: dict[str, tuple[Answers, str]] = {
    "no answer": (says(), "without an answer"),
    "half a head": (says(b"HTTP/1.1 200 OK\r\nContent-Le"), "without an answer"),
    "less than its length": (says(OK + b"Content-Length: 9\r\n\r\nhello"), "in its answer"),
    "no last chunk": (says(CHUNKED + b"5\r\nhello\r\n"), "in its answer"),
    "a bad chunk": (says(CHUNKED + b"5\r\nhello\r\n", b"no length\r\n"), "does not speak HTTP"),
    "no HTTP": (says(b"SSH-2.0-OpenSSH\r\n", then_waits=True), "does not speak HTTP"),
    "an endless head": (
        says(OK + b"X: " + b"x" * MAX_OVERHEAD_BYTES, b"x" * 1000, then_waits=True),
        "bytes of headers",
    ),
    "an endless chunk extension": (
        says(CHUNKED, b"5;" + b"x" * MAX_OVERHEAD_BYTES, b"x" * 1000, then_waits=True),
        "bytes of headers",
    ),
}


@pytest.mark.parametrize(("answers", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_a_response_that_breaks_says_how_and_its_connection_is_closed(
    run: Run, answers: Answers, text: str
) -> None:
    async def main() -> None:
        async with serving(answers) as server:
            with pytest.raises(httpx.RemoteProtocolError, match=text):
                await asked(server.url)
            await server.all_closed()

    run(main())


def test_a_reset_is_an_error_even_where_the_end_of_the_connection_ends_the_body(run: Run) -> None:
    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhel")
        await asyncio.sleep(0.05)
        made = writer.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async def main() -> None:
        async with serving(resets) as server:
            with pytest.raises(httpx.ReadError):
                await asked(server.url)

    run(main())


def test_two_requests_to_one_server_have_a_connection_each(run: Run) -> None:
    async def main() -> None:
        answers = says(OK + b"Content-Length: 2\r\n\r\nhi", then_waits=True)
        async with serving(answers) as server, new_client(5.0) as client:
            await client.get(server.url)
            await client.get(server.url)
            assert server.opened == 2
            await server.all_closed()

    run(main())


def test_a_connection_is_closed_when_its_reader_is_cancelled_or_leaves(run: Run) -> None:
    async def main() -> None:
        streams = says(CHUNKED + b"2\r\nhi\r\n", then_waits=True)
        async with serving(streams) as server, new_client(5.0) as client:

            async def read() -> None:
                async with client.stream("GET", server.url) as response:
                    async for _ in response.aiter_bytes():
                        pass

            reading = asyncio.create_task(read())
            async with asyncio.timeout(DEADLINE_S):
                while not server.heads:
                    await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.wait([reading])
            await server.all_closed()
            async with client.stream("GET", server.url) as response:
                await anext(response.aiter_bytes())
            await server.all_closed()
            assert server.opened == 2

    run(main())


def test_a_connection_is_closed_when_a_request_is_cancelled_before_its_answer(run: Run) -> None:
    async def main() -> None:
        async with serving(says(then_waits=True)) as server:
            asking = asyncio.create_task(asked(server.url))
            async with asyncio.timeout(DEADLINE_S):
                while not server.heads:
                    await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait([asking])
            await server.all_closed()

    run(main())


def test_a_server_is_held_back_while_nobody_reads(run: Run) -> None:
    taken = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        writer.write(OK + b"Connection: close\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x" * 64 * 1024)
            await writer.drain()
            taken += 1

    async def main() -> None:
        async with serving(floods) as server, new_client(5.0) as client:
            async with asyncio.timeout(DEADLINE_S), client.stream("GET", server.url) as response:
                before = -1
                while before != taken:
                    before = taken
                    await asyncio.sleep(0.3)
                assert taken < 500  # as much as the sockets' buffers hold
                read = sum([len(chunk) async for chunk in response.aiter_bytes()])
            assert read == 1000 * 64 * 1024

    run(main())


class Counts:
    """A receiver that counts the bytes."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.ended = asyncio.Event()

    def feed(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)

    def end(self, error: httpx.HTTPError | None) -> None:
        assert error is None
        self.ended.set()


def test_a_server_that_was_held_back_before_there_was_a_receiver_continues(run: Run) -> None:
    """Before the leg begins to read, more bytes have come than an exchange buffers."""
    size_bytes = 20 * 1024 * 1024

    async def main() -> None:
        head = OK + b"Content-Length: %d\r\n\r\n" % size_bytes
        async with serving(says(head + b"x" * size_bytes)) as server, new_client(5.0) as client:
            async with asyncio.timeout(DEADLINE_S), client.stream("GET", server.url) as response:
                await asyncio.sleep(0.3)
                reading, counts = reading_of(response), Counts()
                reading.start(counts)
                await counts.ended.wait()
                await reading.stop()
            assert counts.size_bytes == size_bytes

    run(main())


def test_a_server_that_does_not_take_a_request_and_one_that_answers_before_it_has_it(
    run: Run,
) -> None:
    refuses = says(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno", then_waits=True)
    large = b"x" * 50_000_000

    async def takes_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.5)

    async def main() -> None:
        async with new_client(5.0) as client:
            async with serving(refuses, limit=1000) as server:
                response = await client.post(server.url, content=large)
                assert (response.status_code, response.text) == (413, "no")
            async with serving(takes_nothing, limit=1000) as server:
                with pytest.raises(httpx.WriteTimeout):
                    await client.post(
                        server.url, content=large, timeout=httpx.Timeout(DEADLINE_S, write=0.3)
                    )

    run(main())


def test_timeouts_say_what_did_not_come(run: Run) -> None:
    async def main() -> None:
        async with new_client(5.0) as client:
            async with serving(says(then_waits=True)) as server:
                with pytest.raises(httpx.ReadTimeout, match=r"no answer came in 0.1 s"):
                    await client.get(server.url, timeout=0.1)
            async with serving(says(CHUNKED + b"2\r\nhi\r\n", then_waits=True)) as server:
                with pytest.raises(httpx.ReadTimeout, match=r"nothing came in 0.1 s"):
                    await client.get(server.url, timeout=0.1)

    run(main())


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://127.0.0.1:1/", "Connection refused"),
        ("http://[::1]:1/", "Connection refused|not available|not supported"),
        ("http://localhost:1/", "Connection refused"),
        ("http://no-such-host.invalid/", "its name cannot be resolved"),
    ],
)
def test_a_server_that_cannot_be_reached_says_why_without_an_address(
    run: Run, url: str, text: str
) -> None:
    async def main() -> None:
        with pytest.raises(httpx.ConnectError, match=text) as refused:
            await asked(url)
        assert "127.0.0.1" not in str(refused.value)

    run(main())


def test_an_address_that_does_not_answer_does_not_keep_the_next_one_waiting(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = says(OK + b"Content-Length: 2\r\n\r\nhi", then_waits=True)
    closed: list[bool] = []
    connect = dialing._connect

    async def connects(address: dialing.Address) -> socket.socket:
        if address.sockaddr == "dead":
            try:
                await asyncio.sleep(60)
            finally:
                closed.append(True)
        return await connect(address)

    async def main() -> None:
        async with serving(answers) as server:
            port = httpx.URL(server.url).port
            dead = dialing.Address(socket.AF_INET, "dead")
            alive = dialing.Address(socket.AF_INET, ("127.0.0.1", port))

            async def addresses(host: str, port: int) -> list[dialing.Address]:
                return [dead, alive]

            monkeypatch.setattr(dialing, "_connect", connects)
            transport = DirectTransport(ssl.create_default_context(), addresses)
            async with httpx.AsyncClient(transport=transport) as client:
                assert (await client.get(server.url)).text == "hi"
            assert closed == [True]

    run(main())


def test_a_connection_that_is_not_made_in_time_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(host: str, port: int, resolve: dialing.Resolve) -> socket.socket:
        await asyncio.sleep(60)
        raise AssertionError

    async def main() -> None:
        monkeypatch.setattr("penstock.http.transport.dial", never)
        async with new_client(0.1) as client:
            with pytest.raises(httpx.ConnectTimeout, match=r"no connection in 0.1 s"):
                await client.get("http://127.0.0.1:1/")

    run(main())


@pytest.mark.parametrize(
    "headers", [{"x": "a\r\nb: c"}, {"x": "a\nb"}, {"x": "a\0"}, {"x\r\ny": "a"}, {"x y": "a"}]
)
def test_a_header_that_would_be_another_one_is_not_sent(run: Run, headers: dict[str, str]) -> None:
    async def main() -> None:
        async with serving(says()) as server, new_client(5.0) as client:
            with pytest.raises(httpx.LocalProtocolError):
                await client.get(server.url, headers=headers)
            assert server.opened == 0

    run(main())


# TLS


def contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str = "127.0.0.1"
) -> ssl.SSLContext:
    """Return a server's TLS context; the environment names its certificate authority."""
    ours = Authority(tmp_path, "ours")
    monkeypatch.setenv("SSL_CERT_FILE", str(ours.file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.certify("server", host))
    return context


def test_tls_with_an_authority_of_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = contexts(tmp_path, monkeypatch)
    ends = says(b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo")

    async def main() -> None:
        async with serving(ends, context) as server:
            assert (await asked(server.url)).text == "hello"
        whole = says(OK + b"Content-Length: 5\r\n\r\nhello", then_waits=True)
        async with serving(whole, context) as server:
            assert (await asked(server.url)).text == "hello"
            await server.all_closed()

    run(main())


def test_a_certificate_of_another_authority_or_host_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = contexts(tmp_path, monkeypatch, "127.0.0.2")

    async def main() -> None:
        async with serving(says(), other) as server:
            with pytest.raises(httpx.ConnectError, match=r"not valid for '127.0.0.1'"):
                await asked(server.url)
            monkeypatch.delenv("SSL_CERT_FILE")
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await asked(server.url)
            assert not server.heads

    run(main())


# Proxies

ENVIRONMENTS: list[dict[str, str]] = [
    {},
    {"HTTP_PROXY": "http://proxy:3128", "https_proxy": "proxy2:3128"},
    {"ALL_PROXY": "socks5://proxy:1080", "NO_PROXY": "example.com, .internal,localhost,::1"},
    {"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8,192.168.1.1,https://a.b,fe80::/10"},
    {"HTTP_PROXY": "http://p:1", "NO_PROXY": "example.com,*"},
]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_proxies_of_the_environment_are_those_of_httpx(
    run: Run, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert environment_proxies() == get_environment_proxies()


def test_a_request_goes_through_the_proxy_and_its_connection_is_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        answers = says(OK + b"Content-Length: 2\r\n\r\nhi", then_waits=True)
        async with serving(answers) as proxy, serving(answers) as direct:
            monkeypatch.setenv("HTTP_PROXY", proxy.url.partition("/a")[0])
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            async with new_client(5.0) as client:
                response = await client.get("http://agents.example/runs")
                assert response.text == "hi"
                await proxy.all_closed()
                await client.get(direct.url)
            assert proxy.heads[0].startswith(b"GET http://agents.example/runs HTTP/1.1\r\n")
            assert (proxy.opened, direct.opened) == (1, 1)

    run(main())


def test_all_connections_share_one_tls_context(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ssl.SSLContext] = []
    keep = DirectTransport.__init__

    def kept(self: DirectTransport, context: ssl.SSLContext) -> None:
        made.append(context)
        keep(self, context)

    monkeypatch.setattr(DirectTransport, "__init__", kept)
    new_client(1.0)
    assert len(made) == 1
