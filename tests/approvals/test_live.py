"""Live changes of approvals reach everybody who may see them, also after a reconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from penstock.bus.records.approvals import ApprovalRecord
from penstock.settings import Config
from penstock.sse import Frame, Parser
from penstock.web.auth import Identity
from penstock_approvals.api.changes import name_of
from penstock_approvals.inbox.feed import Feed
from penstock_approvals.inbox.visibility import may_see_approval
from penstock_approvals.service import ApprovalsService
from penstock_approvals.store.records import ApprovalRecords
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, pipeline
from support.fakes.pauses import end, pause
from support.real.nats import NatsServer

SERVICES = (NormalizerService, ApprovalsService)
URL, JSON = "/v1/approvals/events", "application/json"


class Stream:
    """An open stream of changes."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks, self._parser = chunks, Parser()
        self._frames: list[Frame] = []
        self.cursor = ""

    async def next(self) -> tuple[str, dict[str, Any]]:
        """Return the next frame's name and data."""
        async with asyncio.timeout(20):
            while not self._frames:
                self._frames += self._parser.feed(await anext(self._chunks))
        frame = self._frames.pop(0)
        assert frame.id is not None
        self.cursor = frame.id
        return frame.event or "", orjson.loads(frame.data)

    async def of(self, *approvals: ApprovalRecord) -> list[tuple[str, str]]:
        """Return the name of the next change of each of these approvals."""
        wanted = [each.approval_id for each in approvals]
        found: list[tuple[str, str]] = []
        while len(found) < len(wanted):
            name, data = await self.next()
            if data.get("approval_id") in wanted:
                found.append((name, data["approval_id"]))
        return found


@asynccontextmanager
async def stream(penstock: Pipeline, **headers: str) -> AsyncIterator[Stream]:
    async with penstock.http.stream("GET", URL, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        made = Stream(answer.aiter_bytes())
        assert (await made.next())[0] == "ready"
        yield made


async def paged(
    penstock: Pipeline, cursor: str, *approvals: ApprovalRecord
) -> list[tuple[str, str]]:
    """Return the changes of these approvals after the cursor, from pages up to an empty page.

    Each change is there once. The bus may have approvals of other tests, whose records a service
    may change at any time. The service may write a decided record once more, after it has sent the
    decision. The record is then on a later page, or on two pages.
    """
    wanted = {each.approval_id for each in approvals}
    found: dict[tuple[str, str], None] = {}
    while True:
        url = f"{URL}?after={cursor}"
        page = (await penstock.http.get(url, headers={"accept": JSON})).json()
        if not page["changes"]:
            return [change for change in found if change[1] in wanted]
        changes = [(each["event"], each["approval"]["approval_id"]) for each in page["changes"]]
        found |= dict.fromkeys(changes)
        cursor = page["next"]


async def test_each_change_of_an_approval_comes_at_once(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), SERVICES) as penstock, stream(penstock) as live:
        approval = await pause(penstock)
        assert await live.of(approval) == [("approval.requested", approval.approval_id)]
        await penstock.decide(approval.approval_id)
        assert await live.of(approval) == [("approval.decided", approval.approval_id)]
        other = await pause(penstock)
        await live.of(other)
        await end(penstock, other.run_id)
        assert await live.of(other) == [("approval.withdrawn", other.approval_id)]


async def test_a_client_that_reconnects_gets_the_last_change_of_what_it_missed(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), SERVICES) as penstock:
        async with stream(penstock) as live:
            seen = await pause(penstock)
            await live.of(seen)
            cursor = live.cursor
        missed = await pause(penstock)
        await penstock.decide(seen.approval_id)
        expected = [
            ("approval.requested", missed.approval_id),
            ("approval.decided", seen.approval_id),
        ]
        async with stream(penstock, **{"Last-Event-ID": cursor}) as live:
            assert await live.of(missed, seen) == expected
        assert await paged(penstock, cursor, missed, seen) == expected


async def test_many_clients_get_each_change_once(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), SERVICES) as penstock:

        async def follows(started: asyncio.Event) -> list[str]:
            async with stream(penstock) as live:
                started.set()
                seen: list[str] = []
                while len(seen) < 10:
                    seen.append((await live.next())[1]["approval_id"])
                return seen

        begun = [asyncio.Event() for _ in range(20)]
        clients = [asyncio.create_task(follows(each)) for each in begun]
        await asyncio.gather(*(each.wait() for each in begun))
        approvals = await asyncio.gather(*(pause(penstock) for _ in range(10)))
        found = await asyncio.gather(*clients)
    expected = sorted(each.approval_id for each in approvals)
    assert all(sorted(each) == expected for each in found)
    assert len({tuple(each) for each in found}) == 1  # in the same order


@pytest.mark.parametrize("cursor", ["-1", "x", "1.5", "9" * 19, "٣"])
async def test_a_cursor_that_no_frame_had_is_refused(nats: NatsServer, cursor: str) -> None:
    async with pipeline(nats.url, Config(), SERVICES) as penstock:
        answer = await penstock.http.get(URL, params={"after": cursor})
    assert answer.status_code == 422


async def test_a_cursor_of_changes_that_nats_has_lost_is_answered_with_410(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), SERVICES) as penstock:
        answer = await penstock.http.get(URL, params={"after": "1000000"})
    assert answer.status_code == 410
    assert "list the approvals again" in answer.json()["detail"]


async def test_a_service_that_drains_ends_the_streams(nats: NatsServer) -> None:
    async with (
        pipeline(nats.url, Config(), SERVICES) as penstock,
        penstock.http.stream("GET", URL) as answer,
    ):
        chunks = answer.aiter_bytes()
        await anext(chunks)
        (service,) = [each for each in penstock.services if each.name == "approvals"]
        await service.drain(1)
        async with asyncio.timeout(30):
            assert [chunk async for chunk in chunks] == []


async def test_a_change_is_shown_only_to_those_who_may_see_the_approval(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), SERVICES) as penstock:
        feed = Feed(penstock.bus, ApprovalRecords(penstock.bus))
        after = await feed.end()
        approval = await pause(penstock)
        (change,) = (await feed.read(after)).changes
    scopes = frozenset({"read", "decide"})
    assert (change.record.approval_id, name_of(change.record)) == (
        approval.approval_id,
        "approval.requested",
    )
    shown = [
        may_see_approval(Identity(name, scopes, "bearer"), change.record) for name in ("u1", "bob")
    ]
    assert shown == [True, False]
