"""A NATS server with the users of consuming.md, the EVENTS stream, and every example in it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from penstock.bus import Bus, BusSettings, Message
from penstock.contract.asyncapi import headers
from penstock.events import CATALOGUE, Event, parse, subject_of
from penstock.events.examples import example
from support.drive.contract import block
from support.real.nats import NatsServer

OPERATOR, READER = "operator", "reporting"
DURABLE = "reporting-audit-tools"
PASSWORDS = {
    "OPERATOR_NATS_PASSWORD": "of-the-operator",
    "REPORTING_NATS_PASSWORD": "of-the-reader",
}
# An event with a type and a field that did not exist when the reader was written.
FUTURE = parse(
    {
        **example("approval.decided").model_dump(mode="json", exclude_unset=True),
        "sequence": 99,
        "event": {"category": "approval", "action": "delegated"},
        "data": {"to": "grace"},
        "from_the_future": True,
    }
)


@dataclass(slots=True)
class Guarded:
    """The server's URL, and the operator's connection to the server."""

    url: str
    bus: Bus

    async def publish(self, event: Event) -> None:
        """Store one event as the normalizer does, but without a fence."""
        message = Message(subject_of(event), event.dump(), headers(event))
        await self.bus.publisher.publish(message)

    async def operate(self, script: str, **env: str) -> None:
        """Run one of the document's operator scripts to its end."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            script,
            env={**os.environ, "NATS_URL": self.url, **env},
        )
        assert await process.wait() == 0


@pytest.fixture
def guarded_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsServer]:
    """Run a server with the configuration of the document."""
    for name, password in PASSWORDS.items():
        # the configuration and the programs refer to these variables
        monkeypatch.setenv(name, password)
    config = block("Permissions", "conf")
    server = NatsServer(tmp_path / "nats", name="guarded nats", config=config, users=False)
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def guarded(guarded_server: NatsServer) -> AsyncIterator[Guarded]:
    """Create the streams and the durable consumer of the document."""
    settings = BusSettings(
        url=guarded_server.url, user=OPERATOR, password=PASSWORDS["OPERATOR_NATS_PASSWORD"]
    )
    bus = await Bus.connect(settings)
    server = Guarded(guarded_server.url, bus)
    await server.operate(block("The durable and its name", "python"))
    yield server
    await bus.close()


@pytest.fixture
async def stored(guarded: Guarded) -> list[Event]:
    """Store an example of every type, and then the event of a future version; return them."""
    events = [*map(example, CATALOGUE), FUTURE]
    for event in events:
        await guarded.publish(event)
    return events


@pytest.fixture
async def reader(guarded: Guarded) -> AsyncIterator[tuple[Client, list[str]]]:
    """Connect as the reader; yield the client and the errors that the server has sent to it."""
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    client = await nats.connect(
        guarded.url,
        user=READER,
        password=PASSWORDS["REPORTING_NATS_PASSWORD"],
        inbox_prefix=b"_INBOX_reporting",
        error_cb=on_error,
    )
    yield client, refused
    await client.close()
