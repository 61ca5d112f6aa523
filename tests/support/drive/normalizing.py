"""A normalizer over a real NATS server, and runs whose frames the test writes as a connector."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import uuid_utils
from prometheus_client import REGISTRY

from penstock.bus import (
    Bus,
    BusSettings,
    RawWriter,
    Stored,
    messages,
    streams,
    subjects,
)
from penstock.bus.read import direct
from penstock.service import Context, pod_name
from penstock.settings import Config
from penstock_normalizer.service import NormalizerService
from penstock_normalizer.settings import NormalizerSettings
from support.drive.bus import make_streams_once
from support.drive.waiting import eventually
from support.fakes.raw import agno, agno_approved, agno_pause
from support.real.nats import login

FAST: dict[str, Any] = {"partition_ttl_s": 2.0, "partition_renew_s": 0.3, "checkpoint_s": 0.1}


@asynccontextmanager
async def bus_to(url: str, **login: Any) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusSettings(url=url, **login))
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def normalizer(url: str, **settings: Any) -> AsyncIterator[NormalizerService]:
    await make_streams_once(url)
    keys = settings.get("content_keys", ())
    async with bus_to(url, content_keys=keys, **login("normalizer")) as bus:
        own = NormalizerSettings(nats_url=url, **{**FAST, **settings})
        service = NormalizerService(Context(Config(), own, bus, pod_name("normalizer")))
        await service.start()
        try:
            yield service
        finally:
            await service.stop()


class Run:
    """A run that a connector writes."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.run_id = str(uuid_utils.uuid7())
        self.writer = RawWriter(bus, self.run_id, "upstream", f"pod/{self.run_id}")
        self.leg = 1

    async def open(self, **facts: Any) -> None:
        opened = {"agent": "a", "protocol": "agno", "session_id": "s", "user_id": "u", **facts}
        await self.writer.write("open", orjson.dumps(opened), leg=self.leg)

    async def bytes(self, body: bytes) -> None:
        await self.writer.write("bytes", body, leg=self.leg)

    async def end(self) -> None:
        await self.writer.write("end", b'{"outcome":"eof"}', leg=self.leg)

    async def whole(self, *chunks: str) -> None:
        await self.open()
        await self.bytes(agno("RunStarted"))
        for chunk in chunks:
            await self.bytes(agno("RunContent", content=chunk))
        await self.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
        await self.end()

    async def events(self) -> list[Stored]:
        pattern = subjects.events_of_run(self.run_id)
        return [m async for m in direct.replay(self.bus, streams.events_for(self.run_id), pattern)]

    async def until(self, type_: str, timeout_s: float = 60) -> list[Stored]:
        async def found() -> list[Stored] | None:
            events = await self.events()
            return events if events and events[-1].headers["ce-type"] == type_ else None

        return await eventually(found, timeout_s, f"{type_} of {self.run_id}")


def check_order(events: list[Stored], chunks: list[str]) -> None:
    """Check that every sequence number occurs once, and every chunk is in its place."""
    numbers = [int(event.headers[messages.SEQUENCE]) for event in events]
    assert numbers == list(range(1, len(events) + 1))
    bodies = [orjson.loads(event.payload) for event in events]
    assert [body["sequence"] for body in bodies] == numbers
    said = [body["data"]["content"] for body in bodies if body["event"]["action"] == "stream"]
    assert said == chunks


async def paused(bus: Bus) -> tuple[Run, str]:
    """Make a paused run; return it with the id of its approval.

    The normalizer has stopped, so only the bus knows the run.
    """
    run = Run(bus)
    approvals = RawWriter(bus, run.run_id, "approvals", f"pod/{run.run_id}/a")
    async with normalizer(bus.settings.url):
        await run.open()
        await run.bytes(agno_pause())
        await run.end()
        asked = await run.until("approval.requested")
        approval_id: str = orjson.loads(asked[-1].payload)["data"]["approval_id"]
        said = {"type": "lifecycle.paused", "data": {"approval_id": approval_id}}
        await approvals.write("event", orjson.dumps(said), leg=1)
        await run.until("lifecycle.paused")
    run.leg = 2
    return run, approval_id


async def go_on(run: Run, approval_id: str) -> None:
    """Write the next leg of the run after an approval."""
    await run.open(approval_id=approval_id, items=[{"item_id": "t1", "decision": "approve"}])
    await run.bytes(agno_approved())
    await run.end()


async def raises(stored: Stored, error: Exception) -> None:
    raise AssertionError(error)


async def passed(bus: Bus, partition: int, sequence: int) -> int | None:
    entry = await bus.bucket("checkpoints").get(f"normalizer.{partition}")
    return int(entry.value) if entry is not None and int(entry.value) > sequence else None


async def are_blocked(count: int) -> bool:
    return REGISTRY.get_sample_value("penstock_runs_standing") == count
