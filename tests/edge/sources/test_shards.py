"""Streams over several shards: each event once, in the order of its run, with resumable cursors."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest

from penstock import telemetry
from penstock.bus import Bus, subjects
from penstock.bus.admin.migrate import reshard
from penstock.bus.shards import new_run_id
from penstock.bus.state import recovery
from penstock.bus.streams import Retention
from penstock.sse import Frame
from penstock_edge.views.cursor import BEFORE_ALL, Cursor, ShardCursor
from support.drive.bus import connected
from support.drive.clients import Client, MakeEdge, Stream
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer

SHARDS = 3
PATH = "/v1/events"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the edges learn of new shards within 0.2 s."""
    monkeypatch.setattr(recovery, "LEARN_S", 0.2)


@pytest.fixture
async def bus(fresh_nats: NatsServer) -> AsyncIterator[Bus]:
    async with connected(fresh_nats.url, retention=Retention(shards=SHARDS)) as bus:
        yield bus


@pytest.fixture
async def edge(bus: Bus, fresh_nats: NatsServer, make_edge: MakeEdge) -> Client:
    return await make_edge(fresh_nats)


@pytest.fixture
async def runs(bus: Bus) -> list[PretendRun]:
    """Return two runs in each shard, with their records."""
    runs = [PretendRun(bus, new_run_id(n % SHARDS, time.time())) for n in range(2 * SHARDS)]
    for run in runs:
        await run.record()
    return runs


async def play(runs: Sequence[PretendRun], *words: str) -> int:
    """Play the runs so that their events alternate; return the number of events."""
    for run in runs:
        await run.started()
    for word in words:
        for run in runs:
            await run.text(word)
    for run in runs:
        await run.completed()
    return len(runs) * (len(words) + 2)


async def frames_of(stream: Stream, count: int) -> list[Frame]:
    return [await stream.frame() for _ in range(count)]


async def first_cursor(stream: Stream) -> str:
    """Return the cursor that the stream sends before its first event."""
    await stream.until(b"\n\n")
    return stream.body.partition(b"id: ")[2].split(b"\n")[0].decode()


def numbers(frames: Sequence[Frame]) -> dict[str, list[int]]:
    """Return the sequences of each run, in the order of the stream."""
    found: dict[str, list[int]] = defaultdict(list)
    for frame in frames:
        event = orjson.loads(frame.data)
        found[event["run_id"]].append(event["sequence"])
    return found


def test_a_cursor_over_shards_is_read_as_it_is_written() -> None:
    for positions in ([Cursor(7, 0)], [BEFORE_ALL, Cursor(12, 3)], [Cursor(1, 0)] * 4):
        text = str(ShardCursor(list(positions)))
        assert ShardCursor.parse(text).positions == positions
    assert ShardCursor.parse("7-0").of(2) == BEFORE_ALL
    for text in ("", "0-0", "7", "7-0.", "7-0.x", "-1-0", "7-0.1-0-2"):
        with pytest.raises(ValueError, match="is no cursor"):
            ShardCursor.parse(text)


async def test_each_event_of_all_runs_comes_once_and_in_the_order_of_its_run(
    edge: Client, runs: list[PretendRun]
) -> None:
    async with Stream(edge, "GET", PATH) as stream:
        count = await play(runs, "one", "two", "three")
        found = numbers(await frames_of(stream, count))
    assert found == {run.run_id: [1, 2, 3, 4, 5] for run in runs}


async def test_a_client_that_was_cut_anywhere_gets_exactly_the_rest(
    edge: Client, runs: list[PretendRun]
) -> None:
    async with Stream(edge, "GET", PATH, params={"names": "off"}) as stream:
        cursor = await first_cursor(stream)
    count = await play(runs, "one", "two")
    whole = {run.run_id: [1, 2, 3, 4] for run in runs}
    got: list[Frame] = []
    for size in (1, 2, 5, 7, count - 15):
        async with Stream(edge, "GET", PATH, headers={"Last-Event-ID": cursor}) as stream:
            got += await frames_of(stream, size)
        cursor = got[-1].id or ""
    assert numbers(got) == whole


