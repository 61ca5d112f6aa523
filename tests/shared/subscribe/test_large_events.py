"""A subscriber gets events from the object store whole, and can read nothing else there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest

from penstock.bus.admin.permissions import SUBSCRIBER
from penstock.bus.messages import REFUSAL
from penstock.bus.subjects import large_event
from penstock.bus.write import objects
from penstock.events import Event
from penstock_edge.sources.large_events import LargeEvents
from penstock_edge.sources.sessions import RunRecords
from support.drive.bus import connected
from support.drive.dead_letters import the_letter
from support.real.nats import login

from .conftest import System, burying, came, event, running

LETTERS = "äöü" * 300_000  # 1.8 MB, so the event comes in four parts


@asynccontextmanager
async def answering(system: System) -> AsyncIterator[None]:
    """Answer requests for large events, as an edge does and with an edge's rights."""
    async with connected(system.server.url, **login("edge")) as bus:
        large_events = LargeEvents(bus, RunRecords(bus))
        await large_events.start()
        try:
            yield
        finally:
            await large_events.stop()


async def store_large(system: System, large: Event) -> bytes:
    """Store the event as the normalizer stores a large event; return the reference."""
    name = f"{large.run_id}.{large.sequence}"
    reference = await objects.wrap(system.bus, name, large.dump(), large.run_id)
    assert objects.is_reference(reference)
    await system.store(large, reference)
    return reference


async def test_a_large_event_is_given_to_the_handler_whole(system: System, run_id: str) -> None:
    subscriber = system.subscriber()
    seen: list[Event] = []

    @subscriber.on("llm.*")
    async def take(event: Event) -> None:
        seen.append(event)

    large = event(run_id, 1, "llm.stream", content=LETTERS, message_id="m1")
    await store_large(system, large)
    await system.publish(event(run_id, 2))
    async with answering(system), running(subscriber):
        await came(seen, 2)
        await system.settled()
    assert seen[0] == large
    assert seen[1].sequence == 2


async def test_a_large_event_waits_while_no_edge_answers(system: System, run_id: str) -> None:
    subscriber = system.subscriber()
    seen: list[Event] = []

    @subscriber.on("llm.*")
    async def take(event: Event) -> None:
        seen.append(event)

    await store_large(system, event(run_id, 1, "llm.stream", content=LETTERS, message_id="m1"))
    async with running(subscriber):
        await asyncio.sleep(1.5)
        assert seen == []
        async with answering(system):
            await came(seen, 1)
        await system.settled()


async def test_a_large_event_that_is_no_longer_stored_is_a_dead_letter(
    system: System, run_id: str
) -> None:
    subscriber = system.subscriber()

    @subscriber.on("llm.*")
    async def take(event: Event) -> None:
        raise AssertionError(event)

    await system.store(event(run_id, 1), objects.reference(f"{run_id}.1"))
    async with burying(system.bus), answering(system), running(subscriber):
        found = await the_letter(system.bus, "subscriber", run_id)
    assert f"the payload of {run_id}.1 is gone" in found.letter.reason


@pytest.mark.parametrize(
    ("subject", "answer"),
    [
        (large_event("{run}", "start", 0), "invalid"),  # a command is not an event
        (large_event("deadletter", "1", 0), "invalid"),
        (large_event("{run}", "-1", 0), "invalid"),
        (large_event("{run}", "7", 0), "gone"),
        (large_event("{run}", "7", "x"), "invalid"),
    ],
)
async def test_an_edge_sends_events_and_nothing_else(
    system: System, run_id: str, subject: str, answer: str
) -> None:
    await objects.wrap(system.bus, f"{run_id}.start", b"a command" * 100_000, run_id)
    async with answering(system):
        client = await nats.connect(system.server.url, **login(SUBSCRIBER))
        try:
            reply = await client.request(subject.replace("{run}", run_id), b"", timeout=5)
        finally:
            await client.close()
    assert (reply.data, (reply.headers or {})[REFUSAL]) == (b"", answer)
