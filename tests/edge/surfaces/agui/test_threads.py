"""A thread's streams have its runs in turn, can be resumed, and restate what came before."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from penstock.bus import Bus
from penstock.dialects.agui.encode import RUNS, STRICT, AguiEncoder
from penstock.dialects.agui.encode.memory import Memory
from penstock.sse import Frame
from support.drive.clients import Client, MakeEdge, Stream, contents
from support.fakes.pretend import PretendApprovals, PretendRun

APPROVAL = str(uuid.uuid4())
UNTIL_IDLE = "?until=idle"
ASKED = {"item_id": "c1", "kind": "confirmation", "tool": "delete", "tool_call_id": "c1"}


@pytest.fixture
def thread() -> str:
    return f"a thread: {uuid.uuid4()} é"


@pytest.fixture
def new_run(bus: Bus, thread: str) -> Callable[[], PretendRun]:
    return lambda: PretendRun(bus, session_id=thread)


@pytest.fixture
def follow(edge: Client, thread: str) -> Callable[..., Stream]:
    """Return a function that opens the stream of agent-runs-sse.md.

    The stream ends when no run is under way.
    """

    def open(headers: dict[str, str] | None = None, **query: str) -> Stream:
        query = {"until": "idle", **query}
        return Stream(edge, "GET", events_of(thread), params=query, headers=headers)

    return open


@pytest.fixture
def come_back(edge: Client, thread: str) -> Callable[..., Stream]:
    """Return a function that opens the stream for reconnecting AG-UI clients.

    The stream ends when no run is under way.
    """

    def open(headers: dict[str, str] | None = None, **query: str) -> Stream:
        query = {"until": "idle", **query}
        path = f"/agui/assistant/threads/{quote(thread, safe='')}/events"
        return Stream(edge, "GET", path, params=query, headers=headers)

    return open


def events_of(thread: str) -> str:
    return f"/api/v1/agent/runs/{quote(thread, safe='')}/events"


def history_of(thread: str) -> str:
    return f"/api/v1/agent/runs/{quote(thread, safe='')}/history"


def after(frame: Frame) -> dict[str, str]:
    assert frame.id is not None
    return {"last-event-id": frame.id}


def types(frames: list[Frame]) -> list[str]:
    return [each["type"] for each in contents(frames)]


async def play(run: PretendRun, *words: str, end: bool = True) -> None:
    await run.join()
    await run.started()
    await run.text(*words)
    if end:
        await run.completed("".join(words))


async def pause(run: PretendRun) -> None:
    await run.say("approval.requested", approval_id=APPROVAL, items=[ASKED], digest="d")
    await run.say("lifecycle.paused", reason="approval_required", approval_id=APPROVAL)


async def resume(run: PretendRun) -> None:
    run.leg_number = 2
    await run.say("lifecycle.resumed", approval_id=APPROVAL)
    await run.text("gone on")
    await run.completed("gone on")


@pytest.fixture
async def three_runs(new_run: Callable[[], PretendRun]) -> list[PretendRun]:
    """Return three runs: the first pauses, and the second runs meanwhile.

    The third run is queued while the first continues.
    """
    first, second, third = new_run(), new_run(), new_run()
    await play(first, "I must ask", end=False)
    await pause(first)
    await play(second, "Hello", " world")
    first.leg_number = 2
    await first.say("lifecycle.resumed", approval_id=APPROVAL)
    await third.join()
    await third.started()
    await first.text("gone on")
    await first.completed("gone on")
    await third.text("Bye")
    await third.completed("Bye")
    return [first, second, third]


async def test_runs_are_told_one_after_another_whatever_their_order_on_the_bus(
    three_runs: list[PretendRun], follow: Callable[..., Stream]
) -> None:
    async with follow() as stream:
        told = contents(await stream.rest())
    first, second, third = (run.run_id for run in three_runs)
    legs = [each["runId"] for each in told if each["type"] == "RUN_STARTED"]
    assert legs == [first, second, f"{first}-2", third]
    open_: str | None = None
    for each in told:
        if each["type"] == "RUN_STARTED":
            assert open_ is None
            open_ = each["runId"]
        assert each["runId"] == open_
        if each["type"] in ("RUN_FINISHED", "RUN_ERROR"):
            open_ = None
    assert open_ is None


async def test_a_cut_at_every_frame_gives_the_rest(
    three_runs: list[PretendRun], follow: Callable[..., Stream], make_edge: MakeEdge, thread: str
) -> None:
    async with follow() as stream:
        frames = await stream.rest()
    # The ring is so small that most frames are read from the stream again.
    other = await make_edge(ring_bytes=1000)
    assert len({frame.id for frame in frames}) == len(frames)
    for at, frame in enumerate(frames[:-1], 1):
        async with follow(after(frame)) as again:
            assert await again.rest() == frames[at:]
        path = events_of(thread) + UNTIL_IDLE
        async with Stream(other, "GET", path, headers=after(frame)) as again:
            assert await again.rest() == frames[at:]
    given = await other.get(events_of(thread) + UNTIL_IDLE, headers=after(frames[-1]))
    assert given.status_code == 204


async def test_a_thread_stays_open_and_tells_the_runs_that_are_started_later(
    new_run: Callable[[], PretendRun], edge: Client, thread: str
) -> None:
    first, second, third = new_run(), new_run(), new_run()
    await play(first, "Hello")
    async with Stream(edge, "GET", events_of(thread)) as stream:
        await stream.until(b"event: RUN_FINISHED")
        await play(second, "Again")
        while (last := await stream.frame()).event != "RUN_FINISHED" or (
            orjson.loads(last.data)["runId"] != second.run_id
        ):
            pass
    # A client that reconnects at the end waits for later runs.
    async with Stream(edge, "GET", events_of(thread), headers=after(last)) as again:
        assert again.response.status_code == 200
        await play(third, "Once more")
        assert {(await again.event())["runId"] for _ in range(3)} == {third.run_id}


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/agent/runs/{thread}/events",
        "/agui/assistant/threads/{thread}/events",
        "/agui/assistant/threads/{thread}/events?prelude=1",
    ],
)
async def test_a_thread_that_nobody_has_heard_of_is_waited_for(
    new_run: Callable[[], PretendRun], make_edge: MakeEdge, thread: str, path: str
) -> None:
    edge = await make_edge(keep_alive_s=0.15)
    async with Stream(edge, "GET", path.format(thread=quote(thread, safe=""))) as stream:
        assert stream.response.status_code == 200
        await stream.until(b": keep-alive\n\n: keep-alive\n\n")
        run = new_run()
        await play(run, "Hello")
        event = await stream.event()
        assert (event["type"], event["runId"]) == ("RUN_STARTED", run.run_id)
        while event["type"] != "RUN_FINISHED":
            event = await stream.event()


async def test_a_thread_that_continues_is_followed_until_nothing_is_under_way(
    new_run: Callable[[], PretendRun], follow: Callable[..., Stream]
) -> None:
    first, second = new_run(), new_run()
    await play(first, "Hello", end=False)
    async with follow() as stream:
        assert (await stream.event())["type"] == "RUN_STARTED"
        await second.join(waits=True)
        await second.started()
        await first.completed("Hello")
        await second.text("Again")
        await second.join()
        await second.completed("Again")
        told = contents(await stream.rest())
    assert next(each["type"] for each in told if each["runId"] == second.run_id) == "RUN_STARTED"
    assert told[-1]["type"] == "RUN_FINISHED"


async def test_an_event_that_cannot_be_read_takes_nothing_with_it(
    new_run: Callable[[], PretendRun], follow: Callable[..., Stream]
) -> None:
    first, second = new_run(), new_run()
    await play(first, "Hello", end=False)
    await first.say("state.delta")
    await play(second, end=False)
    await second.say("state.delta")
    await first.completed("Hello")
    await second.text("Again")
    await second.completed("Again")
    async with follow() as stream:
        told = types(await stream.rest())
    assert stream.body.count(b": unreadable_event") == 1
    assert told.count("RUN_STARTED") == told.count("RUN_FINISHED") == 2
    assert told.count("TEXT_MESSAGE_END") == 2


async def test_a_slow_client_misses_nothing_of_a_thread(
    new_run: Callable[[], PretendRun], make_edge: MakeEdge, thread: str
) -> None:
    edge = await make_edge(ring_bytes=1000)
    run = new_run()
    await play(run, "Hello", end=False)
    async with Stream(edge, "GET", events_of(thread) + UNTIL_IDLE) as slow:
        first = await slow.frame()
        async with Stream(edge, "GET", events_of(thread) + UNTIL_IDLE) as quick:
            for number in range(30):
                await run.say("custom.event", protocol="agno", name=f"n{number}", value="x" * 300)
            await run.completed()
            frames = await quick.rest()
        assert [first, *await slow.rest()] == frames
    assert types(frames).count("CUSTOM") == 30


async def test_a_thread_that_waits_for_a_person_ends_with_what_is_asked(
    new_run: Callable[[], PretendRun], follow: Callable[..., Stream]
) -> None:
    run = new_run()
    await play(run, "I must ask", end=False)
    await pause(run)
    async with follow() as stream:
        told = contents(await stream.rest())
    (asked,) = told[-1]["outcome"]["interrupts"]
    assert asked["id"] == f"{APPROVAL}/c1"


async def test_a_thread_whose_wait_was_answered_continues(
    new_run: Callable[[], PretendRun], follow: Callable[..., Stream], bus: Bus
) -> None:
    run, approvals = new_run(), PretendApprovals(bus)
    await play(run, "I must ask", end=False)
    approval = await approvals.request(run.run_id, "assistant", run.session_id, {"c1": "input"})
    await run.say("lifecycle.paused", reason="approval_required", approval_id=approval)
    decided = await bus.bucket("approvals").get(approval)
    assert decided is not None
    value = orjson.dumps({**orjson.loads(decided.value), "status": "decided"})
    await bus.bucket("approvals").put(approval, value)
    async with follow() as stream:
        await stream.until(b"RUN_FINISHED")
        await resume(run)
        told = contents(await stream.rest())
    assert [each["runId"] for each in told if each["type"] == "RUN_FINISHED"] == [
        run.run_id,
        f"{run.run_id}-2",
    ]


async def test_the_history_is_what_the_stream_has_told(
    three_runs: list[PretendRun], follow: Callable[..., Stream], edge: Client, thread: str
) -> None:
    async with follow() as stream:
        told = contents(await stream.rest())
    whole = (await edge.get(history_of(thread))).json()
    assert set(whole) == {"threadId", "events", "next"}
    assert (whole["threadId"], whole["events"]) == (thread, told)
    paged: list[Any] = []
    cursor: dict[str, str] = {}
    while page := (await edge.get(history_of(thread), params={"limit": "4", **cursor})).json():
        if not page["events"]:
            break
        assert len(page["events"]) <= 4
        paged += page["events"]
        cursor = {"after": page["next"]}
    assert paged == told


async def test_one_agents_runs_of_a_thread(
    new_run: Callable[[], PretendRun], follow: Callable[..., Stream], edge: Client, thread: str
) -> None:
    ours, other = new_run(), new_run()
    await play(ours, "Hello")
    await other.join(agent="helper")
    await other.started()
    await other.completed()
    async with follow(agent="assistant") as stream:
        assert {each["runId"] for each in contents(await stream.rest())} == {ours.run_id}
    async with follow() as stream:
        ids = {each["runId"] for each in contents(await stream.rest())}
        assert ids == {ours.run_id, other.run_id}
    assert (await edge.get(events_of(thread), params={"agent": "nobody"})).status_code == 404


@pytest.mark.parametrize("name", ["events", "history"])
async def test_an_unknown_thread_is_404_where_it_is_not_waited_for(edge: Client, name: str) -> None:
    given = await edge.get(f"/api/v1/agent/runs/{uuid.uuid4()}/{name}{UNTIL_IDLE}")
    assert given.status_code == 404
    assert given.headers["content-type"] == "application/problem+json"
    back = await edge.get(f"/agui/assistant/threads/{uuid.uuid4()}/events{UNTIL_IDLE}")
    assert (back.status_code, set(back.json())) == (404, {"detail"})


async def test_a_cursor_that_is_not_of_this_thread_is_refused(
    three_runs: list[PretendRun], edge: Client, thread: str, bus: Bus
) -> None:
    other = PretendRun(bus, session_id=str(uuid.uuid4()))
    await play(other, "Hello")
    cursors = {"x": 400, "1-": 400, "999999999999-0": 410, f"{other.places[1]}-0": 400}
    for cursor, status in cursors.items():
        for path in (events_of(thread), history_of(thread)):
            given = await edge.get(path, headers={"last-event-id": cursor})
            assert given.status_code == status, (path, cursor)


async def test_what_is_no_longer_kept_is_410(
    bus: Bus, edge: Client, new_run: Callable[[], PretendRun], thread: str
) -> None:
    run = new_run()
    await play(run, "Hello")
    await bus.api("STREAM.PURGE.EVENTS", {"filter": f"*.*.{run.run_id}"})
    assert (await edge.get(events_of(thread) + UNTIL_IDLE)).status_code == 410
    assert (await edge.get(history_of(thread))).status_code == 410


async def test_a_reconnecting_client_gets_a_snapshot_and_then_the_new_events(
    new_run: Callable[[], PretendRun], come_back: Callable[..., Stream]
) -> None:
    first, second = new_run(), new_run()
    await play(first, "Hello")
    await play(second, "Ag", end=False)
    async with come_back(prelude="1") as stream:
        prelude = [await stream.frame() for _ in range(3)]
        await second.text("ain")
        await second.completed("Again")
        tail = await stream.rest()
    assert types(prelude) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "TEXT_MESSAGE_START"]
    assert types(tail) == ["TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"]
    assert [frame.id for frame in prelude] == [None] * 3
    assert all(frame.id for frame in tail)
    held = Memory()
    for each in contents([*prelude, *tail]):
        held.apply(each)
    assert [each["content"] for each in held.messages] == ["Hello", "Again"]
    async with come_back(after(tail[0]), prelude="1") as again:
        assert await again.rest() == tail[1:]


async def test_a_prelude_of_a_thread_at_rest_ends_as_its_last_run_did(
    three_runs: list[PretendRun], come_back: Callable[..., Stream]
) -> None:
    async with come_back(prelude="1") as stream:
        told = contents(await stream.rest())
    assert [each["type"] for each in told] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert {told[0]["runId"], told[-1]["runId"]} == {three_runs[2].run_id}


async def test_a_prelude_of_a_thread_that_waits_shows_what_is_asked(
    new_run: Callable[[], PretendRun], come_back: Callable[..., Stream]
) -> None:
    run = new_run()
    await play(run, "I must ask", end=False)
    await pause(run)
    async with come_back(prelude="1") as stream:
        told = contents(await stream.rest())
    assert told[-1]["outcome"]["interrupts"][0]["id"] == f"{APPROVAL}/c1"


async def test_without_a_prelude_the_thread_is_told_from_its_start(
    three_runs: list[PretendRun], come_back: Callable[..., Stream]
) -> None:
    async with come_back() as stream:
        frames = await stream.rest()
    assert types(frames).count("RUN_STARTED") == 4
    for at, frame in enumerate(frames[:-1], 1):
        async with come_back(after(frame)) as again:
            assert await again.rest() == frames[at:]


async def test_another_method_is_405_and_a_limit_that_does_not_fit_422(
    three_runs: list[PretendRun], edge: Client, thread: str
) -> None:
    for path, allow in ((events_of(thread), "GET"), (history_of(thread), "GET, HEAD")):
        given = await edge.post(path)
        assert (given.status_code, given.headers["allow"]) == (405, allow)
    for limit in ("0", "x", "-1", "1001"):
        given = await edge.get(history_of(thread), params={"limit": limit})
        assert given.status_code == 422
        assert "limit" in given.json()["detail"]


@pytest.mark.parametrize(
    "query", [{"prelude": "yes"}, {"prelude": ""}, {"names": "1"}, {"until": "x"}]
)
async def test_a_wrong_parameter_is_422_and_named(
    three_runs: list[PretendRun], edge: Client, thread: str, query: dict[str, str]
) -> None:
    path = f"/agui/assistant/threads/{quote(thread, safe='')}/events"
    given = await edge.get(path, params=query)
    assert given.status_code == 422
    assert next(iter(query)) in given.json()["detail"]


@pytest.mark.parametrize("dialect", ["agui", "agui+runs"])
async def test_a_run_by_itself_in_this_dialect(
    edge: Client, finished: PretendRun, bus: Bus, dialect: str
) -> None:
    path = f"/v1/runs/{finished.run_id}/events"
    async with Stream(edge, "GET", path, params={"dialect": dialect}) as stream:
        frames = await stream.rest()
    profile = {"agui": STRICT, "agui+runs": RUNS}[dialect]
    encoder = AguiEncoder(profile, "s1", lambda leg: finished.run_id)
    expected: list[Frame] = []
    for place in finished.places:
        stored = await bus.at("EVENTS", place)
        assert stored is not None
        expected += encoder.feed(orjson.loads(stored.payload))
    assert [(frame.event, frame.data) for frame in frames] == [
        (frame.event, frame.data) for frame in expected
    ]
    for at, frame in enumerate(frames[:-1], 1):
        params = {"dialect": dialect}
        async with Stream(edge, "GET", path, params=params, headers=after(frame)) as again:
            assert await again.rest() == frames[at:]
    page = await edge.get(path, params={"dialect": dialect}, headers={"accept": "application/json"})
    assert page.json() == {"events": contents(frames), "next": None}


async def test_a_run_whose_beginning_is_gone_says_so_in_a_comment(
    bus: Bus, edge: Client, finished: PretendRun
) -> None:
    await bus.api(
        "STREAM.PURGE.EVENTS",
        {"filter": f"*.*.{finished.run_id}", "seq": finished.places[2]},
    )
    path = f"/v1/runs/{finished.run_id}/events"
    async with Stream(edge, "GET", path, params={"dialect": "agui"}) as stream:
        frames = await stream.rest()
    assert stream.body.startswith(b": history_truncated")
    assert types(frames)[0] == "RUN_STARTED"
    headers = {"accept": "application/json"}
    page = (await edge.get(path, params={"dialect": "agui"}, headers=headers)).json()
    assert page["events"][0]["name"] == "penstock.system.warning"
