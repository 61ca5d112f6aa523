"""Lists of runs: the pages are complete and disjoint, whatever is written meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Collection
from typing import Any

import orjson
import pytest
import uuid_utils
from prometheus_client import REGISTRY

from penstock.bus import Bus, Stored
from penstock.bus.read.direct import read
from penstock.bus.state import bucket_index
from penstock.bus.state.bucket_index import Change
from penstock_edge.sources import run_list
from penstock_edge.sources.run_list import Contained, RunList, RunRows
from support.drive.bus import connected, new_run_id
from support.drive.clients import MakeEdge
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer

LAST = b"\xff" * 16  # the key of no run, after those of all
OLDEST = {  # a record with only the fields of the first release
    "agent": "assistant",
    "session_id": "s1",
    "status": "completed",
    "created_at": "2025-01-01T00:00:00.000Z",
    "updated_at": "2025-01-01T00:00:00.000Z",
}


@pytest.fixture
async def own_bus(fresh_nats: NatsServer) -> AsyncIterator[Bus]:
    """Connect to a NATS server whose buckets are empty."""
    async with connected(fresh_nats.url) as bus:
        yield bus


@pytest.fixture
def listed(bus: Bus) -> RunList:
    return RunList(bus)


def owner() -> str:
    return f"user-{uuid_utils.uuid7()}"


async def put(bus: Bus, user_id: str, run_id: str = "", **fields: Any) -> str:
    run_id = run_id or new_run_id()
    record = {**OLDEST, "run_id": run_id, "user_id": user_id, **fields}
    await bus.bucket("runs").put(run_id, orjson.dumps(record))
    return run_id


async def pages(
    runs: RunList,
    owners: Collection[str] | None,
    limit: int,
    before: str | None = None,
    text: str = "",
    tags: Any = (),
    **wanted: Any,
) -> list[list[str]]:
    """Return the run ids of each page, up to the last page."""
    found = []
    while True:
        page, more = await runs.page(
            owners,
            lambda user: owners is None or user in owners,
            wanted,
            before,
            limit,
            contained=Contained(text, tags),
        )
        found.append([run["run_id"] for run in page])
        if not more:
            return found
        before = found[-1][-1]


async def test_pages_are_complete_and_without_repetitions_while_runs_are_written(
    bus: Bus, listed: RunList
) -> None:
    user, others = owner(), owner()
    made = [await put(bus, user, status="queued") for _ in range(60)]
    stop = asyncio.Event()

    async def writes() -> None:
        """Change listed runs and create new ones, of this user and of another."""
        while not stop.is_set():
            await put(bus, user, random.choice(made), status=random.choice(["running", "failed"]))
            await put(bus, random.choice([user, others]))

    writing = [asyncio.create_task(writes()) for _ in range(3)]
    try:
        for limit in (1, 7, 25, 59, 60):
            found = [id for page in await pages(listed, {user}, limit) for id in page]
            assert found == sorted(set(found), reverse=True)
            assert set(made) <= set(found)
    finally:
        stop.set()
        await asyncio.gather(*writing)


async def test_a_page_begins_after_its_cursor_though_the_cursors_run_is_gone(
    bus: Bus, listed: RunList
) -> None:
    user = owner()
    made = [await put(bus, user) for _ in range(4)]
    await bus.bucket("runs").delete(made[2])
    assert await pages(listed, {user}, 2, before=made[2]) == [[made[1], made[0]]]


async def test_the_runs_of_a_workflows_steps_are_found_by_their_parent(
    bus: Bus, listed: RunList
) -> None:
    user, other = owner(), owner()
    parent = await put(bus, user)
    steps = [await put(bus, user, parent_run_id=parent, step_id=f"step_{n}") for n in range(3)]
    ended = await put(bus, user, parent_run_id=parent, status="failed")
    await put(bus, other, parent_run_id=parent)
    everything = [parent, *steps, ended]
    assert await pages(listed, {user}, 9) == [everything[::-1]]
    of_parent = {"parent_run_id": parent}
    assert await pages(listed, {user}, 3, **of_parent) == [[ended, *steps[:0:-1]], [steps[0]]]
    assert await pages(listed, {user}, 9, status="failed", **of_parent) == [[ended]]
    assert await pages(listed, {user}, 9, parent_run_id=ended) == [[]]
    assert await pages(listed, {user}, 9, parent_run_id="") == [[parent]]


async def test_several_owners_are_one_list(bus: Bus, listed: RunList) -> None:
    users = [owner() for _ in range(3)]
    made = [await put(bus, users[number % 3]) for number in range(9)]
    newest = made[::-1]
    mine = [id for id in newest if made.index(id) % 3 != 2]
    assert await pages(listed, set(users[:2]), 4) == [mine[:4], mine[4:]]
    everything = [id for page in await pages(listed, None, 1000) for id in page]
    assert [id for id in everything if id in made] == newest


@pytest.mark.parametrize("rows_at_once", [3, 20_000])
async def test_a_filter_that_rarely_fits_finds_all_that_fit(
    bus: Bus, listed: RunList, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "SLICE", rows_at_once)
    user = owner()
    rare: list[str] = []
    for number in range(30):
        fits = number in (0, 1, 13, 29)
        fields = {"status": "failed", "agent": "helper"} if fits else {}
        run_id = await put(bus, user, session_id=f"s-{user}", **fields)
        rare += [run_id] * fits
    rare.reverse()
    for wanted in (
        {"status": "failed"},
        {"agent": "helper"},
        {"agent": "helper", "status": "failed"},
        {"agent": "helper", "session_id": f"s-{user}"},
        {"status": ("failed", "cancelled")},
        {"agent": "helper", "status": ("failed", "completed")},
    ):
        assert await pages(listed, {user}, 3, **wanted) == [rare[:3], rare[3:]]
    assert await pages(listed, None, 10, session_id=f"s-{user}", status="failed") == [rare]
    for wanted in ({"status": "failed"}, {"agent": "helper"}):
        everyones = [id for page in await pages(listed, None, 3, **wanted) for id in page]
        assert [id for id in everyones if id in rare] == rare
    assert await pages(listed, {user}, 10, session_id="s1") == [[]]
    assert await pages(listed, {owner()}, 10, session_id=f"s-{user}") == [[]]
    assert await pages(listed, {user}, 10, status="failed", agent="assistant") == [[]]


@pytest.mark.parametrize("rows_at_once", [3, 20_000])
@pytest.mark.parametrize("of_all", [False, True])
async def test_runs_of_several_statuses_are_one_list_with_each_run_once(
    own_bus: Bus, rows_at_once: int, of_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "SLICE", rows_at_once)
    listed, user = RunList(own_bus), owner()
    cycle = ("completed", "failed", "running", "cancelled", "completed", "queued", "paused")
    made = [(await put(own_bus, user, status=cycle[number % 7]), number) for number in range(21)]
    owners = None if of_all else {user}
    for count in (2, 3, 6):
        for statuses in itertools.combinations(sorted(set(cycle)), count):
            fitting = [id for id, number in reversed(made) if cycle[number % 7] in statuses]
            for limit in (4, 100):
                found = await pages(listed, owners, limit, status=statuses)
                assert [id for page in found for id in page] == fitting, statuses
    searched = await pages(listed, owners, 100, text="nothing", status=("failed", "completed"))
    assert searched == [[]]


@pytest.mark.parametrize(
    "wanted",
    [
        {"status": "queued"},
        {"status": ("queued", "failed")},
        {"agent": "helper"},
        {"agent": "nobody", "status": "completed"},
    ],
    ids=str,
)
def test_who_sees_all_runs_waits_for_no_search_through_those_that_do_not_fit(
    wanted: dict[str, Any],
) -> None:
    def steps(others: int) -> int:
        """Return how many steps SQLite takes beside so many runs that do not fit."""
        rows, record = RunRows(), {**OLDEST, "user_id": "ada"}
        some = [(new_run_id(), {"agent": "helper", "status": "queued"}) for _ in range(3)]
        for run_id, fields in [*some, *((new_run_id(), {}) for _ in range(others))]:
            value = orjson.dumps({**record, "run_id": run_id, **fields})
            rows.put([Change(run_id, value, 1, "")])
        count = itertools.count()
        rows.db.set_progress_handler(lambda: next(count) < 0, 1)
        searches = run_list._searches(wanted)
        keys = [key for each in searches for key in rows.slice(None, each, LAST, 10, b"")[0]]
        assert len(keys) == (0 if wanted.get("agent") == "nobody" else 3)
        return next(count)

    assert steps(others=400) < 2 * steps(others=4)


def test_a_text_that_a_record_has_lost_is_nowhere_in_the_memory_of_the_index() -> None:
    rows, runs = RunRows(), [new_run_id() for _ in range(500)]
    for sequence, message in enumerate(("a planted text, as an erasure takes it out", ""), 1):
        for run_id in runs:
            value = {**OLDEST, "run_id": run_id, "user_id": "ada", "message": message}
            rows.put([Change(run_id, orjson.dumps(value), sequence, "")])
        assert (b"planted" in rows.db.serialize()) == bool(message)


def test_texts_are_searched_by_no_index_that_lacks_them() -> None:
    """To look each row up would take three times as long."""
    rows, sent = RunRows(), list[str]()
    rows.db.set_trace_callback(sent.append)
    rows.slice(None, {"agent": "helper"}, b"\xff" * 16, 10, b"", Contained("a text"))
    rows.db.set_trace_callback(None)
    plans = [each[3] for sql in sent for each in rows.rows(f"EXPLAIN QUERY PLAN {sql}")]
    assert plans
    assert not [plan for plan in plans if "INDEX runs_by" in plan]


@pytest.mark.parametrize("rows_at_once", [8, 20_000])
async def test_runs_are_found_by_their_tags_their_text_and_their_tenant(
    bus: Bus, listed: RunList, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "SLICE", rows_at_once)
    user, other = owner(), owner()
    one = await put(bus, user, message="Straße\n  of  Paris", tags={"team": "a b", "env": "test"})
    two = await put(bus, user, message="paris%", tags={"team": "a b c"}, tenant=user)
    three = await put(bus, user, message="team=a b", status="failed")
    await put(bus, other, message="paris", tags={"team": "a b"})

    async def found(text: str = "", *tags: str, **wanted: str) -> list[str]:
        all_pages = await pages(listed, {user}, 1, text=text, tags=tags, **wanted)
        return [id for page in all_pages for id in page]

    assert await found("PARIS") == [two, one]
    assert await found("strasse of paris") == [one]
    assert await found("aris%") == [two]
    assert await found("", "team=a b") == [one]
    assert await found("", "team=a b", "env=test") == [one]
    assert await found("", "team=a b", "env=live") == []
    assert await found("", "team=a") == await found("", "eam=a b") == []
    assert await found("team=a", status="failed") == [three]
    assert await found("paris", "team=a b c", tenant=user) == [two]
    assert await found(tenant="") == [three, one]
    assert await found("no such text") == []
    await put(bus, user, two, message="paris%", tags={"team": "a b c"}, status="failed")
    assert await found("paris", status="failed") == [two]


async def test_numbers_that_collide_show_nobody_elses_run(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "number_of", lambda _: 1)
    listed, user, other = RunList(bus), owner(), owner()
    mine = await put(bus, user)
    await put(bus, other)
    assert await pages(listed, {user}, 1) == [[mine]]


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"null", b'{"run_id": "x"}', b'{"user_id": 1, "run_id": "x"}']
)
async def test_a_broken_record_is_left_out_logged_and_counted(
    bus: Bus, listed: RunList, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    user = owner()
    made = [await put(bus, user) for _ in range(3)]
    counted = _unreadable()
    await bus.bucket("runs").put(made[1], value)
    assert await pages(listed, {user}, 10) == [[made[2], made[0]]]
    assert await pages(listed, {user}, 10) == [[made[2], made[0]]]
    assert made[1] in caplog.text
    assert _unreadable() >= counted + 1
    await put(bus, user, made[1])
    assert await pages(listed, {user}, 10) == [made[::-1]]


async def test_a_key_that_is_no_run_id_is_left_out(bus: Bus, listed: RunList) -> None:
    user = owner()
    await bus.bucket("runs").put("odd", orjson.dumps({**OLDEST, "run_id": "odd", "user_id": user}))
    assert await pages(listed, {user}, 10) == [[]]


async def test_a_deleted_run_and_a_run_that_has_aged_out_are_left_out(
    bus: Bus, listed: RunList
) -> None:
    user = owner()
    made = [await put(bus, user) for _ in range(6)]
    await listed.index.caught_up()
    await bus.bucket("runs").delete(made[5])
    # These two records go without a delete marker, as an expired record does.
    await bus.api("STREAM.PURGE.KV_runs", {"filter": f"$KV.runs.{made[3]}"})
    await bus.api("STREAM.PURGE.KV_runs", {"filter": f"$KV.runs.{made[0]}"})
    assert await pages(listed, {user}, 2) == [[made[4], made[2]], [made[1]]]


async def test_old_runs_age_out_of_the_rows(own_bus: Bus) -> None:
    listed = RunList(own_bus)
    made = [await put(own_bus, "alice") for _ in range(5)]
    await listed.index.caught_up()
    await own_bus.api("STREAM.PURGE.KV_runs", {"keep": 2})
    await listed.index._check_stream()
    assert listed.rows.rows("SELECT count(*) FROM runs") == [(2,)]
    assert await pages(listed, {"alice"}, 10) == [made[:2:-1]]


async def test_another_edge_and_an_edge_that_was_started_anew_list_the_same(
    make_edge: MakeEdge, bus: Bus
) -> None:
    session = owner()
    made = []
    for number in range(7):
        run = PretendRun(bus, session_id=session)
        await run.record(status="failed" if number % 2 else "queued")
        made.append(run.run_id)
    first = await make_edge()
    query = {"session_id": session, "limit": "4"}
    page = (await first.get("/v1/runs", params=query)).json()
    second = await make_edge()
    rest = (await second.get("/v1/runs", params={**query, "before": page["next"]})).json()
    assert [run["run_id"] for run in (*page["runs"], *rest["runs"])] == made[::-1]
    assert rest["next"] is None


async def test_a_started_run_is_listed_at_once_by_every_edge(make_edge: MakeEdge) -> None:
    edges = [await make_edge(), await make_edge()]
    session = owner()
    for number in range(10):
        body = {"agent": "assistant", "message": "Hello", "session_id": session}
        await edges[number % 2].post("/v1/runs", json=body)
        query = f"/v1/runs?session_id={session}"
        for edge in edges:
            assert len((await edge.get(query)).json()["runs"]) == number + 1


async def test_while_an_edge_reads_the_runs_after_its_start_a_list_is_503_and_all_else_works(
    make_edge: MakeEdge, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PretendRun(bus)
    await run.record()
    go_on = asyncio.Event()

    async def held(*where: Any) -> tuple[list[Stored], int]:
        await go_on.wait()
        return await read(*where)

    monkeypatch.setattr(bucket_index, "read", held)
    monkeypatch.setattr(bucket_index, "WAIT_S", 0.05)
    edge = await make_edge()
    for path in ("/v1/runs", "/sessions"):
        answer = await edge.get(path)
        assert answer.status_code == 503
        assert "still reads" in answer.json()["detail"]
        assert answer.headers["retry-after"]
    assert (await edge.get(f"/v1/runs/{run.run_id}")).status_code == 200
    go_on.set()
    monkeypatch.setattr(bucket_index, "WAIT_S", 10)
    assert (await edge.get("/v1/runs?limit=1")).json()["runs"]


def _unreadable() -> float:
    name = "penstock_unreadable_records_total"
    return REGISTRY.get_sample_value(name, {"bucket": "runs"}) or 0.0
