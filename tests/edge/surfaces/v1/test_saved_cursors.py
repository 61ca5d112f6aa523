"""A client that keeps no cursor goes on where it was, by a cursor that the edge keeps."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import orjson
import pytest

from penstock.bus import Bus
from penstock.bus.shards import new_run_id
from penstock.bus.streams import Retention
from penstock_edge.stream import saved_cursors
from support.drive.bus import connected
from support.drive.clients import Client, MakeEdge, Stream
from support.drive.secured import bearer, secured
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer

SETTLE_S = 0.3
SUBJECTS = "llm.stream"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_cursors, "CHECK_S", 0.05)


@pytest.fixture
async def bus(fresh_nats: NatsServer) -> AsyncIterator[Bus]:
    async with connected(fresh_nats.url) as bus:
        yield bus


def follow(edge: Client, cursor: str = "n8n", after: str = "", **query: str) -> Stream:
    """Open the stream as an EventSource does: it sends `Last-Event-ID` only when it reconnects."""
    headers = {"last-event-id": after} if after else {}
    query = {"subjects": SUBJECTS, "cursor": cursor, **query}
    return Stream(edge, "GET", "/v1/events", params=query, headers=headers)


async def texts(stream: Stream, count: int) -> list[str]:
    return [(await stream.event())["data"]["content"] for _ in range(count)]


async def saved(bus: Bus) -> dict[str, str]:
    """Return the saved position of each cursor, by its name."""
    entries = await bus.bucket("cursors").entries()
    return {entry.key.partition(".")[2]: orjson.loads(entry.value)["cursor"] for entry in entries}


async def settled(bus: Bus, run: PretendRun, cursor: str = "n8n") -> None:
    """Wait until the run's newest event counts as received."""

    async def reached() -> bool:
        return (await saved(bus)).get(cursor, "").startswith(f"{run.places[-1]}-")

    await eventually(reached, 30, "the position is saved")


async def live(bus: Bus, run_id: str = "") -> PretendRun:
    run = PretendRun(bus, run_id)
    await run.record()
    await run.started()
    return run


async def test_a_client_that_restarts_misses_nothing_and_repeats_nothing_that_has_settled(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus
) -> None:
    edge = await make_edge(fresh_nats, cursor_settle_s=SETTLE_S)
    run = await live(bus)
    async with follow(edge) as stream:
        await run.text("a", "b")
        assert await texts(stream, 2) == ["a", "b"]
        await settled(bus, run)
    await run.text("c", "d")
    async with follow(await make_edge(fresh_nats, cursor_settle_s=SETTLE_S)) as stream:
        await run.text("e")
        assert await texts(stream, 3) == ["c", "d", "e"]


async def test_what_has_not_settled_comes_once_more(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus
) -> None:
    edge = await make_edge(fresh_nats, cursor_settle_s=60)
    run = await live(bus)
    async with follow(edge) as stream:
        await run.text("a", "b")
        assert await texts(stream, 2) == ["a", "b"]
    async with follow(edge) as stream:
        assert await texts(stream, 2) == ["a", "b"]


async def test_a_client_that_leaves_before_the_first_event_gets_it_when_it_reconnects(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus
) -> None:
    edge = await make_edge(fresh_nats, cursor_settle_s=SETTLE_S)
    async with follow(edge):
        pass
    run = await live(bus)
    await run.text("a")
    async with follow(edge) as stream:
        assert await texts(stream, 1) == ["a"]


async def test_a_new_cursor_begins_at_a_time_and_an_old_one_does_not_go_back_to_it(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus
) -> None:
    edge = await make_edge(fresh_nats, cursor_settle_s=SETTLE_S)
    run = await live(bus)
    await run.text("a")
    since = "2026-01-01T00:00:00Z"
    async with follow(edge, since=since) as stream:
        assert await texts(stream, 1) == ["a"]
        await settled(bus, run)
    await run.text("b")
    async with follow(edge, since=since) as stream:
        assert await texts(stream, 1) == ["b"]


