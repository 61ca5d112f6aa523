"""Each request reads at most its allowance, users take turns, and no work outlives its client."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.bus import Bus
from penstock.settings import AuthSettings
from penstock.turns import TenantUser
from penstock.web.auth import Auth, AuthConfig
from penstock.web.read_scheduler import USERS_OF_TENANT, ReadScheduler
from penstock.web.server import Server
from penstock_edge.service import on_bus
from support.drive.clients import Client, MakeEdge, Stream
from support.drive.secured import bearer
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET
from support.fakes.pretend import PretendRun
from support.fakes.routes import routes

ALICE, MALLORY = TenantUser("", "alice"), TenantUser("", "mallory")
EVENTS = "/v1/events"
JSON = {"accept": "application/json"}


def auth(**settings: Any) -> Auth:
    return Auth(AuthConfig(**AuthSettings(**{"jwt_secret": SECRET, **settings}).model_dump()))


@pytest.fixture
async def carols(bus: Bus) -> PretendRun:
    """Return a run of Carol's with 450 events."""
    run = PretendRun(bus)
    await run.record(user_id="carol")
    await run.started()
    await run.text(*(f"{number}" for number in range(449)))
    return run


async def page(edge: Client, user: str, path: str = EVENTS, **query: str) -> Any:
    answer = await edge.get(path, params=query, headers={**JSON, **bearer(user)})
    assert answer.status_code == 200, answer.text
    return answer.json()


def place(cursor: str) -> int:
    return int(cursor.partition("-")[0])


async def test_a_page_ends_with_its_allowance_and_its_cursor_advances_though_nothing_is_found(
    make_edge: MakeEdge, carols: PretendRun, bus: Bus
) -> None:
    edge = await make_edge(auth=auth(), page_events=150)
    mine = PretendRun(bus)
    await mine.record(user_id="mallory")
    await mine.started()
    cursor, pages = f"{carols.first}-0", 0
    while not (answer := await page(edge, "mallory", after=cursor))["events"]:
        assert 0 < place(answer["next"]) - place(cursor) <= 200
        cursor, pages = answer["next"], pages + 1
    assert pages >= 2
    assert [each["run_id"] for each in answer["events"]] == [mine.run_id]


async def test_a_client_of_partial_pages_gets_every_event_once(
    make_edge: MakeEdge, carols: PretendRun
) -> None:
    edge = await make_edge(auth=auth(), page_events=7)
    paths = (EVENTS, f"/v1/runs/{carols.run_id}/events")
    for path in paths:
        got, cursor = [], f"{carols.first}-0"
        while True:
            answer = await page(edge, "carol", path, after=cursor)
            if answer["next"] == cursor:
                break
            got += [each["sequence"] for each in answer["events"]]
            cursor = answer["next"]
        assert got == list(range(2, 451)), path


@pytest.mark.parametrize("limit", ["page_bytes", "page_s"])
async def test_a_page_ends_with_the_bytes_and_the_time_too(
    make_edge: MakeEdge, carols: PretendRun, limit: str
) -> None:
    edge = await make_edge(auth=auth(), **{limit: 1 if limit == "page_bytes" else 1e-9})
    answer = await page(edge, "carol", after=f"{carols.first}-0")
    assert len(answer["events"]) == 1
    assert answer["next"] == f"{carols.places[1]}-0"


async def test_a_dialect_that_must_be_read_from_its_start_reaches_the_clients_place_all_the_same(
    make_edge: MakeEdge, carols: PretendRun
) -> None:
    edge = await make_edge(auth=auth(), page_events=5)
    path = f"/v1/runs/{carols.run_id}/events"
    cursor = f"{carols.places[400]}-0"
    answer = await page(edge, "carol", path, dialect="agui", after=cursor)
    assert place(answer["next"]) > place(cursor)
    assert answer["events"]


async def test_a_client_that_leaves_ends_the_work_on_its_request(bus: Bus) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work(request: Request) -> ASGIApp:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return Response()

    server = Server(routes("/v1/slow", on_bus(bus)(work)), "127.0.0.1", 0)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
            asking = asyncio.create_task(http.get("/v1/slow", timeout=60))
            await asyncio.wait_for(begun.wait(), 30)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await asyncio.wait_for(ended.wait(), 30)
    finally:
        await server.stop()


