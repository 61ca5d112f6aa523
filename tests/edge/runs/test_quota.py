"""A user's open and queued runs are limited over all edges; the end of a run frees its place."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest
import uuid_utils

from penstock.bus import Bus, subjects
from penstock.bus.records.runs import RunRecord
from penstock.bus.streams import COMMANDS
from penstock.runs import open_runs
from penstock.runs.open_runs import OpenRuns
from penstock.settings import AuthSettings
from penstock.turns import TenantUser
from penstock.web.auth import Auth, AuthConfig
from penstock.web.problems import Problem
from support.drive.clients import Client, MakeEdge
from support.drive.secured import bearer
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET
from support.fakes.pretend import PretendRun

ALICE = TenantUser("", "alice")
BODY = {"agent": "assistant", "message": "Hello"}


@pytest.fixture
def user() -> str:
    """Return a user that no other test uses, because the limit counts all runs of the broker."""
    return f"user-{uuid_utils.uuid4()}"


@pytest.fixture
def quota(make_edge: MakeEdge) -> Callable[..., Any]:
    """Return a function that starts an edge with authentication and these limits."""

    def make(**limits: Any) -> Any:
        auth = Auth(AuthConfig(**AuthSettings(jwt_secret=SECRET).model_dump()))
        return make_edge(auth=auth, **limits)

    return make


async def start(edge: Client, user: str, **fields: Any) -> httpx.Response:
    return await edge.post("/v1/runs", json={**BODY, **fields}, headers=bearer(user))


async def becomes(bus: Bus, run_id: str, status: str) -> None:
    """Set the status in the run's record, as the normalizer does."""
    entry = await bus.bucket("runs").get(run_id)
    assert entry is not None
    record = RunRecord.model_validate({**orjson.loads(entry.value), "status": status})
    await bus.bucket("runs").put(run_id, record.dump())


async def started_again(edge: Client, user: str) -> str:
    """Start a run as soon as the limit allows it; return its id."""

    async def tried() -> str:
        answer = await start(edge, user)
        return "" if answer.status_code == 429 else str(answer.json()["run_id"])

    return await eventually(tried, what="room for a run")


async def test_beyond_the_queued_runs_a_start_is_refused_and_nothing_is_begun(
    quota: Callable[..., Any], bus: Bus, user: str
) -> None:
    edge = await quota(max_queued_runs_per_user=2)
    for _ in range(2):
        assert (await start(edge, user)).status_code == 202
    refused = await start(edge, user)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["limit"] == "queued_runs"
    assert "2 runs of this user are queued" in refused.json()["detail"]
    listed = await edge.get("/v1/runs", headers=bearer(user))
    assert len(listed.json()["runs"]) == 2
    assert (await start(edge, f"not {user}")).status_code == 202


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "paused"])
async def test_a_run_that_is_over_or_waits_for_a_person_frees_its_place(
    quota: Callable[..., Any], bus: Bus, user: str, end: str
) -> None:
    edge = await quota(max_open_runs_per_user=1)
    first = (await start(edge, user)).json()["run_id"]
    await becomes(bus, first, "running")
    refused = await start(edge, user)
    assert (refused.status_code, refused.json()["limit"]) == (429, "open_runs")
    await becomes(bus, first, end)
    await started_again(edge, user)


async def test_a_user_has_a_limited_number_of_runs_that_wait_for_decisions(
    quota: Callable[..., Any], bus: Bus, user: str
) -> None:
    edge = await quota(max_paused_runs_per_user=2)
    runs = [(await start(edge, user)).json()["run_id"] for _ in range(2)]
    for each in runs:
        await becomes(bus, each, "paused")

    async def refused() -> httpx.Response | None:
        answer = await start(edge, user)
        return answer if answer.status_code == 429 else None

    answer = await eventually(refused, what="a start beyond the limit is refused")
    assert answer.json()["limit"] == "paused_runs"
    assert "2 runs of this user wait for decisions" in answer.json()["detail"]
    assert (await start(edge, f"not {user}")).status_code == 202
    await becomes(bus, runs[0], "cancelled")
    await started_again(edge, user)


async def test_many_starts_at_once_are_no_more_than_the_limit(
    quota: Callable[..., Any], user: str
) -> None:
    edge = await quota(max_queued_runs_per_user=5)
    answers = await asyncio.gather(*(start(edge, user) for _ in range(40)))
    assert sorted(answer.status_code for answer in answers) == [202] * 5 + [429] * 35


async def test_the_count_is_one_for_all_edges_and_outlives_them(
    quota: Callable[..., Any], user: str
) -> None:
    first, second = await quota(max_open_runs_per_user=3), await quota(max_open_runs_per_user=3)
    for edge in (first, second, first):
        assert (await start(edge, user)).status_code == 202

    async def refused(edge: Client) -> bool:
        return (await start(edge, user)).status_code == 429

    await eventually(lambda: refused(second), what="the second edge to hear of it")
    third = await quota(max_open_runs_per_user=3)

    async def counted() -> bool:
        return (await start(third, user)).status_code == 429

    await eventually(counted, what="a new edge to have counted")


