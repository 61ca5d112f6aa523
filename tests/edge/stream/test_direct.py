"""Events are written straight to the connection of a server that was tried, else by ASGI."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from penstock.web.protocol import HttpProtocol
from penstock_edge.stream import direct_write
from penstock_edge.stream.client import Client
from penstock_edge.stream.ring import http_chunk
from support.drive.clients import WAIT_S, MakeEdge, Stream
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the types of all messages that the server's ASGI `send` gets."""
    seen: list[str] = []
    send = RequestResponseCycle.send

    async def counted(self: RequestResponseCycle, message: Any) -> None:
        seen.append(message["type"])
        await send(self, message)

    monkeypatch.setattr(RequestResponseCycle, "send", counted)
    return seen


async def play(make_edge: MakeEdge, run: PretendRun, sends: list[str]) -> tuple[bytes, int]:
    """Play a run; return the stream's body, and how many sends its live events took."""
    edge = await make_edge()
    await run.started()
    async with Stream(edge, "GET", f"/v1/runs/{run.run_id}/events") as stream:
        await stream.frame()
        before = len(sends)
        for piece in ("a", "é\u2028", "c" * 70_000):
            await run.text(piece)
            await stream.frame()
        count = len(sends) - before
        await run.completed()
        await stream.rest()
    return stream.body, count


def test_the_server_that_is_installed_was_tried() -> None:
    assert direct_write.is_tried()


async def test_live_events_take_no_turn_of_the_clients_task(
    make_edge: MakeEdge, run: PretendRun, sends: list[str]
) -> None:
    body, count = await play(make_edge, run, sends)
    assert count == 0
    assert body.count(b"event: ") == 5


async def test_another_server_gets_the_same_bytes_by_asgi(
    make_edge: MakeEdge, run: PretendRun, sends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_write, "TRIED", ("0.1.",))
    body, count = await play(make_edge, run, sends)
    assert count == 3
    assert body.count(b"event: ") == 5


@pytest.mark.parametrize("leaves", [True, False], ids=["the client leaves", "the run ends"])
async def test_a_stream_that_is_over_is_freed_without_the_garbage_collector(
    make_edge: MakeEdge, run: PretendRun, leaves: bool
) -> None:
    """A full collection, which would free the stream otherwise, comes only once an hour."""

    def present() -> int:
        return sum(isinstance(each, Client | direct_write.Direct) for each in gc.get_objects())

    gc.collect()
    before = present()
    edge = await make_edge()
    await run.started()
    gc.disable()
    try:
        async with Stream(edge, "GET", f"/v1/runs/{run.run_id}/events") as stream:
            await stream.frame()
            await run.text("a")
            await stream.frame()
            assert present() == before + 2
            if not leaves:
                await run.completed()
                await stream.rest()

        async def freed() -> bool:
            return present() == before

        await eventually(freed)
    finally:
        gc.enable()


def protocols() -> list[HttpProtocol]:
    return [each for each in gc.get_objects() if isinstance(each, HttpProtocol)]


async def test_an_open_stream_keeps_nothing_that_only_a_request_needs(
    make_edge: MakeEdge, run: PretendRun
) -> None:
    """An `asyncio.Event` takes 816 bytes, a scope 3 KB, an empty deque 760 bytes, and a dictionary
    with names of its own 1 KB, of the 7 KB that an idle stream may take."""
    edge = await make_edge()
    await run.started()
    path = f"/v1/runs/{run.run_id}/events"
    async with Stream(edge, "GET", path) as one, Stream(edge, "GET", path) as other:
        await one.frame()
        await other.frame()
        open_ = [each for each in protocols() if each.stream is not None]
        assert len(open_) >= 2
        flows = {id(each.flow._is_writable_event) for each in open_}
        assert {id(each.cycle.message_event) for each in open_} == flows
        assert len(flows) == 1
        for each in open_:
            assert not each.scope
            assert not each.cycle.scope
            assert sys.getsizeof(each.pipeline) < 100
            assert len(vars(each)) <= 30
        await run.completed()
        await one.rest()
        await other.rest()
    assert len({id(each.flow._is_writable_event) for each in open_}) == len(open_)
    assert all(each.flow._is_writable_event.is_set() for each in open_)


async def test_requests_that_wait_behind_a_stream_are_answered_in_order(
    make_edge: MakeEdge, run: PretendRun
) -> None:
    edge = await make_edge()
    await run.started()
    reader, writer = await asyncio.open_connection(edge.base_url.host, edge.base_url.port)
    paths = [f"/v1/runs/{run.run_id}/events", "/first", "/second", f"/v1/runs/{run.run_id}/events"]

    def asked(path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    async with asyncio.timeout(WAIT_S):
        writer.write(asked(paths[0]))
        await reader.readuntil(b"event: lifecycle.started")
        writer.write(b"".join(map(asked, paths[1:])))
        await run.completed()
        assert b" 404 " in await reader.readuntil(b"/first")
        assert b" 404 " in await reader.readuntil(b"/second")
        assert b" 200 " in await reader.readuntil(b"event: lifecycle.completed")
        await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.close()
    await writer.wait_closed()


def test_a_server_that_is_not_uvicorn_is_written_to_by_asgi() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    assert direct_write.cycle_of(receive) is None


def test_a_chunk_is_its_length_in_hex_and_its_bytes() -> None:
    assert http_chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"
