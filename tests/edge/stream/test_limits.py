"""How much an edge keeps for its clients, and what happens to clients that do not read."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import subprocess
import sys
import uuid

import orjson
import pytest
from prometheus_client import REGISTRY

from penstock.bus import Bus
from penstock.web.server import raise_file_limit
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.locate import locate
from penstock_edge.stream.client import Client as Reader
from penstock_edge.stream.hubs import Hubs
from penstock_edge.stream.open_streams import OTHER_FILES, OpenStreams
from penstock_edge.stream.ring import EvictableHub, RingBudget
from penstock_edge.views.dialects import run_view
from support.drive.clients import Client, MakeEdge
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun

KIB = 1024


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


# the rings together ------------------------------------------------------------------------------


async def join(hubs: Hubs, bus: Bus, run: PretendRun, dialect: str) -> Reader:
    seen = run_view(run.run_id, dialect)
    return await hubs.join(seen, await locate(bus, seen, None))


async def whole(reader: Reader) -> bytes:
    body = b""
    while piece := await reader.take():
        body += piece
    return body


@pytest.mark.parametrize("dialect", ["canonical", "adk", "raw"])
async def test_all_rings_together_stay_within_their_limit_and_nobody_misses_anything(
    bus: Bus, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 200 * KIB
    held: list[int] = []  # by all rings together, after each item
    hold = RingBudget.hold

    def held_after(budget: RingBudget, hub: EvictableHub, held_bytes: int) -> None:
        hold(budget, hub, held_bytes)
        held.append(budget.held_bytes)

    monkeypatch.setattr(RingBudget, "hold", held_after)
    hubs = Hubs(bus, EdgeSettings(max_ring_bytes=limit))
    runs = [PretendRun(bus) for _ in range(8)]
    readers = []
    for run in runs:
        await run.record()
        await run.started()
        await run.raw("open", {})
        readers.append(await join(hubs, bus, run, dialect))
    for letter in "abcdefgh":
        for run in runs:
            await run.text(letter * 8 * KIB)
            await run.raw("bytes", b"data: %b\n\n" % (letter.encode() * 8 * KIB))
    for run in runs:
        await run.raw("end", {"outcome": "eof"})
        await run.completed()

    async def all_ended() -> bool:
        return all(reader.hub.is_closed for reader in readers)

    await eventually(all_ended)
    # No client has read so far. The rings have given up older frames, so the clients read these
    # from the stream.
    told = [await whole(reader) for reader in readers]
    assert limit / 2 < max(held) <= limit
    assert metric("penstock_ring_bytes") <= limit
    for body in told:
        assert all(letter * 8 * KIB in body for letter in (b"a", b"d", b"h"))
    late = [await whole(await join(hubs, bus, run, dialect)) for run in runs]
    assert late == told
    await hubs.close()
    assert metric("penstock_ring_bytes") == 0


class Kept:
    """A hub whose ring keeps its last item, which has `kept_bytes`."""

    def __init__(self, flush_at: float, kept_bytes: int) -> None:
        self.flush_at = flush_at
        self.evictions = 0
        self._kept_bytes = kept_bytes

    def evict_all(self) -> int:
        self.evictions += 1
        return self._kept_bytes


def test_the_rings_that_are_emptied_first_have_had_no_new_items_for_the_longest_time() -> None:
    budget = RingBudget(100)
    old, newer = Kept(1.0, 0), Kept(2.0, 0)
    budget.hold(newer, 60)
    budget.hold(old, 30)
    budget.hold(newer, 80)
    assert (old.evictions, newer.evictions, budget.held_bytes) == (1, 0, 80)


def test_rings_that_cannot_be_emptied_are_not_tried_for_each_event_and_the_limit_holds_again() -> (
    None
):
    budget = RingBudget(100)
    large, small = Kept(1.0, 120), Kept(2.0, 0)
    budget.hold(large, 130)
    for held_bytes in range(1, 11):
        budget.hold(small, held_bytes)
    assert (large.evictions, small.evictions) == (1, 0)
    budget.forget(large)
    budget.hold(small, 101)
    assert (small.evictions, budget.held_bytes) == (1, 0)
    budget.forget(small)


# clients that do not read ------------------------------------------------------------------------


async def lazy(edge: Client, request: bytes) -> socket.socket:
    """Open a connection that requests a stream and never reads."""
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await loop.sock_connect(connection, (edge.base_url.host, edge.base_url.port))
    await loop.sock_sendall(connection, request)
    return connection


async def rest(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    body = b""
    while piece := await asyncio.wait_for(loop.sock_recv(connection, 1 << 20), 30):
        body += piece
    connection.close()
    return body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


async def dropped_after(before: float) -> None:
    async def dropped() -> bool:
        return metric("penstock_slow_clients_total") > before

    await eventually(dropped, 30, "the client is dropped")


@pytest.mark.parametrize("dialect", ["canonical", "adk"])
async def test_a_client_that_replays_without_reading_gets_one_piece_and_is_dropped_in_time(
    make_edge: MakeEdge, run: PretendRun, caplog: pytest.LogCaptureFixture, dialect: str
) -> None:
    # The ring keeps only 100 KB, so the client's events must be read from the stream.
    edge = await make_edge(keep_alive_s=0.3, write_timeout_s=0.6, ring_bytes=100_000)
    await run.started()
    for _ in range(100):
        await run.text("x" * 200_000)
    before = metric("penstock_slow_clients_total")
    given = metric("penstock_delivered_total", dialect=dialect)
    with caplog.at_level(logging.WARNING):
        path = f"/v1/runs/{run.run_id}/events?dialect={dialect}"
        connection = await lazy(edge, get(path))
        await dropped_after(before)
    # The stream has 20 MB. The edge read only enough to fill the kernel's buffers and one piece.
    assert metric("penstock_delivered_total", dialect=dialect) - given < 60
    assert any(run.run_id in message and "dropped" in message for message in caplog.messages)
    body = await rest(connection)
    assert b"lifecycle.completed" not in body


async def test_a_leg_by_post_that_nobody_reads_is_dropped_in_time_and_not_as_ended(
    make_edge: MakeEdge, bus: Bus
) -> None:
    edge = await make_edge(keep_alive_s=0.3, write_timeout_s=0.6)
    session_id = str(uuid.uuid4())
    asked = {
        "threadId": session_id,
        "runId": "r1",
        "messages": [{"id": "m1", "role": "user", "content": "Hello"}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }
    body = orjson.dumps(asked)
    head = (
        "POST /agui/assistant HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    before = metric("penstock_slow_clients_total")
    connection = await lazy(edge, head.encode() + body)

    async def started() -> str | None:
        runs = (await edge.get("/v1/runs", params={"session_id": session_id})).json()
        return runs["runs"][0]["run_id"] if runs["runs"] else None

    run = PretendRun(bus, await eventually(started), session_id)
    await run.started()
    for _ in range(60):
        await run.text("x" * 200_000)
    await run.completed()
    await dropped_after(before)
    told = await rest(connection)
    assert b"RUN_STARTED" in told
    assert b"RUN_FINISHED" not in told


# files -------------------------------------------------------------------------------------------


def test_a_process_may_open_as_many_files_as_the_system_lets_it() -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 3000))\n"
        "from penstock.web.server import raise_file_limit\n"
        "print(raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert shown.stdout.split() == [b"3000", b"3000", b"3000"]


def test_the_limit_of_this_process_is_not_lowered() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_file_limit() >= before[0]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == before[1]


def test_streams_are_as_many_as_files_and_a_warning_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    streams = OpenStreams(max_streams=12_000, max_age_s=0)
    with caplog.at_level(logging.WARNING):
        streams.fit(100_000)
        assert not caplog.messages
        streams.fit(4096)
    assert streams.max_streams == 4096 - OTHER_FILES
    (message,) = caplog.messages
    assert f"ulimit -Hn) to {12_000 + OTHER_FILES}" in message
