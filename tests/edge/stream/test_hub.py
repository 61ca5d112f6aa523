"""What the clients of a run share, and what happens to clients that do not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from penstock.bus import Bus, BusSettings
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.locate import locate, start_of_new_run
from penstock_edge.stream import direct_write
from penstock_edge.stream.client import Client as Reader
from penstock_edge.stream.hubs import Hubs
from penstock_edge.surfaces.adk.views import upstream_leg_view
from penstock_edge.views.cursor import StreamSequence
from penstock_edge.views.dialects import run_view
from support.drive.clients import MakeEdge, Stream
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer


@pytest.fixture
async def hubs(bus: Bus) -> AsyncIterator[Hubs]:
    hubs = Hubs(bus, EdgeSettings(hub_grace_s=0.05))
    yield hubs
    await hubs.close()


async def join(hubs: Hubs, bus: Bus, run: PretendRun, dialect: str = "canonical") -> Reader:
    seen = run_view(run.run_id, dialect)
    return await hubs.join(seen, await locate(bus, seen, None))


async def test_clients_of_a_run_and_dialect_share_one_reading_and_the_same_bytes(
    hubs: Hubs, bus: Bus, run: PretendRun
) -> None:
    await run.started()
    first, second = await join(hubs, bus, run), await join(hubs, bus, run)
    other = await join(hubs, bus, run, "executions")
    assert first.hub is second.hub
    assert first.hub is not other.hub
    assert await first.take() is await second.take()


async def test_what_is_pending_goes_out_in_one_write(hubs: Hubs, bus: Bus, run: PretendRun) -> None:
    await run.started()
    reader = await join(hubs, bus, run)
    await reader.take()
    await run.text("a", "b", "c")

    async def all_there() -> bool:
        return reader.hub.ring.position(StreamSequence(run.places[-1] + 1)) == 4

    await eventually(all_there)
    body = await reader.take()
    assert body is not None
    assert body.count(b"\n\n") == 3


async def test_a_hub_is_closed_when_its_last_client_has_left_for_a_while(
    hubs: Hubs, bus: Bus, run: PretendRun
) -> None:
    await run.started()
    reader = await join(hubs, bus, run)
    reader.leave()

    async def another() -> bool:
        new = await join(hubs, bus, run)
        new.leave()
        return new.hub is not reader.hub

    assert await eventually(another)
    assert reader.hub.is_closed


async def test_closing_the_edge_ends_every_stream(hubs: Hubs, bus: Bus, run: PretendRun) -> None:
    await run.started()
    reader = await join(hubs, bus, run)
    await reader.take()
    waiting = asyncio.create_task(reader.take())
    await hubs.close()
    assert await waiting is None


async def test_closing_the_edge_is_no_silent_end_where_nobody_can_come_back(
    hubs: Hubs, bus: Bus, run: PretendRun
) -> None:
    place = await start_of_new_run(bus, 0, frames=True)
    reader = await hubs.join(upstream_leg_view(run.run_id, 1, 300), place)
    await run.raw("open", {})
    await run.raw("bytes", b"data: 1\n\ndata: 2")
    assert await reader.take() == b"data: 1\n\ndata: 2"
    await hubs.close()
    last = await reader.take()
    assert last is not None
    assert last.startswith(b'\n\ndata: {"error":"The stream was interrupted')
    assert await reader.take() is None


@pytest.mark.parametrize("surface", ["leg", "raw", "canonical"])
async def test_a_client_whose_items_the_ring_evicted_still_gets_every_byte(
    bus: Bus, run: PretendRun, surface: str
) -> None:
    hubs = Hubs(bus, EdgeSettings(ring_bytes=500))
    seen = (
        upstream_leg_view(run.run_id, 1, 300) if surface == "leg" else run_view(run.run_id, surface)
    )
    reader = await hubs.join(seen, await start_of_new_run(bus, 0, frames=seen.reads_frames))
    whole = await hubs.join(seen, await start_of_new_run(bus, 0, frames=seen.reads_frames))
    await run.started()
    await run.raw("open", {})
    bodies = [bytes([65 + number]) * 100 for number in range(20)]
    begun = b""

    async def fast() -> bytes:
        got = b""
        while body := await whole.take():
            got += body
        return got

    reading = asyncio.create_task(fast())
    for number, body in enumerate(bodies):
        await run.raw("bytes", b"data: " + body[:50])
        await run.raw("bytes", body[50:] + b"\n\n")
        await run.text(body.decode())
        if number == 3:
            begun = await reader.take() or b""
    await run.raw("end", {"outcome": "eof"})
    await run.completed()
    expected = await reading
    assert reader.hub.ring.base > 10
    while more := await reader.take():
        begun += more
    await hubs.close()
    assert begun == expected
    assert all(body in expected for body in bodies)


async def test_a_message_that_is_no_event_becomes_a_notice(
    hubs: Hubs, bus: Bus, run: PretendRun
) -> None:
    await run.started()
    reader = await join(hubs, bus, run)
    await reader.take()
    await bus.client.publish(
        f"llm.stream.{run.run_id}", b"no json", headers={"Penstock-Sequence": "2"}
    )
    body = await reader.take()
    assert body is not None
    assert b'"code":"unreadable_event"' in body
    assert b"id:" not in body


def slow_clients() -> float:
    return REGISTRY.get_sample_value("penstock_slow_clients_total") or 0.0


@pytest.mark.parametrize("tried", [direct_write.TRIED, ("0.1.",)], ids=["direct", "ASGI"])
async def test_a_client_that_does_not_read_gets_a_reason_and_is_dropped_and_the_others_continue(
    make_edge: MakeEdge, run: PretendRun, monkeypatch: pytest.MonkeyPatch, tried: tuple[str, ...]
) -> None:
    monkeypatch.setattr(direct_write, "TRIED", tried)
    edge = await make_edge(keep_alive_s=0.6, max_pending_bytes=100_000, ring_bytes=1_000_000)
    before = slow_clients()
    await run.started()
    path = f"/v1/runs/{run.run_id}/events"
    async with Stream(edge, "GET", path) as reader:
        await reader.frame()
        loop = asyncio.get_running_loop()
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.setblocking(False)
        await loop.sock_connect(lazy, (edge.base_url.host, edge.base_url.port))
        await loop.sock_sendall(lazy, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

        async def one_more() -> bool:
            await run.text("x" * 200_000)
            await reader.frame()
            return slow_clients() > before

        await eventually(one_more, timeout_s=30)
        body = b""
        while piece := await asyncio.wait_for(loop.sock_recv(lazy, 1 << 20), 30):
            body += piece
            if b"dropped: this connection reads too slowly" in body:
                break
        lazy.close()
        await run.completed()
        assert (await reader.rest())[-1].event == "lifecycle.completed"
    assert b"dropped: this connection reads too slowly" in body


@pytest.mark.parametrize(
    "away_s", [2, pytest.param(60, marks=[pytest.mark.chaos, pytest.mark.timeout(180)])]
)
async def test_a_lost_nats_server_is_503_and_open_streams_are_kept_and_continue_after_it(
    fresh_nats: NatsServer, make_edge: MakeEdge, away_s: float
) -> None:
    edge = await make_edge(nats=fresh_nats, keep_alive_s=0.6)
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    run = PretendRun(bus)
    await run.record()
    await run.started()
    path = f"/v1/runs/{run.run_id}/events"
    session = "/apps/assistant/users/ann/sessions/s9/run"  # a session that has no run yet
    async with Stream(edge, "GET", path) as stream, Stream(edge, "GET", session) as waiting:
        await stream.frame()
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(fresh_nats.stop)
        back_at = loop.time() + away_s

        async def refused() -> bool:
            return (await edge.get(f"/v1/runs/{run.run_id}")).status_code == 503

        await eventually(refused)
        asked_at = loop.time()
        trigger = await edge.post(
            "/api/service/v1/executions/trigger", json={"topologyId": 123, "userMessage": "hi"}
        )
        assert trigger.json()["code"] == "UNAVAILABLE"
        assert "retry-after" in trigger.headers
        assert loop.time() - asked_at < 1
        while loop.time() < back_at:
            for kept in (stream, waiting):
                kept.body = b""
                await kept.until(b": keep-alive\n\n")
        await asyncio.to_thread(fresh_nats.start)

        async def back() -> bool:
            return bus.is_ready and (await edge.get(f"/v1/runs/{run.run_id}")).status_code == 200

        await eventually(back, timeout_s=30)
        await run.text("a")
        await run.completed()
        assert [frame.event for frame in await stream.rest()] == [
            "llm.stream",
            "lifecycle.completed",
        ]
        answer = await edge.post(session, json={"query": "hi"})
        begun = PretendRun(bus, answer.headers["penstock-run-id"], "s9")
        await begun.started()
        assert (await waiting.frame()).event == "agent_status"
    await bus.close()
