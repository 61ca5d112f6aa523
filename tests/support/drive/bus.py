"""A connected bus, and messages to publish on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uuid_utils
from nats.aio.client import Client

from penstock.bus import Bus, BusSettings, Message, messages, subjects
from penstock.bus.streams import Retention
from support.drive.waiting import eventually
from support.real.nats import NatsServer


@asynccontextmanager
async def connected(url: str, **settings: Any) -> AsyncIterator[Bus]:
    """Connect a bus for the test; `settings` are fields of BusSettings."""
    bus = await Bus.connect(BusSettings(url=url, **settings))
    try:
        yield bus
    finally:
        await bus.close()


async def make_streams(url: str, replicas: int = 1) -> None:
    """Make the streams as the operator does before services start; services may not make them."""
    async with connected(url, retention=Retention(replicas=replicas)):
        pass


_with_streams: set[str] = set()  # the servers on which this process has made the streams


async def make_streams_once(url: str) -> None:
    """Make the streams, unless this process has made them on this server, which has them still."""
    if url not in _with_streams:
        await make_streams(url)
        _with_streams.add(url)


async def all_processed(client: Client) -> None:
    """Wait until the server has processed everything that a client of nats-py has sent before.

    One `flush` of nats-py 2.16 does not wait for that: its PING passes the commands that wait for
    the client's writing task. That task has written these commands when the first PONG arrives, so
    the second PING comes after them. (Penstock's own `Connection` needs only one `flush`.)
    """
    await client.flush()
    await client.flush()


async def server_stopped(nats: NatsServer, bus: Bus) -> None:
    """Stop the server, and wait until the bus has noticed.

    A request that is sent before would end as `OutcomeUnknown` when the connection is lost.
    """
    await asyncio.to_thread(nats.stop)

    async def noticed() -> bool:
        return not bus.is_ready

    await eventually(noticed, what="the lost connection")


def new_run_id() -> str:
    """Return a new run id of the edge's form."""
    return str(uuid_utils.uuid7())


def event(run_id: str, sequence: int, payload: bytes = b"", type: str = "llm.stream") -> Message:
    """Return a canonical event as the normalizer publishes it."""
    return Message(
        subjects.event_input(type, run_id),
        payload or b"%d" % sequence,
        {messages.SEQUENCE: f"{sequence}"},
    )


async def publish_events(bus: Bus, run_id: str, first: int, last: int) -> list[int]:
    """Publish the events `first` to `last` of a run; return their stream sequences."""
    return [await bus.publisher.publish(event(run_id, number)) for number in range(first, last + 1)]
