"""A draining edge opens no stream, and closes its streams so that clients reconnect elsewhere."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.bus import Bus, BusSettings
from penstock.bus.streams import COMMANDS
from penstock.events.catalogue import TERMINAL
from penstock.service import Context, drain
from penstock.sse import Frame
from penstock.web.server import Server
from penstock_edge.service import EdgeService
from penstock_edge.settings import EdgeSettings
from penstock_edge.stream import direct_write
from support.drive.clients import WAIT_S, Client, MakeEdge, Stream
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer

from ..conftest import CONFIG

ADK = {
    "appName": "vana",
    "userId": "u1",
    "sessionId": "s1",
    "newMessage": {"parts": [{"text": "Hello"}], "role": "user"},
}
AGUI = {
    "threadId": "t1",
    "runId": "r1",
    "messages": [{"id": "m1", "role": "user", "content": "Hello"}],
    "tools": [],
    "context": [],
    "state": {},
    "forwardedProps": {},
}
EVENT_STREAM = {"accept": "text/event-stream"}
DECISION = {"tools": [{"tool_call_id": "c1", "confirmed": True}], "stream": True}
SESSION = "/apps/assistant/users/ann/sessions/s1/run"
# All requests whose answer is a stream, or waits for the end of a run.
STREAMS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/runs", {"json": {"agent": "assistant", "message": "?"}, "headers": EVENT_STREAM}),
    ("GET", "/v1/runs/{run_id}/events", {}),
    ("GET", "/v1/runs/{run_id}/events?dialect=raw", {}),
    ("GET", "/v1/events", {}),
    ("GET", "/v1/sessions/s1/events", {}),
    (
        "POST",
        "/api/service/v1/executions/trigger",
        {"json": {"topologyId": 123, "userMessage": "?"}},
    ),
    ("POST", "/run_sse", {"json": ADK}),
    ("POST", "/run", {"json": ADK}),
    ("GET", SESSION, {}),
    ("POST", "/agents/assistant/runs", {"json": {"message": "?", "stream": True}}),
    ("POST", "/agents/assistant/runs", {"json": {"message": "?"}}),
    ("POST", "/agents/assistant/runs/{run_id}/continue", {"json": DECISION}),
    ("POST", "/agui/assistant", {"json": AGUI}),
    ("GET", "/agui/assistant/threads/s1/events", {}),
    ("GET", "/api/v1/agent/runs/s1/events", {}),
]


@dataclass
class Served:
    """An edge, and an HTTP client of it."""

    service: EdgeService
    http: Client

    def events(self, run: PretendRun, after: str | None = None, **query: str) -> Stream:
        headers = {"last-event-id": after} if after else {}
        path = f"/v1/runs/{run.run_id}/events"
        return Stream(self.http, "GET", path, params=query, headers=headers)

    def draining(self, grace_s: float) -> asyncio.Task[None]:
        return asyncio.create_task(drain([self.service], grace_s))


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve(nats_server: NatsServer) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Served:
            bus = await Bus.connect(BusSettings(url=nats_server.url))
            stack.push_async_callback(bus.close)
            given = EdgeSettings(enable_adk_canonical_stream=True, **settings)
            service = EdgeService(Context(CONFIG, given, bus, "edge-test"))
            await service.start()
            server = Server(service.routes, "127.0.0.1", 0)
            await server.start()
            stack.push_async_callback(server.stop)
            stack.push_async_callback(service.stop)
            http = Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20)
            return Served(service, await stack.enter_async_context(http))

        yield start


def numbers(frames: list[Frame]) -> list[int]:
    return [orjson.loads(frame.data)["sequence"] for frame in frames]


@pytest.mark.parametrize("dialect", ["canonical", "executions", "unified", "adk", "agui", "raw"])
async def test_a_stream_is_asked_to_reconnect_and_continues_elsewhere_without_gap_or_repeat(
    serve: Serve, run: PretendRun, dialect: str
) -> None:
    first, second = await serve(), await serve()
    await run.started()
    await run.raw("open", {})
    for text in ("a", "b"):
        await run.text(text)
        await run.raw("bytes", b'data: {"t": "%b"}\n\n' % text.encode())
    async with first.events(run, dialect=dialect) as stream:
        told: list[Frame] = []
        while not any(b'"b"' in frame.data for frame in told):
            told.append(await stream.frame())
        draining = first.draining(grace_s=1)
        told += await stream.rest()
        await draining
    assert re.search(rb"\n\nretry: \d+\n\n$", stream.body)
    for text in ("c", "d"):
        await run.text(text)
        await run.raw("bytes", b'data: {"t": "%b"}\n\n' % text.encode())
    await run.raw("end", {"outcome": "eof"})
    await run.completed()
    async with second.events(run, after=told[-1].id, dialect=dialect) as stream:
        told += await stream.rest()
    async with second.events(run, dialect=dialect) as stream:
        assert [(each.id, each.data) for each in told] == [
            (each.id, each.data) for each in await stream.rest()
        ]


@pytest.mark.parametrize("tried", [direct_write.TRIED, ("0.1.",)], ids=["direct", "ASGI"])
async def test_streams_leave_one_after_another_within_the_grace(
    serve: Serve, run: PretendRun, monkeypatch: pytest.MonkeyPatch, tried: tuple[str, ...]
) -> None:
    monkeypatch.setattr(direct_write, "TRIED", tried)
    edge = await serve()
    await run.started()
    loop = asyncio.get_running_loop()
    left: list[float] = []

    async def follow() -> None:
        async with edge.events(run) as stream:
            await stream.frame()
            begun.release()
            await stream.rest()
            left.append(loop.time())

    begun = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(40):
            tasks.create_task(follow())
        for _ in range(40):
            await begun.acquire()
        began = loop.time()
        await edge.draining(grace_s=4)
        ended = loop.time()
    assert ended - began < 4
    assert max(left) - min(left) > 0.5
    assert len({round(at - began, 1) for at in left}) > 4


async def test_the_connection_of_a_stream_that_is_sent_away_is_closed(
    serve: Serve, run: PretendRun
) -> None:
    edge = await serve()
    await run.started()
    base = edge.http.base_url
    reader, writer = await asyncio.open_connection(base.host, base.port)
    path = f"/v1/runs/{run.run_id}/events"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await reader.readuntil(b"lifecycle")
    draining = edge.draining(grace_s=0.5)
    # The edge closes the connection: a browser would otherwise reconnect on it, to the edge that is
    # about to stop.
    rest = await asyncio.wait_for(reader.read(), WAIT_S)
    assert rest.endswith(b"\r\n0\r\n\r\n")
    await draining
    writer.close()
    await writer.wait_closed()


async def test_no_stream_is_opened_and_nothing_is_begun(
    serve: Serve, bus: Bus, run: PretendRun
) -> None:
    edge = await serve()
    await run.started()
    await edge.draining(grace_s=0)
    before = (await bus.api(f"STREAM.INFO.{COMMANDS}"))["state"]["last_seq"]
    for method, path, request in STREAMS:
        answer = await edge.http.request(method, path.format(run_id=run.run_id), **request)
        assert answer.status_code == 503, (path, answer.text)
        assert 1 <= int(answer.headers["retry-after"]) <= 5
        assert "about to stop" in answer.text
    assert (await bus.api(f"STREAM.INFO.{COMMANDS}"))["state"]["last_seq"] == before


async def test_what_is_no_stream_is_answered_to_the_end(serve: Serve, run: PretendRun) -> None:
    edge = await serve()
    await run.started()
    await edge.draining(grace_s=0)
    assert (await edge.http.get(f"/v1/runs/{run.run_id}")).status_code == 200
    page = await edge.http.get(
        f"/v1/runs/{run.run_id}/events", headers={"accept": "application/json"}
    )
    assert len(page.json()["events"]) == 1
    started = await edge.http.post("/v1/runs", json={"agent": "assistant", "message": "Hello"})
    assert started.status_code == 202  # the start is on the bus, where another service takes it


async def test_a_leg_by_post_is_kept_to_its_end_and_told_nothing(serve: Serve, bus: Bus) -> None:
    edge = await serve()
    async with Stream(edge.http, "POST", "/run_sse", json=ADK) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.raw("open", {})
        await run.raw("bytes", b'data: {"a": 1}\n\n')
        await stream.frame()
        draining = edge.draining(grace_s=20)
        await run.raw("bytes", b'data: {"a": 2}\n\n')
        await stream.frame()
        assert not draining.done()
        await run.raw("end", {"outcome": "eof"})
        await stream.rest()
        await asyncio.wait_for(draining, WAIT_S)
    assert stream.body == b'data: {"a": 1}\n\ndata: {"a": 2}\n\n'


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/run_sse", ADK, b"STREAM_ERROR"),
        ("/agui/assistant", AGUI, b"stream_interrupted"),
        ("/agents/assistant/runs", {"message": "?", "stream": True}, b"RunError"),
    ],
)
async def test_a_leg_that_outlasts_the_grace_does_not_look_like_one_that_ended(
    serve: Serve, path: str, body: dict[str, Any], words: bytes
) -> None:
    edge = await serve()
    if path == "/agui/assistant":
        body = body | {"threadId": str(uuid.uuid4())}
    async with Stream(edge.http, "POST", path, json=body) as stream:
        await edge.draining(grace_s=0.2)
        await edge.service.stop()
        await stream.rest()
    assert words in stream.body
    assert b"retry:" not in stream.body


async def test_a_stream_by_post_that_outlasts_the_grace_ends_without_a_terminal_event(
    serve: Serve, bus: Bus
) -> None:
    edge = await serve()
    path, body = STREAMS[5][1], STREAMS[5][2]["json"]
    async with Stream(edge.http, "POST", path, json=body) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await edge.draining(grace_s=0.2)
        await edge.service.stop()
        told = await stream.rest()
    assert [frame.event for frame in told] == ["lifecycle.started"]
    assert "lifecycle.started" not in TERMINAL


async def closed(connection: Any) -> ConnectionClosed:
    async with asyncio.timeout(WAIT_S):
        try:
            while True:
                await connection.recv()
        except ConnectionClosed as error:
            return error


def socket_of(edge: Served, session_id: str, **query: str) -> str:
    params = "&".join(f"{name}={value}" for name, value in query.items())
    base = f"ws://127.0.0.1:{edge.http.base_url.port}"
    return f"{base}/v1/sessions/{session_id}/events/ws?{params}"


async def test_a_websocket_is_closed_as_restarting_and_continues_elsewhere(
    serve: Serve, bus: Bus
) -> None:
    first, second = await serve(), await serve()
    run = PretendRun(bus, session_id=str(uuid.uuid4()))
    await run.join()
    await run.started()
    async with connect(socket_of(first, run.session_id, cursors="on"), proxy=None) as connection:
        assert orjson.loads(await connection.recv())["sequence"] == 1
        cursor = orjson.loads(await connection.recv())["cursor"]
        draining = first.draining(grace_s=0.5)
        error = await closed(connection)
        await draining
    assert error.rcvd is not None
    assert error.rcvd.code == 1012
    await run.text("a")
    with pytest.raises(InvalidStatus) as refused:
        await connect(socket_of(first, run.session_id), proxy=None)
    assert refused.value.response.status_code == 503
    assert "retry-after" in refused.value.response.headers
    async with connect(socket_of(second, run.session_id, after=cursor), proxy=None) as connection:
        assert orjson.loads(await connection.recv())["sequence"] == 2


async def test_a_client_that_waits_for_a_run_is_asked_to_reconnect_elsewhere(serve: Serve) -> None:
    edge = await serve()
    path = f"/apps/assistant/users/ann/sessions/{uuid.uuid4()}/run"
    async with Stream(edge.http, "GET", path) as stream:
        draining = edge.draining(grace_s=0.5)
        await stream.rest()
        await draining
    assert re.fullmatch(rb"retry: \d+\n\n", stream.body)


async def test_a_client_without_events_reconnects_at_the_time_of_its_first_connection(
    serve: Serve, bus: Bus, run: PretendRun
) -> None:
    first, second = await serve(), await serve()
    await run.started()
    async with Stream(first.http, "GET", "/v1/events", params={"subjects": "custom.*"}) as stream:
        draining = first.draining(grace_s=0.5)
        assert not await stream.rest()
        await draining
    (cursor,) = re.findall(rb"^id: (\S+)$", stream.body, re.MULTILINE)
    name = str(uuid.uuid4())
    await run.say("custom.event", name=name, value=1)  # while the client is disconnected
    async with Stream(
        second.http,
        "GET",
        "/v1/events",
        params={"subjects": "custom.*"},
        headers={"last-event-id": cursor.decode()},
    ) as stream:
        await stream.until(name.encode())


# by age ----------------------------------------------------------------------------------------


async def test_a_stream_that_has_become_old_is_ended_and_continues_where_it_was(
    make_edge: MakeEdge, run: PretendRun
) -> None:
    edge = await make_edge(max_connection_age_s=0.3, keep_alive_s=0.3)
    await run.started()
    told: list[Frame] = []
    endings = 0

    async def speak() -> None:
        for number in range(15):
            await run.text(str(number))
            await asyncio.sleep(0.1)
        await run.completed()

    speaking = asyncio.create_task(speak())
    while not told or told[-1].event != "lifecycle.completed":
        headers = {"last-event-id": told[-1].id or ""} if told else {}
        path = f"/v1/runs/{run.run_id}/events"
        async with Stream(edge, "GET", path, headers=headers) as stream:
            told += await stream.rest()
        endings += b"\nretry: " in b"\n" + stream.body
    await speaking
    assert endings >= 2
    assert numbers(told) == list(range(1, 18))


async def test_neither_a_leg_nor_a_socket_without_cursors_becomes_too_old(
    make_edge: MakeEdge, bus: Bus, run: PretendRun
) -> None:
    edge = await make_edge(max_connection_age_s=0.1, keep_alive_s=0.1)
    base = f"ws://127.0.0.1:{edge.base_url.port}/v1/sessions/{uuid.uuid4()}/events/ws"
    async with (
        Stream(edge, "POST", "/run_sse", json=ADK) as leg,
        connect(base, proxy=None) as socket,
        connect(f"{base}?cursors=on", proxy=None) as old,
    ):
        # This connection is the youngest, so the other two are at least as old.
        error = await closed(old)
        playing = PretendRun(bus, leg.run_id)
        await playing.leg(b'data: {"a": 1}\n\n')
        assert [frame.data for frame in await leg.rest()] == [b'{"a": 1}']
        await socket.ping()
    assert error.rcvd is not None
    assert error.rcvd.code == 1001
    assert leg.body == b'data: {"a": 1}\n\n'


# how many --------------------------------------------------------------------------------------


async def test_more_streams_than_there_may_be_are_refused_until_one_leaves(
    make_edge: MakeEdge, run: PretendRun
) -> None:
    edge = await make_edge(max_streams=2, hub_grace_s=0)
    await run.started()
    path = f"/v1/runs/{run.run_id}/events"
    async with Stream(edge, "GET", path) as one, Stream(edge, "GET", path) as two:
        await one.frame()
        await two.frame()
        refused = await edge.get(path)
        assert refused.status_code == 503
        assert "2 streams" in refused.json()["detail"]
        assert "retry-after" in refused.headers
        assert (await edge.get(f"/v1/runs/{run.run_id}")).status_code == 200

    async def let_in() -> bool:
        async with Stream(edge, "GET", path) as stream:
            return stream.response.status_code == 200

    await eventually(let_in)
