"""A service consumes the messages of every shard, answers requests and repeats work, until it
stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from penstock.bus import Bus, BusUnavailable, Consumer, Msg, Stored, streams, subjects
from penstock.bus.admin.migrate import reshard
from penstock.bus.shards import new_run_id
from penstock.service import Context, Service
from penstock.settings import Config, Settings
from support.drive.bus import connected, publish_events
from support.drive.waiting import eventually
from support.real.nats import NatsServer

EVENTS = Consumer(
    stream=streams.EVENTS, durable="approvals", subjects=("llm.stream.*",), finish_s=0.2
)


class Counting(Service):
    """Notes the runs of the events that it gets; `goes_on` ends each handler."""

    name = "approvals"

    def __init__(self, bus: Bus) -> None:
        super().__init__(Context(Config(), Settings(), bus, "counting-1"))
        self.runs: list[str] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def start(self) -> None:
        self.consume(EVENTS, self._handle)

    async def _handle(self, stored: Stored) -> None:
        self.runs.append(subjects.run_id_of(stored.subject))
        await self.goes_on.wait()

    async def has(self, *runs: str) -> None:
        await eventually(lambda: asyncio.sleep(0, self.runs == list(runs)), 30, str(runs))


@pytest.fixture
async def service(fresh_nats: NatsServer) -> AsyncIterator[Counting]:
    async with connected(fresh_nats.url, repairs=True) as bus:
        service = Counting(bus)
        await service.start()
        yield service
        await service.stop()


async def test_events_of_a_shard_that_is_made_later_are_consumed(service: Counting) -> None:
    runs = [new_run_id(shard, time.time()) for shard in (0, 1)]
    await publish_events(service.bus, runs[0], 1, 1)
    await service.has(runs[0])
    await reshard(service.bus, 2, settle_s=0)
    await publish_events(service.bus, runs[1], 1, 1)
    await service.has(*runs)


async def test_a_service_that_stops_gives_back_what_it_has_not_finished(
    service: Counting,
) -> None:
    """Another process gets the message long before its acknowledgement wait has passed."""
    run_id = new_run_id(0, time.time())
    service.goes_on.clear()
    await publish_events(service.bus, run_id, 1, 1)
    await service.has(run_id)
    await service.stop()
    other = Counting(service.bus)
    await other.start()
    await other.has(run_id)
    await other.stop()
    assert service.runs == [run_id]


async def test_a_service_answers_requests_until_it_takes_no_more_messages(
    service: Counting,
) -> None:
    async def handle(request: Msg) -> None:
        await request.respond(request.data)

    await service.answer(subjects.control("*"), handle)
    asked = subjects.control("a-run")
    assert (await service.bus.request(asked, b"?", 10)).data == b"?"
    await service.stop_consuming()
    with pytest.raises(BusUnavailable, match="nobody answers"):
        await service.bus.request(asked, b"?", 10)


async def test_what_a_service_repeats_goes_on_although_the_bus_did_not_answer(
    service: Counting,
) -> None:
    calls: list[bool] = []

    async def work() -> None:
        calls.append(True)
        if len(calls) == 1:
            raise BusUnavailable("away")

    service.repeat("work", 0.01, work)
    await eventually(lambda: asyncio.sleep(0, len(calls) >= 3), 30, "three calls")
    await service.cancel("work")