async def test_a_repeat_is_answered_at_the_limit_and_counts_once(
    quota: Callable[..., Any], user: str
) -> None:
    edge = await quota(max_queued_runs_per_user=2)
    first = await start(edge, user, idempotency_key="a")
    for _ in range(5):
        again = await start(edge, user, idempotency_key="a")
        assert (again.status_code, again.json()["run_id"]) == (200, first.json()["run_id"])
    assert (await start(edge, user, idempotency_key="b")).status_code == 202
    assert (await start(edge, user, idempotency_key="c")).status_code == 429
    assert (await start(edge, user, idempotency_key="a")).status_code == 200
    # The refused start has not stored its key, so a repeat with the key meets the limit again.
    assert (await start(edge, user, idempotency_key="c")).status_code == 429


async def test_every_surface_refuses_in_its_own_shape(quota: Callable[..., Any], user: str) -> None:
    edge = await quota(max_queued_runs_per_user=1)
    assert (await start(edge, user)).status_code == 202
    trigger = await edge.post(
        "/api/service/v1/executions/trigger",
        json={"topologyId": 123, "userMessage": "Hello"},
        headers=bearer(user),
    )
    assert trigger.status_code == 429
    assert trigger.json()["code"] == "TOO_MANY_REQUESTS"
    assert trigger.headers["retry-after"]
    agno = await edge.post(
        "/agents/assistant/runs", json={"message": "Hello", "stream": False}, headers=bearer(user)
    )
    assert agno.status_code == 429
    assert "queued" in agno.json()["detail"]


async def test_a_limit_of_0_is_none(quota: Callable[..., Any], user: str) -> None:
    edge = await quota(max_queued_runs_per_user=0, max_open_runs_per_user=0)
    answers = [await start(edge, user) for _ in range(5)]
    assert {answer.status_code for answer in answers} == {202}


async def test_a_run_whose_edge_died_before_its_command_frees_its_place(
    quota: Callable[..., Any], bus: Bus, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_runs, "LOST_S", 0.0)
    monkeypatch.setattr(open_runs, "CHECK_S", 0.0)
    edge = await quota(max_queued_runs_per_user=1)
    lost = PretendRun(bus)
    await lost.record(user_id=user)

    run_id = await started_again(edge, user)
    # The new run keeps its place, because its command is in the queue.
    for _ in range(3):
        assert (await start(edge, user)).status_code == 429
    # A run that a connector has taken keeps its place too, whatever its record says.
    taken = await bus.tail(COMMANDS, subjects.command("connector", "start", run_id))
    assert taken is not None
    run = PretendRun(bus, run_id)
    await run.raw("open", {})
    await bus.delete(COMMANDS, taken.sequence)
    for _ in range(3):
        assert (await start(edge, user)).status_code == 429


def test_a_failed_start_frees_its_place() -> None:
    counted = OpenRuns(None, 0, 1)  # type: ignore[arg-type]  # nothing is looked up here
    counted.begin(ALICE, "run-1")
    assert counted.count(ALICE) == (1, 1)
    counted.forget("run-1")
    assert counted.count(ALICE) == (0, 0)


async def test_all_users_of_a_tenant_together_have_a_multiple_of_one_users_limits() -> None:
    counted = OpenRuns(None, 0, 2, tenant_limits=2)  # type: ignore[arg-type]  # no look-ups here
    for number in range(4):
        user = TenantUser("acme", f"user-{number}")
        assert await counted.has_room(user)
        counted.begin(user, f"run-{number}")
    late = TenantUser("acme", "late")
    assert not await counted.has_room(late)
    with pytest.raises(Problem, match="4 runs of this tenant are queued") as refused:
        counted.refuse(late)
    assert (refused.value.status, refused.value.more["limit"]) == (429, "queued_runs")
    assert await counted.has_room(TenantUser("umbrella", "bob"))
    assert await counted.has_room(TenantUser("", "carol"))
    counted.forget("run-0")
    assert await counted.has_room(late)


def test_without_limits_nothing_is_counted() -> None:
    counted = OpenRuns(None, 0, 0)  # type: ignore[arg-type]  # nothing is looked up here
    counted.begin(ALICE, "run-1")
    assert counted.count(ALICE) == (0, 0)


def test_the_count_is_that_of_the_last_records_in_whatever_order_they_come() -> None:
    record, user = {"run_id": "r", "user_id": "u"}, TenantUser("", "u")
    words = ["queued", "running", "paused", "completed"]
    for said in itertools.product([*words, "begin", "forget", "purged"], repeat=4):
        counted = OpenRuns(None, 9, 9)  # type: ignore[arg-type]  # nothing is looked up here
        last = ""
        for word in said:
            if word == "begin":
                counted.begin(user, "r")
                last = last if last in ("queued", "running", "paused") else "starting"
            elif word == "forget":
                counted.forget("r")
                last = "" if last == "starting" else last
            else:
                value = b"" if word == "purged" else orjson.dumps({**record, "status": word})
                counted._note("r", value)
                last = word
        expected = {"queued": (1, 1), "starting": (1, 1), "running": (1, 0)}.get(last, (0, 0))
        assert counted.count(user) == expected, said
        assert counted.paused(user) == (last == "paused"), said
        assert len(counted._counts) == (expected[0] or last == "paused")