async def test_a_cursor_of_one_shard_continues_after_a_migration_with_all_events_of_new_shards(
    fresh_nats: NatsServer, make_edge: MakeEdge
) -> None:
    async with connected(fresh_nats.url) as bus:
        edge = await make_edge(fresh_nats)
        first = PretendRun(bus, new_run_id(0, time.time()))
        await first.record()
        async with Stream(edge, "GET", PATH) as stream:
            await first.started()
            before = await stream.frame()
        assert before.id == f"{first.places[0]}-0"
        await reshard(bus, 2, settle_s=0)
        second = PretendRun(bus, new_run_id(1, time.time()))
        await second.record()
        await play([second])
        await first.completed()

        async def knows() -> bool:
            body = (await edge.get(PATH, headers=PAGE, params={"after": before.id or ""})).json()
            return len(body["events"]) == 3

        await eventually(knows, 30, "the edge learns of the new shard")
        async with Stream(edge, "GET", PATH, headers={"Last-Event-ID": before.id or ""}) as stream:
            found = numbers(await frames_of(stream, 3))
        assert found == {first.run_id: [2], second.run_id: [1, 2]}


async def test_an_open_stream_ends_when_a_shard_is_added_and_its_client_misses_nothing(
    edge: Client, bus: Bus, runs: list[PretendRun]
) -> None:
    async with Stream(edge, "GET", PATH) as stream:
        await runs[0].started()
        last = (await stream.frame()).id
        await reshard(bus, SHARDS + 1, settle_s=0)
        assert await stream.rest() == []
        assert b"retry: " in stream.body
    added = PretendRun(bus, new_run_id(SHARDS, time.time()))
    await added.record()
    await added.started()
    async with Stream(edge, "GET", PATH, headers={"Last-Event-ID": last or ""}) as stream:
        assert numbers([await stream.frame()]) == {added.run_id: [1]}


PAGE = {"accept": "application/json"}


@pytest.mark.parametrize("limit", [1, 4, 1000])
async def test_pages_have_each_event_once(edge: Client, runs: list[PretendRun], limit: int) -> None:
    async with Stream(edge, "GET", PATH) as stream:
        cursor = await first_cursor(stream)
    count = await play(runs, "one")
    got: list[Any] = []
    while True:
        body = (await edge.get(PATH, headers=PAGE, params={"after": cursor, "limit": limit})).json()
        cursor = body["next"]
        got += body["events"]
        assert len(body["events"]) <= limit
        if len(got) >= count:
            break
    found = numbers([Frame(orjson.dumps(event)) for event in got])
    assert found == {run.run_id: [1, 2, 3] for run in runs}


async def test_the_live_marker_comes_once_after_the_history_of_all_shards(
    edge: Client, runs: list[PretendRun]
) -> None:
    async with Stream(edge, "GET", PATH) as stream:
        cursor = await first_cursor(stream)
    count = await play(runs)
    async with Stream(edge, "GET", PATH, params={"markers": "on", "after": cursor}) as stream:
        frames = await frames_of(stream, count + 1)
        await runs[0].say("automation.triggered", workflow="w", trigger="t")
        assert (await stream.frame()).event == "automation.triggered"
    assert [frame.event for frame in frames].index("penstock.live") == count


async def test_a_cursor_that_nats_has_lost_is_410_and_garbage_is_400(
    edge: Client, runs: list[PretendRun]
) -> None:
    await runs[0].started()
    assert (await edge.get(PATH, headers=PAGE, params={"after": "900-0.0-0"})).status_code == 410
    assert (await edge.get(PATH, headers=PAGE, params={"after": "1-0.x"})).status_code == 400
    beyond = ".".join(["0-0"] * SHARDS + ["4-0"])
    assert (await edge.get(PATH, headers=PAGE, params={"after": beyond})).status_code == 503