async def test_the_clients_own_cursor_has_priority_and_is_saved(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus
) -> None:
    edge = await make_edge(fresh_nats, cursor_settle_s=60)
    run = await live(bus)
    async with follow(edge) as stream:
        await run.text("a", "b")
        confirmed = (await stream.frame()).id
    async with follow(edge, after=confirmed or "") as stream:
        assert await texts(stream, 1) == ["b"]
    async with follow(edge) as stream:  # "b" has not settled, "a" was confirmed
        assert await texts(stream, 1) == ["b"]


async def test_an_old_connection_does_not_move_the_cursor_of_a_new_one(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus
) -> None:
    patient = await make_edge(fresh_nats, cursor_settle_s=60)
    quick = await make_edge(fresh_nats, cursor_settle_s=SETTLE_S)
    run = await live(bus)
    async with follow(quick) as old, follow(patient) as new:
        await run.text("a")
        assert await texts(old, 1) == await texts(new, 1) == ["a"]
        await asyncio.sleep(4 * SETTLE_S)  # the old connection would have saved by now
    async with follow(quick) as stream:
        assert await texts(stream, 1) == ["a"]


async def test_what_a_client_has_not_taken_from_its_system_is_not_received(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus
) -> None:
    """The client stops reading; only what fits into the buffers of its system is acknowledged."""
    edge = await make_edge(fresh_nats, cursor_settle_s=SETTLE_S, max_pending_bytes=10**9)
    run = await live(bus)
    url = urlsplit(str(edge.base_url))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(connection.connect, (url.hostname, url.port))
        request = (
            f"GET /v1/events?subjects={SUBJECTS}&cursor=n8n HTTP/1.1\r\nhost: localhost\r\n\r\n"
        )
        connection.sendall(request.encode())
        assert await asyncio.to_thread(connection.recv, 15) == b"HTTP/1.1 200 OK"
        sent = [f"{number:03}" + "x" * 100_000 for number in range(60)]
        await run.text(*sent)
        await asyncio.sleep(6 * SETTLE_S)
    async with follow(edge) as stream:
        again = await texts(stream, 50)
    first = sent.index(again[0])
    assert again == sent[first : first + 50]
    assert first <= 10, "the buffers of this system take less than a megabyte"


async def test_a_cursor_whose_events_are_gone_continues_by_its_time(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_cursors, "LAG_S", 0)
    monkeypatch.setattr(saved_cursors, "TIME_EVERY_S", 0)
    edge = await make_edge(fresh_nats, cursor_settle_s=SETTLE_S)
    run = await live(bus)
    async with follow(edge) as stream:
        await run.text("a")
        await texts(stream, 1)
        await settled(bus, run)
        await run.completed()  # an event that this stream does not have
        await asyncio.sleep(4 * SETTLE_S)
    other = await live(bus)
    await other.text("b")
    await bus.api("STREAM.PURGE.EVENTS", {"seq": run.places[-1]})  # "a" has expired
    async with follow(edge) as stream:
        assert await texts(stream, 1) == ["b"]
    assert b"history_truncated" not in stream.body, "nothing of this stream is missing"


async def test_an_unreadable_record_begins_anew(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus
) -> None:
    edge = await make_edge(fresh_nats)
    async with follow(edge):
        pass
    [entry] = await bus.bucket("cursors").entries()
    await bus.bucket("cursors").put(entry.key, b"{")
    run = await live(bus)
    async with follow(edge) as stream:
        await run.text("a")
        assert await texts(stream, 1) == ["a"]


@pytest.mark.parametrize("name", ["", "a.b", "*", "a b", "ä", "x" * 65])
async def test_a_name_that_cannot_be_is_refused(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus, name: str
) -> None:
    edge = await make_edge(fresh_nats)
    answer = await edge.get("/v1/events", params={"cursor": name})
    assert (answer.status_code, "cursor: must have" in answer.text) == (422, True)
    assert await saved(bus) == {}


