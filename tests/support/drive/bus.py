"""A connected bus, and messages to put on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uuid_utils

from penstock.bus import Bus, BusSettings, Message, messages, subjects
from penstock.bus.streams import Retention


@asynccontextmanager
async def connected(url: str, **settings: Any) -> AsyncIterator[Bus]:
    """A bus of the test's own; `settings` as BusSettings has them."""
    bus = await Bus.connect(BusSettings(url=url, **settings))
    try:
        yield bus
    finally:
        await bus.close()


async def make_streams(url: str, replicas: int = 1) -> None:
    """What the operator does before services start, which may not do it themselves."""
    async with connected(url, retention=Retention(replicas=replicas)):
        pass


def new_run_id() -> str:
    """A run id as the edge makes them."""
    return str(uuid_utils.uuid7())


def event(run_id: str, sequence: int, payload: bytes = b"", type: str = "llm.stream") -> Message:
    """A canonical event as the normalizer publishes it."""
    return Message(
        subjects.event_input(type, run_id),
        payload or b"%d" % sequence,
        {messages.SEQUENCE: f"{sequence}"},
    )


async def publish_events(bus: Bus, run_id: str, first: int, last: int) -> list[int]:
    """Events `first` to `last` of a run; returns their stream sequences."""
    return [await bus.publisher.publish(event(run_id, number)) for number in range(first, last + 1)]