async def test_all_runs_of_a_session_are_in_one_shard_and_its_stream_has_them_all(
    edge: Client, bus: Bus
) -> None:
    async def start(session_id: str) -> str:
        body = {"agent": "assistant", "message": "Hi", "session_id": session_id}
        answer = await edge.post("/v1/runs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    of_sessions: dict[str, set[int]] = {}
    # A session's shard is chosen at random: with 40 sessions, one test in three million finds a
    # shard that no session uses.
    for number in range(40):
        session_id = f"session-{number}"
        ids = await asyncio.gather(*(start(session_id) for _ in range(3)))
        of_sessions[session_id] = {subjects.shard_of(run_id) for run_id in ids}
    assert all(len(shards) == 1 for shards in of_sessions.values())
    assert set.union(*of_sessions.values()) == set(range(SHARDS)), "all shards are used"
    for number in range(SHARDS):
        session_id = next(name for name, found in of_sessions.items() if found == {number})
        run = PretendRun(bus, await start(session_id), session_id)
        async with Stream(edge, "GET", f"/v1/sessions/{session_id}/events") as stream:
            await run.join()
            await play([run])
            cursors = [(await stream.frame()).id for _ in range(2)]
        assert cursors == [f"{place}-0" for place in run.places]
        after = {"Last-Event-ID": cursors[0] or ""}
        path = f"/v1/sessions/{session_id}/events"
        async with Stream(edge, "GET", path, headers=after) as stream:
            assert (await stream.frame()).id == cursors[1]


async def test_a_session_of_before_the_shards_stays_in_its_shard(
    fresh_nats: NatsServer, make_edge: MakeEdge
) -> None:
    async with connected(fresh_nats.url) as bus:
        edge = await make_edge(fresh_nats)
        old = PretendRun(bus, new_run_id(0, time.time()), "old session")
        await old.join()
        await reshard(bus, 8, settle_s=0)
        body = {"agent": "assistant", "message": "Hi"}

        async def used() -> bool:
            answer = await edge.post("/v1/runs", json=body)
            return subjects.shard_of(answer.json()["run_id"]) > 0

        await eventually(used, 30, "new sessions use the new shards")
        for _ in range(5):
            answer = await edge.post("/v1/runs", json={**body, "session_id": "old session"})
            assert subjects.shard_of(answer.json()["run_id"]) == 0


async def test_the_session_of_a_run_that_named_none_keeps_its_shard(edge: Client) -> None:
    body = {"agent": "assistant", "message": "Hi"}
    for _ in range(6):
        first = (await edge.post("/v1/runs", json=body)).json()
        again = {**body, "session_id": first["session_id"]}
        second = (await edge.post("/v1/runs", json=again)).json()
        assert subjects.shard_of(first["run_id"]) == subjects.shard_of(second["run_id"])


async def test_a_client_of_all_shards_that_does_not_read_is_dropped_once(
    fresh_nats: NatsServer,
    bus: Bus,
    make_edge: MakeEdge,
    runs: list[PretendRun],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Other tests of this process may have left open streams in the metric, when they closed an edge
    # with clients. So the test compares with the count before it.
    open_streams = telemetry.CLIENTS.labels("canonical")._value
    before = open_streams.get()
    edge = await make_edge(
        fresh_nats, write_timeout_s=1.0, keep_alive_s=0.6, max_pending_bytes=10**9
    )
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.connect((edge.base_url.host, edge.base_url.port))
        idle.sendall(
            f"GET {PATH} HTTP/1.1\r\nhost: {edge.base_url.netloc.decode()}\r\n\r\n".encode()
        )
        async with Stream(edge, "GET", PATH) as stream:
            await first_cursor(stream)
        for _ in range(20):
            await asyncio.gather(*(run.text("x" * 100_000) for run in runs))
        said = "a client is dropped"
        await eventually(lambda: asyncio.sleep(0, said in caplog.text), 30, said)
        left = "all clients of this test have left"
        await eventually(lambda: asyncio.sleep(0, open_streams.get() == before), 30, left)
    assert caplog.text.count(said) == 1
