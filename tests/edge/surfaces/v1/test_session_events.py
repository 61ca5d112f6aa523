"""GET /v1/sessions/{session_id}/events: a session's runs, in the dialects encoded run by run."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from urllib.parse import quote

import orjson
import pytest
from websockets.asyncio.client import connect

from penstock.bus import Bus, BusSettings, streams
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.sse import Frame
from support.drive.clients import Client, MakeEdge, Stream, contents
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer

DIALECTS = ("canonical", "executions", "unified", "adk", "agno")
JSON = {"accept": "application/json"}


def path(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}/events"


@pytest.fixture
def session_id() -> str:
    return f"a session: {uuid.uuid4()} é"


@pytest.fixture
def new_run(bus: Bus, session_id: str) -> Callable[[], PretendRun]:
    return lambda: PretendRun(bus, session_id=session_id)


@pytest.fixture
def follow(edge: Client, session_id: str) -> Callable[..., Stream]:
    """Return a function that opens the session's stream: `follow(dialect=…, headers=…)`."""

    def open(headers: dict[str, str] | None = None, **query: str) -> Stream:
        return Stream(edge, "GET", path(session_id), params=query, headers=headers)

    return open


async def play(run: PretendRun, *words: str) -> None:
    await run.join()
    await run.started()
    await run.text(*words)
    await run.completed("".join(words))


@pytest.fixture
async def two_runs(new_run: Callable[[], PretendRun]) -> list[PretendRun]:
    """Return two runs; an event of the first run comes after its end, during the second run."""
    first, second = new_run(), new_run()
    await play(first, "Hello", " world")
    await second.join()
    await second.started()
    await first.say("automation.triggered", workflow="w", trigger="t")
    await second.text("Again", " and", " again")
    await second.completed("Again and again")
    return [first, second]


async def all_frames(bus: Bus, runs: list[PretendRun], dialect: str) -> list[tuple[str, Frame]]:
    """Return the whole stream with cursors, made by encoding each run by itself."""
    frames = []
    for run in runs:
        encoder = CLIENT_DIALECTS[dialect].encoder()
        for place in run.places:
            stored = await bus.at(streams.EVENTS, place)
            assert stored is not None
            for index, frame in enumerate(encoder.feed(orjson.loads(stored.payload))):
                frames.append((place, index, frame))
    return [(f"{place}-{index}", frame) for place, index, frame in sorted(frames, key=_by_place)]


def _by_place(frame: tuple[int, int, Frame]) -> tuple[int, int]:
    return frame[0], frame[1]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_session_is_its_runs_in_the_order_of_the_stream(
    bus: Bus, follow: Callable[..., Stream], two_runs: list[PretendRun], dialect: str
) -> None:
    expected = await all_frames(bus, two_runs, dialect)
    async with follow(dialect=dialect, until="idle") as stream:
        got = await stream.rest()
    assert [(frame.id, frame.data, frame.event) for frame in got] == [
        (id, frame.data, frame.event) for id, frame in expected
    ]


async def test_every_unified_event_has_the_session_of_its_path(
    follow: Callable[..., Stream], session_id: str, two_runs: list[PretendRun]
) -> None:
    async with follow(dialect="unified", until="idle") as stream:
        events = contents(await stream.rest())
    assert {event["session_id"] for event in events} == {session_id}
    assert {event["payload"]["run_id"] for event in events} == {run.run_id for run in two_runs}


@pytest.mark.parametrize("session_id", ["a/b", "/", "a%2Fb", "\x1a/\x1as", "é/?#"])
async def test_a_session_whose_id_has_slashes_is_found_by_every_path(
    edge: Client, bus: Bus, session_id: str
) -> None:
    session_id += f" {uuid.uuid4()}"
    run = PretendRun(bus, session_id=session_id)
    await run.join()
    await run.started()
    await run.completed("Hello")
    id = quote(session_id, safe="")
    for path in (
        f"/v1/sessions/{id}/events?until=idle&dialect=unified",
        f"/api/v1/agent/runs/{id}/events?until=idle",
        f"/agui/assistant/threads/{id}/events?until=idle",
    ):
        async with Stream(edge, "GET", path) as stream:
            told = contents(await stream.rest())
        assert {each.get("session_id") or each["threadId"] for each in told} == {session_id}
    shown = await edge.get(f"/apps/assistant/users/anonymous/sessions/{id}")
    assert (shown.status_code, shown.json()["id"]) == (200, session_id)
    socket = str(edge.base_url).replace("http://", "ws://").rstrip("/")
    async with connect(f"{socket}/v1/sessions/{id}/events/ws?until=idle", proxy=None) as told_by:
        assert {orjson.loads(each)["session_id"] async for each in told_by} == {session_id}


