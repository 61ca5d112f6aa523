"""A session over a WebSocket: one text message per event, and a close code with the reason."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from prometheus_client import REGISTRY
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.bus import Bus
from penstock.service import Context
from penstock.settings import Config
from penstock.web.server import Server
from penstock_edge.service import EdgeService
from penstock_edge.settings import EdgeSettings
from support.drive.clients import Client, MakeEdge, Stream
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun

WAIT_S = 30


def url(edge: Client, session_id: str, **query: str) -> str:
    params = "&".join(f"{name}={value}" for name, value in query.items())
    at = str(edge.base_url).replace("http://", "ws://")
    return f"{at.rstrip('/')}/v1/sessions/{session_id}/events/ws?{params}"


@pytest.fixture
def session_id() -> str:
    return str(uuid.uuid4())


@pytest.fixture
async def run(bus: Bus, session_id: str) -> PretendRun:
    run = PretendRun(bus, session_id=session_id)
    await run.join()
    return run


@pytest.fixture
async def finished(run: PretendRun) -> PretendRun:
    await run.started()
    await run.text("Hello", " world")
    await run.completed("Hello world")
    return run


Open = Callable[..., Any]


@pytest.fixture
def ws(edge: Client, session_id: str) -> Open:
    """Return a function that opens the session's WebSocket: `ws(dialect=…)`."""

    @asynccontextmanager
    async def open(origin: str | None = None, **query: str) -> AsyncIterator[ClientConnection]:
        headers = {"origin": origin} if origin else None
        address = url(edge, session_id, **query)
        async with connect(address, proxy=None, additional_headers=headers) as connection:
            yield connection

    return open


async def receive(connection: ClientConnection) -> Any:
    text = await asyncio.wait_for(connection.recv(), WAIT_S)
    assert isinstance(text, str)
    return orjson.loads(text)


async def closed(connection: ClientConnection) -> tuple[int | None, str | None]:
    """Read all messages up to the close; return the close code and reason."""
    await rest(connection)
    return connection.close_code, connection.close_reason


async def rest(connection: ClientConnection) -> list[Any]:
    found = []
    while True:
        try:
            found.append(await receive(connection))
        except ConnectionClosed:
            return found


@pytest.mark.parametrize("dialect", ["canonical", "executions", "unified", "adk", "agno"])
async def test_messages_are_the_data_of_the_sse_frames(
    edge: Client, ws: Open, session_id: str, finished: PretendRun, dialect: str
) -> None:
    query = {"dialect": dialect, "until": "idle"}
    async with Stream(edge, "GET", f"/v1/sessions/{session_id}/events", params=query) as stream:
        frames = await stream.rest()
    async with ws(**query) as connection:
        assert await rest(connection) == [orjson.loads(frame.data) for frame in frames]
    assert finished


async def test_unified_messages_have_exactly_the_documented_root(
    ws: Open, finished: PretendRun
) -> None:
    async with ws(dialect="unified", until="idle") as connection:
        messages = await rest(connection)
    assert len(messages) == 6
    for message in messages:
        assert set(message) == {"event_id", "session_id", "timestamp", "type", "payload"}
    assert finished


async def test_cursors_follow_their_events_and_resume_anywhere(
    ws: Open, finished: PretendRun
) -> None:
    query = {"dialect": "unified", "until": "idle"}
    async with ws(cursors="on", **query) as connection:
        messages = await rest(connection)
    events, cursors = messages[::2], [message["cursor"] for message in messages[1::2]]
    for cut, cursor in enumerate(cursors[:-1]):
        async with ws(after=cursor, **query) as connection:
            assert await rest(connection) == events[cut + 1 :]
    assert finished


async def test_what_happens_later_comes_as_it_happens(ws: Open, run: PretendRun) -> None:
    async with ws(markers="on") as connection:
        assert await receive(connection) == {"marker": "live"}
        await run.started()
        assert (await receive(connection))["event"]["action"] == "started"
        await run.completed()
        assert (await receive(connection))["event"]["action"] == "completed"


async def test_an_idle_session_is_closed_as_done(ws: Open, finished: PretendRun) -> None:
    async with ws(until="idle") as connection:
        code, reason = await closed(connection)
    assert (code, reason) == (1000, "no run is active or queued")
    assert finished


