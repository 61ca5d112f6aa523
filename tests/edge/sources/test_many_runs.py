"""GET /v1/events: chosen types of all runs, each event once and in the stream's order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest

from penstock.bus import Bus, BusSettings, Incoming, Stored
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.feed import Feed, Feeds
from penstock_edge.sources.locate import start_from_now
from penstock_edge.sources.many_runs import ManyRunViews
from penstock_edge.sources.sessions import RunRecords
from penstock_edge.stream.hubs import Hubs
from penstock_edge.views.framing import Sse
from support.drive.clients import Client, MakeEdge, Stream
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer

PATH = "/v1/events"


@pytest.fixture
def follow(edge: Client) -> Callable[..., Stream]:
    """Return a function that opens the stream: `follow(subjects=…, headers=…)`."""

    def open(headers: dict[str, str] | None = None, **query: str) -> Stream:
        return Stream(edge, "GET", PATH, params=query, headers=headers)

    return open


@pytest.fixture
async def runs(bus: Bus) -> list[PretendRun]:
    """Return three runs that have records and no events."""
    runs = [PretendRun(bus) for _ in range(3)]
    for run in runs:
        await run.record()
    return runs


async def play(runs: list[PretendRun]) -> list[str]:
    """Play the runs so that their events alternate; return all cursors in order."""
    for run in runs:
        await run.started()
    for word in ("one", "two", "three"):
        for run in runs:
            await run.text(word)
    for run in runs:
        await run.completed()
    return sorted((f"{place}-0" for run in runs for place in run.places), key=_sequence)


def _sequence(cursor: str) -> int:
    return int(cursor.partition("-")[0])


async def ids(stream: Stream, count: int) -> list[str | None]:
    return [(await stream.frame()).id for _ in range(count)]


async def test_the_events_of_all_runs_come_in_the_order_of_the_stream(
    follow: Callable[..., Stream], runs: list[PretendRun]
) -> None:
    async with follow() as stream:
        expected = await play(runs)
        assert await ids(stream, len(expected)) == expected


async def test_only_the_chosen_types_come(
    follow: Callable[..., Stream], runs: list[PretendRun]
) -> None:
    async with follow(subjects="lifecycle.*,llm.message_started") as stream:
        await play(runs)
        names = [(await stream.frame()).event for _ in range(6)]
    assert names == ["lifecycle.started"] * 3 + ["lifecycle.completed"] * 3


@pytest.mark.parametrize(
    "subjects", ["*.started", "lifecycle.started", "lifecycle.started,*.started"]
)
async def test_an_event_that_two_patterns_match_comes_once(
    follow: Callable[..., Stream], runs: list[PretendRun], subjects: str
) -> None:
    cursors = await play(runs)
    before = f"{_sequence(cursors[0])}-0"
    async with follow(subjects=subjects, after=before) as stream:
        assert await ids(stream, 2) == [f"{run.places[0]}-0" for run in runs[1:]]
        more = PretendRun(runs[0].bus)
        await more.started()
        assert (await stream.frame()).id == f"{more.places[0]}-0"


async def test_what_is_said_after_the_end_of_a_run_comes_too(
    follow: Callable[..., Stream], runs: list[PretendRun]
) -> None:
    async with follow(subjects="automation.*,lifecycle.completed") as stream:
        await play(runs[:1])
        await runs[0].say("automation.triggered", workflow="w", trigger="t")
        assert (await stream.frame()).event == "lifecycle.completed"
        assert (await stream.frame()).event == "automation.triggered"


async def test_a_client_that_was_cut_anywhere_gets_exactly_the_rest(
    follow: Callable[..., Stream], runs: list[PretendRun]
) -> None:
    cursors = await play(runs)
    for cut in range(len(cursors) - 1):
        async with follow(headers={"last-event-id": cursors[cut]}) as stream:
            rest = cursors[cut + 1 :]
            assert await ids(stream, len(rest)) == rest


async def test_another_edge_continues_at_the_first_ones_position(
    make_edge: MakeEdge, runs: list[PretendRun]
) -> None:
    first, second = await make_edge(), await make_edge()
    async with Stream(first, "GET", PATH) as stream:
        cursors = await play(runs)
        assert await ids(stream, 5) == cursors[:5]
        body = stream.body
    async with Stream(second, "GET", PATH, params={"after": cursors[0]}) as stream:
        assert await ids(stream, len(cursors) - 1) == cursors[1:]
        # Both edges send the same bytes.
        end_of_first = b"id: " + cursors[0].encode() + b"\n\n"
        assert body.partition(end_of_first)[2].startswith(stream.body[:200])


async def test_since_a_time_begins_with_what_was_stored_then(
    follow: Callable[..., Stream], runs: list[PretendRun]
) -> None:
    await runs[0].started()
    # The NATS server runs on this machine, so both use the same clock. The 2 ms put `since` after
    # the first run's message and before the other messages.
    since = datetime.now(UTC) + timedelta(milliseconds=2)
    await eventually(lambda: _past(since), what="the time to pass")
    cursors = await play(runs[1:])
    async with follow(since=since.isoformat()) as stream:
        assert await ids(stream, len(cursors)) == cursors
    async with follow(since=since.isoformat().replace("+00:00", "Z")) as stream:
        assert await ids(stream, 1) == cursors[:1]


async def _past(time: datetime) -> bool:
    return datetime.now(UTC) > time


async def test_since_before_everything_begins_at_the_beginning_and_the_future_is_now(
    follow: Callable[..., Stream], runs: list[PretendRun], edge: Client
) -> None:
    cursors = await play(runs[:1])
    page = await edge.get(
        PATH, params={"since": "0001-01-01T00:00:00Z", "limit": "1"}, headers=JSON
    )
    assert len(page.json()["events"]) == 1
    async with follow(since="9999-01-01T00:00:00Z") as stream:
        await runs[1].started()
        assert (await stream.frame()).id == f"{runs[1].places[0]}-0"
    assert cursors


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00+12:00", "9999-12-31T23:59:59-12:00"])
async def test_a_time_at_the_calendars_edge_is_a_time(edge: Client, since: str) -> None:
    answer = await edge.get(PATH, params={"since": since, "limit": "1"}, headers=JSON)
    assert answer.status_code == 200, answer.text


async def test_the_marker_stands_between_replay_and_live(
    follow: Callable[..., Stream], runs: list[PretendRun]
) -> None:
    cursors = await play(runs[:1])
    async with follow(after=cursors[0], markers="on") as stream:
        assert await ids(stream, len(cursors) - 1) == cursors[1:]
        marker = await stream.frame()
        assert (marker.event, marker.id, marker.data) == (
            "penstock.live",
            None,
            b'{"marker":"live"}',
        )
        await runs[1].started()
        assert (await stream.frame()).event == "lifecycle.started"


@pytest.mark.parametrize("subjects", ["*.*", "retrieval.result"])
async def test_the_marker_comes_at_once_where_nothing_is_replayed(
    follow: Callable[..., Stream], runs: list[PretendRun], subjects: str
) -> None:
    async with follow(subjects=subjects, markers="on") as stream:
        assert (await stream.frame()).event == "penstock.live"


async def test_without_names_every_frame_is_an_unnamed_json_object(
    follow: Callable[..., Stream], runs: list[PretendRun]
) -> None:
    async with follow(names="off", markers="on") as stream:
        await play(runs[:1])
        frames = [await stream.frame() for _ in range(6)]
    assert {frame.event for frame in frames} == {None}


JSON = {"accept": "application/json"}


async def test_pages_follow_each_other_to_the_end_and_beyond(
    edge: Client, runs: list[PretendRun]
) -> None:
    first = (await edge.get(PATH, headers=JSON)).json()
    assert first["events"] == []
    cursors = await play(runs)
    events, after = [], first["next"]
    for _ in range(4):
        page = (await edge.get(PATH, params={"after": after, "limit": "4"}, headers=JSON)).json()
        events += page["events"]
        after = page["next"]
    assert len(events) == len(cursors)
    assert after == cursors[-1]
    await runs[0].say("automation.triggered", workflow="w", trigger="t")
    page = (await edge.get(PATH, params={"after": after}, headers=JSON)).json()
    assert [event["event"]["action"] for event in page["events"]] == ["triggered"]


@pytest.mark.parametrize(
    ("query", "status", "names"),
    [
        ({"subjects": "llm"}, 422, "'llm'"),
        ({"subjects": "llm.stream,llm.toolcall"}, 422, "'llm.toolcall'"),
        ({"subjects": "llm.>"}, 422, "'llm.>'"),
        ({"subjects": "llm.*.*"}, 422, "'llm.*.*'"),
        ({"subjects": "command.start"}, 422, "'command.start'"),
        ({"subjects": "llm.str*"}, 422, "'llm.str*'"),
        ({"since": "yesterday"}, 422, "since"),
        ({"since": "2026-13-01T00:00:00Z"}, 422, "since"),
        ({"since": "2026-01-01"}, 422, "since"),
        ({"names": "maybe"}, 422, "names"),
        ({"markers": "1"}, 422, "markers"),
        ({"after": "garbage"}, 400, "'garbage'"),
        ({"after": "1-"}, 400, "'1-'"),
        ({"after": "99999999-0"}, 410, "99999999-0"),
    ],
)
async def test_what_cannot_be_served_is_refused_and_named(
    edge: Client, query: dict[str, str], status: int, names: str
) -> None:
    answer = await edge.get(PATH, params=query)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert names in answer.json()["detail"]


async def test_only_get_is_served(edge: Client) -> None:
    answer = await edge.post(PATH)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"


async def test_all_who_follow_many_runs_share_one_subscription(
    fresh_nats: NatsServer, make_edge: MakeEdge
) -> None:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    edge = await make_edge(fresh_nats)
    async with (
        Stream(edge, "GET", PATH, params={"subjects": "llm.*"}) as first,
        Stream(edge, "GET", PATH, params={"subjects": "*.*"}) as second,
        Stream(edge, "GET", "/v1/sessions/s1/events") as third,
    ):
        run = PretendRun(bus)
        await run.record()
        await run.started()
        await run.text("x")
        assert (await first.frame()).event == "llm.stream"
        for stream in (second, third):
            assert await ids(stream, 2) == [f"{place}-0" for place in run.places]
        consumers = await bus.api("STREAM.INFO.EVENTS")
        assert consumers["state"]["consumer_count"] == 0
    await bus.close()


@pytest.mark.parametrize("place", [{"after": "1-0"}, {"since": "2020-01-01T00:00:00Z"}])
async def test_what_has_aged_is_announced(
    fresh_nats: NatsServer, make_edge: MakeEdge, place: dict[str, str]
) -> None:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    edge = await make_edge(fresh_nats)
    run = PretendRun(bus)
    await run.started()
    await run.text("a", "b", "c")
    await bus.api("STREAM.PURGE.EVENTS", {"seq": run.places[2]})
    async with Stream(edge, "GET", PATH, params=place) as stream:
        told = await stream.event()
        assert (told["event"]["action"], told["data"]["code"]) == ("warning", "history_truncated")
        assert await ids(stream, 2) == [f"{at}-0" for at in run.places[2:]]
    page = (await edge.get(PATH, params=place, headers=JSON)).json()
    assert page["events"][0]["data"]["code"] == "history_truncated"
    assert len(page["events"]) == 3
    await bus.close()


class Heard:
    """A listener of all events that keeps the sequences of what it receives."""

    session_id: str | None = None

    def __init__(self) -> None:
        self.sequences: list[int] = []

    def wants(self, type: str) -> bool:
        return True

    def receive(self, batch: list[Stored]) -> None:
        self.sequences += [stored.sequence for stored in batch]


@pytest.fixture
async def feed(bus: Bus) -> AsyncIterator[Feed]:
    feed = Feed(bus, probe_s=0.2)
    yield feed
    await feed.close()


@pytest.mark.parametrize("lost", [{0}, {2, 3}, {4}, {0, 1, 2, 3, 4}])
async def test_messages_that_the_connection_loses_are_read_from_the_stream(
    bus: Bus, feed: Feed, run: PretendRun, monkeypatch: pytest.MonkeyPatch, lost: set[int]
) -> None:
    heard = Heard()
    floor = await feed.join(heard)
    assert feed._opening is not None
    follow = feed._opening.result()
    assert follow._listener is not None
    arrive = follow._listener.deliver
    arrived = -1

    def lossy(msg: Incoming) -> None:
        nonlocal arrived
        arrived += 1
        if arrived not in lost:
            arrive(msg)

    monkeypatch.setattr(follow._listener, "deliver", lossy)
    await run.started()
    await run.text("a", "b", "c")
    await run.completed()

    async def all_heard() -> bool:
        return heard.sequences[-5:] == run.places

    await eventually(all_heard)
    assert heard.sequences == sorted(set(heard.sequences))
    assert heard.sequences[0] >= floor
    feed.leave(heard)


async def test_a_nats_server_that_restarts_costs_no_event(
    fresh_nats: NatsServer, make_edge: MakeEdge
) -> None:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    edge = await make_edge(fresh_nats)
    run = PretendRun(bus)
    await run.record()
    async with (
        Stream(edge, "GET", PATH) as all_runs,
        Stream(edge, "GET", "/v1/sessions/s1/events") as session,
    ):
        await run.started()
        await run.text("before")
        await asyncio.to_thread(fresh_nats.restart)

        async def back() -> bool:
            return bus.is_ready

        await eventually(back)
        await run.text("after", "that")
        await run.completed()
        expected = [f"{place}-0" for place in run.places]
        assert await ids(all_runs, 5) == expected
        assert await ids(session, 5) == expected
    await bus.close()


async def test_a_caller_that_sees_only_its_own_runs_gets_only_those(bus: Bus) -> None:
    feeds = Feeds(bus)
    many = ManyRunViews(bus, feeds, RunRecords(bus))
    place = await start_from_now(bus)
    mine, foreign = PretendRun(bus), PretendRun(bus)
    await mine.record(user_id="me")
    await foreign.record(user_id="somebody")
    for run in (foreign, mine):
        await run.started()
    hubs = Hubs(bus, EdgeSettings(hub_grace_s=0.05))
    client = await hubs.join(many.of_types(["*.*"], frozenset({"me"}), Sse()), place)
    for run in (foreign, mine):
        await run.completed()
    body = b""
    while body.count(b"\n\n") < 2:
        body += await client.take() or b""
    assert body.count(mine.run_id.encode()) == 2
    assert foreign.run_id.encode() not in body
    await hubs.close()
    await feeds.close()