@pytest.mark.parametrize("ring_bytes", [1, 4_000_000], ids=["from the stream", "from the ring"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_that_was_cut_at_any_frame_gets_exactly_the_rest(
    bus: Bus,
    make_edge: MakeEdge,
    session_id: str,
    two_runs: list[PretendRun],
    dialect: str,
    ring_bytes: int,
) -> None:
    edge = await make_edge(ring_bytes=ring_bytes)
    expected = [(id, frame.data) for id, frame in await all_frames(bus, two_runs, dialect)]
    for cut in range(len(expected) - 1):
        query = {"dialect": dialect, "until": "idle", "after": expected[cut][0]}
        async with Stream(edge, "GET", path(session_id), params=query) as stream:
            rest = [(frame.id, frame.data) for frame in await stream.rest()]
        assert rest == expected[cut + 1 :]


async def test_the_stream_stays_open_for_runs_to_come_and_carries_the_epilogue(
    follow: Callable[..., Stream], new_run: Callable[[], PretendRun]
) -> None:
    first, second = new_run(), new_run()
    async with follow(dialect="unified") as stream:
        await play(first, "Hello")
        await play(second, "Hello")
        await first.say("automation.triggered", workflow="w", trigger="t")
        types = [(await stream.event())["type"] for _ in range(11)]
    one = [
        "session_started",
        "agent_message_start",
        "agent_message_delta",
        "agent_message_end",
        "session_ended",
    ]
    assert types == [*one, *one, "automation_triggered"]


async def test_a_client_that_joins_during_a_run_gets_frames_that_fit_its_beginning(
    bus: Bus, follow: Callable[..., Stream], new_run: Callable[[], PretendRun]
) -> None:
    run = new_run()
    await run.join(waits=True)
    await run.started()
    await run.text("Hello")
    async with follow(dialect="unified", after=f"{run.places[-1]}-1") as stream:
        await run.text(" world")
        await run.completed()
        frames = [await stream.frame() for _ in range(3)]
    expected = await all_frames(bus, [run], "unified")
    assert [frame.data for frame in frames] == [frame.data for _, frame in expected[-3:]]


async def test_a_run_that_the_sessions_record_does_not_name_yet_is_there_from_its_beginning(
    follow: Callable[..., Stream], new_run: Callable[[], PretendRun]
) -> None:
    first, late = new_run(), new_run()
    await play(first, "x")
    await late.record()
    await late.started()
    async with follow() as stream:
        await late.text("y")
        events = [await stream.event() for _ in range(5)]
    assert [event["run_id"] for event in events] == [first.run_id] * 3 + [late.run_id] * 2


async def test_another_owners_session_of_the_same_id_is_another_session(
    follow: Callable[..., Stream], new_run: Callable[[], PretendRun]
) -> None:
    mine, foreign = new_run(), new_run()
    await foreign.record(user_id="somebody")
    async with follow() as stream:
        await foreign.started()
        await play(mine, "x")
        assert (await stream.event())["run_id"] == mine.run_id
    async with follow(user_id="somebody", after=f"{foreign.places[0]}-0") as stream:
        await foreign.completed()
        assert (await stream.event())["run_id"] == foreign.run_id


async def test_one_agents_runs_can_be_asked_for(
    follow: Callable[..., Stream], new_run: Callable[[], PretendRun]
) -> None:
    mine, other = new_run(), new_run()
    await other.record(agent="helper")
    await mine.record()
    async with follow(agent="assistant") as one, follow() as every:
        await other.started()
        await mine.started()
        assert (await one.event())["run_id"] == mine.run_id
        assert [(await every.event())["run_id"] for _ in range(2)] == [other.run_id, mine.run_id]


async def test_a_category_and_a_type_choose_unified_events_with_the_same_cursors(
    bus: Bus, follow: Callable[..., Stream], two_runs: list[PretendRun]
) -> None:
    expected = await all_frames(bus, two_runs, "unified")
    async with follow(dialect="unified", category="session,n8n", until="idle") as stream:
        got = await stream.rest()
    chosen = {"session_started", "session_ended", "automation_triggered"}
    assert [(frame.id, frame.data) for frame in got] == [
        (id, frame.data) for id, frame in expected if frame.event in chosen
    ]
    async with follow(
        dialect="unified", category="agent_messages", type="agent_message_end", until="idle"
    ) as stream:
        assert {frame.event for frame in await stream.rest()} == {"agent_message_end"}


async def test_until_idle_waits_for_the_run_under_way_and_the_ones_in_the_queue(
    follow: Callable[..., Stream], new_run: Callable[[], PretendRun]
) -> None:
    first, second = new_run(), new_run()
    await first.join(waits=True)
    await first.started()
    await second.record()  # the run has been started, but no connector has taken it
    async with follow(until="idle") as stream:
        assert (await stream.event())["run_id"] == first.run_id
        await first.completed()
        await first.join()
        assert (await stream.event())["event"]["action"] == "completed"
        await second.started()
        await second.join(waits=True)
        await second.completed()
        await second.join()
        rest = contents(await stream.rest())
    assert [(event["run_id"], event["event"]["action"]) for event in rest] == [
        (second.run_id, "started"),
        (second.run_id, "completed"),
    ]


async def test_until_idle_does_not_wait_for_a_paused_run(
    follow: Callable[..., Stream], new_run: Callable[[], PretendRun]
) -> None:
    run = new_run()
    await run.join()
    await run.started()
    await run.say("lifecycle.paused", reason="approval_required")
    async with follow(until="idle") as stream:
        assert len(await stream.rest()) == 2


async def test_a_client_that_reconnects_to_an_idle_session_gets_204(
    edge: Client, session_id: str, two_runs: list[PretendRun]
) -> None:
    last = max(place for run in two_runs for place in run.places)
    query = {"until": "idle", "after": f"{last}-0"}
    assert (await edge.get(path(session_id), params=query)).status_code == 204
    # A session that does not exist gets the same answer.
    assert (await edge.get(path("nobody's"), params={"until": "idle"})).status_code == 204


async def test_the_marker_stands_between_replay_and_live(
    follow: Callable[..., Stream], two_runs: list[PretendRun], new_run: Callable[[], PretendRun]
) -> None:
    count = sum(len(run.places) for run in two_runs)
    async with follow(markers="on") as stream:
        replayed = [await stream.frame() for _ in range(count)]
        assert (await stream.frame()).event == "penstock.live"
        await play(new_run(), "x")
        assert (await stream.frame()).event == "lifecycle.started"
    assert len({frame.id for frame in replayed}) == count


async def test_two_edges_give_the_same_bytes(
    make_edge: MakeEdge, session_id: str, two_runs: list[PretendRun]
) -> None:
    bodies = []
    for edge in (await make_edge(), await make_edge()):
        query = {"dialect": "unified", "until": "idle"}
        async with Stream(edge, "GET", path(session_id), params=query) as stream:
            await stream.rest()
            bodies.append(stream.body)
    assert bodies[0] == bodies[1]
    assert two_runs


async def test_pages_give_the_same_events(
    bus: Bus, edge: Client, session_id: str, two_runs: list[PretendRun]
) -> None:
    expected = [orjson.loads(f.data) for _, f in await all_frames(bus, two_runs, "unified")]
    got, after = [], ""
    while True:
        query = {"dialect": "unified", "limit": "3", "after": after}
        page = (await edge.get(path(session_id), params=query, headers=JSON)).json()
        if not page["events"]:
            break
        got += page["events"]
        after = page["next"]
    assert got == expected


async def test_a_ring_that_is_too_small_costs_nobody_an_event(
    bus: Bus, make_edge: MakeEdge, session_id: str, new_run: Callable[[], PretendRun]
) -> None:
    edge = await make_edge(ring_bytes=1000)
    async with Stream(edge, "GET", path(session_id), params={"dialect": "unified"}) as stream:
        runs = [new_run() for _ in range(3)]
        for run in runs:
            await play(run, *(f"{number} " * 50 for number in range(30)))
        expected = await all_frames(bus, runs, "unified")
        got = [await stream.frame() for _ in expected]
    assert [frame.id for frame in got] == [id for id, _ in expected]
    assert [frame.data for frame in got] == [frame.data for _, frame in expected]


async def test_events_that_have_aged_are_announced(
    fresh_nats: NatsServer, make_edge: MakeEdge, session_id: str
) -> None:
    bus = await Bus.connect(BusSettings(url=fresh_nats.url))
    edge = await make_edge(fresh_nats)
    runs = [PretendRun(bus, session_id=session_id) for _ in range(2)]
    for run in runs:
        await play(run, "x")
        await run.record(status="completed", first_event=run.places[0])
    await bus.api("STREAM.PURGE.EVENTS", {"seq": runs[1].places[0]})
    for headers in ({}, {"last-event-id": f"{runs[0].places[0]}-0"}):
        query = {"until": "idle"}
        async with Stream(edge, "GET", path(session_id), params=query, headers=headers) as stream:
            told, *rest = contents(await stream.rest())
        assert told["data"]["code"] == "history_truncated"
        assert [event["run_id"] for event in rest] == [runs[1].run_id] * len(runs[1].places)
    query = {"dialect": "unified", "until": "idle"}
    async with Stream(edge, "GET", path(session_id), params=query) as stream:
        told = await stream.event()
    assert (told["type"], told["payload"]["error_type"]) == ("run_error", "history_truncated")
    assert told["session_id"] == session_id
    await bus.api("STREAM.PURGE.EVENTS")
    answer = await edge.get(path(session_id), params={"until": "idle"})
    assert answer.status_code == 410
    await bus.close()


@pytest.mark.parametrize(
    ("query", "status", "names"),
    [
        ({"dialect": "raw"}, 422, "dialect"),
        ({"dialect": "klingon"}, 422, "dialect"),
        ({"agent": "nobody"}, 404, "nobody"),
        ({"until": "forever"}, 422, "until"),
        ({"names": "maybe"}, 422, "names"),
        ({"category": "tools"}, 422, "category"),
        ({"dialect": "unified", "category": "tool"}, 422, "tool"),
        ({"dialect": "unified", "type": "session_start"}, 422, "session_start"),
        ({"since": "now"}, 422, "since"),
        ({"after": "1-x"}, 400, "1-x"),
        ({"after": "99999999-0"}, 410, "99999999-0"),
    ],
)
async def test_what_cannot_be_served_is_refused_and_named(
    edge: Client, query: dict[str, str], status: int, names: str
) -> None:
    answer = await edge.get(path("s1"), params=query)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert names in answer.json()["detail"]


async def test_a_cursor_of_another_session_is_refused(
    edge: Client, session_id: str, two_runs: list[PretendRun], run: PretendRun
) -> None:
    await run.started()
    answer = await edge.get(path(session_id), headers={"last-event-id": f"{run.places[0]}-0"})
    assert answer.status_code == 400
    assert two_runs


async def test_a_session_id_that_is_too_long_is_refused(edge: Client) -> None:
    assert (await edge.get(path("s" * 513))).status_code == 422


async def test_a_first_event_that_does_not_tell_its_session_is_not_lost(
    bus: Bus, follow: Callable[..., Stream], new_run: Callable[[], PretendRun]
) -> None:
    """The first event is stored by reference, without the session id; the KV record has the id."""
    run = new_run()
    async with follow() as stream:
        await run.record()
        await run.say("lifecycle.started", agent="assistant", message="x" * 600_000)
        assert (await stream.event())["run_id"] == run.run_id
    stored = await bus.at(streams.EVENTS, run.places[0])
    assert stored is not None
    assert b"session_id" not in stored.payload