@pytest.mark.parametrize(
    ("sent", "code"), [("hello", 1003), (b"hello", 1003), ("x" * 5000, 1009), ("x" * 70_000, 1009)]
)
async def test_a_websocket_client_that_sends_something_gets_an_error(
    ws: Open, run: PretendRun, sent: str | bytes, code: int
) -> None:
    async with ws() as connection:
        await connection.send(sent)
        assert (await closed(connection))[0] == code
    assert run


async def test_an_edge_that_shuts_down_says_so(bus: Bus, session_id: str) -> None:
    service = EdgeService(Context(Config(agents=[]), EdgeSettings(), bus, "edge-test"))
    await service.start()
    server = Server(service.routes, "127.0.0.1", 0)
    await server.start()
    edge = Client(base_url=f"http://127.0.0.1:{server.port}")
    async with connect(url(edge, session_id), proxy=None) as connection:
        stopping = asyncio.create_task(service.stop())
        assert (await closed(connection))[0] == 1012
        await stopping
    await edge.aclose()
    await server.stop()


async def test_the_peer_is_pinged_as_often_as_streams_are_kept_alive(
    make_edge: MakeEdge, session_id: str
) -> None:
    edge = await make_edge(keep_alive_s=0.1)
    reader, writer = await asyncio.open_connection(edge.base_url.host, edge.base_url.port)
    path = url(edge, session_id).partition(str(edge.base_url.port))[2]
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    async with asyncio.timeout(WAIT_S):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")
        ping = await reader.readexactly(2)
        assert ping[0] == 0x89  # the ping comes in a single frame
        await reader.readexactly(ping[1])
        # The edge closes a connection that does not answer the ping.
        close = await reader.readexactly(4)
    assert close[0] == 0x88
    assert int.from_bytes(close[2:]) == 1011
    writer.close()
    await writer.wait_closed()


def slow_clients() -> float:
    return REGISTRY.get_sample_value("penstock_slow_clients_total") or 0.0


async def test_a_client_that_does_not_read_is_dropped_and_asked_to_reconnect(
    make_edge: MakeEdge, session_id: str, run: PretendRun
) -> None:
    before = slow_clients()
    # Between the drop and the next ping, which the client may miss, it has a second to read the
    # close.
    edge = await make_edge(keep_alive_s=4, max_pending_bytes=100_000, ring_bytes=1_000_000)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.connect((edge.base_url.host, edge.base_url.port))
    small.setblocking(False)
    async with connect(
        url(edge, session_id), sock=small, max_queue=1, compression=None, proxy=None
    ) as connection:
        await run.started()
        await connection.recv()  # a live client from here on; a client in its replay gets more time
        for _ in range(40):
            await run.text("x" * 400_000)

        async def dropped() -> bool:
            return slow_clients() > before

        await eventually(dropped)
        assert (await closed(connection))[0] == 1013


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"dialect": "klingon"}, 422),
        ({"dialect": "raw"}, 422),
        ({"cursors": "1"}, 422),
        ({"markers": "1"}, 422),
        ({"until": "dawn"}, 422),
        ({"after": "garbage"}, 400),
        ({"after": "99999999-0"}, 410),
        ({"agent": "nobody"}, 404),
        ({"category": "tools"}, 422),
    ],
)
async def test_what_cannot_be_served_is_refused_before_it_is_accepted(
    ws: Open, query: dict[str, str], status: int
) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with ws(**query):
            pass
    response = caught.value.response
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert orjson.loads(response.body or b"")["status"] == status


async def test_a_foreign_page_is_refused_and_our_own_is_not(ws: Open, edge: Client) -> None:
    for foreign in ("https://evil.example", "http://127.0.0.1:3000"):
        with pytest.raises(InvalidStatus) as caught:
            async with ws(origin=foreign):
                pass
        assert caught.value.response.status_code == 403
    async with ws(origin=str(edge.base_url).rstrip("/"), markers="on") as connection:
        assert await receive(connection) == {"marker": "live"}


async def test_plain_http_is_told_that_this_is_a_websocket(edge: Client, session_id: str) -> None:
    answer = await edge.get(f"/v1/sessions/{session_id}/events/ws")
    assert answer.status_code == 404