async def test_a_caller_may_not_have_any_number_of_cursors(
    make_edge: MakeEdge, fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_cursors, "MAX_PER_OWNER", 2)
    edge = await make_edge(fresh_nats)
    for name in ("a", "b", "a"):
        async with follow(edge, name) as stream:
            assert stream.response.status_code == 200
    assert (await edge.get("/v1/events", params={"cursor": "c"})).status_code == 409


async def test_a_page_has_no_saved_cursor(
    make_edge: MakeEdge, fresh_nats: NatsServer, bus: Bus
) -> None:
    edge = await make_edge(fresh_nats)
    answer = await edge.get(
        "/v1/events", params={"cursor": "n8n"}, headers={"accept": "application/json"}
    )
    assert answer.status_code == 200
    assert await saved(bus) == {}


async def test_events_of_all_shards_continue_where_they_were(
    make_edge: MakeEdge, fresh_nats: NatsServer
) -> None:
    async with connected(fresh_nats.url, retention=Retention(shards=2)) as bus:
        edge = await make_edge(fresh_nats, cursor_settle_s=SETTLE_S)
        now = bus.clock.now().timestamp()
        one, two = [await live(bus, new_run_id(shard, now)) for shard in (0, 1)]
        async with follow(edge) as stream:
            await one.text("a")
            await two.text("b")
            assert sorted(await texts(stream, 2)) == ["a", "b"]

            async def both() -> bool:
                position = (await saved(bus)).get("n8n", "")
                return position == f"{one.places[-1]}-0.{two.places[-1]}-0"

            await eventually(both, 30, "the position is saved")
        await one.text("c")
        await two.text("d")
        async with follow(edge) as stream:
            assert sorted(await texts(stream, 2)) == ["c", "d"]


# stream tokens


async def test_a_cursor_belongs_to_the_name_of_a_token_so_that_a_new_token_continues(
    fresh_nats: NatsServer,
) -> None:
    async with secured(fresh_nats.url) as penstock:
        run = await penstock.live()

        async def token(name: str, user: str = "alice") -> str:
            made = await penstock.token(user, name=name, subjects=[SUBJECTS])
            return str(made["token"])

        async def opened(credential: str) -> Stream:
            query = {"subjects": SUBJECTS, "cursor": "c", "token": credential}
            return Stream(penstock.http, "GET", "/v1/events", params=query)

        async with await opened(await token("n8n")):
            pass
        await run.text("a")
        async with await opened(await token("n8n")) as stream:
            assert await texts(stream, 1) == ["a"]
        for other in (await token("billing"), await token("n8n", "bob")):
            async with await opened(other) as stream:
                assert b"llm.stream" not in stream.body
        async with await opened(await token("n8n")) as stream:
            assert await texts(stream, 1) == ["a"], "others have not moved the cursor"


@pytest.mark.parametrize("names", ["on", "off"])
async def test_a_stream_says_that_its_token_has_expired_before_it_ends(
    fresh_nats: NatsServer, names: str
) -> None:
    async with secured(fresh_nats.url) as penstock:
        made = await penstock.token(name="n8n", subjects=["*.*"], lifetime_s=1)
        async with penstock.stream("/v1/events", token=made["token"], names=names) as stream:
            frames = await stream.rest()
        [frame] = [frame for frame in frames if b"token_expired" in frame.data]
        said = orjson.loads(frame.data)
        assert said["event"] == {"category": "system", "action": "warning"}
        assert (frame.event is not None) == (names == "on")
        assert frame == frames[-1]
        answer = await penstock.http.get("/v1/events", params={"token": made["token"]})
        assert answer.status_code == 401
        listed = await penstock.http.get("/v1/tokens", headers=bearer())
        assert listed.json()["tokens"] == []
