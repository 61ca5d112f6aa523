"""Fixtures: a server with the durable of the user `subscriber`, and a subscriber that runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.bus import Bus, Message, Stored, WorkQueue, subjects
from penstock.bus.admin import subscribers
from penstock.bus.admin.advisories import ADVISORIES, handler_of_advisories
from penstock.bus.admin.permissions import OPERATOR, SUBSCRIBER
from penstock.bus.state import deadletters
from penstock.bus.state.attempts import Attempts
from penstock.bus.streams import events_for
from penstock.contract.asyncapi import headers
from penstock.events import Event, parse
from penstock.subscribe import Limits, Nats, Start, Subscriber
from support.drive.bus import connected, new_run_id
from support.drive.waiting import eventually
from support.real.nats import NatsServer, login

QUICK = Limits(retry_delays_s=(0.05, 0.1), grace_s=5, look_s=0.2)


def event(run_id: str, sequence: int, type: str = "llm.tool_call", **data: Any) -> Event:
    """Return an event of a run; without `data`, a call of the tool `search`."""
    category, action = type.split(".")
    return parse(
        {
            "run_id": run_id,
            "timestamp": "2026-11-20T09:00:00.000Z",
            "sequence": sequence,
            "source": None,
            "event": {"category": category, "action": action},
            "data": data or {"tool_call_id": f"call-{sequence}", "tool": "search", "args": {}},
        }
    )


@dataclass(slots=True)
class System:
    """A NATS server with Penstock's streams, and the operator's connection."""

    server: NatsServer
    bus: Bus
    letters: list[str] = field(default_factory=list)

    async def publish(self, *events: Event) -> None:
        """Store events as the normalizer does, but without a fence."""
        for each in events:
            await self.store(each, each.dump())

    async def store(self, event: Event, payload: bytes) -> None:
        """Store a message under the event's subject, with any payload."""
        subject = subjects.event_input(event.type, event.run_id)
        await self.bus.publisher.publish(Message(subject, payload, headers(event)))

    async def pending(self, run_id: str = "", durable: str = SUBSCRIBER) -> int:
        """Return how many events are neither acknowledged nor given up."""
        info = await self.bus.api(f"CONSUMER.INFO.{events_for(run_id)}.{durable}")
        return int(info["num_pending"] + info["num_ack_pending"])

    async def settled(self, run_id: str = "", durable: str = SUBSCRIBER) -> None:
        """Wait until each event is acknowledged or given up."""

        async def nothing_left() -> bool:
            return await self.pending(run_id, durable) == 0

        await eventually(nothing_left, 30, "every event is acknowledged or given up")

    def nats(self, user: str = SUBSCRIBER) -> Nats:
        """Return the settings to connect as this user."""
        domain = None if user == OPERATOR else Nats().domain
        return Nats(url=self.server.url, domain=domain, **login(user))

    def subscriber(
        self,
        durable: str = SUBSCRIBER,
        *,
        limits: Limits = QUICK,
        user: str = SUBSCRIBER,
        start: Start | None = None,
    ) -> Subscriber:
        """Return a subscriber on this server."""
        return Subscriber(durable, self.nats(user), limits=limits, start=start)


@pytest.fixture
async def system(fresh_nats: NatsServer) -> AsyncIterator[System]:
    """Make the streams and the durable `subscriber`."""
    async with connected(fresh_nats.url) as bus:
        await subscribers.ensure(bus)
        yield System(fresh_nats, bus)


@asynccontextmanager
async def running(subscriber: Subscriber) -> AsyncIterator[Subscriber]:
    """Run a subscriber in this process."""
    await subscriber.broker.start()
    try:
        yield subscriber
    finally:
        await subscriber.broker.stop()


@asynccontextmanager
async def burying(bus: Bus) -> AsyncIterator[None]:
    """Make dead letters from the server's advisories, as a normalizer does."""

    async def store_dead_letter(service: str, stored: Stored, error: Exception) -> None:
        await deadletters.store_dead_letter(
            bus, deadletters.letter_about(service, "pod", stored, error)
        )

    async def never(stored: Stored, error: Exception) -> None:
        raise AssertionError(error)

    handle = handler_of_advisories(bus, store_dead_letter, never)
    attempts = Attempts(bus, "normalizer")
    queue = WorkQueue(bus, ADVISORIES, handle, give_up=never, attempts=attempts)
    task = asyncio.create_task(queue.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def came(found: list[Any], count: int) -> None:
    """Wait until the list has this many entries."""

    async def enough() -> bool:
        return len(found) >= count

    await eventually(enough, 30, f"{count} events")


@pytest.fixture
def run_id() -> str:
    return new_run_id()


Collect = Callable[[Any], None]