async def test_a_stream_of_a_user_who_has_nothing_in_a_long_past_still_hears_that_its_client_left(
    make_edge: MakeEdge, carols: PretendRun, bus: Bus
) -> None:
    edge = await make_edge(auth=auth())
    mine = PretendRun(bus)
    await mine.record(user_id="mallory")
    await mine.started()
    query = {"after": f"{carols.first}-0"}
    async with Stream(edge, "GET", EVENTS, params=query, headers=bearer("mallory")) as stream:
        assert (await stream.event())["run_id"] == mine.run_id


async def test_reads_of_one_user_take_turns_and_others_do_not_wait_for_them() -> None:
    turns, under_way, most = ReadScheduler(), 0, 0

    async def step(user: TenantUser) -> None:
        nonlocal under_way, most
        async with turns.of(user):
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1

    await asyncio.gather(*(step(MALLORY) for _ in range(5)))
    assert most == 1
    async with turns.of(MALLORY):
        await asyncio.wait_for(step(ALICE), 30)
    assert len(turns) == 0


async def test_few_users_of_a_tenant_read_at_a_time_and_other_tenants_do_not_wait_for_them() -> (
    None
):
    turns, under_way, most = ReadScheduler(), 0, 0

    async def step(user: TenantUser) -> None:
        nonlocal under_way, most
        async with turns.of(user):
            under_way += user.tenant == "acme"
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= user.tenant == "acme"

    await asyncio.gather(*(step(TenantUser("acme", f"user-{n % 20}")) for n in range(60)))
    assert most == USERS_OF_TENANT
    async with AsyncExitStack() as full:
        for number in range(USERS_OF_TENANT):
            await full.enter_async_context(turns.of(TenantUser("acme", f"user-{number}")))
        await asyncio.wait_for(step(TenantUser("umbrella", "bob")), 30)
        await asyncio.wait_for(step(ALICE), 30)
    assert len(turns) == 0


async def test_a_leg_that_stops_waiting_leaves_no_queue_entry() -> None:
    turns = ReadScheduler()

    async def wait() -> None:
        async with turns.of(MALLORY):
            pass

    async with turns.of(MALLORY):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(turns) == 0


async def test_a_user_has_so_many_streams_and_requests_are_answered_all_the_same(
    make_edge: MakeEdge, carols: PretendRun
) -> None:
    edge = await make_edge(auth=auth(max_streams_per_user=2))
    path, carol = f"/v1/runs/{carols.run_id}/events", bearer("carol")
    async with Stream(edge, "GET", path, headers=carol), Stream(edge, "GET", EVENTS, headers=carol):
        refused = await edge.get(path, headers=carol)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["limit"] == "streams"
        started = {"accept": "text/event-stream", **carol}
        body = {"agent": "assistant", "message": "Hello"}
        assert (await edge.post("/v1/runs", json=body, headers=started)).status_code == 429
        assert (await edge.get(f"/v1/runs/{carols.run_id}", headers=carol)).status_code == 200
        async with Stream(edge, "GET", EVENTS, headers=bearer("bob")) as others:
            assert others.response.status_code == 200

    async def again() -> bool:
        async with Stream(edge, "GET", path, headers=carol) as stream:
            return stream.response.status_code == 200

    await eventually(again, what="a stream of Carol's")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/runs", b'{"agent": "assistant", "message": "Hello", "input": {"a": [%b]}}'),
        ("/api/service/v1/executions/trigger", b'{"topologyId": 123, "userMessage": [%b]}'),
        ("/run_sse", b'{"appName": "vana", "newMessage": [%b]}'),
        ("/agui/assistant", b'{"threadId": "t", "state": [%b]}'),
        ("/agents/assistant/runs", b'{"message": [%b]}'),
    ],
)
async def test_a_body_of_very_many_values_is_refused_at_once_on_every_surface(
    make_edge: MakeEdge, path: str, body: bytes
) -> None:
    edge = await make_edge(auth=auth())
    headers = {"content-type": "application/json", **bearer("mallory")}
    many = body % b",".join([b"[]"] * 200_000)
    answer = await edge.post(path, content=many, headers=headers)
    assert answer.status_code == 422
    assert "values" in answer.text


async def test_subjects_that_are_repeated_thousands_of_times_are_one(make_edge: MakeEdge) -> None:
    edge = await make_edge(auth=auth())
    query = {"subjects": ",".join(["system.warning"] * 3000)}
    answer = await edge.get(EVENTS, params=query, headers={**JSON, **bearer("mallory")})
    assert answer.status_code == 200
    query = {"subjects": ",".join(f"llm.{number}" for number in range(101))}
    answer = await edge.get(EVENTS, params=query, headers={**JSON, **bearer("mallory")})
    assert (answer.status_code, "100 values" in answer.text) == (422, True)
