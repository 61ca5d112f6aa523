"""An exchange sends one request on a new connection, and reads a complete answer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.http.dialing import Address, resolve
from penstock.http.exchange import MAX_OVERHEAD_BYTES
from penstock_automations.actions.webhook.exchange import READ_BYTES, Answer, NoAnswer, Sender
from penstock_automations.guard import Guard
from support.fakes.serving import close_after
from support.real.authority import Authority

HEADERS = {"content-type": "application/json", "webhook-id": "r.1"}


@dataclass
class Peer:
    """Sends these pieces after each request, and then closes the connection."""

    pieces: Sequence[bytes]
    port: int = 0
    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head + await reader.readexactly(2))
        for piece in self.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()


@asynccontextmanager
async def peer(*pieces: bytes) -> AsyncIterator[Peer]:
    made = Peer(pieces)
    server = await asyncio.start_server(close_after(made.serve), "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


async def post(port: int, path: str = "/hook?a=b%20c", timeout_s: float = 5) -> Answer | NoAnswer:
    sender = Sender(Guard(hosts=["127.0.0.1"]))
    return await sender.send(f"http://127.0.0.1:{port}{path}", HEADERS, b"{}", timeout_s)


async def test_the_request_is_complete_and_asks_for_the_connections_end() -> None:
    async with peer(b"HTTP/1.1 204 No Content\r\n\r\n") as made:
        assert await post(made.port) == Answer(204, {}, b"")
        head, _, body = made.requests[0].partition(b"\r\n\r\n")
        assert body == b"{}"
        first, *lines = head.decode().split("\r\n")
        assert first == "POST /hook?a=b%20c HTTP/1.1"
        assert set(lines) == {
            f"host: 127.0.0.1:{made.port}",
            "Connection: close",
            "content-length: 2",
            "content-type: application/json",
            "webhook-id: r.1",
        }


OK = b"HTTP/1.1 200 OK\r\n"
COMPLETE = {
    "with a length": [OK + b"Content-Length: 2\r\nRetry-After: 3\r\n\r\nok"],
    "byte by byte": [bytes([each]) for each in OK + b"content-length: 2\r\n\r\nok"],
    "in chunks": [OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n", b"0\r\n\r\n"],
    "with a trailer": [OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx: y\r\n\r\n"],
    "up to the connection's end": [OK + b"\r\n", b"o", b"k"],
    "of HTTP/1.0": [b"HTTP/1.0 200 OK\r\n\r\nok"],
    "after interim answers": [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n",
        OK + b"content-length: 2\r\n\r\nok",
    ],
    "before something else": [OK + b"content-length: 2\r\n\r\nokHTTP/1.1 500 x\r\n\r\n"],
}


@pytest.mark.parametrize("pieces", COMPLETE.values(), ids=COMPLETE)
async def test_a_complete_answer_is_read(pieces: Sequence[bytes]) -> None:
    async with peer(*pieces) as made:
        answer = await post(made.port)
    assert isinstance(answer, Answer)
    assert (answer.status, answer.body) == (200, b"ok")
    assert "link" not in answer.headers
    assert "x" not in answer.headers


INCOMPLETE = {
    "nothing": [],
    "a part of the head": [b"HTTP/1.1 200 O"],
    "only an interim answer": [b"HTTP/1.1 100 Continue\r\n\r\n"],
    "a part of the body": [OK + b"content-length: 3\r\n\r\nok"],
    "a part of the chunks": [OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n"],
    "another protocol": [b"SSH-2.0-OpenSSH_9.2\r\n"],
    "a change of protocol": [
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc"
    ],
    "an endless head": [OK + b"x: y\r\n" * (MAX_OVERHEAD_BYTES // 6), b"x: y\r\n" * 100],
}


@pytest.mark.parametrize("pieces", INCOMPLETE.values(), ids=INCOMPLETE)
async def test_what_is_no_complete_answer_is_a_protocol_error(pieces: Sequence[bytes]) -> None:
    async with peer(*pieces) as made:
        answer = await post(made.port)
    assert isinstance(answer, NoAnswer), answer
    assert answer.code == "protocol"


async def test_only_the_begin_of_a_large_answer_is_read() -> None:
    async with peer(OK + b"\r\n", *[b"x" * READ_BYTES] * 100) as made:
        answer = await post(made.port)
    assert isinstance(answer, Answer)
    assert answer.body == b"x" * READ_BYTES


def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()


@pytest.mark.parametrize("end", [None, cancelled], ids=["a timeout", "a cancellation"])
async def test_an_exchange_that_is_ended_closes_its_connection(
    end: Callable[[asyncio.Task[object]], None] | None,
) -> None:
    sender = Sender(Guard(hosts=["127.0.0.1"]))
    opened, closed = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.set()
        with suppress(ConnectionResetError):
            await reader.read()  # until the sender closes the connection
        closed.set()
        writer.close()

    server = await asyncio.start_server(close_after(silent), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server:
        task = asyncio.create_task(sender.send(url, HEADERS, b"{}", 0.3 if end is None else 60))
        await opened.wait()
        if end is not None:
            end(task)
        await asyncio.wait([task])
        if end is None:
            assert task.result() == NoAnswer("timeout", "no complete answer within 0.3 s")
        async with asyncio.timeout(10):
            await closed.wait()


@pytest.mark.parametrize("value", ["a\r\nx-injected: 1", "a\0b"])
async def test_a_header_that_http_does_not_allow_sends_nothing(value: str) -> None:
    asked: list[str] = []

    async def counted(host: str, port: int) -> Sequence[Address]:
        asked.append(host)
        return await resolve(host, port)

    sender = Sender(Guard(hosts=["127.0.0.1"], resolve=counted))
    answer = await sender.send("http://127.0.0.1:9/", {"x": value}, b"{}", 1)
    assert isinstance(answer, NoAnswer)
    assert answer.code == "protocol"
    assert asked == []


@pytest.mark.parametrize(
    ("signer", "host", "trusted"),
    [("ours", "127.0.0.1", True), ("ours", "127.0.0.2", False), ("other", "127.0.0.1", False)],
)
async def test_only_a_trusted_certificate_of_the_urls_host_gets_the_request(
    signer: str, host: str, trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorities = {name: Authority(tmp_path, name) for name in ("ours", "other")}
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities["ours"].file))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authorities[signer].certify("server", host))
    made = Peer([OK + b"content-length: 2\r\n\r\nok"])
    server = await asyncio.start_server(close_after(made.serve), "127.0.0.1", 0, ssl=context)
    sender = Sender(Guard(hosts=["127.0.0.1"]))
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        answer = await sender.send(url, HEADERS, b"{}", 5)
    if trusted:
        assert isinstance(answer, Answer)
        assert answer.body == b"ok"
    else:
        assert isinstance(answer, NoAnswer)
        assert answer.code == "connection"
        assert "certificate" in answer.text
        assert made.requests == []
